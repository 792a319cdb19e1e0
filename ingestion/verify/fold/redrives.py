"""Records that were bad at their own batch, and good at a later one: what a redrive sent in.

The quarantine says which: a row that a redrive has marked is folded at that redrive, and not where
it was read. The topic still says what the record is, so a mark that is false, missing or of no
batch shows in the books, in the rows, or here.

A row without a mark, that another declaration or another version of the engine wrote, or a schema
registry that did not know the schema yet, may hold a record that is good today. It waits, and the
verdict says so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from deltalake import DeltaTable

from ingestion.declaration.spec import engine_version
from ingestion.verify.coverage import Coverage
from ingestion.verify.read.delta_log import Batch
from ingestion.verify.read.record import Record
from ingestion.verify.read.snapshot import rows_of
from ingestion.verify.read.spill import SpillStore, SpillTable
from ingestion.verify.verdict import Difference

_PLACE = ("_topic", "_partition", "_offset", "_seq")
_CLASSIFIED_BY = ("declaration", "engine_version")
_WHY = ("reason", "detail")
_MARK = "redriven_seq"


class QuarantineEntry(NamedTuple):
    """What the quarantine says of a record: the batch it was read in, and that it was sent in."""

    seq: int
    redriven_seq: int | None
    is_classified_today: bool


@dataclass(kw_only=True, slots=True)
class Partitioned:
    """Records of one batch.

    Attributes:
        classified: Those that today's declaration classifies.
        kept: Those that were bad for another one, and that wait in quarantine.
        redriven: Those that a later redrive has sent in.
    """

    classified: list[Record] = field(default_factory=list)
    kept: list[Record] = field(default_factory=list)
    redriven: list[Record] = field(default_factory=list)


class Redrives:
    """Knows what the quarantine keeps back, and yields it at its redrive."""

    def __init__(self, store: SpillStore, coverage: Coverage, *, declaration: str) -> None:
        """Begin with an empty quarantine; ``declaration`` is the fingerprint of today's."""
        self._entries: SpillTable[QuarantineEntry] = store.table("entries")
        self._redriven: SpillTable[Record] = store.table("redriven")
        self.coverage = coverage
        self._today = (declaration, engine_version())
        self._marks: Counter[int] = Counter()
        self._found: Counter[int] = Counter()
        self._good_today = 0
        self._is_empty = True

    def learn(self, quarantine: Path, *, last_seq: int) -> Iterator[Difference]:
        """Read the quarantine's marks, and name those of no redrive.

        Rows and marks after ``last_seq`` are leftovers of a dead attempt, which the next run
        removes.
        """
        if not DeltaTable.is_deltatable(str(quarantine)):
            return
        columns = {column.name for column in DeltaTable(quarantine).schema().fields}
        names = [*_PLACE, *(name for name in (_MARK, *_CLASSIFIED_BY, *_WHY) if name in columns)]
        for rows in rows_of(quarantine, None, names):
            entries = {}
            for row in (dict(zip(names, row, strict=True)) for row in rows if row[3] <= last_seq):
                mark = row.get(_MARK)
                mark = mark if mark is not None and mark <= last_seq else None
                if mark is not None and not self._is_redrive(mark, row["_seq"]):
                    yield _false_mark(row)
                    mark = None
                self._marks.update([mark] if mark is not None else [])
                if self.coverage.epoch_of(row["_seq"]) == self.coverage.epoch:
                    by_today = tuple(map(row.get, _CLASSIFIED_BY)) == self._today
                    by_today = by_today and not _lacked_a_schema(row)
                    entries[_name(row)] = QuarantineEntry(row["_seq"], mark, by_today)
            self._entries.put(entries)
            self._is_empty = self._is_empty and not entries

    def partition(self, records: Sequence[Record], seq: int) -> Partitioned:
        """Partition the records of a batch, and remember those that are folded later."""
        parts, later = Partitioned(), {}
        entries = {} if self._is_empty else self._entries.get(map(str, records))
        for record in records:
            entry = entries.get(str(record))
            if entry is None or entry.seq != seq:
                parts.classified.append(record)
            elif entry.redriven_seq is not None:
                parts.redriven.append(record)
                later[f"{entry.redriven_seq:020d} {record}"] = record
                self._found[entry.redriven_seq] += 1
            else:
                (parts.classified if entry.is_classified_today else parts.kept).append(record)
        self._redriven.put(later)
        return parts

    def add_good_today(self, records: int) -> None:
        """Count records in quarantine that are good today."""
        self._good_today += records

    def of(self, batch: Batch) -> Iterator[list[Record]]:
        """Yield the records that a redrive sent in, as far as the topic still has them."""
        for chunk in self._redriven.chunks_of(f"{batch.seq:020d} "):
            yield list(chunk.values())

    def can_recount(self, batch: Batch) -> bool:
        """Tell whether the topic still has every record that the quarantine says was sent in."""
        return self._found[batch.seq] == self._marks[batch.seq]

    def limits(self) -> Iterator[str]:
        """Say what could not be proven, a sentence each."""
        for seq, marks in sorted(self._marks.items()):
            if gone := marks - self._found[seq]:
                yield (
                    f"batch {seq} redrove {gone:,} records that Kafka no longer holds, so its "
                    "counts were not recounted"
                )
        if self._good_today:
            yield (
                f"{self._good_today:,} records in quarantine were bad for another declaration or "
                "engine, or without their schema, and are good today; oncelake redrive sends them "
                "in"
            )

    def _is_redrive(self, mark: int, seq: int) -> bool:
        batch = self.coverage.batches.get(mark)
        return batch is not None and batch.kind == "redrive" and mark > seq


def _name(row: dict[str, Any]) -> str:
    return str(Record(row["_topic"], row["_partition"], row["_offset"], 0, None, None))


def _lacked_a_schema(row: dict[str, Any]) -> bool:
    """Tell a record whose schema id was unknown: a registry learns; so may it be of a key."""
    return "unknown_schema_id" in (row.get("reason"), str(row.get("detail")).partition(":")[0])


def _false_mark(row: dict[str, Any]) -> Difference:
    what = f"is marked as redriven by batch {row[_MARK]}, which is no later redrive"
    return Difference("quarantine", what, *(row[name] for name in _PLACE[:3]), seq=row["_seq"])
