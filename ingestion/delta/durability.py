"""Commits survive a power cut: once a run has gone on from one, it is on the disk.

Neither delta-rs nor Hadoop writes a file to the disk before it gets its name: for half a minute a
power cut may leave any file of a commit empty. So behind each commit its files are written there,
and last the seal of the commit itself. A newest commit without one, of which something is missing,
was acknowledged to nobody, and is undone: its records are read again.

Where no commit has a seal, the table is somebody else's, or a copy without hidden files: unless it
looks as ours do before their first seal, its damage is reported as any other.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice, takewhile
from typing import Final, NamedTuple
from urllib.parse import unquote

from oncelake.ingestion.delta.log_files import CHECKPOINT, COMMIT, checkpoint_file, commit_file
from oncelake.ingestion.delta.vectors import Vector
from oncelake.ingestion.storage.checksums import (
    are_checksums_cut,
    has_seal,
    seal,
    seal_data,
    sidecar_of,
)
from oncelake.ingestion.storage.location import Location

# Where the change data feed of a table has its files.
FEED_FOLDER: Final = "_change_data"
_NO_COMMIT: Final = "none"
# By which a file of Parquet ends.
_PARQUET: Final = b"PAR1"
# Before the seals, Spark may have written any number of commits.
_MOST_SEALED: Final = 100


def seal_commits(table: Location) -> None:
    """Write what was committed since the last seal to the disk, and seal it; needs the lock.

    What others have committed meanwhile is sealed, too. A crash before the end leaves files that
    nobody doubts, as they are without this.
    """
    if table.is_local:
        unsealed = takewhile(lambda each: not has_seal(each), _newest_first(table))
        for commit in reversed(list(islice(unsealed, _MOST_SEALED))):
            _seal_commit(table, commit)


def _seal_commit(table: Location, commit: Location) -> None:
    for file in (*(table / name for name in _added(commit)), _checkpoint_of(commit)):
        # There may be no checkpoint, and of a commit that is long ago no file.
        seal_data(file)
    table.sync()
    if (feed := table / FEED_FOLDER).exists():
        feed.sync()
    if _number(commit) == 0:
        table.parent.sync()
    seal(commit)


class HalfWritten(NamedTuple):
    """The newest commit of a table, or its checkpoint, that was never wholly on the disk.

    Attributes:
        file: The one to be undone.
        problem: What is missing of it, in words.
    """

    file: Location
    problem: str

    @property
    def is_first(self) -> bool:
        """Tell whether it is the commit that made the table."""
        return COMMIT.fullmatch(self.file.name) is not None and _number(self.file) == 0


def find_half_written(table: Location) -> HalfWritten | None:
    """Find what a power cut has left of the newest commit of a table of ours."""
    found = _find_cut(table)
    return found if found and _may_be_ours(table) else None


def undo_half_written(file: Location) -> None:
    """Take a checkpoint out of the log, or a commit with its checkpoint; it may be killed."""
    delta_checksum = file.with_name(f"{_number(file):020d}.crc")
    for beside in (file.with_name("_last_checkpoint"), delta_checksum, _checkpoint_of(file)):
        beside.delete()
        sidecar_of(beside).delete()
    if COMMIT.fullmatch(file.name):
        file.path.rename(file.with_name(f"{file.name}.undone").path)
        sidecar_of(file).delete()
    file.parent.sync()


def _find_cut(table: Location) -> HalfWritten | None:
    commit = next(_newest_first(table), None) if table.is_local else None
    if commit is None:
        return None
    content = (checkpoint := _checkpoint_of(commit)).read_if_there()
    if content is not None and not content.endswith(_PARQUET) and not has_seal(checkpoint):
        return HalfWritten(checkpoint, f"_delta_log/{checkpoint.name} is empty or cut short")
    if has_seal(commit):
        return None
    try:
        added = _added(commit)
    except ValueError:
        return HalfWritten(commit, f"_delta_log/{commit.name} is empty or cut short")
    for file, size in ((commit, 0), *((table / name, size) for name, size in added.items())):
        if (file.size() or 0) < size or are_checksums_cut(file):
            problem = f"{file.name}, or what holds its checksums, is missing or cut short"
            return HalfWritten(commit, problem)
    return None


def _may_be_ours(table: Location) -> bool:
    """Tell whether a run may have written the newest commits of a table, and died behind them."""
    unsealed = []
    for commit in _newest_first(table):
        if has_seal(commit):
            return True
        unsealed.append(commit)
    # Delta removes commits that are old, and keeps a checkpoint.
    files = (table / "_delta_log" / name for name in os.listdir((table / "_delta_log").path))
    if any(has_seal(each) for each in files if CHECKPOINT.fullmatch(each.name)):
        return True
    if "__" in table.name:
        # No other table has such a name; the first of its commits may make it, the second fill it.
        return len(unsealed) <= 2
    # A table of rows is made empty.
    with suppress(ValueError):
        if _added(unsealed[0]):
            return False
    return len(unsealed) == 1 and not any(table.path.rglob("*.parquet"))


def _newest_first(table: Location) -> Iterator[Location]:
    """Walk the commits back, as far as none is missing; a log may have many thousands."""
    log = table / "_delta_log"
    names = os.listdir(log.path) if log.exists() else ()
    commit = log / max(filter(COMMIT.fullmatch, names), default=_NO_COMMIT)
    while commit.exists():
        yield commit
        commit = log / commit_file(_number(commit) - 1)


def _number(commit: Location) -> int:
    return int(commit.name.partition(".")[0])


def _checkpoint_of(commit: Location) -> Location:
    return commit.with_name(checkpoint_file(_number(commit)))


def _added(commit: Location) -> dict[str, int]:
    """Return the files that a commit adds, also of vectors and feed, with their length in bytes.

    Raises:
        ValueError: it is not whole.
    """
    actions = [json.loads(line) for line in commit.read().splitlines()]
    if not actions or not all(isinstance(action, dict) for action in actions):
        raise ValueError(f"{commit} holds no actions")
    added = [each[of] for each in actions for of in ("add", "cdc") if of in each]
    files = {unquote(each["path"]): each["size"] for each in added}
    for vector in filter(None, map(Vector.of, added)):
        if vector.file:
            files[vector.file] = max(vector.end, files.get(vector.file, 0))
    return files
