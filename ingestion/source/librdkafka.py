"""Kafka as Arrow tables, read in the process of the run: neither Spark nor Java is needed.

A batch is a share of what every partition holds, as Spark's source plans it, and lies in memory as
a whole. Its gaps are proven by another consumer, as those of Spark's batches are.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from typing import Final, NoReturn, cast

import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import Message
from confluent_kafka import TopicPartition as ClientTopicPartition

from oncelake.ingestion.declaration.spec import StreamSpec
from oncelake.ingestion.delta.files import open_rows
from oncelake.ingestion.errors import InvalidSpecError
from oncelake.ingestion.kafka.admin import RecordReader
from oncelake.ingestion.kafka.client import headers_of, timestamp_micros_of
from oncelake.ingestion.kafka.last_record import digest_of
from oncelake.ingestion.kafka.offsets import Range, TopicPartition, cut
from oncelake.ingestion.lake.quarantine import WAITS_IN_ARROW
from oncelake.ingestion.modes.engines.rows import RECORDS
from oncelake.ingestion.settings import Settings, variable
from oncelake.ingestion.storage.failpoints import Failpoint, hit
from oncelake.ingestion.storage.location import Location

_AT_ONCE: Final = 10_000


class WithoutSpark:
    """Stands for the session of a run that needs none; ``refuse_spark`` has made sure of that."""

    def __getattr__(self, name: str) -> NoReturn:
        """Refuse whatever Spark is asked for."""
        raise AssertionError(f"spark.{name} is asked for in a run without Spark")


def refuse_spark(spec: StreamSpec, *, by: str | None) -> None:
    """Make sure that nothing of a stream needs Spark.

    Args:
        by: What makes Spark merge, if anything does.

    Raises:
        InvalidSpecError: something does; names it.
    """
    declared = {
        "apply_as_deletes": spec.apply_as_deletes,
        "where": spec.where,
        "select": spec.select,
        "transform": spec.transform,
        "value_schema": spec.value_ddl,
        "expect": spec.expect,
        "expectations": spec.publish.is_checked and spec.expectations,
    }
    found = [f"`{name}`" for name, is_there in declared.items() if is_there]
    if why := by or (f"Spark evaluates {', '.join(found)}" if found else None):
        name = variable("reader")
        raise InvalidSpecError(
            f"{spec.name}: {name}=librdkafka runs without Spark, and {why}. Next: {name}=spark for "
            "this stream"
        )


def drain(
    settings: Settings,
    ranges: Sequence[Range],
    each_batch: Callable[[pa.Table, Sequence[Range]], None],
    *,
    limit: int,
    stop: threading.Event,
) -> None:
    """Read ranges, batch by batch, until their end or until ``stop`` is set.

    Args:
        ranges: One a partition.
        each_batch: Called with the records of each batch, and its ranges.
        limit: How many offsets a batch has, about.
        stop: Set by another thread to end it; a batch that is being read is not handed on.

    Raises:
        DependencyError: Kafka does not answer.
    """
    hit(Failpoint.QUERY_STARTED)
    reader = RecordReader(settings)
    with closing(reader.consumer):
        for part in cut(ranges, limit):
            records = _read(reader, part, stop)
            if stop.is_set():
                return
            each_batch(records, part)
    hit(Failpoint.QUERY_ENDED)


def read_ranges(settings: Settings, ranges: Sequence[Range]) -> pa.Table:
    """Return the committed records of ranges, of partitions that differ.

    Raises:
        DependencyError: Kafka does not answer.
    """
    reader = RecordReader(settings)
    with closing(reader.consumer):
        return _read(reader, ranges, threading.Event())


def read_waiting(quarantine: Location, version: int, reason: str | None) -> pa.Table:
    """Return the records that no redrive has sent in yet, with ``_seq``; of a reason, if any."""
    rows = open_rows(quarantine, version).to_table(filter=WAITS_IN_ARROW)
    if reason is not None:
        rows = rows.filter(pc.field("reason") == reason)
    columns = {name: rows[name] for name in ("_topic", "_partition", "_offset", "_timestamp")}
    columns |= {f"_{name}": rows[name] for name in ("key", "value", "headers")}
    # No offset moves, so no record is the last that was read.
    columns["_digest"] = pa.nulls(len(rows), pa.int64())
    return pa.table(columns).cast(RECORDS).append_column("_seq", rows["_seq"])


def _read(reader: RecordReader, ranges: Sequence[Range], stop: threading.Event) -> pa.Table:
    """Return the committed records of ranges, one a partition."""
    wanted = {each.topic_partition: each for each in ranges if len(each)}
    reader.consumer.assign([ClientTopicPartition(*at, of.start) for at, of in wanted.items()])
    left = {at: of.end for at, of in wanted.items()}
    parts: list[pa.Table] = []
    while left and not stop.is_set():
        messages = reader.poll_many(_AT_ONCE)
        parts.append(_records([each for each in messages if _is_within(each, left)]))
        for at, offset in {_at(each): _next_offset(each) for each in messages}.items():
            if at in left and offset >= left[at]:
                del left[at]
                reader.consumer.incremental_unassign([ClientTopicPartition(*at)])
    return pa.concat_tables([RECORDS.empty_table(), *parts])


def _next_offset(message: Message) -> int:
    """Return the offset behind a record, or where its partition ends for now.

    Behind the last record of a range may be markers of transactions, up to its end. A new leader
    may know of less than that, until it has heard of its followers.
    """
    offset = cast("int", message.offset())
    return offset if message.error() is not None else offset + 1


def _at(message: Message) -> TopicPartition:
    return TopicPartition(cast("str", message.topic()), cast("int", message.partition()))


def _is_within(message: Message, ends: Mapping[TopicPartition, int]) -> bool:
    return message.error() is None and cast("int", message.offset()) < ends.get(_at(message), 0)


def _records(messages: Sequence[Message]) -> pa.Table:
    headers = list(map(_headers, messages))
    keys, values = ([read(each) for each in messages] for read in (Message.key, Message.value))
    columns = (
        [each.topic() for each in messages],
        [each.partition() for each in messages],
        [each.offset() for each in messages],
        [timestamp_micros_of(each) for each in messages],
        keys,
        values,
        [[{"key": n, "value": v} for n, v in each] or None for each in headers],
        list(map(digest_of, keys, values, headers)),
    )
    arrays = (pa.array(each, of.type) for each, of in zip(columns, RECORDS, strict=True))
    return pa.Table.from_arrays(list(arrays), schema=RECORDS)


def _headers(message: Message) -> tuple[tuple[str, bytes | None], ...]:
    """Return a record's headers.

    Raises:
        InvalidSpecError: the client cannot read them; to leave them out would be a loss.
    """
    headers, name = headers_of(message), variable("reader")
    if headers is None:
        raise InvalidSpecError(
            f"{_at(message)} offset {message.offset()}: the name of a header is not UTF-8, and "
            f"librdkafka's client cannot read it. Next: {name}=spark for this stream"
        )
    return headers
