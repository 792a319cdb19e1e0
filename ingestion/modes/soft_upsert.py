"""An upsert that marks instead of removing: a deleted key keeps a row, with ``_deleted`` set.

The row has the columns of the delete itself: all columns of a record that ``apply_as_deletes``
selects, the key alone of a null value. Columns of older records would depend on how the batches
were cut, since records that lose inside a batch are never written.

Rows to records: as in an upsert, and a delete is a row, too.
"""

from __future__ import annotations

from collections.abc import Mapping

from oncelake.ingestion.declaration.modes import DELETED_COLUMN
from oncelake.ingestion.modes.upsert import UpsertMode


class SoftUpsertMode(UpsertMode):
    """Writes one batch to a table that keeps deleted keys as marked rows."""

    inserts = ("inserted", "deleted_absent")
    updates = ("updated", "deleted")
    deletes = ()

    def _values(self) -> Mapping[str, str]:
        return {DELETED_COLUMN: "s._delete"}


MODE = SoftUpsertMode
