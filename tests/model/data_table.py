"""The seam that every sink implements, over the table in memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from oncelake.ingestion.declaration.ddl import DeclaredColumn, system_columns
from oncelake.ingestion.declaration.derived import as_ddl
from oncelake.ingestion.errors import CommitConflictError
from oncelake.ingestion.tables.commit_log import Commit, CommitLog
from oncelake.ingestion.tables.commit_metadata import CommitMetadata
from oncelake.ingestion.tables.table import Layout, RewindableTable, Rules, TableDefinition
from tests.model.evolution import parsed
from tests.model.process import step

if TYPE_CHECKING:
    from tests.model.lake import Paths, Table


class ModelData:
    """What the product asks of ``ingestion.tables.table.SinkTable``."""

    def __init__(self, paths: Paths) -> None:
        """Take the place of the table."""
        self._paths = paths
        self.where = str(paths.data)

    def log(self) -> Any:
        """Open the log."""
        from tests.model.lake import ModelLog

        return ModelLog(self._paths.data)

    def rows_of_seq(self, seq: int, *, commit: Commit) -> int:
        """Count rows that carry a seq."""
        state = self._table.states[commit.version]
        return sum(row.seq == seq for row in state.values())

    def partitions(self) -> tuple[()]:
        """It has none."""
        return ()

    def sort_by(self) -> tuple[()]:
        """It sorts nothing."""
        return ()

    def check(self, log: CommitLog) -> None:
        """Find nothing: memory is not damaged."""
        del log

    def translate_read_errors(self) -> AbstractContextManager[None]:
        """Translate nothing."""
        return nullcontext()

    def restorable(self) -> Iterator[tuple[Commit, int, int]]:
        """Walk the log back: every version still has its files."""
        return ((commit, commit.version, 0) for commit in self.log().newest_first())

    def altered_since(self, version: int) -> Iterator[str]:
        """Find nothing."""
        del version
        yield from ()

    def restore(self, version: int, metadata: CommitMetadata) -> Commit:
        """Commit the rows of an earlier version."""
        return self.commit_note(metadata, version)

    def create(self, wanted: TableDefinition) -> None:
        """Create the table if it is not there."""
        from tests.model.lake import Table

        place, ours = self._paths.data, {each.name for each in system_columns()}
        step("create the table")
        if place.table is None:
            table = Table(id="table")
            ddl = as_ddl(each for each in wanted.columns if each.name not in ours)
            table.land({}, None, clock_ms=0, read_at=-1, operation="CREATE TABLE", columns=ddl)
            place.table = table

    def columns(self) -> tuple[DeclaredColumn, ...]:
        """Return the columns of the newest version, and those of every table."""
        return (*parsed(self._table.columns[-1]), *system_columns())

    def rules(self) -> Rules:
        """Return nothing: it asks nothing of a row."""
        return Rules()

    def reshape(self, layout: Layout, metadata: CommitMetadata) -> Commit:
        """Commit other columns and a note, on exactly the version that was opened."""
        ours = {each.name for each in system_columns()}
        columns = as_ddl(each for each in layout.columns if each.name not in ours)
        return self.commit_note(metadata, columns=columns)

    def commit_note(
        self, metadata: CommitMetadata, version: int | None = None, columns: str | None = None
    ) -> Commit:
        """Commit as delta-rs does: fenced against others, and never skipped."""
        table, stream = self._table, self._paths.stream
        step("begin the commit")
        read_at = len(table.commits) - 1
        if table.skips(metadata):
            raise CommitConflictError(stream, "the seq is there already", remedy="again")
        step("land the commit")
        table.land(
            table.states[read_at if version is None else version],
            metadata,
            clock_ms=self._paths.world.now_ms(),
            read_at=read_at,
            operation="WRITE",
            columns=columns if version is None else table.columns[version],
        )
        step("hear of the commit")
        commit: Commit | None = self.log().find(stream, metadata.seq)
        if commit is None or commit.metadata != metadata:
            raise CommitConflictError(stream, "not as meant", remedy="again")
        return commit

    @property
    def _table(self) -> Table:
        table = self._paths.data.table
        assert table is not None, "the table is there by then"
        return table


RewindableTable.register(ModelData)
