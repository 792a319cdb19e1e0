"""Upsert with soft deletes: the newest record of a key is its row, when it is a delete, too."""

from __future__ import annotations

from ingestion.declaration.modes import DELETED_COLUMN
from ingestion.verify.fold.modes import FoldContext
from ingestion.verify.fold.modes.upsert import UpsertRule
from ingestion.verify.fold.recount import Recount
from ingestion.verify.read.record import RowChange


class SoftUpsertRule(UpsertRule):
    """Remembers the newest change of each key, which is a row when it is a delete, too."""

    def __init__(self, context: FoldContext) -> None:
        super().__init__(context)
        self._flag = len(self.columns)
        self.columns = (*self.columns, DELETED_COLUMN)

    def _disposition(self, winner: RowChange, state: RowChange | None, recount: Recount) -> str:
        assert winner.row is not None, "a delete that marks is a row"
        is_delete = winner.row[self._flag]
        if state is None:
            return "deleted_absent" if is_delete else "inserted"
        if winner.place == state.place:
            return "unchanged"
        if not self._wins(winner, state, recount):
            return "stale"
        return "deleted" if is_delete else "updated"


RULE = SoftUpsertRule
