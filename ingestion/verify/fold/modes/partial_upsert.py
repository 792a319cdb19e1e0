"""Upsert of partial updates: of each column the last value that was not null since a delete."""

from __future__ import annotations

from collections.abc import Sequence

from ingestion.verify.decode.coerce import UnprovableError
from ingestion.verify.fold.modes import FoldContext
from ingestion.verify.fold.modes.upsert import UpsertRule
from ingestion.verify.fold.recount import Recount
from ingestion.verify.read.record import RowChange
from ingestion.verify.read.spill import SpillTable


class PartialUpsertRule(UpsertRule):
    """Remembers what each key has come to, record by record: they arrive in their order."""

    def __init__(self, context: FoldContext) -> None:
        super().__init__(context)
        self._begun_anew: set[str] = set()

    def take(self, changes: Sequence[RowChange], recount: Recount) -> None:
        """Fold each record into what its key has come to in this batch."""
        known = self._winners.get({change.key for change in changes})
        for change in changes:
            other = known.get(change.key)
            if change.row is None:
                self._begun_anew.add(change.key)
            if other is None or self._wins(change, other, recount):
                known[change.key] = self._filled(change, other)
        self._winners.put(known)
        recount.superseded += len(changes)

    def settle(self, recount: Recount) -> None:
        """Apply what the keys have come to; all other records are superseded."""
        super().settle(recount)
        self._begun_anew.clear()

    def rows(self) -> SpillTable[RowChange]:
        """Return the row of each key.

        Raises:
            UnprovableError: some of what it may have kept is gone from Kafka.
        """
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


RULE = PartialUpsertRule
