"""Delta as the battery asks for it: each change of rows is one MERGE of the engine of one machine.

A run gives that engine SQL over its batch; here the batch is the change, and the SQL takes it as it
is. What is tested is the engine's commit: fence, version, note, counts.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from contextlib import ExitStack, closing
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable, Schema

from ingestion.declaration.ddl import DeclaredColumn
from ingestion.modes import sql
from ingestion.modes.engines.duckdb import LocalEngine
from ingestion.modes.engines.engine import Clause, Merge
from ingestion.modes.engines.table_writer import DeltaWriter
from ingestion.pipeline.schema import type_of_columns
from ingestion.sinks.commit_metadata import CommitMetadata
from ingestion.sinks.delta.durability import seal_commits
from ingestion.sinks.delta.table import DeltaData
from ingestion.sinks.table import Change, Transaction, counts_of, seq_conflict


class DeltaChanges(DeltaData):
    """A Delta table that is keyed by ``id``."""

    def create(
        self, columns: Sequence[DeclaredColumn], *, keys: Sequence[str], description: str
    ) -> None:
        """Make the table as a run of that engine does."""
        del keys
        schema = Schema.from_json(type_of_columns(columns).json())
        DeltaTable.create(str(self.path), schema, mode="ignore", description=description)
        seal_commits(self.path)

    def begin(self, seq: int) -> Transaction:
        """Look at the newest version."""
        return _Merging(self, seq)


class _Merging(Transaction):
    """One batch in an engine of its own."""

    def __init__(self, table: DeltaChanges, seq: int) -> None:
        log = table.log()
        last = log.last_seq(table.stream)
        if last not in (None, seq - 1):
            raise seq_conflict(table.stream, table.where, seq, last=last)
        # The disk's power may be cut at any of these.
        with ExitStack() as opened:
            scratch = opened.enter_context(tempfile.TemporaryDirectory())
            self._engine = opened.enter_context(closing(LocalEngine(table.stream, Path(scratch))))
            version = DeltaTable(str(table.path)).version()
            self._writer = DeltaWriter(self._engine, table.stream, table.path, version)
            self._open = opened.pop_all()

    def rows_of(self, keys: pa.Table) -> pa.Table:
        """Ask the engine for the rows of the version before."""
        self._engine.hold(keys, name="looked_up")
        self._writer.open_before("")
        return self._engine.arrow('SELECT b.* FROM "before" b SEMI JOIN looked_up USING (id)')

    def commit(self, change: Change | None, metadata: CommitMetadata) -> None:
        """Merge, or append where nothing is there to be changed."""
        if change is None:
            self._writer.commit_nothing(metadata)
            return
        columns = list(self._writer.columns)
        self._engine.hold(change.inserted.select(columns), name="inserted")
        if not any((change.updated.num_rows, change.deleted.num_rows)):
            self._writer.append("SELECT * FROM inserted", metadata)
            return
        self._engine.hold(change.updated.select(columns), name="updated")
        self._engine.hold(change.deleted, name="deleted")
        written = "SELECT *, false AS gone FROM inserted UNION ALL SELECT *, false FROM updated"
        values = {name: sql.name(name, "s") for name in columns}
        merge = Merge(
            source=f"{written} UNION ALL BY NAME SELECT id, true AS gone FROM deleted",
            on="s.id = t.id",
            insert=Clause(when="NOT s.gone", assign=values),
            matched=(
                Clause(when="s.gone", assign=None),
                Clause(when="NOT s.gone", assign=values),
            ),
            size_bytes=sum(counts_of(change).values()),
        )
        self._writer.merge(merge, metadata)

    def close(self) -> None:
        """Let go of the batch."""
        self._open.close()
