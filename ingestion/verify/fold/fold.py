"""The fold: batch by batch, in the ledger's order, what the records do to the rows.

The rule of the stream's mode, one row here, decides which rows there must be. On the way every
record gets its disposition, compared with what the earlier batches left behind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

from oncelake.ingestion.declaration.routes import HEADER
from oncelake.ingestion.kafka.offsets import TopicPartition
from oncelake.ingestion.verify.compare.quarantine import BadRecord
from oncelake.ingestion.verify.decode.coerce import UnprovableError
from oncelake.ingestion.verify.fold import upsert
from oncelake.ingestion.verify.fold.aggregate import AggregateRule
from oncelake.ingestion.verify.fold.classify import Classified, Classify
from oncelake.ingestion.verify.fold.contested_keys import ContestedKeys
from oncelake.ingestion.verify.fold.kept_columns import KeptColumns
from oncelake.ingestion.verify.fold.redrives import Redrives
from oncelake.ingestion.verify.fold.rule import (
    AppendRule,
    Erased,
    FoldContext,
    Recount,
    Rule,
    Settled,
    Truncate,
)
from oncelake.ingestion.verify.fold.scd2 import HistoryRule
from oncelake.ingestion.verify.read.record import SYSTEM_COLUMNS, Record, RowChange
from oncelake.ingestion.verify.read.snapshot import Batch
from oncelake.ingestion.verify.read.spill import SpillTable
from oncelake.ingestion.verify.verdict import Difference

# What Spark is asked about at a time.
_GATHERED_RECORDS: Final = 50_000
_GATHERED_BYTES: Final = 32 * 1024 * 1024
_MODES: Final[dict[str, type[Rule]]] = {
    "upsert": upsert.UpsertRule,
    "log": upsert.LogRule,
    "soft_upsert": upsert.SoftUpsertRule,
    "partial_upsert": upsert.PartialUpsertRule,
    "append": AppendRule,
    "insert_only": upsert.InsertOnlyRule,
    "scd2": HistoryRule,
    "aggregate": AggregateRule,
}


def rule_of(context: FoldContext) -> Rule:
    """Return the rule of a stream's mode."""
    spec, mode = context.spec, context.spec.mode
    if mode not in _MODES:
        raise UnprovableError(f"{mode} is not provable")
    if mode == "upsert" and spec.is_log:
        mode = "log"
    elif mode == "upsert" and (spec.deletes == "soft" or spec.ignore_null_updates):
        mode = "soft_upsert" if spec.deletes == "soft" else "partial_upsert"
    return _MODES[mode](context)


class Fold:
    """Folds the batches of one stream by the rule of its mode."""

    def __init__(
        self,
        context: FoldContext,
        *,
        is_compacted: Callable[[str], bool] = lambda topic: False,
        redrives: Redrives | None = None,
    ) -> None:
        """Begin before the first batch.

        Args:
            context: Its coverage learns of thinned batches.
            is_compacted: Tells whether a topic may have dropped records that were read.
            redrives: Knows the records that the quarantine keeps back at their own batch.
        """
        self._classifiers, self._coverage = context.classifiers, context.coverage
        self._is_compacted = is_compacted
        self._redrives = redrives or Redrives(context)
        self.rule = rule_of(context)
        self._unavailable = context.spec.unavailable
        self._is_transformed = context.spec.is_transformed
        waits = self._redrives.waits_for_its_key
        settles = context.spec.settles_moves
        self._contested = ContestedKeys(context, self.rule, waits) if settles else None
        self._kept = KeptColumns(context, self._redrives.is_kept_back)
        self._columns = tuple(column.name for column in context.spec.columns)
        # Where the fields are, from a row's end, that no column names.
        behind = len(SYSTEM_COLUMNS) + bool(context.spec.explode)
        self._extra_at = -1 - behind if context.spec.extra_fields == "keep" else 0
        self._erased: list[Erased] = []
        # By which batch each was applied; 0 once its record was met.
        self._truncates: dict[Truncate, int] = {}
        self._types: dict[str, set[str]] = {}
        self.bad: SpillTable[BadRecord] = context.store.table("bad")

    def batch(self, batch: Batch, chunks: Iterable[Sequence[Record]]) -> Recount:
        """Fold one batch, the next of the ledger."""
        recount = Recount(is_replay=batch.kind == "replay")
        kept = batch.declaration or {}
        classify = self._classifiers.of(batch)
        if self._extra_at and batch.declaration is not None and "extra_fields" not in kept:
            classify = _without_extra(classify, self._extra_at)
        # Of a transformation Spark is asked, which costs something for each chunk.
        for records in _gathered(chunks) if self._is_transformed else chunks:
            self._take(records, batch.seq, classify, recount)
        if (route := kept.get("route")) and not route["by"].startswith(HEADER):
            recount.extra["schema_unknown"] = self._redrives.lacked_schema[batch.seq]
        self._notice_thinning(batch, recount)
        if self._contested is not None:
            is_behind = self._redrives.has_truncate(batch.seq)
            settled, left = self._contested.settle(is_behind=is_behind)
            self._count_settled(settled, batch.seq, recount)
            self._kept.know_no_ends(settled.no_ends)
            for changes in left:
                self._apply(changes, recount)
        if self._unavailable == "keep":
            for settled in self._kept.settle():
                self._count_settled(settled, batch.seq, recount)
                recount.extra["columns_kept"] += settled.kept
                self._take_rows(settled.changes, recount)
        self.rule.settle(recount)
        return recount

    def erase(self, batch: Batch) -> None:
        """Forget a key that a batch erased, and leave its records out where they are read again."""
        erased = Erased(batch, self._columns)
        self._erased.append(erased)
        if erased.truncate:
            self._truncates[erased.truncate] = batch.seq
        self.rule.erase(erased)
        self._kept.erase(erased)
        if self._contested is not None:
            self._contested.erase(erased)

    @property
    def last_truncates(self) -> Mapping[tuple[int, TopicPartition], int]:
        """The offset of the last truncate of each epoch and partition."""
        return {(epoch, at): offset for epoch, at, offset in sorted(self._truncates)}

    def unfounded_truncates(self) -> Iterator[Difference]:
        """Name what emptied the table though the record there, which was read, is no truncate."""
        coverage = self._coverage
        for (epoch, at, offset), by in self._truncates.items():
            place = (epoch, *at, offset, 0)
            if not by or not coverage.covers_record(place, by):
                continue
            if any(coverage.has_read(place, seq) for seq in coverage.batches):
                what = "the table was emptied, and no record says so"
                yield Difference("rows", what, *at, offset, seq=by)

    def _meet_truncates(
        self, truncates: Sequence[Record], seq: int, recount: Recount
    ) -> Iterator[tuple[Record, str]]:
        """Name those that should have emptied the table; yield those that should wait."""
        epoch, applied = self._coverage.epoch, [*self._truncates]
        for record in truncates:
            known = [o for e, at, o in applied if (e, at) == (epoch, record.at)]
            is_applied = record.offset <= max(known, default=-1)
            if not (is_applied or self._redrives.applies_truncates):
                yield record, "the source was truncated"
                continue
            self._truncates[epoch, record.at, record.offset] = 0
            recount.counts["ignored"] += 1
            if not is_applied:
                what = "a TRUNCATE of the source was not applied"
                recount.clashes.append(Difference("rows", what, *record[:3], seq=seq))

    def _take(
        self, records: Sequence[Record], seq: int, classify: Classify, recount: Recount
    ) -> None:
        """Classify a chunk, and pass the good records on; those in quarantine stay there."""
        recount.records.update(record.at for record in records)
        result = self._redrives.classified(records, seq, classify, recount)
        if result.unread and not self._coverage.is_accepted(seq):
            # It is neither right nor wrong.
            record, why = result.unread[0]
            raise UnprovableError(
                f"{why}, by which {record} was written, and the quarantine does not hold that "
                "record. Next: give the registry back what it lacks, under the same id, or subject "
                "and version"
            )
        recount.clashes.extend(self._other_types(result.types, seq))
        result.bad.extend(self._meet_truncates(result.truncates, seq, recount))
        recount.extra["tombstones_shared"] += result.counts.pop("tombstones_shared", 0)
        recount.counts.update(result.counts)
        if self._erased:
            left = [change for change in result.changes if not self._is_erased(change)]
            recount.counts["filtered"] += len(result.changes) - len(left)
            result.changes = left
        recount.extra["values_coerced"] += sum(change.coerced for change in result.changes)
        self._redrives.put_aside(result.bad, seq, recount, self.bad)
        if self._contested is not None:
            self._contested.take(result.changes)
        else:
            self._apply(result.changes, recount)

    def _count_settled(self, settled: Settled, seq: int, recount: Recount) -> None:
        self._redrives.put_aside(settled.bad, seq, recount, self.bad)
        recount.counts["ignored"] += settled.spared
        recount.counts["exploded"] -= settled.taken_back

    def _apply(self, changes: list[RowChange], recount: Recount) -> None:
        if self._unavailable == "keep":
            self._kept.take(changes)
            return
        if self._unavailable == "null":
            left_out = sum(len(change.left_out) for change in changes)
            recount.extra["columns_unavailable"] += left_out
        self._take_rows(changes, recount)

    def _take_rows(self, changes: list[RowChange], recount: Recount) -> None:
        undeclared = (change.has_undeclared and change.row is not None for change in changes)
        recount.undeclared += sum(undeclared)
        self.rule.take(changes, recount)

    def _other_types(
        self, types: Mapping[tuple[str, str], Record], seq: int
    ) -> Iterator[Difference]:
        """Name each record type of a topic beyond its first: of one table they are no rows."""
        for (topic, name), record in types.items():
            known = self._types.setdefault(topic, set())
            if known and name not in known:
                what = f"a record of type {name} was applied beside those of {min(known)}"
                place = (record.topic, record.partition, record.offset)
                yield Difference("rows", f"{what}, and `record` names neither", *place, seq=seq)
            known.add(name)

    def _is_erased(self, change: RowChange) -> bool:
        return any(each.was_read(change) and each.is_of(change) for each in self._erased)

    def _notice_thinning(self, batch: Batch, recount: Recount) -> None:
        covered = {part.at for part in self._coverage.covered_ranges(batch)}
        counts = ((part.at, part.records) for part in batch.ranges if part.at in covered)
        short = {at.topic for at, records in counts if recount.records[at] < records}
        if self._coverage.covers(batch) and any(map(self._is_compacted, short)):
            self._coverage.thinned.add(batch.seq)


def _without_extra(classify: Classify, at: int) -> Classify:
    """Expect no fields that no column names, of a batch that did not keep them."""

    def classified(records: Iterable[Record], seq: int) -> Classified:
        result = classify(records, seq)
        result.changes = [
            change._replace(row=change.row and (*change.row[:at], None, *change.row[at + 1 :]))
            for change in result.changes
        ]
        return result

    return classified


def _gathered(chunks: Iterable[Sequence[Record]]) -> Iterator[Sequence[Record]]:
    """Put chunks together, to some 50,000 records, or 32 MB of values."""
    kept: list[Record] = []
    size = 0
    for records in chunks:
        kept.extend(records)
        size += sum(len(record.value or b"") for record in records)
        if len(kept) >= _GATHERED_RECORDS or size >= _GATHERED_BYTES:
            yield kept
            kept, size = [], 0
    if kept:
        yield kept
