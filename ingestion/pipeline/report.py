"""The report of a run."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from oncelake.ingestion.declaration.aggregates import CLOCK
from oncelake.ingestion.declaration.names import nearest
from oncelake.ingestion.errors import counted
from oncelake.ingestion.kafka.offsets import Offsets, TopicPartition
from oncelake.ingestion.lake.ledger import LedgerRow
from oncelake.ingestion.tables.commit_metadata import CountedRange

if TYPE_CHECKING:
    from oncelake.ingestion.kafka.transactions import Stall


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchReport:
    """The batches of one stream that a command has committed, and those that it found.

    Attributes:
        batches: Ledger rows of the batches that it committed, by seq.
        recovered: Ledger rows that an earlier run lost in a crash, written now.
    """

    stream: str
    run_id: str
    batches: tuple[LedgerRow, ...] = ()
    recovered: tuple[LedgerRow, ...] = ()

    @property
    def is_balanced(self) -> bool:
        """Tell whether the books of every batch balance."""
        return not any(row.is_red for row in (*self.recovered, *self.batches))

    def total(self, count: str) -> int:
        """Add up one count over the batches that were committed."""
        return total_of(self.batches, count)


@dataclass(kw_only=True, slots=True)
class Traffic:
    """The bytes that batches moved.

    Attributes:
        read: Size of the values of the records read.
        written: Size of the data files written to the table; ``None`` where nothing tells.
    """

    read: int = 0
    written: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class RunReport(BatchReport):
    """The result of one run of one stream.

    Attributes:
        notices: What a person may want to know, one line each: a checkpoint that was discarded,
            what stood in for commits that have aged out, what an open transaction holds back.
        lag: Offsets in the topic, up to the last stable one, that the table has not reached.
        row_count: ``None`` where only reading all of the table would tell.
        stalls: Partitions that an open transaction has held back for long.
        engine: What committed, ``local`` or ``spark``; ``None`` when nothing was new.
        seconds: How long the run took, Spark's start included.
    """

    notices: tuple[str, ...]
    seq: int
    epoch: int
    next: Offsets
    lag: int
    delta_version: int
    row_count: int | None
    table: str
    stalls: tuple[Stall, ...] = ()
    engine: str | None = None
    seconds: float = 0.0
    sink: str = "delta"
    traffic: Traffic = field(default_factory=Traffic)

    def noticing(self, *notices: str) -> RunReport:
        """Return the report with more notices."""
        return replace(self, notices=(*self.notices, *notices))

    @property
    def ranges(self) -> tuple[CountedRange, ...]:
        """The ranges that the run read, one a partition."""
        return ranges_of(self.batches)


def total_of(rows: Iterable[LedgerRow], count: str) -> int:
    """Add up one count over batches; of a minimum clock, which counts nothing, take the last."""
    counted = [row.counts.get(count, 0) for row in rows]
    return max(counted, default=0) if count.startswith(CLOCK) else sum(counted)


# Counts of a batch: the rows of one in which a column is null in each, by the column, and the
# records that have an undeclared field, by its name.
ABSENT: Final = "absent."
UNDECLARED: Final = "extra_fields."


def absent_columns(rows: Iterable[LedgerRow]) -> tuple[str, ...]:
    """Say of each column that was null in all rows of a batch which field may be meant."""
    notices = {}
    for row in rows:
        undeclared = [
            name.removeprefix(UNDECLARED) for name in row.counts if name.startswith(UNDECLARED)
        ]
        for column in (name for name in row.counts if name.startswith(ABSENT)):
            name = column.removeprefix(ABSENT)
            field = nearest(name, undeclared) or undeclared[0]
            notices[name] = (
                f"column {name} is null in every row of batch {row.seq}, and "
                f"{counted(row.counts[UNDECLARED + field], 'record has', 'records have')} a field "
                f"{field} that is not declared. Next: if that is meant, correct `schema`; "
                "oncelake plan says what it changes"
            )
    return tuple(notices.values())


def ranges_of(rows: Iterable[LedgerRow]) -> tuple[CountedRange, ...]:
    """Return what batches read, by partition: one range where they follow one another.

    Ranges that do not follow one another stay apart, so that no hole, and no other epoch's
    offsets, are covered up.
    """
    read: dict[TopicPartition, list[CountedRange]] = {}
    for part in (each for row in rows for each in row.ranges if len(each.range)):
        of_partition = read.setdefault(part.range.topic_partition, [])
        if of_partition and part.range.follows(of_partition[-1].range):
            of_partition[-1] = _joined(of_partition[-1], part)
        else:
            of_partition.append(part)
    return tuple(part for at in sorted(read) for part in read[at])


def _joined(earlier: CountedRange, later: CountedRange) -> CountedRange:
    return CountedRange(
        range=replace(later.range, start=earlier.range.start),
        records=earlier.records + later.records,
        gaps=earlier.gaps + later.gaps,
    )
