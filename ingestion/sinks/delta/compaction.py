"""Compacts a table: merges small files, deletes unreferenced ones, writes a checkpoint.

No row changes. What readers may still need stays: VACUUM removes only files that left the table
longer ago than the rewind window. Every step may be repeated; needs the stream's lock.
"""

from __future__ import annotations

import datetime as dt
import re
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Final
from urllib.parse import unquote

from deltalake import DeltaTable

from oncelake.ingestion.declaration.ddl import DeclaredColumn
from oncelake.ingestion.sinks.delta.commits import (
    EXACTLY,
    append_nothing,
    put_metadata,
    translate_conflicts,
)
from oncelake.ingestion.sinks.delta.data_files import AddedFile
from oncelake.ingestion.sinks.delta.description import retention_properties
from oncelake.ingestion.sinks.delta.durability import seal_commits
from oncelake.ingestion.sinks.delta.files import data_files, open_delta, read_delta
from oncelake.ingestion.sinks.delta.log import all_files
from oncelake.ingestion.sinks.delta.log_files import COMMIT, actions_in, checkpoint_file, log_files
from oncelake.ingestion.sinks.delta.transaction import DeltaTransaction
from oncelake.ingestion.sinks.delta.vectors import Vector, has_vectors, vector_files
from oncelake.ingestion.storage.checksums import matches_checksum, seal
from oncelake.ingestion.storage.damage import damaged_table
from oncelake.ingestion.storage.failpoints import Failpoint, hit
from oncelake.ingestion.storage.location import Location
from oncelake.ingestion.tables.table import Tell

# No data file is called so, or lies there.
_KEPT: Final = re.compile(r"_delta_log/.*|(.*/)?[._][^/]*")
_SIDECAR: Final = re.compile(r"\.(.+)\.crc")
_HOUR: Final = dt.timedelta(hours=1)
# Clustering rewrites the whole table: not for a share of its bytes that is smaller than this.
_CLUSTERED_SHARE: Final = 0.25
# A file with a larger share of its rows marked as gone is written anew.
_MOST_GONE: Final = 0.1


@dataclass(frozen=True, kw_only=True, slots=True)
class TableSize:
    """What a table is made of, and what lies in its folder in all."""

    files: int
    bytes: int
    bytes_on_disk: int

    @classmethod
    def of(cls, path: Location) -> TableSize:
        """Measure a table."""
        there = path.files()
        sizes = [there[name] for name in all_files(path, read_delta(path))]
        return cls(files=len(sizes), bytes=sum(sizes), bytes_on_disk=sum(there.values()))


@dataclass(frozen=True, kw_only=True, slots=True)
class TableUpkeep:
    """What was done to one table.

    Attributes:
        name: The table's folder.
        vacuumed: Data files removed from the disk.
        removed_rows: Rows that it need not hold any more.
    """

    name: str
    before: TableSize
    after: TableSize
    vacuumed: int
    removed_rows: int = 0


def compact(path: Location, *, target_bytes: int, cluster_by: Sequence[str] = ()) -> None:
    """Merge small files, in the order of ``cluster_by`` where that is given.

    Raises:
        DamagedTableError: a file that would be copied is not as it was written.
        TableBusyError: somebody else changed the table meanwhile.
    """
    table = open_delta(path)
    if has_vectors(table):
        _compact_with_vectors(path, target_bytes=target_bytes, is_all=bool(cluster_by))
        table = open_delta(path)
    every = data_files(table)
    small = {name: size for name, size in every.items() if size < target_bytes}
    if len(small) < 2:
        return
    share = _CLUSTERED_SHARE * sum(every.values())
    is_clustered = cluster_by and sum(small.values()) >= share
    _refuse_altered(path, every if is_clustered else small)
    with translate_conflicts(path.name):
        if is_clustered:
            table.optimize.z_order(cluster_by, target_size=target_bytes)
        else:
            table.optimize.compact(target_size=target_bytes)
    seal_commits(path)
    hit(Failpoint.COMPACTED)


def widen(path: Location, columns: Sequence[DeclaredColumn], tell: Tell) -> None:
    """Write every file anew, by the wider types of some columns, in one commit.

    Delta can note wider types beside the old files; delta-rs reads no such table. Done again after
    a crash, it goes on where it was.

    Raises:
        DamagedTableError: a file that would be copied is not as it was written.
        TableBusyError: somebody else changed the table meanwhile.
    """
    begun = DeltaTransaction.upkeep(path)
    begun.tell = tell
    copy_files(path, begun.files, lambda: begun.widen(columns))


def _compact_with_vectors(path: Location, *, target_bytes: int, is_all: bool) -> None:
    """Rewrite files of which many rows are marked as gone, and merge small files.

    Where vectors are not declared any more, or all is to be put in order, every file that has one.
    """
    begun = DeltaTransaction.upkeep(path)
    most = 0.0 if is_all or not begun.marks else _MOST_GONE
    marked = [file for file in begun.files if file.vector]
    files = [file for file in marked if file.rows - file.living > most * file.rows]
    small = [file for file in begun.files if file.size_bytes < target_bytes]
    if len(small) > 1:
        files = [*files, *(file for file in small if file not in files)]
    if not any(file in marked for file in files):
        return
    copy_files(path, files, lambda: begun.rewrite(files, target_bytes=target_bytes))


def copy_files(path: Location, files: Sequence[AddedFile], commit: Callable[[], object]) -> None:
    """Commit the rows of some files in others, if they, and their vectors, are as written."""
    names = [unquote(file.path) for file in files]
    _refuse_altered(path, (*names, *vector_files(file.vector for file in files)))
    with translate_conflicts(path.name):
        commit()
    seal_commits(path)
    hit(Failpoint.COMPACTED)


def _refuse_altered(path: Location, names: Iterable[str]) -> None:
    """Make sure that files which are to be copied are as they were written."""
    for name in names:
        if not matches_checksum(path / name):
            raise damaged_table(path, f"data file {name} is not as it was written")


def vacuum(path: Location, *, window: dt.timedelta) -> int:
    """Remove files that left the table longer ago than ``window``; return how many data files."""
    table = open_delta(path)
    due, properties = retention_properties(window), table.metadata().configuration
    if window >= dt.timedelta(days=1) and not due.items() <= properties.items():
        # Delta's own VACUUM, and time travel in Spark, go by them.
        with translate_conflicts(path.name):
            put_metadata(path, table, properties=due)
        table = open_delta(path)
    marks = has_vectors(table)
    removed = table.vacuum(
        retention_hours=window // _HOUR,
        dry_run=marks,
        enforce_retention_duration=False,
        # Also what died before its commit, and is in no log.
        full=True,
    )
    if marks:
        # delta-rs takes a living vector for a file that nobody needs.
        removed = sorted({*removed} - _needed(path, table, window))
        for name in removed:
            (path / name).delete()
    for folder in (path, path / "_delta_log"):
        _remove_orphans(folder)
    hit(Failpoint.VACUUMED)
    return len(removed)


def _needed(path: Location, table: DeltaTable, window: dt.timedelta) -> frozenset[str]:
    """Return the files of the newest version, and the vectors that left it within a window."""
    since, log = (time.time() - window.total_seconds()) * 1_000, log_files(path)
    commits = map(actions_in, map(log.read, filter(COMMIT.fullmatch, log.names())))
    gone = (each["remove"] for each in chain.from_iterable(commits) if "remove" in each)
    recent = (each for each in gone if each.get("deletionTimestamp", since) >= since)
    return all_files(path, table) | vector_files(map(Vector.of, recent))


def remove_unreferenced(path: Location, written: Iterable[str], *, is_fenced: bool) -> int:
    """Remove those files that the newest version does not hold; return how many data files.

    Unlike VACUUM it goes by no clock, so that it also finds what is dated in the future. A run of
    another host that has slept past its lease may be about to commit some of them: the version on
    which it would do so is taken before they go.

    Args:
        path: The table.
        written: What lay there at a time when nothing of it could be of a commit to come.
        is_fenced: Whether whoever slept could not commit to it anyway.

    Raises:
        TableBusyError: somebody else changed the table meanwhile.
    """
    there = {name for name in written if not _KEPT.fullmatch(name)}
    if not is_fenced:
        with translate_conflicts(path.name):
            append_nothing(open_delta(path), EXACTLY)
        seal_commits(path)
    # A compaction is rebased on every later version, but not past one that has left the log.
    checkpoint(path)
    newest = open_delta(path)
    drop_log_before(path, newest.version())
    files = there - all_files(path, newest)
    for name in files:
        (path / name).delete()
    _remove_orphans(path)
    hit(Failpoint.VACUUMED)
    return len(files)


def checkpoint(path: Location) -> None:
    """Write a checkpoint of the log, and drop the commits that have aged out of it."""
    table = open_delta(path)
    file = path / "_delta_log" / checkpoint_file(table.version())
    if file.size() is not None:
        return
    table.create_checkpoint()
    seal(file)
    table.cleanup_metadata()


def drop_log_before(path: Location, version: int) -> None:
    """Remove the commits before a version, whose statistics hold lowest and highest values.

    A checkpoint at that version, or later, must be there.
    """
    log = path / "_delta_log"
    for name in log.files():
        number = name.lstrip(".").partition(".")[0]
        if number.isdigit() and int(number) < version:
            (log / name).delete()
    # What lies here of the log of a table in a store goes, too.
    log_files(path).remove_others()
    read_delta(path)


def _remove_orphans(folder: Location) -> None:
    """Remove checksums of files that are gone, but for those that tell of a lost commit."""
    if not folder.is_local:
        return
    there = {name for name in folder.files() if "/" not in name}
    newest = max((name for name in there if COMMIT.fullmatch(name)), default=None)
    for sidecar in (found for found in map(_SIDECAR.fullmatch, there) if found):
        file = sidecar[1]
        is_newer = newest is not None and file.endswith(".json") and file > newest
        if file not in there and not is_newer:
            (folder / sidecar[0]).delete()
