"""The fold: batch by batch, in the ledger's order, what the records do to the rows.

Which rows there must be is for the rule of the stream's mode to say (``fold.modes``). On the way
every record gets its disposition, measured against what the earlier batches left behind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from ingestion.declaration.spec import StreamSpec
from ingestion.verify.compare.quarantine import BadRecord, as_bad
from ingestion.verify.coverage import Coverage
from ingestion.verify.decode.coerce import UnprovableError
from ingestion.verify.fold.classify import Classified, Classifier
from ingestion.verify.fold.earlier_schemas import EarlierClassifier, EarlierSchemas
from ingestion.verify.fold.modes import Means, rule_of
from ingestion.verify.fold.recount import Recount
from ingestion.verify.fold.redrives import Redrives
from ingestion.verify.read.delta_log import Batch
from ingestion.verify.read.record import Record
from ingestion.verify.read.spill import SpillStore, SpillTable

Judging = Classifier | EarlierClassifier


class Fold:
    """Folds the batches of one stream by the rule of its mode."""

    def __init__(
        self,
        spec: StreamSpec,
        judge: Classifier,
        memory: SpillStore,
        horizon: Coverage,
        *,
        is_compacted: Callable[[str], bool] = lambda topic: False,
        redrives: Redrives | None = None,
        judges: EarlierSchemas | None = None,
    ) -> None:
        """Take the declaration, and what can be seen.

        Args:
            spec: The declared stream.
            judge: Judges its records.
            memory: Where to remember.
            horizon: What can be seen; learns of batches that compaction has thinned.
            is_compacted: Tells whether a topic may have dropped records that were read.
            redrives: Knows the records that the quarantine keeps back at their own batch.
            judges: Knows who judges a batch that was written under other columns.
        """
        self._today: Judging = judge
        self._judges = judges
        self._horizon = horizon
        self._is_compacted = is_compacted
        self._redrives = redrives or Redrives(memory, horizon, declaration="")
        self.rule = rule_of(Means(spec=spec, judge=judge, memory=memory, horizon=horizon))
        self.bad: SpillTable[BadRecord] = memory.shelf("bad")

    def batch(self, batch: Batch, chunks: Iterable[Sequence[Record]]) -> Recount:
        """Fold one batch, the next of the ledger.

        Raises:
            UnprovableError: it cannot be told what its records say.
        """
        recount = Recount()
        self._judge = self._judges.of(batch.columns) if self._judges else self._today
        for records in chunks:
            self._gather(records, batch.seq, recount)
        self._notice_thinning(batch, recount)
        self.rule.settle(recount)
        return recount

    def _gather(self, records: Sequence[Record], seq: int, recount: Recount) -> None:
        """Judge a chunk, and hand the good records on."""
        judged = self._judge.judge(self._held_back(records, seq, recount), seq=seq)
        self._refuse_unread(judged, seq)
        recount.records.update(record.at for record in records)
        recount.ignored += judged.ignored
        recount.filtered += judged.filtered
        recount.quarantined += len(judged.bad)
        recount.exploded += judged.exploded
        self.bad.put(dict(as_bad(record, reason, seq) for record, reason in judged.bad))
        self.rule.take(judged.changes, recount)

    def _refuse_unread(self, judged: Classified, seq: int) -> None:
        """Go no further when a record cannot be read, which is neither right nor wrong then."""
        if judged.unread and not self._horizon.is_accepted(seq):
            record, why = judged.unread[0]
            raise UnprovableError(
                f"{why}, by which {record} was written, and the quarantine does not hold that "
                "record. Next: give the registry the schema back, under this id"
            )

    def _held_back(self, records: Sequence[Record], seq: int, recount: Recount) -> Sequence[Record]:
        """Leave out the records that an earlier judgement sent into quarantine."""
        told = self._redrives.sort_out(records, seq)
        judged = self._judge.judge(told.kept, seq=seq)
        self._redrives.could_go(len(told.kept) - len(judged.bad) - len(judged.unread))
        recount.quarantined += len(told.kept) + len(told.sent)
        why = "by the declaration of that time"
        self.bad.put(dict(as_bad(record, why, seq) for record in (*told.kept, *told.sent)))
        return told.judged

    def _notice_thinning(self, batch: Batch, recount: Recount) -> None:
        seen = {part.at for part in self._horizon.seen_of(batch)}
        told = ((part.at, part.records) for part in batch.ranges if part.at in seen)
        short = {at.topic for at, records in told if recount.records[at] < records}
        if self._horizon.sees(batch) and any(map(self._is_compacted, short)):
            self._horizon.thinned.add(batch.seq)
