"""What a write mode is: a class with three steps, prepare → commit → account."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import cast

from ingestion.declaration.spec import StreamSpec
from ingestion.lake.attempts import Attempt, Attempts
from ingestion.lake.paths import StreamPaths
from ingestion.modes import sql
from ingestion.modes.engines.engine import Engine
from ingestion.modes.engines.table_writer import TableWriter
from ingestion.sinks.commit_log import DELETED, INSERTED, UPDATED, Commit
from ingestion.sinks.commit_metadata import CommitMetadata


@dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """Where, and as what, a write mode writes one batch.

    Attributes:
        engine: Holds the batch: ``batch``, and of it what can be applied, ``good``.
        attempt: Names what is written beside the table.
        committed: Which attempts may be believed there.
        table: Reads the table, and commits to it.
    """

    engine: Engine
    spec: StreamSpec
    paths: StreamPaths
    epoch: int
    attempt: Attempt
    committed: Attempts
    table: TableWriter

    @property
    def seq(self) -> int:
        """The batch's number."""
        return self.attempt.seq


@dataclass(frozen=True, kw_only=True, slots=True)
class Good:
    """How much of a batch can be applied.

    Attributes:
        size_bytes: Size of their values in Kafka.
    """

    count: int
    deletes: int
    size_bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class WriteResult:
    """What a write mode knows after its commit.

    Attributes:
        counts: Dispositions that are known only now.
        rows_expected: Rows that must carry this seq, by these counts.
        problems: What the audit found wrong, one sentence each.
    """

    counts: Mapping[str, int]
    rows_expected: int
    problems: tuple[str, ...] = ()


class WriteMode(ABC):
    """One batch on its way into the table."""

    def __init__(self, target: Target, good: Good) -> None:
        """Take the good records of a batch; nothing is read or written yet."""
        self._target, self._good = target, good
        self._engine, self._keys = target.engine, target.spec.keys
        self._table = target.table
        # Of the record that a row comes from.
        self._identity = ("_epoch", *target.spec.origin)

    def _columns(self) -> dict[str, str]:
        """Take each column of the table from the source."""
        return {name: sql.name(name, "s") for name in self._table.columns}

    @abstractmethod
    def prepare(self) -> Mapping[str, int]:
        """Decide what to write, and write what must be there before the commit.

        Returns:
            The counts known before the commit, by name.
        """

    @abstractmethod
    def commit(self, metadata: CommitMetadata) -> None:
        """Make the one commit that holds the rows, the seq and the metadata."""

    @abstractmethod
    def account(self, commit: Commit) -> WriteResult:
        """Say what became of the records, from the commit and from the table."""

    @classmethod
    @abstractmethod
    def recount(cls, commit: Commit) -> WriteResult:
        """Say what a commit alone tells of its batch, for the ledger row that a crash swallowed."""


def mode_class(spec: StreamSpec) -> type[WriteMode]:
    """Import the class of a declaration's write mode."""
    mode = spec.write_mode
    module = mode.soft_module if spec.deletes == "soft" else mode.module
    module = mode.partial_module if spec.ignore_null_updates else module
    module = mode.log_module if spec.is_log else module
    return cast("type[WriteMode]", import_module(module).MODE)


def merge_counts(commit: Commit) -> dict[str, int]:
    """Take what MERGE itself counted; a commit of the metadata alone counted nothing."""
    of = commit.metrics
    return {
        "inserted": of.get(INSERTED, 0),
        "updated": of.get(UPDATED, 0),
        "deleted": of.get(DELETED, 0),
    }


def unlike(written: Mapping[str, int], decided: Mapping[str, int]) -> tuple[str, ...]:
    """Name the counts of MERGE that are not what was decided before it."""
    return tuple(
        f"MERGE wrote {written[name]} {name}, expected {count}"
        for name, count in decided.items()
        if written[name] != count
    )
