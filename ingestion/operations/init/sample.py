"""The last records of a topic, bounded: what somebody sees who has not read it yet."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple, cast

from confluent_kafka import Message

from oncelake.ingestion.declaration.names import hint
from oncelake.ingestion.errors import InvalidSpecError
from oncelake.ingestion.kafka.admin import Kafka
from oncelake.ingestion.kafka.client import headers_of, timestamp_micros_of
from oncelake.ingestion.kafka.offsets import Range, TopicPartition
from oncelake.ingestion.settings import Settings

# Of all partitions together; a value may have many megabytes.
MOST_BYTES: Final = 64 * 1024 * 1024


class SampledRecord(NamedTuple):
    """One record, undecoded; its time is in milliseconds."""

    partition: int
    offset: int
    timestamp_micros: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]

    @classmethod
    def of(cls, message: Message, *, with_headers: bool = True) -> SampledRecord:
        """Take over a message; to ask each for its headers costs as much as half its decoding."""
        return cls(
            cast("int", message.partition()),
            cast("int", message.offset()),
            timestamp_micros_of(message),
            message.key(),
            message.value(),
            headers_of(message) or () if with_headers else (),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class TopicSample:
    """The last records of a topic.

    Attributes:
        partitions: How many partitions the topic has.
        ranges: The offsets that they are of.
        records: What they hold, by partition and offset; never empty.
    """

    topic: str
    partitions: int
    ranges: tuple[Range, ...]
    records: tuple[SampledRecord, ...]


def read_sample(topic: str, limit: int, settings: Settings) -> TopicSample:
    """Read the last stable records of a topic, at most ``limit`` of all its partitions together.

    Raises:
        InvalidSpecError: there is no such topic, or it holds no record there.
        DependencyError: Kafka does not answer.
    """
    kafka = Kafka(settings)
    partitions = partitions_of(topic, kafka)
    asked = last_ranges(kafka, partitions, limit)
    read = [
        newest_records(kafka.messages_in([each]), each, MOST_BYTES // len(asked)) for each in asked
    ]
    ranges = tuple(each for each, _ in read)
    records = tuple(record for _, records in read for record in records)
    if not records:
        found = "the last offsets hold no committed record" if ranges else "it holds no record"
        raise InvalidSpecError(
            f"topic {topic!r} at {kafka.address}: {found}, so there is nothing to propose from. "
            "Next: run the same command once there are records"
            + (", or with a larger --sample" if ranges else "")
        )
    return TopicSample(topic=topic, partitions=len(partitions), ranges=ranges, records=records)


def last_ranges(kafka: Kafka, partitions: Sequence[TopicPartition], limit: int) -> list[Range]:
    """Return the last stable offsets, at most ``limit`` of all partitions together.

    Raises:
        DependencyError: Kafka does not answer.
    """
    first, end = kafka.earliest(partitions), kafka.stable_end(partitions)
    shares = _shares({at: end[at] - first[at] for at in partitions}, limit)
    return [
        Range(topic=at.topic, partition=at.partition, start=end[at] - share, end=end[at])
        for at, share in sorted(shares.items())
        if share
    ]


def partitions_of(topic: str, kafka: Kafka) -> list[TopicPartition]:
    """Return the partitions of a topic; raise ``InvalidSpecError`` where there is none."""
    partitions = [at for at in kafka.partitions() if at.topic == topic]
    if not partitions:
        meant = hint(topic, kafka.names()) or "."
        raise InvalidSpecError(
            f"topic {topic!r} does not exist at {kafka.address}, or may not be described{meant} "
            "Next: write the name of a topic that exists, or create it"
        )
    return partitions


def _shares(there: Mapping[TopicPartition, int], limit: int) -> dict[TopicPartition, int]:
    """Share the limit out evenly; what a short partition does not need goes to the others."""
    shares, left = {}, limit
    by_length = sorted(there, key=lambda at: (there[at], at))
    for at, others in zip(by_length, range(len(by_length), 0, -1), strict=True):
        shares[at] = min(there[at], -(-left // others))
        left -= shares[at]
    return shares


def newest_records(
    messages: Iterable[Message], asked: Range, most_bytes: int
) -> tuple[Range, Sequence[SampledRecord]]:
    """Return the last records of a range that fit into some bytes, and the offsets they are of."""
    records, size = deque[SampledRecord](), 0
    for message in messages:
        record = SampledRecord.of(message)
        records.append(record)
        size += _size(record)
        while size > most_bytes and len(records) > 1:
            size -= _size(records.popleft())
            asked = replace(asked, start=records[0].offset)
    return asked, records


def _size(record: SampledRecord) -> int:
    return len(record.key or b"") + len(record.value or b"")
