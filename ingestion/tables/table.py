"""The interface of a sink's table: its log, lookups by key, and one atomic commit.

    log: where does the table stand? → begin on exactly that → look up the rows of some keys
         → commit rows and note as one act, or nothing → log: what was committed?

A note is a batch's ``CommitMetadata``: its seq, ranges and counts. Whoever commits rows without it,
or it without them, breaks the promise.
"""

from __future__ import annotations

import datetime as dt
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from oncelake.ingestion.declaration.ddl import DeclaredColumn
from oncelake.ingestion.declaration.partitions import DeclaredPartition
from oncelake.ingestion.errors import (
    AGAIN,
    CommitConflictError,
    ForeignTableError,
    RefusedError,
    TableBusyError,
    TableSettingsError,
)
from oncelake.ingestion.tables.commit_log import (
    ROW_COUNTS,
    Commit,
    CommitLog,
    committed,
    unless_committed,
)
from oncelake.ingestion.tables.commit_metadata import CommitMetadata, app_id

Tell = Callable[[str], None]
# How far back a table is read where nobody says so.
A_WEEK: Final = dt.timedelta(days=7)
REPLACED: Final = "is not the table that was read: another was made under its name"


@dataclass(frozen=True, slots=True)
class Altered:
    """A commit whose note does not match its checksum; ``what`` says which."""

    what: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """The change that one commit makes to the rows of a table.

    Attributes:
        inserted: Whole rows, by the table's columns in their order, of which none is there yet.
        updated: Whole rows that take the places of those with the same keys.
        deleted: Keys, by their names, of rows that go.
    """

    inserted: pa.Table
    updated: pa.Table
    deleted: pa.Table

    @property
    def counts(self) -> Mapping[str, int]:
        """How many rows it concerns, as a commit's own metrics count them."""
        rows = (self.inserted, self.updated, self.deleted)
        return dict(zip(ROW_COUNTS, (part.num_rows for part in rows), strict=True))


@dataclass(frozen=True, kw_only=True, slots=True)
class Rules:
    """What a table asks of its rows by itself, whatever is declared; most ask nothing.

    Attributes:
        checks: Its constraints, as conditions of Spark SQL by their names.
        invariants: Those of its columns, by the columns' names; they stay as long as these.
        generated: What the table computes columns by, as Spark SQL by their names.
        fixed_by: What keeps the columns as they are, but for new ones and nulls, if anything does.
    """

    checks: Mapping[str, str] = field(default_factory=dict)
    invariants: Mapping[str, str] = field(default_factory=dict)
    generated: Mapping[str, str] = field(default_factory=dict)
    fixed_by: str = ""

    @property
    def constraints(self) -> dict[str, str]:
        """What each row must meet, by its name; one that is null is not met."""
        of_columns = {f"invariant of {name}": sql for name, sql in self.invariants.items()}
        return {**self.checks, **of_columns}


KeepsRows = Callable[[Iterable[pa.RecordBatch]], bool]


@dataclass(frozen=True, kw_only=True, slots=True)
class TableDefinition:
    """A table that is to be made.

    Attributes:
        columns: Its columns, in their order: the stream's own, and then those of every table.
        keys: The columns that identify a row.
        description: What a person says of it.
        window: How far back it shall be read.
        deletion_vectors: Whether rows may be marked as gone, where the sink can.
        partitions: What it is partitioned by, where the sink can.
        sort_by: What the rows of a file are sorted by, as a declaration has it.
        keeps_rows: A table of somebody else's is taken with its rows, which are adopted: tells
            whether these are still the rows that were found.
    """

    columns: tuple[DeclaredColumn, ...]
    keys: tuple[str, ...]
    description: str = ""
    window: dt.timedelta = A_WEEK
    deletion_vectors: bool = False
    partitions: tuple[DeclaredPartition, ...] = ()
    sort_by: tuple[str, ...] = ()
    keeps_rows: KeepsRows | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Layout:
    """The columns that a table is to have.

    Attributes:
        columns: All of them, by their stored types, in order; any other is dropped.
        found: The table's own, as they were read, of which these are made.
        renamed: What the table calls columns so far, by their new names.
        partitions: What new rows are to be partitioned by, where that is to change.
        sort_by: What the rows of new files are to be sorted by, where that is to change.
        tell: Called with a sentence for each step.
        version: Of the log, behind which nobody may have committed; any without one.
    """

    columns: Sequence[DeclaredColumn]
    found: Sequence[DeclaredColumn]
    renamed: Mapping[str, str] = field(default_factory=dict)
    partitions: tuple[DeclaredPartition, ...] | None = None
    sort_by: tuple[str, ...] | None = None
    tell: Tell = lambda text: None
    version: int | None = None


class Transaction(ABC):
    """One commit to be, on top of exactly the state that it was begun on; closed once settled."""

    @property
    def columns(self) -> Sequence[str] | None:
        """The table's columns, in order, where they are known by now."""
        return None

    @abstractmethod
    def rows_of(self, keys: pa.Table, columns: Sequence[str] | None = None) -> pa.Table:
        """Return the table's rows whose values are among ``keys``, by the names of its columns.

        They stay as they are until this commits, or it cannot.

        Args:
            keys: Values of some columns; none is there twice.
            columns: Those that are asked for, beside which others may come; all without any.
        """

    @abstractmethod
    def commit(self, change: Change | None, metadata: CommitMetadata) -> None:
        """Commit rows and note as one act; without a change, the note alone.

        Raises:
            CommitConflictError: another run has committed meanwhile. Nothing of this is visible.
            TableBusyError: somebody else has changed the table. Nothing of this is visible.
            UnknownOutcomeError: no answer came; a log opened anew tells, waiting until it can.
            DependencyError: the sink does not answer. Nothing of this is visible.
        """

    def reshape(self, layout: Layout, metadata: CommitMetadata) -> None:
        """Commit other columns and note as one act, as ``commit`` does; values stay.

        Raises:
            NotImplementedError: the sink does not do that; says why.
            DamagedTableError: a file that would be copied is not as it was written.
        """
        del layout, metadata
        raise NotImplementedError("its columns cannot be changed")

    @abstractmethod
    def close(self) -> None:
        """Give up what is not committed, and let go of the connection."""


class SinkTable(ABC):
    """The table of one stream's rows.

    Attributes:
        stream: The stream's name.
    """

    stream: str

    @property
    @abstractmethod
    def where(self) -> str:
        """Name the table, and where it is, for people."""

    @property
    def uri(self) -> str:
        """Name the table for programs, without secrets."""
        return self.where

    @abstractmethod
    def log(self) -> CommitLog:
        """Open the log of what was committed, as it is now."""

    @abstractmethod
    def create(self, wanted: TableDefinition) -> None:
        """Make the table, unless one is there."""

    @abstractmethod
    def columns(self) -> tuple[DeclaredColumn, ...]:
        """Return the table's columns, by the types that ``SinkKind.stored_type`` gives."""

    def rules(self) -> Rules:
        """Return what the table asks of its rows."""
        return Rules()

    def partitions(self) -> tuple[DeclaredPartition, ...]:
        """Return what the rows that are written from now on are partitioned by, in order."""
        return ()

    def sort_by(self) -> tuple[str, ...]:
        """Return what the rows of new files are sorted by, as a declaration has it."""
        return ()

    def reshape(self, layout: Layout, metadata: CommitMetadata) -> Commit:
        """Commit other columns and a note; see ``Transaction``. Needs the stream's lock.

        Raises:
            RefusedError: the sink does not do that; says why.
            TableBusyError: somebody else has changed the columns since they were read.
        """

        def act(begun: Transaction) -> None:
            if layout.version is not None and layout.version != self.log().newest_version:
                raise TableBusyError.meanwhile(self.stream)
            # What they have added is not listed, and would be dropped.
            if (*self.columns(),) != (*layout.found,):
                raise TableBusyError(
                    f"{self.stream}: somebody else has changed the columns of {self.where} "
                    f"meanwhile. Nothing was written. Next: {AGAIN}"
                )
            begun.reshape(layout, metadata)

        try:
            return self._commit(metadata, act)
        except NotImplementedError as error:
            if type(error) is not NotImplementedError:
                # Arrow's, of a value.
                raise
            problem, remedy = f"{self.where}: {error}.", f"oncelake rebuild {self.stream}"
            raise RefusedError(self.stream, problem, remedy=remedy) from error

    @abstractmethod
    def begin(self, seq: int) -> Transaction:
        """Begin the commit of a seq, which must follow the table's last, if it has any.

        Raises:
            CommitConflictError: the table does not stand at the seq before, or is another than its
                log was last read of.
        """

    @abstractmethod
    def scan(
        self, names: Sequence[str], version: int | None = None, *, since_seq: int | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Yield the columns of those names, as of a version or the newest, in any order.

        A column that was not there then is null.

        Args:
            names: ``_seq`` among them where ``since_seq`` is given.
            version: Of the log; the newest without one.
            since_seq: Of the rows, those of this batch and later ones alone.

        Raises:
            TableBusyError: the table has gone on from that version, and keeps no past.
        """

    def rows_of_seq(self, seq: int, *, commit: Commit) -> int | None:
        """Count the rows that carry a batch's number, as of its commit; ``None`` if it is past."""
        try:
            rows = self.scan(["_seq"], commit.version, since_seq=seq)
            return sum(pc.sum(pc.equal(each.column(0), seq)).as_py() or 0 for each in rows)
        except TableBusyError:
            return None

    def notes(self, through: int) -> Iterator[tuple[int, int | None, str | Altered | None]]:
        """Yield version, fence and note of each commit up to a version, oldest first, as kept.

        A note that is not as it was written has no fence.
        """
        log, application = self.log(), app_id(self.stream)
        for version in sorted(each for each in log.versions() if each <= through):
            commit = log.read(version)
            note = commit.metadata.to_json() if commit.metadata else None
            yield version, commit.txns.get(application), note

    def checkpoint_version(self, through: int) -> int:
        """Return up to which version the log may lack commits; -1 if readers need each.

        Args:
            through: The version that is read.
        """
        return -1

    def check(self, log: Any) -> TableSettingsError | None:
        """Make sure that the rows are as they were written, where that can be checked.

        Args:
            log: The table's own, opened.

        Returns:
            What is set on the table that contradicts the ingestion.

        Raises:
            DamagedTableError: a file is not as it was written.
            ForeignTableError: the table is another stream's.
        """
        del log
        return None

    def translate_read_errors(self) -> AbstractContextManager[None]:
        """Translate what reading the rows raises, into DamagedTableError or DependencyError."""
        return nullcontext()

    def commit_note(self, metadata: CommitMetadata) -> Commit:
        """Commit a note alone, and read it back; needs the stream's lock.

        It opens a table, and records a person's decision.

        Raises:
            CommitConflictError: the table's log does not hold what was meant.
        """
        return self._commit(metadata, lambda begun: begun.commit(None, metadata))

    def _commit(self, metadata: CommitMetadata, act: Callable[[Any], None]) -> Commit:
        """Let a transaction of the sink's own commit, and read back what it did."""
        with (
            unless_committed(self.log(), self.stream, metadata),
            closing(self.begin(metadata.seq)) as transaction,
        ):
            act(transaction)
        return committed(self.log(), self.stream, metadata)


class NamedTable(SinkTable):
    """The table of a sink that keeps it outside the lake, by a name (``SinkKind.has_names``)."""

    @abstractmethod
    def set_aside(self, entry: str, *, is_replaced: bool = False) -> str | None:
        """Give the table another name, and its own to the one that was made beside it, if any was.

        One that is not this stream's keeps its name, unless that is needed for the one beside it.
        Needs the stream's lock; to do it again changes nothing.

        Args:
            entry: What to call it by.
            is_replaced: Whether one was made beside it (``SinkSpec.beside``).

        Returns:
            What it is called now; ``None`` where there was none.

        Raises:
            RefusedError: it cannot be renamed. No name has changed.
            MissingRightError: the role may not do that. No name has changed.
        """

    def drop_archived(self, entry: str) -> None:
        """Remove what it keeps in itself of a table that a rebuild has replaced.

        Args:
            entry: As it was told ``set_aside``.
        """
        del entry

    @abstractmethod
    def drop(self) -> None:
        """Remove the table of this stream for good."""

    def maintain(
        self, window: dt.timedelta, target_bytes: int, *, is_clustered: bool = False
    ) -> Mapping[str, int]:
        """Keep the table quick to read, and small; needs the stream's lock.

        Args:
            window: How far back it shall be read.
            target_bytes: The size that small files are put together to.
            is_clustered: Whether the files of a sorted table are to have ranges of their own.

        Returns:
            What was done, as counts of files and versions by a word.
        """
        del window, target_bytes, is_clustered
        return {}


class SealedTable(SinkTable):
    """The table of a sink whose files Oncelake syncs and checks itself (``SinkKind.seals``)."""

    @abstractmethod
    def seal(self) -> None:
        """Write what was committed to the disk, with checksums."""

    @abstractmethod
    def altered_sources(self, commit: Commit) -> Iterator[str]:
        """Yield a sentence for each file a commit has copied that was not as it was written."""


class ErasableTable(SinkTable):
    """The table of a sink that can ``erase``, of which every trace goes.

    Its transactions have ``delete(keys, metadata)`` and ``erase(keys, metadata)``, too, which
    commit as ``commit`` does.
    """

    @property
    def obstacle(self) -> str:
        """Why this process can do neither, as part of a sentence; mostly there is no reason."""
        return ""

    def delete(self, keys: pa.Table, metadata: CommitMetadata) -> Commit:
        """Commit the table without the rows that have the values of a row of ``keys``.

        They go as any deleted rows do: their bytes may stay, and readers of changes are told.
        Needs the lock, and no ``obstacle``.

        Args:
            keys: Some of the table's columns, whichever they are; no row is there twice.
            metadata: The note.
        """
        return self._commit(metadata, lambda begun: begun.delete(keys, metadata))

    def erase(self, keys: pa.Table, metadata: CommitMetadata) -> Commit:
        """Do as ``delete``, and leave nothing of the rows in the newest version, nor tell of them.

        They are in older versions until ``remove_older_versions``.

        Raises:
            RefusedError: something else would keep them; says what.
        """
        return self._commit(metadata, lambda begun: begun.erase(keys, metadata))

    def written_files(self) -> frozenset[str]:
        """Return what lies in the table's folder, of any version and of none; of a server, nothing.

        Whatever is there before an erase commits can be committed by nobody once it has.
        """
        return frozenset()

    @abstractmethod
    def remove_older_versions(self, written: Collection[str]) -> int:
        """Remove at once what no version but the newest holds; return how many data files.

        Needs the lock; may be repeated, and goes on where it died. A process that has slept past
        its lease takes nothing from its successor, whose files are not among ``written``.

        Args:
            written: What `written_files` was before the erase committed.

        Raises:
            RefusedError: something keeps them that is not ours; says what.
            TableBusyError: somebody still reads them, or has changed the table.
        """


class RewindableTable(SinkTable):
    """The table of a sink that can ``rewind``: it keeps its earlier versions.

    Its transactions have ``restore(version, metadata)``, too, which commits as ``commit`` does.
    """

    def restorable(self) -> Iterator[tuple[Commit, int | None, int]]:
        """Walk the log back.

        Yields:
            Each commit; a version that holds its rows, if any can be read; and how many of its
            own files are gone.
        """
        return ((commit, commit.version, 0) for commit in self.log().newest_first())

    def altered_since(self, version: int) -> Iterator[str]:
        """Name the files of a version that would come back, and are not as they were written."""
        del version
        yield from ()

    def restore(self, version: int, metadata: CommitMetadata) -> Commit:
        """Commit the rows and columns of an earlier version, with a note; needs the lock.

        Raises:
            RewindError: what was there then cannot be brought back.
        """
        return self._commit(metadata, lambda begun: begun.restore(version, metadata))


class BranchingTable(SinkTable):
    """The table of a sink with branches (``SinkKind.has_branches``).

    Its transactions have ``stage(change, metadata, branch)``, too, which commits a change to a
    branch that nothing of the stream stands on; another is none of ours, and is refused.
    """

    @abstractmethod
    def drop_branch(self, branch: str) -> None:
        """Remove a branch that ``stage`` has made, if it is there; needs the lock."""


class MarkableTable(SinkTable):
    """The table of a sink that can mark rows as gone (``SinkKind.marks_rows``)."""

    @abstractmethod
    def configure(self, *, deletion_vectors: bool) -> None:
        """Set the table's properties as declared.

        Args:
            deletion_vectors: Whether commits may mark rows as gone from now on.
        """

    @abstractmethod
    def rewritten(self, log: Any) -> tuple[int, int]:
        """Count the rows that the newest batches have copied, and those that they have changed.

        Both are 0 where rows are marked as gone instead.
        """


def counts_of(change: Change | None) -> Mapping[str, int]:
    """Count the rows of a change; without one there are none."""
    return change.counts if change else dict.fromkeys(ROW_COUNTS, 0)


def seq_conflict(
    stream: str, where: str, seq: int, *, last: int | None, but: str = ""
) -> CommitConflictError:
    """Return the error of a commit that is not the next one here.

    Args:
        where: The table, for people.
        seq: The commit's.
        last: The table's last, if it has any of this stream.
        but: What is wrong, where it is not that.
    """
    held = "no commit of this stream" if last is None else f"seq {last} as its last"
    return CommitConflictError(
        stream,
        f"{where} {but or f'holds {held}'}, so that seq {seq} is another writer's, or another "
        "table's.",
    )


def foreign_table(table: SinkTable) -> ForeignTableError:
    """Return the error of a table whose rows are somebody else's."""
    return ForeignTableError(
        table.stream,
        f"{table.where} holds rows, and is not of this stream.",
        remedy="declare another table in `sink`, or move that one away",
    )


def since(batch: pa.RecordBatch, seq: int | None) -> pa.RecordBatch:
    """Keep the rows that this batch or a later one has written; all of them without one."""
    return batch if seq is None else batch.filter(pc.greater_equal(batch["_seq"], seq))
