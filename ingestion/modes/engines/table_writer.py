"""A write mode's access to its table: the rows that are there, and one commit.

    before: the rows of the batch's keys → decided: what becomes of each → commit

The rows of ``before`` stay as they are until the commit, or it cannot be made.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol, cast

import pyarrow as pa
import pyarrow.compute as pc

from oncelake.ingestion.modes.engines.engine import Decision
from oncelake.ingestion.tables.commit_log import unless_committed
from oncelake.ingestion.tables.commit_metadata import CommitMetadata
from oncelake.ingestion.tables.table import Change, SinkTable, Transaction

if TYPE_CHECKING:
    from oncelake.ingestion.modes.engines.local import LocalEngine


class TableWriter(Protocol):
    """Reads a stream's table for one batch, and commits to it once."""

    @property
    def columns(self) -> Sequence[str]:
        """The table's columns, in order."""

    def open_before(
        self, keys: str, *, columns: Sequence[str] | None = None, size_bytes: int = 0
    ) -> None:
        """Call the rows of some keys ``before``, as they are before the commit.

        Args:
            keys: Query of the keys; one may be there more than once.
            columns: Those that are asked for, the keys included; all without any.
            size_bytes: About how large the rows are that they come from.
        """

    def commit(self, decision: Decision, metadata: CommitMetadata) -> None:
        """Commit what a decision comes to; where it changes no row, the metadata alone.

        Raises:
            TableBusyError: others changed the table each time it was tried.
        """

    def close(self) -> None:
        """Give up what is not committed."""


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
        """Ask the table for the stream's own."""
        names = self._transaction.columns if self._transaction is not None else None
        if names is None:
            names = [column.name for column in self._table.columns()]
        return [name for name in names if name in self._own]

    def open_before(
        self, keys: str, *, columns: Sequence[str] | None = None, size_bytes: int = 0
    ) -> None:
        """Look up the rows of the keys, which stay as they are until the commit."""
        del size_bytes
        wanted = self._engine.arrow(f"SELECT DISTINCT * FROM ({keys}) k")
        rows = self._begun().rows_of(wanted, columns)
        self._engine.hold(rows, name="before")

    def commit(self, decision: Decision, metadata: CommitMetadata) -> None:
        """Hand the rows over to the sink."""
        change = self._change(decision) if decision.count(decision.changes) else None
        with unless_committed(self._table.log(), self._table.stream, metadata):
            self._begun().commit(change, metadata)
        self.close()

    def stage(self, decision: Decision, metadata: CommitMetadata, branch: str) -> None:
        """Hand the rows over to a branch of the sink's table; nothing is committed."""
        cast("Any", self._begun()).stage(self._change(decision), metadata, branch)
        self.close()

    def close(self) -> None:
        """Give up what is not committed."""
        if self._transaction is not None:
            self._transaction.close()
            self._transaction = None

    def _begun(self) -> Transaction:
        if self._transaction is None:
            self._transaction = self._table.begin(self._seq)
        return self._transaction

    def _change(self, decision: Decision) -> Change:
        decided = self._engine.table("decided")
        rows, what = decided.select(self.columns), decided.column("_what")

        def of(dispositions: Sequence[str]) -> pa.Table:
            is_one = pc.is_in(what, pa.array(dispositions, what.type))
            return rows if pc.all(is_one).as_py() else rows.filter(is_one)

        return Change(
            inserted=of(decision.inserted),
            updated=of(decision.updated),
            deleted=of(decision.deleted).select(self._keys),
        )
