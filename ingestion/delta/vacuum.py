"""Removes what a Delta table does not need any more: files, commits behind a checkpoint, checksums.

What readers may still need stays: VACUUM removes only files that left the table longer ago than the
rewind window. Every step may be repeated; needs the stream's lock.
"""

from __future__ import annotations

import datetime as dt
import re
import time
from collections.abc import Iterable
from itertools import chain
from typing import Final

from deltalake import DeltaTable

from oncelake.ingestion.delta.commits import (
    EXACTLY,
    append_nothing,
    put_metadata,
    translate_conflicts,
)
from oncelake.ingestion.delta.description import retention_properties
from oncelake.ingestion.delta.durability import FEED_FOLDER, seal_commits
from oncelake.ingestion.delta.features import is_beyond_delta_rs
from oncelake.ingestion.delta.files import open_delta, read_delta
from oncelake.ingestion.delta.log import all_files
from oncelake.ingestion.delta.log_files import COMMIT, actions_in, checkpoint_file, log_files
from oncelake.ingestion.delta.vectors import Vector, has_vectors, vector_files
from oncelake.ingestion.storage.checksums import seal
from oncelake.ingestion.storage.failpoints import Failpoint, hit
from oncelake.ingestion.storage.location import Location

# No data file is called so, or lies there.
_KEPT: Final = re.compile(r"_delta_log/.*|(.*/)?[._][^/]*")
_SIDECAR: Final = re.compile(r"\.(.+)\.crc")
_HOUR: Final = dt.timedelta(hours=1)


def vacuum(path: Location, *, window: dt.timedelta) -> int:
    """Remove files that left the table longer ago than ``window``; return how many data files."""
    table = open_delta(path)
    due, properties = retention_properties(window), table.metadata().configuration
    if window >= dt.timedelta(days=1) and not due.items() <= properties.items():
        # Delta's own VACUUM, and time travel in Spark, go by them.
        with translate_conflicts(path.name):
            put_metadata(path, table, due)
        table = open_delta(path)
    is_ours = has_vectors(table) or is_beyond_delta_rs(table)
    removed = table.vacuum(
        retention_hours=window // _HOUR,
        dry_run=is_ours,
        enforce_retention_duration=False,
        # Also what died before its commit, and is in no log.
        full=True,
    )
    if is_ours:
        # delta-rs takes a living vector for a file that nobody needs.
        removed = sorted({*removed} - _needed(path, table, window))
        for name in removed:
            (path / name).delete()
    for folder in (path, path / "_delta_log", path / FEED_FOLDER):
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
    for folder in (path, path / FEED_FOLDER):
        _remove_orphans(folder)
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
