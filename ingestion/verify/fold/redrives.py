"""Records that were bad at their own batch, and good at a later one: what a redrive sent in.

The quarantine says which: a row that a redrive has marked is folded at that redrive, and not where
it was read. The topic still says what the record is, so a mark that is false, missing or of no
batch shows in the books, in the rows, or here.

A row without a mark, that another declaration or another version of the engine wrote, or a schema
registry that did not know the schema yet, may hold a record that is good today. It waits, and that
is said.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from deltalake import DeltaTable

from ingestion.declaration.fingerprint import engine_version
from ingestion.verify.coverage import Coverage
from ingestion.verify.difference import Difference
from ingestion.verify.read.delta_log import Batch
from ingestion.verify.read.record import Record
from ingestion.verify.read.snapshot import rows_of
from ingestion.verify.read.spill import SpillStore, SpillTable

_PLACE = ("_topic", "_partition", "_offset", "_seq")
_JUDGED_BY = ("declaration", "engine_version")
_WHY = ("reason", "detail")
_MARK = "redriven_seq"


class QuarantineEntry(NamedTuple):
    """What the quarantine says of a record: the batch it was read in, and that it was sent in."""

    seq: int
    redriven: int | None
    by_today: bool


@dataclass(kw_only=True, slots=True)
class Partitioned:
    """Records of one batch.

    Attributes:
        judged: Those that today's declaration judges.
        kept: Those that another one judged bad, and that wait in quarantine.
        sent: Those that a later redrive has sent in.
    """

    judged: list[Record] = field(default_factory=list)
    kept: list[Record] = field(default_factory=list)
    sent: list[Record] = field(default_factory=list)


class Redrives:
    """Knows what the quarantine holds back, and gives it out at its redrive."""

    def __init__(self, memory: SpillStore, horizon: Coverage, *, declaration: str) -> None:
        """Take where to remember, and the fingerprint of today's declaration."""
        self._held: SpillTable[QuarantineEntry] = memory.shelf("held")
        self._sent: SpillTable[Record] = memory.shelf("sent")
        self.horizon = horizon
        self._today = (declaration, engine_version())
        self._marks: Counter[int] = Counter()
        self._found: Counter[int] = Counter()
        self._could_go = 0
        self._is_empty = True

    def learn(self, quarantine: Path, *, last_seq: int) -> Iterator[Difference]:
        """Read the quarantine's marks, and name those of no redrive.

        Args:
            quarantine: The table's folder.
            last_seq: Later rows and marks are leftovers of a dead attempt, which the next run
                takes away.
        """
        if not DeltaTable.is_deltatable(str(quarantine)):
            return
        there = {each.name for each in DeltaTable(quarantine).schema().fields}
        names = [*_PLACE, *(name for name in (_MARK, *_JUDGED_BY, *_WHY) if name in there)]
        for rows in rows_of(quarantine, None, names):
            told = [dict(zip(names, row, strict=True)) for row in rows if row[3] <= last_seq]
            held = {}
            for row in told:
                mark = row.get(_MARK)
                mark = mark if mark is not None and mark <= last_seq else None
                if mark is not None and not self._is_redrive(mark, row["_seq"]):
                    yield _false_mark(row)
                    mark = None
                self._marks.update([mark] if mark is not None else [])
                if self.horizon.epoch_of(row["_seq"]) == self.horizon.epoch:
                    by_today = tuple(map(row.get, _JUDGED_BY)) == self._today
                    by_today = by_today and not _lacked_a_schema(row)
                    held[_name(row)] = QuarantineEntry(row["_seq"], mark, by_today)
            self._held.put(held)
            self._is_empty = self._is_empty and not held

    def sort_out(self, records: Sequence[Record], seq: int) -> Partitioned:
        """Tell the records of a batch apart, and remember those that are folded later."""
        told, later = Partitioned(), {}
        held = {} if self._is_empty else self._held.get(map(str, records))
        for record in records:
            known = held.get(str(record))
            if known is None or known.seq != seq:
                told.judged.append(record)
            elif known.redriven is not None:
                told.sent.append(record)
                later[f"{known.redriven:020d} {record}"] = record
                self._found[known.redriven] += 1
            else:
                (told.judged if known.by_today else told.kept).append(record)
        self._sent.put(later)
        return told

    def could_go(self, records: int) -> None:
        """Remember records in quarantine that are good today."""
        self._could_go += records

    def of(self, batch: Batch) -> Iterator[list[Record]]:
        """Yield the records that a redrive sent in, as far as the topic still has them."""
        for chunk in self._sent.chunks_of(f"{batch.seq:020d} "):
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
        if self._could_go:
            yield (
                f"{self._could_go:,} records in quarantine were bad for another declaration or "
                "engine, or without their schema, and are good today; oncelake redrive sends them "
                "in"
            )

    def _is_redrive(self, mark: int, seq: int) -> bool:
        batch = self.horizon.batches.get(mark)
        return batch is not None and batch.kind == "redrive" and mark > seq


def _name(row: dict[str, Any]) -> str:
    return str(Record(row["_topic"], row["_partition"], row["_offset"], 0, None, None))


def _lacked_a_schema(row: dict[str, Any]) -> bool:
    """Tell a record whose schema id was unknown: a registry learns; so may it be of a key."""
    return "unknown_schema_id" in (row.get("reason"), str(row.get("detail")).partition(":")[0])


def _false_mark(row: dict[str, Any]) -> Difference:
    return Difference(
        part="quarantine",
        what=f"is marked as redriven by batch {row[_MARK]}, which is no later redrive",
        topic=row["_topic"],
        partition=row["_partition"],
        offset=row["_offset"],
        seq=row["_seq"],
    )
