"""The last record read of a partition, by which its log is recognised.

A log may lose its end and grow again, past the offset that was read: by an unclean election, a disk
that was put back, a mirror that was reset. Its topic keeps its id, and no offset shows it. What
shows it is the record itself: its timestamp, and a digest of its key, value and headers.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping
from dataclasses import astuple, dataclass

import xxhash
from confluent_kafka import Message

from oncelake.ingestion.kafka.client import headers_of, timestamp_micros_of
from oncelake.ingestion.kafka.offsets import TopicPartition

# Spark's seed, and of what is null: nothing.
_SEED = 42
_UNKNOWN_EPOCH = -1

LastRecords = Mapping[TopicPartition, "LastRecord"]


@dataclass(frozen=True, kw_only=True, slots=True)
class LastRecord:
    """The last record that was read of a partition.

    Attributes:
        timestamp_ms: As a column has it.
        leader_epoch: The partition's, when the record had been read; -1 where Kafka reports none.
        digest: Of key, value and headers, as Spark's ``xxhash64`` has it.
    """

    offset: int
    timestamp_ms: int
    leader_epoch: int
    digest: int

    def __str__(self) -> str:
        """Say where it lies, and of when it is."""
        return f"offset {self.offset} ({moment(self.timestamp_ms)})"

    def is_at(self, message: Message) -> bool | None:
        """Tell whether a record at its offset is this one; ``None`` if that is unknown."""
        if timestamp_micros_of(message) // 1_000 != self.timestamp_ms:
            return False
        headers = headers_of(message)
        if headers is None:
            return None
        return digest_of(message.key(), message.value(), headers) == self.digest


def digest_of(
    key: bytes | None, value: bytes | None, headers: Iterable[tuple[str, bytes | None]]
) -> int:
    """Return what Spark's ``xxhash64(key, value, headers)`` returns: a signed integer of 64 bits.

    Each part is hashed with the hash of those before it as its seed, and a null is passed over.
    """
    digest = _SEED
    of_headers = (part for name, content in headers for part in (name.encode(), content))
    for part in (key, value, *of_headers):
        if part is not None:
            digest = xxhash.xxh64_intdigest(part, digest)
    return digest - (1 << 64) if digest >> 63 else digest


def moment(timestamp_ms: int) -> str:
    """Write a Kafka timestamp for people."""
    at = dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(milliseconds=timestamp_ms)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def rows_of(records: LastRecords) -> dict[str, dict[str, list[int]]]:
    """Write them as JSON holds them: by topic and partition, the fields in their order."""
    rows: dict[str, dict[str, list[int]]] = {}
    for (topic, partition), record in sorted(records.items()):
        rows.setdefault(topic, {})[str(partition)] = list(astuple(record))
    return rows


def of_rows(rows: Mapping[str, Mapping[str, list[int]]]) -> dict[TopicPartition, LastRecord]:
    """Read what ``rows_of`` wrote."""
    names = LastRecord.__slots__
    # A newer version of the same format may say more.
    return {
        TopicPartition(topic, int(partition)): LastRecord(**dict(zip(names, row, strict=False)))
        for topic, of_topic in rows.items()
        for partition, row in of_topic.items()
    }
