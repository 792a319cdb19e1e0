"""Whether the topic that is read again is the log that the batches have read; pure.

A log that lost its end and grew again differs from its table in every row behind the cut; that is
one cause, and is reported once.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Iterator
from typing import Final

import xxhash

from oncelake.ingestion.errors import TopicTruncatedError
from oncelake.ingestion.verify.read.record import EPOCH, Record
from oncelake.ingestion.verify.read.snapshot import Batch, LastRead

_SPARKS_SEED: Final = 42
_SIGN: Final = 1 << 63
_MILLISECOND: Final = dt.timedelta(milliseconds=1)


def refuse_another_log(
    stream: str, batch: Batch, chunks: Iterable[list[Record]]
) -> Iterator[list[Record]]:
    """Yield a batch's records, each chunk of one partition, if they are those that it read.

    Raises:
        TopicTruncatedError: where it read its last record of a partition, there is another one.
    """
    for records in chunks:
        read = batch.last.get(records[0].at)
        for record in records if read else ():
            if read is None or record.offset != read.offset or _is_same(record, read):
                continue
            then = _moment(EPOCH + read.timestamp_ms * _MILLISECOND)
            raise TopicTruncatedError(
                stream,
                f"{record.at}: batch {batch.seq} read a record of {then} at offset {read.offset}, "
                f"and Kafka has one of {_moment(record.sent)} there: the log lost its end, with "
                "records that the table holds, and grew again.",
                remedy=f"oncelake rebuild {stream} makes the table again of what Kafka holds now; "
                f"or oncelake adopt-topic {stream} --yes, or oncelake accept {stream} --reason "
                "'…', which keep rows of records that Kafka lost",
            )
        yield records


def _is_same(record: Record, read: LastRead) -> bool:
    if (record.sent - EPOCH) // _MILLISECOND != read.timestamp_ms:
        return False
    return record.headers is None or _digest(record) == read.digest


def _digest(record: Record) -> int:
    """Hash as Spark does: each part with the hash of those before it as its seed."""
    parts = [record.key, record.value]
    for name, value in record.headers or ():
        parts += [name.encode(), value]
    unsigned = _SPARKS_SEED
    for part in (each for each in parts if each is not None):
        unsigned = xxhash.xxh64(part, seed=unsigned).intdigest()
    return (unsigned ^ _SIGN) - _SIGN


def _moment(sent: dt.datetime) -> str:
    return sent.isoformat(timespec="milliseconds").replace("+00:00", "Z")
