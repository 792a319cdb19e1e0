"""The interface of a sink's table: its log, lookups by key, and one atomic commit.

    log: where does the table stand? → begin on exactly that → look up the rows of some keys
         → commit rows and note as one act, or nothing → log: what was committed?

A note is a batch's ``CommitMetadata``: its seq, ranges and counts. Whoever commits rows without it,
or it without them, breaks the promise.
"""

from __future__ import annotations

import datetime as dt
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from oncelake.ingestion.declaration.ddl import DeclaredColumn
from oncelake.ingestion.declaration.types import SqlType
from oncelake.ingestion.errors import (
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
# Out of an empty table of others, which no command takes away.
WAY_OUT: Final = "drop or rename that table, or declare another one in `sink`"


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
class TableDefinition:
    """A table that is to be made.

    Attributes:
        columns: Its columns, in their order: the stream's own, and then those of every table.
        keys: The columns that identify a row.
        description: What a person says of it.
        window: How far back it shall be read.
        deletion_vectors: Whether rows may be marked as gone, where the sink can.
    """

    columns: tuple[DeclaredColumn, ...]
    keys: tuple[str, ...]
    description: str = ""
    window: dt.timedelta = A_WEEK
    deletion_vectors: bool = False


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

    @property
    def way_out(self) -> str:
        """Say what a person does about an empty table of others that cannot be a stream's."""
        return WAY_OUT

    def refit(self, column: DeclaredColumn, found: DeclaredColumn) -> str:
        """Say what makes a column of an empty table of others one as it is declared."""
        del column, found
        return self.way_out

    @abstractmethod
    def log(self) -> CommitLog:
        """Open the log of what was committed, as it is now."""

    @abstractmethod
    def create(self, wanted: TableDefinition) -> None:
        """Make the table, unless one is there."""

    @abstractmethod
    def columns(self) -> tuple[DeclaredColumn, ...]:
        """Return the table's columns, by the types that ``SinkKind.stored_type`` gives."""

    def constraints(self) -> Mapping[str, str]:
        """Return what the table asks of each row, as conditions of Spark SQL by their names.

        A row must meet each: one that is null is not met.
        """
        return {}

    def dropping(self, constraint: str) -> str:
        """Write, for people, the statement that drops a constraint, if there is one, and ``or``."""
        del constraint
        return ""

    def generated(self) -> Mapping[str, str]:
        """Return what the table computes columns by, as Spark SQL by their names."""
        return {}

    def alteration(self, column: DeclaredColumn, *, is_new: bool) -> str:
        """Write, for people, what makes the table take a new column, or nulls in an old one."""
        del column, is_new
        return f"oncelake rebuild {self.stream}, since its sink changes no columns"

    def alter(self, column: DeclaredColumn, *, is_new: bool, spark: Any) -> None:
        """Do that; no row changes. ``spark`` is the run's session.

        Raises:
            RefusedError: the sink changes no columns.
        """
        del is_new, spark
        raise RefusedError(
            self.stream,
            f"{self.where} cannot be changed, and {column.name} differs.",
            remedy=f"oncelake rebuild {self.stream}",
        )

    def can_widen(self, found: SqlType, wider: SqlType) -> bool:
        """Tell whether `widen` can give a column of a type another, which holds all its values."""
        del found, wider
        return False

    def widening(self, column: DeclaredColumn) -> str:
        """Write, for people, what gives a column that is there a wider type."""
        return f"the files of {self.where} are written anew, {column.name} as {column.type}"

    def widen(self, columns: Sequence[DeclaredColumn], *, tell: Tell = lambda text: None) -> None:
        """Give columns that are there their wider types, at once; the values stay as they are.

        Args:
            columns: Those columns.
            tell: Called with a sentence for each step.

        Raises:
            DamagedTableError: a file that would be copied is not as it was written.
            RefusedError: the sink refuses it; says why.
            TableBusyError: somebody else changed the table meanwhile.
        """
        raise NotImplementedError

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

    def seal(self) -> None:
        """Write what was committed to the disk, where the sink has not done that."""
        return

    def refuse_damaged(self, log: Any) -> None:
        """Make sure that the files of the rows are as they were written, where that can be checked.

        Args:
            log: The table's own, opened.

        Raises:
            DamagedTableError: it is not.
        """
        del log

    def settings_error(self, log: Any) -> TableSettingsError | None:
        """Return what is set on the table that contradicts the ingestion; ``log`` is its own."""
        del log
        return None

    def altered_sources(self, commit: Commit) -> Iterator[str]:
        """Yield a sentence for each file a commit has copied that was not as it was written."""
        del commit
        yield from ()

    def translate_read_errors(self, version: int | None = None) -> AbstractContextManager[None]:
        """Translate what reading the rows raises, into DamagedTableError or DependencyError."""
        del version
        return nullcontext()

    def maintain(self, window: dt.timedelta, target_bytes: int) -> Mapping[str, int]:
        """Keep a table outside the lake quick to read, and small; needs the stream's lock.

        Args:
            window: How far back it shall be read.
            target_bytes: The size that small files are put together to.

        Returns:
            What was done, as counts of files and versions by a word.
        """
        del window, target_bytes
        return {}

    def refuse_fixed_name(self) -> None:
        """Make sure that the table is nobody else's with rows, and can be given another name.

        Raises:
            RefusedError: the name is taken.
        """
        return

    def set_aside(self, entry: str, *, is_replaced: bool = False) -> str | None:
        """Give the table another name, and its own to the one that was made beside it, if any was.

        One that is not this stream's keeps its name, unless that is needed for the one beside it.
        Needs the stream's lock; to do it again changes nothing.

        Args:
            entry: What to call it by.
            is_replaced: Whether one was made beside it (``SinkSpec.beside``).

        Returns:
            What it is called now; ``None`` where there was none, or it is in the lake's folders.

        Raises:
            RefusedError: it cannot be renamed. No name has changed.
            MissingRightError: the role may not do that. No name has changed.
        """
        del entry, is_replaced
        return None

    def drop(self) -> None:
        """Remove the table of this stream for good, unless it is in the lake's folders.

        What is in a topic stays there.
        """
        return

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


class ErasableTable(SinkTable):
    """The table of a sink that can ``erase``, of which every trace goes.

    Its transactions have ``erase(keys, metadata)``, too, which commits as ``commit`` does.
    """

    def erase(self, keys: pa.Table, metadata: CommitMetadata) -> Commit:
        """Commit the table without the rows that have the values of a row of ``keys``.

        They are in its older versions until ``remove_older_versions``. Needs the lock.

        Args:
            keys: Some of the table's columns, whichever they are; no row is there twice.
            metadata: The note.

        Raises:
            RefusedError: the table cannot be left without them; says why.
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
    """The table of a sink that can ``rewind``: it keeps its earlier versions."""

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

    @abstractmethod
    def restore(self, version: int, metadata: CommitMetadata) -> Commit:
        """Commit the rows and columns of an earlier version, with a note; needs the lock.

        Raises:
            RewindError: what was there then cannot be brought back.
        """


class AlterableTable(SinkTable):
    """The table of a sink whose columns can be renamed, dropped and typed anew, all at once.

    Its transactions have ``reshape(columns, renamed, metadata)``, too, which commits as ``commit``.

    Attributes:
        has_order: Whether columns that are there can be put into another order.
    """

    has_order = True

    @property
    def fixed_by(self) -> str | None:
        """Say what keeps the columns of this table as they are, if anything does."""
        return None

    def reshape(
        self,
        columns: Sequence[DeclaredColumn],
        renamed: Mapping[str, str],
        *,
        metadata: CommitMetadata,
        tell: Tell = lambda text: None,
    ) -> Commit:
        """Commit other columns and a note as one act; values stay. Needs the stream's lock.

        Args:
            columns: All that the table has from then on, in order; any other is dropped.
            renamed: What the table calls columns so far, by their new names.
            metadata: The note.
            tell: Called with a sentence for each step.

        Raises:
            DamagedTableError: a file that would be copied is not as it was written.
            RefusedError: the sink refuses it; says why.
            TableBusyError: somebody else changed the table meanwhile.
        """
        del tell
        return self._commit(
            metadata, lambda begun: begun.reshape(columns, renamed, metadata=metadata)
        )


class MarkableTable(SinkTable):
    """The table of a sink that can mark rows as gone (``SinkKind.marks_rows``)."""

    @abstractmethod
    def use_deletion_vectors(self, is_wanted: bool) -> None:
        """Let commits mark rows as gone from now on, or not any more."""

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
        remedy=f"oncelake status {stream}, then run again from the table's offsets",
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
