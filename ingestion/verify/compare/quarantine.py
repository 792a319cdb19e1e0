"""Whether the quarantine holds exactly the records that cannot be applied, raw."""

from __future__ import annotations

import datetime as dt
import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

from oncelake.ingestion.verify.coverage import Coverage
from oncelake.ingestion.verify.read.record import Record, text_of
from oncelake.ingestion.verify.read.spill import SpillTable
from oncelake.ingestion.verify.verdict import Difference, shown

COLUMNS = ("_topic", "_partition", "_offset", "_timestamp", "_seq", "key", "value", "removed")
# The batch that has sent a record in.
MARK = "redriven_seq"

_wrong = partial(Difference, "quarantine")


class BadRecord(NamedTuple):
    """A record that belongs in quarantine; key and value are fingerprints.

    Where these were removed from the table on purpose, it ``is_bare``.
    """

    topic: str
    partition: int
    offset: int
    sent: dt.datetime
    seq: int
    key: str
    value: str
    reason: str
    is_bare: bool = False


def as_bad(record: Record, reason: str, seq: int) -> tuple[str, BadRecord]:
    """Return what is kept of a bad record, by its place."""
    raw = (_fingerprint(record.key), _fingerprint(record.value))
    return str(record), BadRecord(*record[:3], record.sent, seq, *raw, reason)


def misplaced(
    chunks: Iterable[Sequence[Sequence[Any]]],
    expected: SpillTable[BadRecord],
    coverage: Coverage,
    *,
    bare: Counter[int],
) -> Iterator[Difference]:
    """Compare the quarantine's rows, by ``COLUMNS``, with the records that belong there.

    Args:
        chunks: The rows.
        expected: What belongs there.
        coverage: What is proven.
        bare: Counts the rows without key and value, by their batch.
    """
    for rows in chunks:
        found = list(map(_bad_record, rows))
        bare.update(bad.seq for bad in found if bad.is_bare)
        names = [_name(bad, coverage) for bad in found]
        met, known = expected.find(set(names)), expected.get(names)
        for name, bad in zip(names, found, strict=True):
            if name in met:
                yield _wrong("is in quarantine more than once", *bad[:3], seq=bad.seq)
            elif not coverage.is_accepted(bad.seq):
                yield from _compared(bad, known.get(name), coverage)
            met.add(name)
    for missing in expected.chunks(unfound=True):
        for bad in missing.values():
            if not coverage.is_accepted(bad.seq):
                what = f"belongs in quarantine ({bad.reason}), and is not there"
                yield _wrong(what, *bad[:3], seq=bad.seq, expected=bad.value)


class Seen:
    """Rows of a quarantine, by ``COLUMNS`` and ``MARK``; some an earlier proof has compared.

    Attributes:
        earlier: A digest of the rows through a batch, in any order.
        all: Likewise, of all rows.
    """

    def __init__(self, chunks: Iterable[Sequence[Sequence[Any]]], *, through: int) -> None:
        self._chunks, self._through = chunks, through
        self.earlier = self.all = 0

    def later(self) -> Iterator[list[Sequence[Any]]]:
        """Yield the rows of later batches by ``COLUMNS``, all of them, once."""
        for rows in self._chunks:
            later: list[Sequence[Any]] = []
            for *row, mark in rows:
                text = text_of((*_bad_record(row), mark)).encode()
                digest = int.from_bytes(hashlib.sha256(text).digest()[:8])
                self.all = (self.all + digest) % 2**64
                if row[4] > self._through:
                    later.append(row)
                else:
                    self.earlier = (self.earlier + digest) % 2**64
            yield later


def _bad_record(row: Sequence[Any]) -> BadRecord:
    topic, partition, offset, sent, seq, key, value, removed = row
    bad = as_bad(Record(topic, partition, offset, 0, key, value), "", seq)[1]
    return bad._replace(sent=sent, is_bare=bool(removed))


def _name(bad: BadRecord, coverage: Coverage) -> str:
    """Name a record's place, with its epoch where the topic was another."""
    epoch, record = coverage.epoch_of(bad.seq), Record(*bad[:3], 0, key=None, value=None)
    return str(record) if epoch == coverage.epoch else f"{record} of epoch {epoch}"


def _compared(found: BadRecord, due: BadRecord | None, coverage: Coverage) -> Iterator[Difference]:
    wrong = partial(_wrong, seq=found.seq)
    if due is not None:
        raw = () if found.is_bare else ("key", "value")
        for name in (*raw, "seq", "sent"):
            expected, is_ = str(getattr(due, name)), str(getattr(found, name))
            if expected != is_:
                column = {"seq": "_seq", "sent": "_timestamp"}.get(name, name)
                what = f"its {column} in quarantine is not the record's"
                yield wrong(what, *found[:3], expected=expected, found=is_)
        return
    place = (coverage.epoch_of(found.seq), *found[:3], 0)
    if coverage.covers_record(place, found.seq):
        what = "is in quarantine, and the topic has no bad record there"
        yield wrong(what, *found[:3], found=found.value)
    elif not coverage.has_read(place, found.seq):
        yield wrong("is in quarantine, and no batch has read it", *found[:3])


def _fingerprint(raw: bytes | None) -> str:
    """Write bytes shortly and distinctly: all of them, or their beginning and a digest."""
    if raw is None or len(raw) <= 60:
        return shown(raw)
    return f"{raw[:40]!r}… ({len(raw)} bytes, {hashlib.sha256(raw).hexdigest()[:16]})"
