"""The seam that every sink implements, over the table in memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from oncelake.ingestion.declaration.ddl import DeclaredColumn, system_columns
from oncelake.ingestion.declaration.derived import as_ddl
from oncelake.ingestion.declaration.types import SqlType
from oncelake.ingestion.errors import CommitConflictError, TableBusyError
from oncelake.ingestion.tables.commit_log import Commit, CommitLog
from oncelake.ingestion.tables.commit_metadata import CommitMetadata
from oncelake.ingestion.tables.table import RewindableTable
from tests.model.evolution import parsed
from tests.model.process import step

if TYPE_CHECKING:
    from tests.model.lake import Paths, Table


class ModelData:
    """What the product asks of ``ingestion.tables.table.SinkTable``."""

    way_out = "no command"

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

    def seal(self) -> None:
        """Do nothing: memory does not wait to be written."""

    def refuse_damaged(self, log: CommitLog) -> None:
        """Find nothing: memory is not damaged."""
        del log

    def settings_error(self, log: CommitLog) -> None:
        """Find nothing."""
        del log

    def altered_sources(self, commit: Commit) -> Iterator[str]:
        """Find nothing."""
        del commit
        yield from ()

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

    def columns(self) -> tuple[DeclaredColumn, ...]:
        """Return the columns of the newest version, and those of every table."""
        return (*parsed(self._table.columns[-1]), *system_columns())

    def constraints(self) -> dict[str, str]:
        """Return nothing: it asks nothing of a row."""
        return {}

    generated = constraints

    def can_widen(self, found: SqlType, wider: SqlType) -> bool:
        """Tell whether it holds more."""
        return found.widens_to(wider)

    def alteration(self, column: DeclaredColumn, *, is_new: bool) -> str:
        """Write nothing."""
        del column, is_new
        return ""

    def refit(self, column: DeclaredColumn, found: DeclaredColumn) -> str:
        """Write nothing."""
        del column, found
        return ""

    def widening(self, column: DeclaredColumn) -> str:
        """Write nothing."""
        del column
        return ""

    def alter(self, column: DeclaredColumn, *, is_new: bool, spark: Any) -> None:
        """Commit a column more, on exactly the version that was opened."""
        del spark
        assert is_new, column
        step("alter the table")
        now = self._table.columns[-1]
        is_there = column.name in {each.name for each in parsed(now)}
        self._alter(now if is_there else as_ddl([*parsed(now), column]))

    def widen(self, columns: Sequence[DeclaredColumn], *, tell: object) -> None:
        """Commit wider types, likewise."""
        del tell
        step("alter the table")
        wider = {column.name: column.type for column in columns}
        now = parsed(self._table.columns[-1])
        self._alter(as_ddl(replace(each, type=wider.get(each.name, each.type)) for each in now))

    def _alter(self, ddl: str) -> None:
        table = self._table
        read_at = len(table.commits) - 1
        step("land the columns")
        if table.fences and len(table.commits) - 1 != read_at:
            raise TableBusyError("a commit of that version is there")
        world = self._paths.world
        table.land(
            table.states[-1],
            None,
            clock_ms=world.now_ms(),
            read_at=read_at,
            operation="ADD COLUMNS",
            columns=ddl,
        )
        world.happens("columns altered")
        step("hear of the columns")

    def commit_note(self, metadata: CommitMetadata, version: int | None = None) -> Commit:
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
            columns=None if version is None else table.columns[version],
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
