"""Upsert and its relatives: one record of each key decides its row, or that it has none."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from oncelake.ingestion.declaration.modes import DELETED_COLUMN
from oncelake.ingestion.verify.decode.coerce import UnprovableError
from oncelake.ingestion.verify.fold.rule import FoldContext, Recount, Rule
from oncelake.ingestion.verify.read.record import Place, Row, RowChange
from oncelake.ingestion.verify.read.spill import SpillTable
from oncelake.ingestion.verify.verdict import Difference


class UpsertRule(Rule):
    """Remembers the newest change of each key in its rows; deletes are never forgotten.

    Every winner of a batch is compared with what the earlier batches left behind.
    """

    def __init__(self, context: FoldContext) -> None:
        super().__init__(context)
        self._has_order = bool(context.spec.sequence_by)
        self._winners: SpillTable[RowChange] = context.store.table("winners")

    def take(self, changes: Sequence[RowChange], recount: Recount) -> None:
        """Keep the winners so far."""
        best: dict[str, RowChange] = {}
        for change in changes:
            self._keep(best, change, recount)
        known = self._winners.get(best)
        for change in best.values():
            self._keep(known, change, recount)
        self._winners.put(known)
        recount.counts["superseded"] += len(changes)

    def newest_of(self, keys: Collection[str]) -> Mapping[str, RowChange]:
        """Return the newest change of each key."""
        return self._rows.get(keys)

    def settle(self, recount: Recount) -> None:
        """Apply the winners; all others are superseded."""
        for winners in self._winners.chunks():
            recount.counts["superseded"] -= len(winners)
            self._apply(winners, recount)
        self._winners.clear()

    def key_of(self, row: Row) -> str:
        """Return the text of the key columns."""
        return self._classifier.key_of(row)

    def outranks(self, one: Place, other: Place) -> bool:
        """Let the newer one win."""
        return one > other

    def _keep(self, best: dict[str, RowChange], change: RowChange, recount: Recount) -> None:
        other = best.setdefault(change.key, change)
        if other is not change and self._wins(change, other, recount):
            best[change.key] = change

    def _apply(self, winners: Mapping[str, RowChange], recount: Recount) -> None:
        """Give winners their dispositions, and remember the newest change of their keys."""
        known = self._rows.get(winners)
        newer = {}
        for key, winner in winners.items():
            state = known.get(key)
            disposition = self._disposition(winner, state, recount)
            is_nothing = disposition == "deleted_absent" and winner.is_left
            if self._coverage.doubts(state):
                recount.doubtful += 1
                recount.doubtful_left += winner.is_left
            elif is_nothing:
                recount.counts["exploded"] -= 1
                recount.extra["left_absent"] += 1
            else:
                recount.dispositions[disposition] += 1
            if state is None or self.outranks(winner.place, state.place):
                newer[key] = self._together(winner, state)
        self._rows.put(newer)

    def _together(self, winner: RowChange, state: RowChange | None) -> RowChange:
        """Return what is then known of the key: what the winner says, and nothing older."""
        return winner

    def _disposition(self, winner: RowChange, state: RowChange | None, recount: Recount) -> str:
        is_delete = winner.is_delete
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
        """Tell whether ``one`` wins; without a declared order, two partitions have none."""
        if not self._has_order and one.place[0] == other.place[0] and one.at != other.at:
            what = f"key {one.key} came from {other} too, and nothing orders the two"
            clash = Difference("dispositions", what, *one.at, one.offset, seq=one.seq)
            recount.clashes.append(clash)
        return self.outranks(one.place, other.place)


class LogRule(UpsertRule):
    """Remembers the newest winner of each key: a later batch is never compared with an earlier."""

    def _apply(self, winners: Mapping[str, RowChange], recount: Recount) -> None:
        deletes = sum(winner.is_delete for winner in winners.values())
        recount.dispositions.update(deleted=deletes, inserted=len(winners) - deletes)
        self._rows.put(dict(winners))


class InsertOnlyRule(UpsertRule):
    """Remembers the oldest record of each key."""

    def outranks(self, one: Place, other: Place) -> bool:
        """Let the older one win."""
        return one < other

    def _disposition(self, winner: RowChange, state: RowChange | None, recount: Recount) -> str:
        """Compare nothing with a record that perhaps never was the row: an adopted one stayed."""
        if state is not None and self._coverage.is_unseen:
            return "stale"
        return super()._disposition(winner, state, recount)


class SoftUpsertRule(UpsertRule):
    """Remembers the newest change of each key, which is a row even when it is a delete."""

    def __init__(self, context: FoldContext) -> None:
        super().__init__(context)
        self.columns = (*self.columns, DELETED_COLUMN)

    def _disposition(self, winner: RowChange, state: RowChange | None, recount: Recount) -> str:
        is_late = winner.is_delete and state is not None and state.row is None
        if is_late and state is not None and not self._wins(winner, state, recount):
            return "stale"
        disposition = super()._disposition(winner, state, recount)
        if disposition == "deleted" and winner.is_left:
            recount.extra["rows_left"] += 1
        return disposition


class PartialUpsertRule(UpsertRule):
    """Remembers of each column the last value that was not null since a delete.

    It folds record by record, since they arrive in their order.
    """

    def __init__(self, context: FoldContext) -> None:
        super().__init__(context)
        self._begun_anew: set[str] = set()

    def take(self, changes: Sequence[RowChange], recount: Recount) -> None:
        """Fold each record into the state of its key in this batch."""
        known = self._winners.get({change.key for change in changes})
        for change in changes:
            other = known.get(change.key)
            if change.row is None:
                self._begun_anew.add(change.key)
            if other is None or self._wins(change, other, recount):
                known[change.key] = self._filled(change, other)
        self._winners.put(known)
        recount.counts["superseded"] += len(changes)

    def settle(self, recount: Recount) -> None:
        """Apply the state of each key; all other records are superseded."""
        super().settle(recount)
        self._begun_anew.clear()

    def rows(self) -> SpillTable[RowChange]:
        """Return the row of each key."""
        if self._is_partial:
            raise UnprovableError(
                "a row that keeps what older records said can be proven only while Kafka holds "
                "them all"
            )
        return super().rows()

    def _together(self, winner: RowChange, state: RowChange | None) -> RowChange:
        return winner if winner.key in self._begun_anew else self._filled(winner, state)

    def _filled(self, change: RowChange, older: RowChange | None) -> RowChange:
        """Return a change with the nulls of its columns filled from an older one."""
        if change.row is None or older is None or older.row is None:
            return change
        width = len(self.columns)
        pairs = zip(change.row[:width], older.row[:width], strict=True)
        filled = (old if new is None else new for new, old in pairs)
        return change._replace(row=(*filled, *change.row[width:]))
