"""Append: every good record is a row, and its place in Kafka is its identity.

A plain append, fenced by ``txn``: it reads nothing of the table. Any other kind of commit may bring
records that are there already, so it inserts what is missing and leaves the rest.

Rows to records: a row is one record; inserted rows carry the batch's seq.
"""

from __future__ import annotations

from collections.abc import Mapping

from ingestion.modes import sql
from ingestion.modes.engines.engine import Clause, Merge
from ingestion.modes.mode import WriteMode, WriteResult
from ingestion.sinks.commit_log import INSERTED, Commit
from ingestion.sinks.commit_metadata import CommitMetadata


class AppendMode(WriteMode):
    """One batch on its way into a table of records."""

    def prepare(self) -> Mapping[str, int]:
        """Decide nothing: every record is a row."""
        columns = sql.names(self._table.columns)
        records = f"SELECT *, {sql.stamp(self._target.epoch, self._target.seq)} FROM good"
        self._engine.define("winners", f"SELECT {columns} FROM ({records}) r")
        return {"winners": self._good.count}

    def commit(self, metadata: CommitMetadata) -> None:
        """Append the records, or insert those that are missing where some may be there."""
        if not self._good.count:
            self._table.commit_nothing(metadata)
        elif metadata.kind == "ingest":
            self._table.append("SELECT * FROM winners", metadata)
        else:
            self._table.open_before(f"SELECT {sql.names(self._identity)} FROM winners")
            self._table.merge(self._merge(), metadata)

    def account(self, commit: Commit) -> WriteResult:
        """Take what Delta counted; a record that is not inserted must have been there."""
        inserted = _inserted(commit)
        counts = {"inserted": inserted}
        if inserted != self._good.count:
            counts["unchanged"] = self._found_before(commit)
        return WriteResult(counts=counts, rows_expected=inserted)

    @classmethod
    def recount(cls, commit: Commit) -> WriteResult:
        """Say what the commit alone tells: what it did not insert was there, by inference."""
        inserted = _inserted(commit)
        counts = {"inserted": inserted}
        there = (commit.metadata.counts["winners"] if commit.metadata else inserted) - inserted
        if there:
            counts |= {"unchanged": there, "derived": there}
        return WriteResult(counts=counts, rows_expected=inserted)

    def _merge(self) -> Merge:
        return Merge(
            source="SELECT * FROM winners",
            on=sql.equal(self._identity, "t", "s"),
            insert=Clause(when="TRUE", assign=self._columns()),
            size_bytes=self._good.size_bytes,
        )

    def _found_before(self, commit: Commit) -> int:
        """Count the records that the table held before a commit."""
        self._table.open_parent(commit)
        (row,) = self._engine.rows(
            'SELECT count(*) AS "rows" FROM winners s JOIN "before" t ON '
            + sql.equal(self._identity, "t", "s")
        )
        return int(row["rows"])


def _inserted(commit: Commit) -> int:
    """Take what Delta counted: MERGE's own word where it was one, else that of the append."""
    of = commit.metrics
    return of.get(INSERTED, of.get("numOutputRows", 0))


MODE = AppendMode
