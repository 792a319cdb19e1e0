"""An upsert that marks instead of removing: a deleted key keeps a row, with ``_deleted`` set.

The row is then what the delete itself said: all columns of a record that ``apply_as_deletes``
selects, the key alone of a null value. To keep what older records said instead would depend on how
the batches were cut, since records that lose inside a batch are never written.

Rows to records: as in an upsert, and a delete that was applied is a row, too. What a delete met is
looked up before the commit, since MERGE counts it among inserts and updates.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ingestion.declaration.modes import DELETED_COLUMN
from ingestion.modes.engines.engine import Clause
from ingestion.modes.mode import WriteResult, merge_counts
from ingestion.modes.upsert import UpsertMode
from ingestion.sinks.commit_log import Commit


class SoftUpsertMode(UpsertMode):
    """One batch on its way into a table that remembers its dead."""

    _left_alone = ("stale", "unchanged")

    def prepare(self) -> Mapping[str, int]:
        """Choose the winners, and look up what the deletes among them will meet."""
        counts = super().prepare()
        if not self._good.deletes:
            return counts
        self._table.open_before(self._winners_keys)
        with self._compared_with('"before"'):
            found = self._classify()
        return {**counts, **{name: found.get(name, 0) for name in ("deleted", "deleted_absent")}}

    @classmethod
    def _written(cls, commit: Commit) -> WriteResult:
        """Take what MERGE counted but for the deletes, which are counted in the metadata."""
        merged, known = merge_counts(commit), commit.metadata.counts if commit.metadata else {}
        counts = {
            "inserted": merged["inserted"] - known.get("deleted_absent", 0),
            "updated": merged["updated"] - known.get("deleted", 0),
        }
        return WriteResult(counts=counts, rows_expected=merged["inserted"] + merged["updated"])

    def _audited(self, commit: Commit) -> Iterator[str]:
        """Find nothing: the row of a deleted key stays."""
        yield from ()

    def _clauses(self) -> tuple[tuple[Clause, ...], Clause]:
        """Write the row of a delete, too."""
        columns = {**self._columns(), DELETED_COLUMN: "s._delete"}
        update = Clause(when=self._wins_over("t"), assign=columns)
        return (update,), Clause(when="TRUE", assign=columns)


MODE = SoftUpsertMode
