"""The fold: batch by batch, in the ledger's order, what the records do to the rows.

The rule of the stream's mode decides which rows there must be (``fold.modes``). On the way every
record gets its disposition, compared with what the earlier batches left behind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from ingestion.verify.compare.quarantine import BadRecord, as_bad
from ingestion.verify.decode.coerce import UnprovableError
from ingestion.verify.fold.classify import Classified, Classify
from ingestion.verify.fold.modes import rule_of
from ingestion.verify.fold.modes.rule import FoldContext
from ingestion.verify.fold.recount import Recount
from ingestion.verify.fold.redrives import Redrives
from ingestion.verify.read.delta_log import Batch
from ingestion.verify.read.record import Record
from ingestion.verify.read.spill import SpillTable


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
        self._context = context
        self._coverage = context.coverage
        self._is_compacted = is_compacted
        self._redrives = redrives or Redrives(context.store, context.coverage, declaration="")
        self.rule = rule_of(context)
        self.bad: SpillTable[BadRecord] = context.store.table("bad")

    def batch(self, batch: Batch, chunks: Iterable[Sequence[Record]]) -> Recount:
        """Fold one batch, the next of the ledger.

        Raises:
            UnprovableError: its records cannot be classified.
        """
        recount, classify = Recount(), self._context.classifiers.of(batch.columns)
        for records in chunks:
            self._take(records, batch.seq, classify, recount)
        self._notice_thinning(batch, recount)
        self.rule.settle(recount)
        return recount

    def _take(
        self, records: Sequence[Record], seq: int, classify: Classify, recount: Recount
    ) -> None:
        """Classify a chunk, and pass the good records on; those in quarantine stay there."""
        parts = self._redrives.partition(records, seq)
        today = classify(parts.kept, seq=seq)
        self._redrives.add_good_today(len(parts.kept) - len(today.bad) - len(today.unread))
        held_back = [*parts.kept, *parts.redriven]
        result = classify(parts.classified, seq=seq)
        self._refuse_unread(result, seq)
        recount.records.update(record.at for record in records)
        recount.ignored += result.ignored
        recount.filtered += result.filtered
        recount.quarantined += len(result.bad) + len(held_back)
        recount.exploded += result.exploded
        bad = [(record, "by the declaration of that time") for record in held_back] + result.bad
        self.bad.put(dict(as_bad(record, reason, seq) for record, reason in bad))
        self.rule.take(result.changes, recount)

    def _refuse_unread(self, result: Classified, seq: int) -> None:
        """Stop at a record that cannot be read: it is neither right nor wrong."""
        if result.unread and not self._coverage.is_accepted(seq):
            record, why = result.unread[0]
            raise UnprovableError(
                f"{why}, by which {record} was written, and the quarantine does not hold that "
                "record. Next: give the registry the schema back, under this id"
            )

    def _notice_thinning(self, batch: Batch, recount: Recount) -> None:
        covered = {part.at for part in self._coverage.covered_ranges(batch)}
        counts = ((part.at, part.records) for part in batch.ranges if part.at in covered)
        short = {at.topic for at, records in counts if recount.records[at] < records}
        if self._coverage.covers(batch) and any(map(self._is_compacted, short)):
            self._coverage.thinned.add(batch.seq)
