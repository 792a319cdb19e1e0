"""What a write mode asks of the table that it writes to: what is there, and one commit.

    before: the rows of the batch's keys → merge, append, or nothing: the one commit → what was it?

In this process ``before`` is the rows of some keys, as they are when the commit begins, and so they
are still what was there before it. Spark opens a version of a Delta table whole.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import closing
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

from ingestion.modes import sql
from ingestion.modes.engines.engine import Clause, Merge
from ingestion.sinks.commit_log import Commit, unless_committed
from ingestion.sinks.commit_metadata import CommitMetadata
from ingestion.sinks.table import Change, SinkTable, Transaction
from ingestion.storage.location import Location

if TYPE_CHECKING:
    from ingestion.modes.engines.duckdb import LocalEngine
    from ingestion.modes.engines.spark import SparkEngine


class TableWriter(Protocol):
    """Reads a stream's table for one batch, and commits to it once."""

    @property
    def columns(self) -> Sequence[str]:
        """The table's columns, in order."""

    def open_before(self, keys: str) -> None:
        """Call the rows as they are before the commit ``before``.

        Args:
            keys: Query of the keys whose rows are asked for; there may be others.
        """

    def merge(self, merge: Merge, metadata: CommitMetadata) -> None:
        """Commit a merge with the rows of ``before``.

        Raises:
            TableBusyError: others changed the table each time it was tried.
            IncomparableError: the statement came to ``FAIL``.
        """

    def append(self, rows: str, metadata: CommitMetadata, *, gone: str = "") -> None:
        """Commit rows of a query, which are added to those that are there.

        Args:
            gone: Of a log, a query of the keys that it says are gone.
        """

    def commit_nothing(self, metadata: CommitMetadata) -> None:
        """Commit the metadata alone."""

    def open_parent(self, commit: Commit) -> None:
        """Call the rows on which that commit was made ``before``: of the same keys as then."""

    def open_after(self, commit: Commit, keys: str) -> None:
        """Call the rows as that commit has left them ``after``."""

    def close(self) -> None:
        """Give up what is not committed."""


class SparkWriter:
    """Writes to a Delta table by Spark's own commits; see ``TableWriter``."""

    def __init__(self, engine: SparkEngine, stream: str, path: Location, version: int) -> None:
        """Take the version that the batch is measured against."""
        self._engine, self._stream, self._path = engine, stream, path
        self._version, self._is_open = version, False

    @cached_property
    def columns(self) -> Sequence[str]:
        """Ask the engine, which opens the version before the batch."""
        self.open_before("")
        return self._engine.columns("before")

    def open_before(self, keys: str) -> None:
        """Open the version before the batch, whole: files are skipped by their statistics."""
        del keys
        if not self._is_open:
            self._engine.open_table("before", self._path, self._version)
            self._is_open = True

    def merge(self, merge: Merge, metadata: CommitMetadata) -> None:
        """Commit a merge."""
        self._engine.merge(merge, self._stream, self._path, metadata)

    def append(self, rows: str, metadata: CommitMetadata, *, gone: str = "") -> None:
        """Commit rows."""
        assert not gone, "only a log is told of keys that are gone"
        self._engine.append(rows, self._stream, self._path, metadata)

    def commit_nothing(self, metadata: CommitMetadata) -> None:
        """Commit the metadata alone."""
        self._engine.commit_nothing(self._stream, self._path, metadata)

    def open_parent(self, commit: Commit) -> None:
        """Open the version below: somebody else may have put files together in between."""
        self._engine.open_table("before", self._path, commit.version - 1)

    def open_after(self, commit: Commit, keys: str) -> None:
        """Open the commit's own version."""
        del keys
        self._engine.open_table("after", self._path, commit.version)

    def close(self) -> None:
        """Do nothing: what is not committed is nowhere."""


class ChangeWriter:
    """Writes to a sink's table: DuckDB decides what becomes of the rows, the sink commits it."""

    def __init__(
        self,
        engine: LocalEngine,
        table: SinkTable,
        *,
        keys: Sequence[str],
        columns: Collection[str],
        seq: int,
    ) -> None:
        """Take what a row is: by which columns it is found, and which are ours."""
        self._engine, self._table, self._seq = engine, table, seq
        self._keys, self._own = keys, columns
        self._transaction: Transaction | None = None

    @cached_property
    def columns(self) -> Sequence[str]:
        """Take those of the rows that were looked up, or ask the table, for the stream's own."""
        if self._transaction is not None:
            names = self._engine.columns("before")
        else:
            names = [column.name for column in self._table.columns()]
        return [name for name in names if name in self._own]

    def open_before(self, keys: str) -> None:
        """Look up the rows of the keys, which stay as they are until the commit."""
        rows = self._begun().rows_of(self._engine.arrow(f"SELECT DISTINCT * FROM ({keys}) k"))
        self._engine.hold(rows, name="before")

    def merge(self, merge: Merge, metadata: CommitMetadata) -> None:
        """Commit what the merge comes to; where it changes no row, the metadata alone."""
        self._commit(self._resolve(merge), metadata)

    def append(self, rows: str, metadata: CommitMetadata, *, gone: str = "") -> None:
        """Commit rows."""
        new = self._engine.arrow(f"SELECT {sql.names(self.columns)} FROM ({rows}) r")
        nothing = new.slice(0, 0)
        deleted = self._engine.arrow(gone) if gone else nothing.select(self._keys)
        change = Change(inserted=new, updated=nothing, deleted=deleted)
        self._commit(change, metadata)

    def commit_nothing(self, metadata: CommitMetadata) -> None:
        """Commit the metadata alone."""
        self._commit(None, metadata)

    def open_parent(self, commit: Commit) -> None:
        """Do nothing: what was looked up is what the commit was made on."""

    def open_after(self, commit: Commit, keys: str) -> None:
        """Look up the rows of the keys as they are now."""
        with closing(self._table.begin(self._seq + 1)) as transaction:
            rows = transaction.rows_of(self._engine.arrow(f"SELECT DISTINCT * FROM ({keys}) k"))
        self._engine.hold(rows, name="after")

    def close(self) -> None:
        """Give up what is not committed."""
        if self._transaction is not None:
            self._transaction.close()
            self._transaction = None

    def _begun(self) -> Transaction:
        if self._transaction is None:
            self._transaction = self._table.begin(self._seq)
        return self._transaction

    def _commit(self, change: Change | None, metadata: CommitMetadata) -> None:
        with unless_committed(self._table.log(), self._table.stream, metadata):
            self._begun().commit(
                change if change and any(change.counts.values()) else None, metadata
            )
        self.close()

    def _resolve(self, merge: Merge) -> Change:
        """Execute a merge: what becomes of the source's rows, and of their partners."""
        source, partners = f"({merge.source}) s", f'"before" t ON {merge.on}'
        new = f"{source} ANTI JOIN {partners} WHERE {merge.insert.when}"
        updated, deleted, taken = [], [], list[str]()
        for clause in merge.matched:
            mine = " AND ".join([f"({clause.when})", *taken])
            matched = f"FROM {source} JOIN {partners} WHERE {mine}"
            taken.append(f"NOT coalesce({clause.when}, FALSE)")
            if clause.assign is None:
                deleted.append(f"SELECT {sql.names(self._keys, 't')} {matched}")
            else:
                updated.append(f"SELECT {self._row(clause)} {matched}")
        nothing = f'SELECT {sql.names(self.columns)} FROM "before" WHERE FALSE'
        no_key = f'SELECT {sql.names(self._keys)} FROM "before" WHERE FALSE'
        return Change(
            inserted=self._engine.arrow(f"SELECT {self._row(merge.insert)} FROM {new}"),
            updated=self._engine.arrow(" UNION ALL ".join(updated or [nothing])),
            deleted=self._engine.arrow(" UNION ALL ".join(deleted or [no_key])),
        )

    def _row(self, clause: Clause) -> str:
        """Select a whole row: what a clause assigns, and of a partner what it leaves."""
        assert clause.assign is not None, "asked only of clauses that write"
        values = {name: clause.assign.get(name, sql.name(name, "t")) for name in self.columns}
        return sql.selected(values)
