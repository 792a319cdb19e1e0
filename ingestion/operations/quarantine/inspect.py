"""The content of a stream's quarantine, for a person or a program: groups, places, a few samples.

Read by delta-rs, without Spark and without Kafka. Raw bytes are somebody else's: whatever a
terminal could take for a command, or a person for something else, is written as an escape.
"""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial, reduce
from operator import and_, or_
from typing import Any, Final, TypeAlias

import pyarrow.compute as pc

from oncelake.ingestion.declaration.messages import printable
from oncelake.ingestion.delta.integrity import translate_read_errors
from oncelake.ingestion.lake.paths import StreamPaths
from oncelake.ingestion.recovery.heal import known_rows, projected_rows
from oncelake.ingestion.recovery.side_tables import quarantined, read_side_tables, refuse_incomplete
from oncelake.ingestion.recovery.snapshot import read_snapshot

_COORDINATES: Final = ("_topic", "_partition", "_offset", "_timestamp", "_seq")
_RAW: Final = ("key", "value", "headers", "reason", "detail")
# A detail may quote its record, so that a million of them are all different.
_MOST_DETAILS: Final = 10_000
_LATER: Final = ("schema_id", "engine_version", "run_id")
Scan: TypeAlias = Callable[..., Iterator[dict[str, Any]]]


@dataclass(frozen=True, order=True, kw_only=True, slots=True)
class QuarantinedRecord:
    """Where and when a record was, in the order of Kafka's time."""

    timestamp: dt.datetime
    topic: str
    partition: int
    offset: int
    seq: int

    def __str__(self) -> str:
        """Write it as people name a record."""
        return f"{self.topic}-{self.partition} offset {self.offset}"


@dataclass(kw_only=True, slots=True)
class Group:
    """The records of one reason that wait, by Kafka's time; the earliest few are to be shown.

    Attributes:
        details: How many records have each detail; of too many different ones, only the first.
    """

    reason: str
    first: QuarantinedRecord
    last: QuarantinedRecord
    count: int = 0
    earliest: list[QuarantinedRecord] = field(default_factory=list)
    details: Counter[str] = field(default_factory=Counter)

    def add(self, record: QuarantinedRecord, detail: str, limit: int) -> None:
        """Take one more record, and keep it while it is among the first few."""
        self.count += 1
        if detail in self.details or len(self.details) < _MOST_DETAILS:
            self.details[detail] += 1
        self.first, self.last = min(self.first, record), max(self.last, record)
        if len(self.earliest) < limit or (limit and record < self.earliest[-1]):
            self.earliest = sorted([*self.earliest, record])[:limit]


@dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    """One quarantined record, as it is in the table."""

    record: QuarantinedRecord
    row: Mapping[str, Any]

    @property
    def headers(self) -> str:
        """The record's headers, safe to be printed."""
        headers = self.row["headers"] or ()
        return ", ".join(f"{printable(it['key'])}={printable(it['value'])}" for it in headers)


@dataclass(frozen=True, kw_only=True, slots=True)
class Inspection:
    """The content of a quarantine, the largest group of what waits first.

    Attributes:
        samples: The first few of each group.
        redriven: Records that were sent in again, by the batch that did it.
        removed: Records of which only place and reason are left.
    """

    groups: tuple[Group, ...]
    samples: tuple[Sample, ...]
    redriven: Mapping[int, int]
    removed: int = 0

    @property
    def waiting(self) -> int:
        """How many records wait."""
        return sum(group.count for group in self.groups)


def inspect(
    stream: str, paths: StreamPaths, *, reason: str | None = None, limit: int = 3
) -> Inspection:
    """Read a stream's quarantine, with as many samples of each group as the limit says.

    Raises:
        DamagedTableError: a file of it, or the table's log, is missing, or not as it was written.
        SideTableIncompleteError: it is gone, or lacks records that a batch wrote there.
    """
    with paths.table.translate_read_errors():
        snapshot = read_snapshot(paths)
    ledger = snapshot.ledger.rows
    of_newest = [row for row in ledger if row.table_id == ledger[-1].table_id]
    rows = projected_rows(snapshot, known_rows(snapshot)) if snapshot.table else of_newest
    refuse_incomplete(read_side_tables(paths, rows)["quarantine"])
    with translate_read_errors(paths.quarantine):
        return inspect_rows(partial(quarantined, snapshot), reason=reason, limit=limit)


def inspect_rows(
    scan: Scan, *, limit: int, reason: str | None = None, only: pc.Expression | None = None
) -> Inspection:
    """Group what waits of some records, as a scan of the quarantine yields them."""
    groups: dict[str, Group] = {}
    redriven: Counter[int] = Counter()
    removed = 0
    for row in scan((*_COORDINATES, "reason", "detail", "redriven_seq", "removed"), only=only):
        if reason is not None and row["reason"] != reason:
            continue
        if (mark := row["redriven_seq"]) is not None:
            redriven[mark] += 1
        elif row.get("removed"):
            removed += 1
        else:
            at, why = _record_of(row), row["reason"] or ""
            group = groups.setdefault(why, Group(reason=why, first=at, last=at))
            group.add(at, row.get("detail") or "", limit)
    ordered = sorted(groups.values(), key=lambda group: (-group.count, group.reason))
    return Inspection(
        groups=tuple(ordered),
        samples=tuple(_samples(scan, [at for group in ordered for at in group.earliest])),
        redriven=dict(sorted(redriven.items())),
        removed=removed,
    )


def _samples(scan: Scan, places: Sequence[QuarantinedRecord]) -> Iterator[Sample]:
    """Read the raw bytes of a few records only: a value may have a megabyte."""
    if not places:
        return
    rows = scan((*_COORDINATES, *_RAW, *_LATER), only=reduce(or_, map(_is_at, places)))
    by_place = {_record_of(row): row for row in rows}
    yield from (Sample(record=at, row=by_place[at]) for at in places if at in by_place)


def _is_at(at: QuarantinedRecord) -> pc.Expression:
    """Compare numbers alone: Arrow cannot compare text that delta-rs has copied (arrow#49368)."""
    names = ("seq", "partition", "offset")
    return reduce(and_, (pc.field(f"_{name}") == getattr(at, name) for name in names))


def _record_of(row: Mapping[str, Any]) -> QuarantinedRecord:
    return QuarantinedRecord(**{name.removeprefix("_"): row[name] for name in _COORDINATES})
