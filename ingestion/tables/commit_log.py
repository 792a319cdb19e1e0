"""The commits of a stream's table, in any sink: the authority on its batches."""

from __future__ import annotations

import datetime as dt
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Final

from oncelake.ingestion.errors import AGAIN, CommitConflictError, DependencyError, TableBusyError
from oncelake.ingestion.tables.commit_metadata import REWOUND_TO, CommitMetadata, app_id

# The counts of a commit's own, by Delta's names.
INSERTED: Final = "numTargetRowsInserted"
UPDATED: Final = "numTargetRowsUpdated"
DELETED: Final = "numTargetRowsDeleted"
ROW_COUNTS: Final = (INSERTED, UPDATED, DELETED)


@dataclass(frozen=True, kw_only=True, slots=True)
class Commit:
    """One version of a table's log.

    Attributes:
        timestamp_ms: When it was committed, by the writer's clock.
        operation: Delta's word for it, such as ``MERGE``.
        metrics: Delta's operation metrics, as numbers.
        txns: Version that each application recorded in it.
        changes_rows: Whether it added or removed rows, as against moving them to other files.
        added: Data files that it brought into the table, rewritten or not.
        removed: Data files that it took out of the table.
        added_bytes: Size of the data files that it wrote; ``None`` where the sink has none.
        metadata: Our metadata, or ``None`` when the commit is somebody else's.
    """

    version: int
    timestamp_ms: int
    operation: str
    metrics: Mapping[str, int]
    txns: Mapping[str, int]
    changes_rows: bool
    metadata: CommitMetadata | None
    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    added_bytes: int | None = None

    def is_torn(self, stream: str) -> bool:
        """Tell whether its fence, which it must have, and its metadata say different seqs."""
        return (self.metadata.seq if self.metadata else None) != self.txns[app_id(stream)]

    @property
    def committed_at(self) -> dt.datetime:
        """When it was committed, UTC."""
        return dt.datetime.fromtimestamp(self.timestamp_ms / 1000, dt.UTC)


def operation_of(counts: Mapping[str, int]) -> str:
    """Call a commit, by its counts, as Delta calls one that does the same."""
    if counts[UPDATED] or counts[DELETED]:
        return "MERGE"
    return "APPEND" if counts[INSERTED] else "WRITE"


class CommitLog(ABC):
    """The commits of one table, newest first, as far back as its sink keeps them.

    A log is read once: make another to see what was committed since, or ``look_again``.
    """

    @property
    @abstractmethod
    def exists(self) -> bool:
        """Tell whether the table is there."""

    @property
    def is_empty(self) -> bool:
        """Tell whether the table has no row."""
        return self.row_count() == 0

    @property
    def has_lost_its_log(self) -> bool:
        """Tell whether there are rows here, and no log that names them."""
        return False

    @abstractmethod
    def table_id(self) -> str:
        """Return the id of this table, which another of the same name does not have."""

    @abstractmethod
    def versions(self) -> list[int]:
        """List the versions that are still in the log, newest first."""

    @property
    def newest_version(self) -> int:
        """The newest version; -1 of a table whose log has none yet."""
        return max(self.versions(), default=-1)

    @abstractmethod
    def read(self, version: int) -> Commit:
        """Read one commit.

        Raises:
            FileNotFoundError: the log does not hold that version, or no longer.
            DamagedTableError: it is not as it was written.
        """

    def look_again(self) -> None:
        """See what was committed since the log was last read; one that keeps nothing does so."""
        return

    def last_seq(self, stream: str) -> int | None:
        """Return the highest seq that the table has recorded for a stream, or ``None``.

        It must survive the commits, where a sink drops them.
        """
        seqs = (each.txns.get(app_id(stream)) for each in self.newest_first())
        return next((seq for seq in seqs if seq is not None), None)

    @abstractmethod
    def row_count(self) -> int | None:
        """Count the table's rows; ``None`` where only a scan of all of them could."""

    def highest_epoch(self) -> int:
        """Return an epoch that no row is beyond; 0 without rows."""
        return max((each.epoch for each in islice(self.standing(), 1)), default=0)

    def refuse_torn(self, stream: str, commit: Commit) -> None:
        """Make sure that fence and metadata of a commit of ours say the same, where they are two.

        Raises:
            DamagedTableError: they do not.
        """
        del stream, commit

    def newest_first(self, *, down_to: int = 0) -> Iterator[Commit]:
        """Walk the commits that are still in the log, from the newest to version ``down_to``."""
        return (self.read(version) for version in self.versions() if version >= down_to)

    def standing(self) -> Iterator[CommitMetadata]:
        """Walk the notes of our commits, newest first, without those that a later rewind undid."""
        undone_beyond: int | None = None
        for commit in self.newest_first():
            said = commit.metadata
            if said is None or (undone_beyond is not None and said.seq > undone_beyond):
                continue
            if said.kind == "rewind":
                undone_beyond = said.counts[REWOUND_TO]
            yield said

    def find(self, stream: str, seq: int, *, after: int = -1) -> Commit | None:
        """Find the commit that carries a stream's seq, looking only beyond version ``after``."""
        self.look_again()
        commits = self.newest_first(down_to=after + 1)
        return next((each for each in commits if each.txns.get(app_id(stream)) == seq), None)

    def since_our_newest(
        self, stream: str, *, below: int | None = None
    ) -> tuple[Commit | None, tuple[Commit, ...]]:
        """Return our newest commit that is still in the log, and what others did after it.

        With ``below``, look only at the versions before that one.
        """
        others: list[Commit] = []
        for version in self.versions():
            if below is not None and version >= below:
                continue
            commit = self.read(version)
            if app_id(stream) in commit.txns:
                self.refuse_torn(stream, commit)
                return commit, tuple(others)
            others.append(commit)
        return None, tuple(others)


class UnknownOutcomeError(DependencyError):
    """A commit got no answer: the table holds all of it, or nothing; its log tells."""

    @classmethod
    def of(cls, place: str, reason: object) -> UnknownOutcomeError:
        """Say of a table, named for people, why none came."""
        return cls(
            f"{place}: no answer came to a commit ({reason}). Next: {AGAIN}, which looks first "
            "whether it was made"
        )


@contextmanager
def unless_committed(
    log: CommitLog, stream: str, metadata: CommitMetadata, *errors: type[Exception]
) -> Iterator[None]:
    """Let a commit pass that was made although its answer says otherwise, or never came.

    A client that gets no answer commits again, and is told that there is one. Its library has
    ``errors`` of its own for that.
    """
    of_sinks = (OSError, CommitConflictError, TableBusyError, UnknownOutcomeError)
    try:
        yield
    except of_sinks + errors:
        if _find(log, stream, metadata) is None:
            raise


def committed(log: CommitLog, stream: str, metadata: CommitMetadata) -> Commit:
    """Find what was just committed.

    Raises:
        CommitConflictError: the log does not hold what was meant.
    """
    if commit := _find(log, stream, metadata):
        return commit
    raise CommitConflictError(
        stream,
        f"a {metadata.kind} (seq {metadata.seq}) is not in the table's log as it was meant.",
        remedy=AGAIN,
    )


def _find(log: CommitLog, stream: str, metadata: CommitMetadata) -> Commit | None:
    commit = log.find(stream, metadata.seq)
    return commit if commit and commit.metadata == metadata else None
