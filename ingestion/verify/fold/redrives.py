"""Records that were bad at their own batch, and good at a later one: what a redrive sent in.

The quarantine names them: a row that a redrive has marked is folded at that redrive, and not where
it was read. The record itself still comes from the topic, so a mark that is false, missing or of no
batch shows in the books, in the rows, or here.

A row without a mark, that another declaration or another version of the engine wrote, or a schema
registry that did not know the schema yet, may hold a record that is good today. It waits, and the
verdict says so.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from typing import Any, NamedTuple

from oncelake.ingestion.declaration.spec import fingerprint
from oncelake.ingestion.errors import counted
from oncelake.ingestion.kafka.offsets import TopicPartition
from oncelake.ingestion.storage.location import Location
from oncelake.ingestion.tables.format import engine_version
from oncelake.ingestion.verify.compare.quarantine import BadRecord, as_bad
from oncelake.ingestion.verify.fold.classify import Classified, Classify
from oncelake.ingestion.verify.fold.rule import FoldContext, Recount
from oncelake.ingestion.verify.read.record import Record, RowChange
from oncelake.ingestion.verify.read.snapshot import Batch, rows_through
from oncelake.ingestion.verify.read.spill import SpillTable
from oncelake.ingestion.verify.verdict import Difference

_NAMES = (
    *("_topic", "_partition", "_offset", "_seq", "redriven_seq"),
    *("declaration", "engine_version", "reason", "detail", "removed"),
)
_UNKNOWN_SCHEMA = "unknown_schema_id"
# No row had the value that an update left out, which another declaration does not change.
_NO_VALUE = "nothing_to_keep"
# Two rows have had a key, and nothing tells which of them has left it.
_MOVED = "moved_key"


class QuarantineEntry(NamedTuple):
    """An entry of the quarantine: the batch that read the record, and the one that sent it in.

    Where its bytes were removed, it ``is_bare``, and waits for nothing.
    """

    seq: int
    redriven_seq: int | None
    is_classified_today: bool
    reason: str
    is_bare: bool


class Redrives:
    """Keeps the quarantined records, and yields each at its redrive."""

    def __init__(self, context: FoldContext, *, declaration: str | None = None) -> None:
        """Begin with an empty quarantine.

        Args:
            context: Its declaration is today's.
            declaration: The fingerprint of that, if it is to be another.
        """
        spec, store, self.coverage = context.spec, context.store, context.coverage
        self._entries: SpillTable[QuarantineEntry] = store.table("entries")
        self._redriven: SpillTable[Record] = store.table("redriven")
        # Whether a truncate is applied where it is read.
        self.applies_truncates = spec.format.options.truncate_policy == "apply"
        self._today = (declaration or fingerprint(spec), engine_version())
        self._marks: Counter[int] = Counter()
        self._found: Counter[int] = Counter()
        # How many records in quarantine are good today, and of how many nobody knows the schema.
        self.good_today = self.unread_today = 0
        # Records in quarantine whose schema was unknown, by the batch that read them.
        self.lacked_schema: Counter[int] = Counter()
        self._is_empty, self._has_routes = True, spec.route is not None
        # The first batch that put a truncate aside.
        self._truncated = sys.maxsize
        # Where the quarantined records are.
        self.places: list[tuple[TopicPartition, int]] = []

    def learn(self, quarantine: Location) -> Iterator[Difference]:
        """Read the quarantine's marks, and name those of no redrive."""
        last = self.coverage.last_seq
        for rows in rows_through(last, quarantine, _NAMES):
            entries = {}
            for row in (dict(zip(_NAMES, row, strict=True)) for row in rows):
                at = (row["_topic"], row["_partition"], row["_offset"])
                seq, mark = row["_seq"], row["redriven_seq"]
                mark = mark if mark is not None and mark <= last else None
                redrive = self.coverage.batches.get(mark) if mark is not None else None
                if mark is not None and not (redrive and redrive.kind == "redrive" and mark > seq):
                    what = f"is marked as redriven by batch {mark}, which is no later redrive"
                    yield Difference("quarantine", what, *at, seq=seq)
                    mark = None
                self._marks.update([mark] if mark is not None else [])
                if row["reason"] == "truncate":
                    self._truncated = min(seq, self._truncated)
                if self.coverage.epoch_of(seq) == self.coverage.epoch:
                    by_today = (row["declaration"], row["engine_version"]) == self._today
                    by_today = by_today and not _lacked_a_schema(row)
                    name = str(Record(*at, 0, None, None))
                    self.places.append((TopicPartition(*at[:2]), at[2]))
                    is_bare = row["removed"] is not None
                    entries[name] = QuarantineEntry(seq, mark, by_today, row["reason"], is_bare)
            self._entries.put(entries)
            self._is_empty = self._is_empty and not entries

    def begin_again(self) -> None:
        """Forget which records were found."""
        self._found.clear()
        self.lacked_schema.clear()
        self._redriven.clear()
        self.good_today = self.unread_today = 0

    def classified(
        self, records: Sequence[Record], seq: int, classify: Classify, recount: Recount
    ) -> Classified:
        """Classify records of a batch; those that the quarantine keeps back are bad there.

        Args:
            records: Some of the batch's.
            seq: The batch.
            classify: By the declaration of then.
            recount: Counts what a replay leaves out.
        """
        if recount.is_replay:
            records, held = self.without_waiting(records, seq)
            recount.counts["overlap"] += held
        own, kept, redriven = self.partition(records, seq)
        today, result = classify(kept, seq), classify(own, seq)
        still_bad = len(today.bad) + len(today.unread) + self.count_held(today.changes)
        still_bad += 0 if self.applies_truncates else len(today.truncates)
        self.good_today += len(kept) - still_bad
        self.unread_today += len(today.unread)
        waited = [*kept, *redriven]
        if self._has_routes and waited:
            result.counts["tombstones_shared"] += self._count_shared(waited, seq, classify)
        result.bad = [*((each, "by the declaration of that time") for each in waited), *result.bad]
        return result

    def _count_shared(self, records: Sequence[Record], seq: int, classify: Classify) -> int:
        """Count those that all tables of a topic take; none did whose schema was unknown."""
        entries = self._entries.get(map(str, records))
        routed = [each for each in records if entries[str(each)].reason != _UNKNOWN_SCHEMA]
        return classify(routed, seq).counts["tombstones_shared"]

    def put_aside(
        self,
        bad: Sequence[tuple[Record, str]],
        seq: int,
        recount: Recount,
        table: SpillTable[BadRecord],
    ) -> None:
        """Expect bad records of a batch in quarantine; a replay leaves those out that are there."""
        if recount.is_replay:
            new = [pair for pair in bad if not self.holds(pair[0], before=seq)]
            recount.counts["overlap"] += len(bad) - len(new)
            bad = new
        recount.counts["quarantined"] += len(bad)
        table.put(dict(as_bad(record, reason, seq) for record, reason in bad))

    def partition(
        self, records: Sequence[Record], seq: int
    ) -> tuple[list[Record], list[Record], list[Record]]:
        """Partition the records of a batch, and remember those that are folded later.

        Returns:
            Those that today's declaration classifies; those that were bad for another one, and that
            wait in quarantine; those that a later redrive has sent in, or none can.
        """
        classified, kept, redriven = list[Record](), list[Record](), list[Record]()
        later = {}
        entries = {} if self._is_empty else self._entries.get(map(str, records))
        for record in records:
            entry = entries.get(str(record))
            if entry is None or entry.seq != seq:
                classified.append(record)
                continue
            self.lacked_schema[seq] += entry.reason == _UNKNOWN_SCHEMA
            if entry.redriven_seq is not None:
                redriven.append(record)
                later[f"{entry.redriven_seq:020d} {record}"] = record
                self._found[entry.redriven_seq] += 1
            elif entry.is_bare and not entry.is_classified_today:
                redriven.append(record)
            else:
                (classified if entry.is_classified_today else kept).append(record)
        self._redriven.put(later)
        return classified, kept, redriven

    def count_held(self, changes: Collection[RowChange]) -> int:
        """Count the records of changes that wait for another row, which no declaration gives."""
        entries = self._entries.get({str(each.record) for each in changes})
        lacking = {str(each.record) for each in changes if each.left_out}
        held = {_MOVED: entries.keys(), _NO_VALUE: lacking}
        return sum(name in held.get(entry.reason, ()) for name, entry in entries.items())

    def is_kept_back(self, record: Record) -> bool:
        """Tell whether the quarantine holds a record that no redrive has sent in."""
        entry = self._entry(record)
        return entry is not None and entry.redriven_seq is None

    def has_truncate(self, seq: int) -> bool:
        """Tell whether a truncate had been put aside when a batch was written."""
        return self._truncated <= seq

    def waits_for_its_key(self, record: Record) -> bool:
        """Tell whether a record waits since it is unknown which row has left its key."""
        entry = self._entry(record)
        return entry is not None and (entry.reason, entry.redriven_seq) == (_MOVED, None)

    def without_waiting(self, records: Sequence[Record], seq: int) -> tuple[Sequence[Record], int]:
        """Leave out the records that waited in quarantine when batch ``seq`` read them again.

        Returns:
            The others, and how many were left out.
        """
        if self._is_empty:
            return records, 0
        entries = self._entries.get(map(str, records))
        left = [each for each in records if not _waited(entries.get(str(each)), seq)]
        return left, len(records) - len(left)

    def holds(self, record: Record, *, before: int) -> bool:
        """Tell whether a batch before this one had put a record into quarantine."""
        entry = self._entry(record)
        return entry is not None and entry.seq < before

    def of(self, batch: Batch) -> Iterator[list[Record]]:
        """Yield the records that a redrive sent in, as far as the topic still has them."""
        for chunk in self._redriven.chunks_of(f"{batch.seq:020d} "):
            yield list(chunk.values())

    def can_recount(self, batch: Batch) -> bool:
        """Tell whether the topic still has every record that the quarantine says was sent in."""
        return self._found[batch.seq] == self._marks[batch.seq]

    def limits(self, *, after: int = 0) -> Iterator[str]:
        """Say what could not be proven of the batches after one, a sentence each."""
        for seq, marks in sorted(self._marks.items()):
            if seq > after and (gone := marks - self._found[seq]):
                yield (
                    f"batch {seq} redrove {counted(gone, 'record')} that Kafka no longer holds, so "
                    "its counts were not recounted"
                )
        if self.good_today:
            were = ("record in quarantine was", "records in quarantine were")
            yield (
                f"{counted(self.good_today, *were)} bad for another declaration or engine, or "
                "without a schema, and can be applied today, by oncelake redrive"
            )

    def _entry(self, record: Record) -> QuarantineEntry | None:
        name = str(record)
        return self._entries.get([name]).get(name)


def _waited(entry: QuarantineEntry | None, seq: int) -> bool:
    return entry is not None and entry.seq < seq < (entry.redriven_seq or sys.maxsize)


def _lacked_a_schema(row: dict[str, Any]) -> bool:
    """Tell a record, or a key, whose schema was unknown: it may be registered later."""
    return _UNKNOWN_SCHEMA in (row["reason"], str(row["detail"]).partition(":")[0])
