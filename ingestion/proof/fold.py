"""The fold: batch by batch, in the ledger's order, what each record does to the row of its key.

The newest record of a key is its row, or its absence; deletes are remembered for good. On the way
every winner gets its disposition, measured against what the earlier batches left behind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from ingestion.proof.batch import Batch
from ingestion.proof.difference import Difference
from ingestion.proof.horizon import Horizon
from ingestion.proof.judge import Judge
from ingestion.proof.memory import Memory, Shelf
from ingestion.proof.quarantined import BadRecord, as_bad
from ingestion.proof.record import Change, Record
from ingestion.proof.recount import Recount
from ingestion.proof.redrives import Redrives
from ingestion.spec import StreamSpec


class Fold:
    """Folds the batches of one stream, and remembers the newest change of each key."""

    def __init__(
        self,
        spec: StreamSpec,
        judge: Judge,
        memory: Memory,
        horizon: Horizon,
        *,
        is_compacted: Callable[[str], bool] = lambda topic: False,
        redrives: Redrives | None = None,
    ) -> None:
        """Take the declaration, and what can be seen.

        Args:
            spec: The declared stream.
            judge: Judges its records.
            memory: Where to remember.
            horizon: What can be seen; learns of batches that compaction has thinned.
            is_compacted: Tells whether a topic may have dropped records that were read.
            redrives: Knows the records that the quarantine keeps back at their own batch.
        """
        self._judge = judge
        self._horizon = horizon
        self._has_order = bool(spec.sequence_by)
        self._is_compacted = is_compacted
        self._redrives = redrives or Redrives(memory, horizon, declaration="")
        self._winners: Shelf[Change] = memory.shelf("winners")
        self.newest: Shelf[Change] = memory.shelf("newest")
        self.bad: Shelf[BadRecord] = memory.shelf("bad")

    def batch(self, batch: Batch, chunks: Iterable[Sequence[Record]]) -> Recount:
        """Fold one batch, the next of the ledger.

        Raises:
            UnprovableError: it cannot be told what its records say.
        """
        recount = Recount()
        self._winners.clear()
        good = 0
        for records in chunks:
            good += self._gather(records, batch.seq, recount)
        self._notice_thinning(batch, recount)
        for winners in self._winners.chunks():
            good -= len(winners)
            self._apply(winners, recount)
        recount.superseded = good
        return recount

    def _gather(self, records: Sequence[Record], seq: int, recount: Recount) -> int:
        """Judge a chunk, and keep the winners so far; return how many records were good."""
        judged = self._judge.judge(self._held_back(records, seq, recount), seq=seq)
        recount.records.update(record.at for record in records)
        recount.ignored += judged.ignored
        recount.quarantined += len(judged.bad)
        self.bad.put(dict(as_bad(record, reason, seq) for record, reason in judged.bad))
        best: dict[str, Change] = {}
        for change in judged.changes:
            self._keep(best, change, recount)
        known = self._winners.get(best)
        for change in best.values():
            self._keep(known, change, recount)
        self._winners.put(known)
        return len(judged.changes)

    def _held_back(self, records: Sequence[Record], seq: int, recount: Recount) -> Sequence[Record]:
        """Leave out the records that an earlier judgement sent into quarantine."""
        told = self._redrives.sort_out(records, seq)
        judged = self._judge.judge(told.kept, seq=seq)
        self._redrives.could_go(len(told.kept) - len(judged.bad))
        recount.quarantined += len(told.kept) + len(told.sent)
        why = "by the declaration of that time"
        self.bad.put(dict(as_bad(record, why, seq) for record in (*told.kept, *told.sent)))
        return told.judged

    def _keep(self, best: dict[str, Change], change: Change, recount: Recount) -> None:
        other = best.setdefault(change.key, change)
        if other is not change and self._is_newer(change, other, recount):
            best[change.key] = change

    def _apply(self, winners: Mapping[str, Change], recount: Recount) -> None:
        """Give winners their dispositions, and remember the newest change of their keys."""
        known = self.newest.get(winners)
        newer = {}
        for key, winner in winners.items():
            state = known.get(key)
            fate = self._fate(winner, state, recount)
            if self._horizon.doubts(state):
                recount.doubtful += 1
            else:
                recount.fates[fate] += 1
            if state is None or winner.place > state.place:
                newer[key] = winner
        self.newest.put(newer)

    def _fate(self, winner: Change, state: Change | None, recount: Recount) -> str:
        is_delete = winner.row is None
        if state is None or state.row is None:
            if is_delete:
                return "deleted_absent"
            is_alive = state is None or self._is_newer(winner, state, recount)
            return "inserted" if is_alive else "stale"
        if winner.place == state.place:
            return "unchanged"
        if not self._is_newer(winner, state, recount):
            return "stale"
        return "deleted" if is_delete else "updated"

    def _is_newer(self, one: Change, other: Change, recount: Recount) -> bool:
        """Tell which is newer; without a declared order, two partitions cannot be compared."""
        if not self._has_order and one.epoch == other.epoch and one.at != other.at:
            recount.clashes.append(
                Difference(
                    part="dispositions",
                    what=f"key {one.key} came from {other} too, and nothing orders the two",
                    topic=one.at.topic,
                    partition=one.at.partition,
                    offset=one.offset,
                    seq=one.seq,
                )
            )
        return one.place > other.place

    def _notice_thinning(self, batch: Batch, recount: Recount) -> None:
        seen = {part.at for part in self._horizon.seen_of(batch)}
        told = ((part.at, part.records) for part in batch.ranges if part.at in seen)
        short = {at.topic for at, records in told if recount.records[at] < records}
        if self._horizon.sees(batch) and any(map(self._is_compacted, short)):
            self._horizon.thinned.add(batch.seq)
