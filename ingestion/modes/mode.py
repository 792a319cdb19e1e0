"""The interface of a write mode: one query decides what becomes of a batch, one commit writes it.

Every count is known before the commit and stands in its note, so a crash after it loses none.
"""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from types import MappingProxyType
from typing import Any, ClassVar, Final, cast

from oncelake.ingestion.declaration.spec import StreamSpec
from oncelake.ingestion.errors import counted
from oncelake.ingestion.lake.books import imbalances
from oncelake.ingestion.lake.paths import StreamPaths
from oncelake.ingestion.lake.side_tables import read_back
from oncelake.ingestion.modes import sql
from oncelake.ingestion.modes.engines.engine import Decision, Engine
from oncelake.ingestion.modes.engines.table_writer import ChangeWriter, TableWriter
from oncelake.ingestion.storage.location import Location
from oncelake.ingestion.tables.commit_log import DELETED, INSERTED, UPDATED, Commit
from oncelake.ingestion.tables.commit_metadata import CommitMetadata, Kind, SideFile, SideFileName

Ranges = Mapping[str, tuple[Any, Any]]
# A delete by a record that is not of this table, which finds no row: it is no disposition.
LEFT_ABSENT: Final = "left_absent"


@dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """The batch that a write mode writes, and the table that it writes to.

    Attributes:
        engine: Holds the batch: ``batch``, and of it what can be applied, ``good``.
        seq: The batch's number.
        table: Reads the table, and commits to it.
        forgotten: Which remembered deletes mean nothing, as SQL: a truncate came behind them.
        contests: Query of what is to be remembered of keys that two rows had; see ``contests``.
        side: What was written beside the table, which the commit is to name.
    """

    engine: Engine
    spec: StreamSpec
    paths: StreamPaths
    epoch: int
    seq: int
    table: TableWriter
    forgotten: str = ""
    contests: str = ""
    side: dict[SideFileName, SideFile] = field(default_factory=dict)

    def write_side(self, name: SideFileName, folder: Location, sql: str) -> int:
        """Write the rows of a query into a file beside the table; return how many it has now."""
        file = folder / f"{secrets.token_hex(16)}.parquet"
        self.engine.write_parquet(sql, file)
        if (written := read_back(file)).rows:
            self.side[name] = written
        return written.rows


@dataclass(frozen=True, kw_only=True, slots=True)
class Good:
    """How much of a batch can be applied.

    Attributes:
        size_bytes: Size of their values in Kafka.
    """

    count: int
    deletes: int
    size_bytes: int


class WriteMode(ABC):
    """Decides what becomes of each record of one batch, and commits that once.

    Attributes:
        inserts: Dispositions of records whose rows the commit inserts.
        updates: Of those whose rows it updates.
        deletes: Of those whose rows it deletes.
    """

    inserts: ClassVar[tuple[str, ...]] = ("inserted",)
    updates: ClassVar[tuple[str, ...]] = ("updated",)
    deletes: ClassVar[tuple[str, ...]] = ("deleted",)

    def __init__(self, target: Target, good: Good) -> None:
        """Take the good records of a batch; nothing is read or written yet."""
        self._target, self._good = target, good
        self._engine, self._keys = target.engine, target.spec.keys
        self._table = target.table
        # The record that a row comes from.
        self._identity = ("_epoch", *target.spec.origin)
        self._decision = Decision(counts={})

    @property
    def judged(self) -> tuple[str, ...]:
        """The dispositions of the rows that a batch brings, as they will stand in the table."""
        return (*self.inserts, *self.updates)

    @property
    def changing(self) -> tuple[str, ...]:
        """The dispositions of the rows that change the table."""
        return (*self.inserts, *self.updates, *self.deletes)

    @property
    def decided(self) -> int:
        """How many rows of the engine's ``decided`` there are; it is there only with some."""
        return sum(self._decision.counts.values())

    @abstractmethod
    def decide(self, kind: Kind) -> Mapping[str, int]:
        """Decide what becomes of every record, and write what must be there before the commit.

        Args:
            kind: Of the commit: what it brings may be in the table already.

        Returns:
            The counts, by name: all dispositions of good records among them.
        """

    def commit(self, metadata: CommitMetadata) -> None:
        """Make the one commit that holds the rows, the seq and the metadata."""
        self._table.commit(self._decision, metadata)

    def stage(self, metadata: CommitMetadata, branch: str) -> None:
        """Show what was decided on a branch of the table, which stays as it is."""
        assert isinstance(self._table, ChangeWriter), "Spark writes to sinks without branches"
        self._table.stage(self._decision, metadata, branch)

    def _decide(self, decided: str, *, key_ranges: Ranges = MappingProxyType({})) -> None:
        """Take the rows of a query as the decision, and count them by their dispositions.

        Args:
            decided: The query; see ``Decision``.
            key_ranges: Lowest and highest values of the keys.
        """
        self._engine.define("decided", decided, keep=True)
        counted = self._engine.rows('SELECT _what, count(*) AS "rows" FROM decided GROUP BY _what')
        self._decision = Decision(
            inserted=self.inserts,
            updated=self.updates,
            deleted=self.deletes,
            counts={row["_what"]: row["rows"] for row in counted},
            keys=self._target.spec.row_keys,
            size_bytes=self._good.size_bytes,
            key_ranges=key_ranges,
        )

    def _counts(self, *dispositions: str) -> dict[str, int]:
        names = (*dispositions, *([LEFT_ABSENT] if self._target.spec.leaves_rows else []))
        return {name: self._decision.count([name]) for name in names}

    def _absent(self, side: str) -> str:
        """Return the disposition, in SQL, of a delete that finds no row."""
        if not self._target.spec.leaves_rows:
            return "'deleted_absent'"
        is_left = f"{sql.name('_left_to', side)} IS NOT NULL"
        return f"CASE WHEN {is_left} THEN '{LEFT_ABSENT}' ELSE 'deleted_absent' END"

    @classmethod
    def changes(cls, counts: Mapping[str, int]) -> Mapping[str, int]:
        """Return how many rows a commit of such counts inserts, updates and deletes."""
        of = {"inserted": cls.inserts, "updated": cls.updates, "deleted": cls.deletes}
        return {change: sum(counts.get(name, 0) for name in names) for change, names in of.items()}

    @classmethod
    def rows_of_seq(cls, counts: Mapping[str, int]) -> int:
        """Return how many rows carry the seq of a batch of such counts."""
        changes = cls.changes(counts)
        return changes["inserted"] + changes["updated"]


def mode_class(spec: StreamSpec) -> type[WriteMode]:
    """Import the class of a declaration's write mode."""
    mode = spec.write_mode
    module = mode.soft_module if spec.deletes == "soft" else mode.module
    module = mode.partial_module if spec.ignore_null_updates else module
    module = mode.log_module if spec.is_log else module
    return cast("type[WriteMode]", import_module(module).MODE)


def audit(mode: type[WriteMode], commit: Commit, rows_of_seq: int | None) -> tuple[str, ...]:
    """Compare what was decided of a batch with what was written; return a sentence a problem.

    Args:
        mode: The stream's write mode.
        commit: The batch's commit: its note has the decision, its metrics what was written.
        rows_of_seq: Rows that carry its seq, read from the table; ``None`` where that is unknown.
    """
    assert commit.metadata is not None, "a batch of ours"
    counts = commit.metadata.counts
    decided, written = mode.changes(counts), merge_counts(commit)
    expected = mode.rows_of_seq(counts)
    return (
        *(
            f"{counted(count, 'row')} should be {name}, the commit counts {written[name]}"
            for name, count in decided.items()
            if written[name] != count
        ),
        *imbalances(
            counts,
            rows_of_seq=expected if rows_of_seq is None else rows_of_seq,
            rows_expected=expected,
            kind=commit.metadata.kind,
        ),
    )


def merge_counts(commit: Commit) -> dict[str, int]:
    """Return the rows that a commit's own metrics count; one of the note alone has none.

    Spark counts what it appends under another name than what it merges.
    """
    of = commit.metrics
    return {
        "inserted": of.get(INSERTED, of.get("numOutputRows", 0)),
        "updated": of.get(UPDATED, 0),
        "deleted": of.get(DELETED, 0),
    }
