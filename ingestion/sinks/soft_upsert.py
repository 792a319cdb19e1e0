"""An upsert that marks instead of removing: a deleted key keeps a row, with ``_deleted`` set.

The row is then what the delete itself said: all columns of a record that ``apply_as_deletes``
selects, the key alone of a null value. To keep what older records said instead would depend on how
the batches were cut, since records that lose inside a batch are never written.

Rows to records: as in an upsert, and a delete that was applied is a row, too. What a delete met is
looked up before the commit, since MERGE counts it among inserts and updates.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ingestion.declaration.modes import DELETED_COLUMN
from ingestion.lake.table_log import Commit
from ingestion.sinks import sql
from ingestion.sinks.engine import Clause, Merge
from ingestion.sinks.sink import WriteResult, merge_counts
from ingestion.sinks.upsert import LEFT_ALONE, UpsertSink

_DELETES: Final = ("deleted", "deleted_absent")


class SoftUpsertSink(UpsertSink):
    """One batch on its way into a table that remembers its dead."""

    def prepare(self) -> Mapping[str, int]:
        """Choose the winners, and look up what the deletes among them will meet."""
        counts = super().prepare()
        if not self._good.deletes:
            return counts
        found = self._classify(self._target.version)
        return {**counts, **{name: found.get(name, 0) for name in _DELETES}}

    def account(self, commit: Commit) -> WriteResult:
        """Take what MERGE counted but for the deletes, and look up the winners it left alone."""
        merged = merge_counts(commit)
        rows_expected = merged["inserted"] + merged["updated"]
        counts = _without_deletes(commit)
        if self._facts.distinct != rows_expected:
            found = self._classify(commit.version - 1)
            counts |= {name: found.get(name, 0) for name in LEFT_ALONE if name not in _DELETES}
        return WriteResult(counts=counts, rows_expected=rows_expected)

    @staticmethod
    def recount(commit: Commit) -> WriteResult:
        """Say what the commit alone tells; winners it did not apply were stale, by inference."""
        merged = merge_counts(commit)
        rows_expected = merged["inserted"] + merged["updated"]
        counts = _without_deletes(commit)
        winners = commit.metadata.counts["winners"] if commit.metadata else 0
        if left_alone := winners - rows_expected:
            counts |= {"stale": left_alone, "derived": left_alone}
        return WriteResult(counts=counts, rows_expected=rows_expected)

    def _merge(self) -> Merge:
        columns = {**self._columns(), DELETED_COLUMN: "s._delete"}
        return Merge(
            source="SELECT * FROM winners",
            on=sql.equal(self._keys, "t", "s"),
            matched=(Clause(when=self._wins_over("t"), assign=columns),),
            insert=Clause(when="TRUE", assign=columns),
            size_bytes=self._good.size_bytes,
            key_ranges=self._facts.ranges,
        )


def _without_deletes(commit: Commit) -> dict[str, int]:
    merged, known = merge_counts(commit), commit.metadata.counts if commit.metadata else {}
    return {
        "inserted": merged["inserted"] - known.get("deleted_absent", 0),
        "updated": merged["updated"] - known.get("deleted", 0),
    }


SINK = SoftUpsertSink
