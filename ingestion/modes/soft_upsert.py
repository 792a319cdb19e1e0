"""An upsert that marks instead of removing: a deleted key keeps a row, with ``_deleted`` set.

A row that leaves the table, by `where` or by its route, is removed: its source has not deleted it.

The row has the columns of the delete itself: all columns of a record that ``apply_as_deletes``
selects, the key alone of a null value. Columns of older records would depend on how the batches
were cut, since records that lose inside a batch are never written.

Rows to records: as in an upsert, and a delete is a row, too; ``rows_left`` of them are removed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from oncelake.ingestion.declaration.modes import DELETED_COLUMN
from oncelake.ingestion.modes.upsert import UpsertMode
from oncelake.ingestion.tables.commit_metadata import Kind

ROWS_LEFT: Final = "rows_left"


class SoftUpsertMode(UpsertMode):
    """Writes one batch to a table that keeps deleted keys as marked rows."""

    inserts = ("inserted", "deleted_absent")
    updates = ("updated", "deleted")
    deletes = (ROWS_LEFT,)

    def decide(self, kind: Kind) -> Mapping[str, int]:
        """Decide as an upsert does; a row that leaves is a deleted one, too."""
        counts = {**super().decide(kind)}
        left = self._decision.count([ROWS_LEFT])
        return {
            **counts,
            "deleted": counts["deleted"] + left,
            **({ROWS_LEFT: left} if left else {}),
        }

    @classmethod
    def changes(cls, counts: Mapping[str, int]) -> Mapping[str, int]:
        """Return how many rows a commit of such counts inserts, updates and deletes."""
        changes, left = super().changes(counts), counts.get(ROWS_LEFT, 0)
        return {**changes, "updated": changes["updated"] - left}

    def _deleted(self) -> str:
        if not self._target.spec.leaves_rows:
            return super()._deleted()
        return f"CASE WHEN s._left_to IS NOT NULL THEN '{ROWS_LEFT}' ELSE 'deleted' END"

    def _absent(self, side: str) -> str:
        # A delete is a row unless a later record has removed that.
        return f"CASE WHEN s._alive THEN {super()._absent(side)} ELSE 'stale' END"

    def _values(self) -> Mapping[str, str]:
        return {DELETED_COLUMN: "s._delete"}


MODE = SoftUpsertMode
