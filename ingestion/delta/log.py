"""The log of a Delta table without Spark: its commits, and the files of its rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, Final
from urllib.parse import unquote

import pyarrow.compute as pc
from deltalake import DeltaTable

from oncelake.ingestion.delta.files import data_files, is_delta, open_rows, read_delta
from oncelake.ingestion.delta.log_files import COMMIT, actions_in, commit_file, log_files
from oncelake.ingestion.delta.vectors import Vector, vector_files, vectors_of
from oncelake.ingestion.storage.checksums import matches_checksum
from oncelake.ingestion.storage.damage import damaged_table, stream_of
from oncelake.ingestion.storage.location import Location
from oncelake.ingestion.tables.commit_log import DELETED, INSERTED, UPDATED, Commit, CommitLog
from oncelake.ingestion.tables.commit_metadata import CommitMetadata, DamagedMetadataError, app_id

# delta-rs has other words for what Delta counts.
_METRICS: Final = {
    "num_target_rows_inserted": INSERTED,
    "num_target_rows_updated": UPDATED,
    "num_target_rows_deleted": DELETED,
    "num_added_rows": "numOutputRows",
}


class DeltaLog(CommitLog):
    """The log of one Delta table, read without Spark.

    A commit is read once. Delta's snapshot is loaded once, by the first question that needs it:
    make another ``DeltaLog`` to see what was committed since.
    """

    def __init__(self, path: Location, *, on_read: Callable[[str], None] | None = None) -> None:
        """Take the table's folder, and what is told the id of the table that is read."""
        self.path, self._on_read = path, on_read
        self._commits: dict[int, Commit] = {}

    @cached_property
    def snapshot(self) -> DeltaTable:
        """The table as delta-rs sees it at its newest version."""
        table = read_delta(self.path)
        if self._on_read is not None:
            self._on_read(str(table.metadata().id))
        return table

    @property
    def exists(self) -> bool:
        """Tell whether there is a Delta table here, as against nothing or stray files."""
        return is_delta(self.path)

    @property
    def has_lost_its_log(self) -> bool:
        """Tell whether there are data files here, and no log that names them."""
        return not self.exists and any(name.endswith(".parquet") for name in self.path.files())

    @property
    def is_empty(self) -> bool:
        """Tell whether the table has no data file."""
        return not self.file_count()

    def file_count(self) -> int:
        """Count the table's data files; 0 means that it has no row."""
        return len(self.snapshot.file_uris())

    def versions(self) -> list[int]:
        """List the versions whose commit file is still in the log, newest first."""
        return versions_in(self.names())

    def look_again(self) -> None:
        """See what was committed since the log was last listed."""
        log_files(self.path).forget()

    def names(self) -> frozenset[str]:
        """List the files of the log."""
        return log_files(self.path).names()

    def read(self, version: int) -> Commit:
        """Read one commit.

        Raises:
            FileNotFoundError: the log does not hold that version, or no longer.
            DamagedTableError: the file is not as it was written.
        """
        if version not in self._commits:
            self._commits[version] = self._commit(version)
        return self._commits[version]

    def _commit(self, version: int) -> Commit:
        actions = self._actions(version)
        made: dict[str, Any] = next((a["commitInfo"] for a in actions if "commitInfo" in a), {})
        metrics = {
            _METRICS.get(name, name): value
            for name, value in (made.get("operationMetrics") or {}).items()
        }
        try:
            note, stream = made.get("userMetadata"), stream_of(self.path)
            metadata = CommitMetadata.from_json(note, stream, self.path)
        except DamagedMetadataError as error:
            raise damaged_table(self.path, f"version {version}: {error}") from error
        return Commit(
            version=version,
            timestamp_ms=int(made.get("timestamp", 0)),
            operation=made.get("operation", ""),
            metrics={name: int(value) for name, value in metrics.items() if str(value).isdigit()},
            txns={a["txn"]["appId"]: a["txn"]["version"] for a in actions if "txn" in a},
            changes_rows=any(_changes_rows(action) for action in actions),
            metadata=metadata,
            added=_files_of(actions, "add"),
            removed=_files_of(actions, "remove"),
            added_bytes=_bytes_written(actions),
        )

    def last_seq(self, stream: str) -> int | None:
        """Return the highest seq that the table has recorded for a stream, or ``None``.

        It survives the commit files: Delta's checkpoints keep it.
        """
        version: int | None = self.snapshot.transaction_version(app_id(stream))
        return version

    def row_count(self) -> int:
        """Count the table's rows, from the statistics of its files."""
        gone = sum(each.rows for each in vectors_of(self.path, self.snapshot).values())
        return int(self.snapshot.count()) - gone

    def highest_epoch(self) -> int:
        """Return the newest epoch that any row is of; 0 without rows."""
        batches = open_rows(self.path, snapshot=self.snapshot).to_batches(columns=["_epoch"])
        return max((pc.max(each.column(0)).as_py() or 0 for each in batches), default=0)

    def table_id(self) -> str:
        """Return the id that Delta gave the table when it was made."""
        return str(self.snapshot.metadata().id)

    def _actions(self, version: int) -> list[dict[str, Any]]:
        name = f"_delta_log/{commit_file(version)}"
        try:
            content = log_files(self.path).read(commit_file(version))
            actions: list[dict[str, Any]] = actions_in(content)
        except ValueError as error:
            raise damaged_table(self.path, f"{name} is cut short or garbage") from error
        if not all(isinstance(action, dict) for action in actions):
            raise damaged_table(self.path, f"{name} is garbage")
        if not actions:
            raise damaged_table(self.path, f"{name} is empty")
        if not matches_checksum(self.path / name, content):
            raise damaged_table(self.path, f"{name} is not as it was written")
        return actions

    def refuse_torn(self, stream: str, commit: Commit) -> None:
        """Make sure that fence and metadata of a commit of ours say the same."""
        seq = commit.metadata.seq if commit.metadata else None
        if seq != commit.txns[app_id(stream)]:
            raise damaged_table(
                self.path,
                f"version {commit.version} is fenced as seq {commit.txns[app_id(stream)]}, "
                f"and its metadata says {seq}",
            )


def versions_in(names: Iterable[str]) -> list[int]:
    """Return the versions whose commits are among the files of a log, newest first."""
    commits = map(COMMIT.fullmatch, names)
    return sorted((int(found[1]) for found in commits if found), reverse=True)


def all_files(table: Location, snapshot: DeltaTable) -> frozenset[str]:
    """Return the data files of a version, and those of its deletion vectors."""
    return vector_files(vectors_of(table, snapshot).values()) | data_files(snapshot).keys()


def _files_of(actions: Iterable[Mapping[str, Any]], of: str) -> tuple[str, ...]:
    """Return the files that actions are about, those of vectors among them."""
    found = [action[of] for action in actions if of in action]
    vectors = vector_files(map(Vector.of, found))
    return (*(unquote(each["path"]) for each in found), *sorted(vectors))


def _bytes_written(actions: Sequence[Mapping[str, Any]]) -> int:
    """Add up the files of a commit, but for those that were there and got a deletion vector."""
    were_there = {each["remove"]["path"] for each in actions if "remove" in each}
    added = (each["add"] for each in actions if "add" in each)
    return sum(each["size"] for each in added if each["path"] not in were_there)


def _changes_rows(action: Mapping[str, Any]) -> bool:
    of_file = action.get("add") or action.get("remove")
    return bool(of_file and of_file.get("dataChange", True))
