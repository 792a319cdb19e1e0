"""An upsert that marks instead of removing: a deleted key keeps a row, with ``_deleted`` set.

The row is then what the delete itself said: all columns of a record that ``apply_as_deletes``
selects, the key alone of a null value. To keep what older records said instead would depend on how
the batches were cut, since records that lose inside a batch are never written.

Rows to records: as in an upsert, and a delete is a row, too.
"""

from __future__ import annotations

from collections.abc import Mapping

from ingestion.declaration.modes import DELETED_COLUMN
from ingestion.modes.upsert import UpsertMode


class SoftUpsertMode(UpsertMode):
    """One batch on its way into a table that keeps deleted keys as marked rows."""

    inserts = ("inserted", "deleted_absent")
    updates = ("updated", "deleted")
    deletes = ()

    def _values(self) -> Mapping[str, str]:
        return {DELETED_COLUMN: "s._delete"}


MODE = SoftUpsertMode
