"""Upsert: the newest record of a key is its row, or its absence; deletes are never forgotten."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ingestion.verify.fold.modes import FoldContext, Rule
from ingestion.verify.fold.recount import Recount
from ingestion.verify.read.record import Place, Row, RowChange
from ingestion.verify.read.spill import SpillTable
from ingestion.verify.verdict import Difference


class UpsertRule(Rule):
    """Remembers the newest change of each key.

    Every winner of a batch is measured against what the earlier batches left behind.
    """

    def __init__(self, context: FoldContext) -> None:
        super().__init__(context)
        self._has_order = bool(context.spec.sequence_by)
        self._winners: SpillTable[RowChange] = context.store.table("winners")
        self._newest: SpillTable[RowChange] = context.store.table("newest")

    def take(self, changes: Sequence[RowChange], recount: Recount) -> None:
        """Keep the winners so far."""
        best: dict[str, RowChange] = {}
        for change in changes:
            self._keep(best, change, recount)
        known = self._winners.get(best)
        for change in best.values():
            self._keep(known, change, recount)
        self._winners.put(known)
        recount.superseded += len(changes)

    def settle(self, recount: Recount) -> None:
        """Apply the winners; all others are superseded."""
        for winners in self._winners.chunks():
            recount.superseded -= len(winners)
            self._apply(winners, recount)
        self._winners.clear()

    def rows(self) -> SpillTable[RowChange]:
        """Return the newest change of each key."""
        return self._newest

    def key_of(self, row: Row) -> str:
        """Return the text of the key columns."""
        return self._classifier.key_of(row)

    def outranks(self, one: Place, other: Place) -> bool:
        """The newer one wins."""
        return one > other

    def _keep(self, best: dict[str, RowChange], change: RowChange, recount: Recount) -> None:
        other = best.setdefault(change.key, change)
        if other is not change and self._wins(change, other, recount):
            best[change.key] = change

    def _apply(self, winners: Mapping[str, RowChange], recount: Recount) -> None:
        """Give winners their dispositions, and remember the newest change of their keys."""
        known = self._newest.get(winners)
        newer = {}
        for key, winner in winners.items():
            state = known.get(key)
            disposition = self._disposition(winner, state, recount)
            if self._coverage.doubts(state):
                recount.doubtful += 1
            else:
                recount.dispositions[disposition] += 1
            if state is None or self.outranks(winner.place, state.place):
                newer[key] = self._together(winner, state)
        self._newest.put(newer)

    def _together(self, winner: RowChange, state: RowChange | None) -> RowChange:
        """Return what is then known of the key: what the winner says, and nothing older."""
        return winner

    def _disposition(self, winner: RowChange, state: RowChange | None, recount: Recount) -> str:
        is_delete = winner.row is None
        if state is None or state.row is None:
            if is_delete:
                return "deleted_absent"
            is_alive = state is None or self._wins(winner, state, recount)
            return "inserted" if is_alive else "stale"
        if winner.place == state.place:
            return "unchanged"
        if not self._wins(winner, state, recount):
            return "stale"
        return "deleted" if is_delete else "updated"

    def _wins(self, one: RowChange, other: RowChange, recount: Recount) -> bool:
        """Tell which wins; without a declared order, two partitions cannot be compared."""
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
        return self.outranks(one.place, other.place)


RULE = UpsertRule
