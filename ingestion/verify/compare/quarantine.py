"""Whether the quarantine holds exactly the records that cannot be applied, raw."""

from __future__ import annotations

import datetime as dt
import hashlib
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

from ingestion.verify.coverage import Coverage
from ingestion.verify.read.record import EPOCH, Record
from ingestion.verify.read.spill import SpillTable
from ingestion.verify.verdict import Difference, shown

COLUMNS = ("_topic", "_partition", "_offset", "_timestamp", "_seq", "key", "value")

_wrong = partial(Difference, "quarantine")


class BadRecord(NamedTuple):
    """A record that belongs in quarantine; key and value are fingerprints."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    seq: int
    key: str
    value: str
    reason: str


def as_bad(record: Record, reason: str, seq: int) -> tuple[str, BadRecord]:
    """Return what is kept of a bad record, by its place."""
    bad = BadRecord(*record[:4], seq, _fingerprint(record.key), _fingerprint(record.value), reason)
    return str(record), bad


def misplaced(
    chunks: Iterable[Sequence[Sequence[Any]]],
    expected: SpillTable[BadRecord],
    coverage: Coverage,
    *,
    last_seq: int,
) -> Iterator[Difference]:
    """Compare the quarantine's rows, by ``COLUMNS``, with the records that belong there.

    Rows after ``last_seq`` are leftovers of a dead attempt, which the next run removes.
    """
    for rows in chunks:
        named = [(_name(row, coverage), row) for row in rows if row[4] <= last_seq]
        names = {name for name, _ in named}
        met, known = expected.find(names), expected.get(names)
        for name, row in named:
            if name in met:
                yield _wrong("is in quarantine more than once", *row[:3], seq=row[4])
            else:
                yield from _compared(row, known.get(name), coverage)
            met.add(name)
    for missing in expected.chunks(unfound=True):
        for bad in missing.values():
            if not coverage.is_accepted(bad.seq):
                what = f"belongs in quarantine ({bad.reason}), and is not there"
                yield _wrong(what, *bad[:3], seq=bad.seq, expected=bad.value)


def _name(row: Sequence[Any], coverage: Coverage) -> str:
    """Name a record's place, with its epoch where the topic was another."""
    epoch = coverage.epoch_of(row[4])
    return f"{_record(row)}" + (f" of epoch {epoch}" if epoch != coverage.epoch else "")


def _compared(
    row: Sequence[Any], bad: BadRecord | None, coverage: Coverage
) -> Iterator[Difference]:
    record, seq = _record(row), row[4]
    if coverage.is_accepted(seq):
        return
    if bad is None:
        yield from _unexpected(record, seq, coverage)
        return
    pairs = {
        "key": (bad.key, _fingerprint(record.key)),
        "value": (bad.value, _fingerprint(record.value)),
        "_seq": (str(bad.seq), str(seq)),
        "_timestamp": (str(bad.timestamp_ms), str(record.timestamp_ms)),
    }
    for name, (expected, found) in pairs.items():
        if expected != found:
            what = f"its {name} in quarantine is not the record's"
            yield _wrong(what, *record[:3], seq=seq, expected=expected, found=found)


def _unexpected(record: Record, seq: int, coverage: Coverage) -> Iterator[Difference]:
    place = (coverage.epoch_of(seq), *record[:3], 0)
    if coverage.covers_record(place, seq):
        what = "is in quarantine, and the topic has no bad record there"
        yield _wrong(what, *record[:3], seq=seq, found=_fingerprint(record.value))
    elif not coverage.has_read(place, seq):
        yield _wrong("is in quarantine, and no batch has read it", *record[:3], seq=seq)


def _record(row: Sequence[Any]) -> Record:
    topic, partition, offset, timestamp, _, key, value = row
    timestamp_ms = (timestamp - EPOCH) // dt.timedelta(milliseconds=1)
    return Record(topic, partition, offset, timestamp_ms, key, value)


def _fingerprint(raw: bytes | None) -> str:
    """Write bytes shortly and distinctly: all of them, or their beginning and a digest."""
    if raw is None or len(raw) <= 60:
        return shown(raw)
    return f"{raw[:40]!r}… ({len(raw)} bytes, {hashlib.sha256(raw).hexdigest()[:16]})"
