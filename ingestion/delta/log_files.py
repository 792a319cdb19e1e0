"""The files of a table's log: where they lie, or, of a table in a store, a mirror of them here.

What was put into a log is never changed: a commit is put only where there is none. So each object
is fetched once, and a table is opened, counted and travelled through from this machine, after one
listing that says what is new. A table that was replaced, as a rebuild does it, is told by the tags
of its objects. The mirror is a cache: whatever is missing or cut short in it is fetched again.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any, Final

from deltalake import DeltaTable

from oncelake.ingestion.storage.location import Entry, Location
from oncelake.ingestion.storage.processes import seconds_since_boot

COMMIT: Final = re.compile(r"(\d{20})\.json")
CHECKPOINT: Final = re.compile(r"(\d{20})\.checkpoint\.(?:.+\.)?(?:parquet|json)")
# Objects that are fetched at the same time.
_JOBS: Final = 8
_HOLDS_SECONDS: Final = 1.0
# Objects that a store lists in one answer.
_LISTED_AT_ONCE: Final = 1000


def commit_file(version: int) -> str:
    """Return the name of a commit's file in the log."""
    return f"{version:020d}.json"


def actions_in(commit: bytes) -> list[Any]:
    """Read the actions of a commit's file; ``ValueError`` where it is garbage."""
    return [json.loads(line) for line in commit.splitlines() if line.strip()]


def checkpoint_file(version: int) -> str:
    """Return the name of the file of a checkpoint that is one file."""
    return f"{version:020d}.checkpoint.parquet"


class LogFiles:
    """The files of the log of a table on this machine."""

    def __init__(self, table: Location) -> None:
        self.table = table
        self.writer: DeltaTable | None = None

    def names(self) -> frozenset[str]:
        """List the files of the log."""
        return frozenset((self.table / "_delta_log").files())

    def sizes(self) -> dict[str, int]:
        """List every file of the table, with its length in bytes."""
        return self.table.files()

    def forget(self) -> None:
        """List anew the next time, which here is always so."""

    def remove_others(self) -> None:
        """Remove what lies in a mirror, and is not in the log; no one else may commit."""

    def open_writer(self, open_anew: Callable[[], DeltaTable]) -> DeltaTable:
        """Return the table to write to."""
        return open_anew()

    def read(self, name: str) -> bytes:
        """Return what a file of the log holds.

        Raises:
            FileNotFoundError: there is no such file.
        """
        return (self.table / "_delta_log" / name).read()

    def table_here(self, version: int | None = None) -> tuple[Path, int | None]:
        """Return a folder of this machine from which the table can be opened, and at what version.

        ``None`` is the newest.
        """
        return self.table.path, version

    def rows_here(self, files: Mapping[str, int]) -> Path:
        """Return a folder of this machine in which these data files, of so many bytes, lie."""
        return self.table.path


class MirroredLogFiles(LogFiles):
    """The log files of a table in a store."""

    def __init__(self, table: Location) -> None:
        super().__init__(table)
        self._opened_at = -1
        self._opened_tag: str | None = None
        name = f"{table.name}-{hashlib.sha256(str(table).encode()).hexdigest()[:16]}"
        self._folder = (table.cache or Path(_cache_of_this_process().name)) / name
        self._busy = threading.RLock()
        self._listed: dict[str, Entry] = {}
        self._listed_at = -math.inf
        self._sizes: dict[str, int] = {}
        self._is_large = False

    def names(self) -> frozenset[str]:
        """List the objects of the log: one request for each thousand of them.

        A listing holds for a moment: what another process commits meanwhile is met by the next
        commit, which is put only where there is none.
        """
        with self._busy:
            is_fresh = seconds_since_boot() - self._listed_at < _HOLDS_SECONDS
            written = self.writer.version() if self.writer is not None else -1
            if not is_fresh or written > max(map(_number, self._listed), default=-1):
                self._list()
            return frozenset(self._listed)

    def sizes(self) -> dict[str, int]:
        """List every file of the table, with its length in bytes."""
        with self._busy:
            self.names()
            return self.table.files() if self._is_large else self._sizes

    def _list(self) -> None:
        if self._is_large:
            self._listed = (self.table / "_delta_log").entries()
        else:
            # Of a small table all costs as much as the log alone: one request.
            found = self.table.entries()
            self._listed = {
                name.removeprefix("_delta_log/"): entry
                for name, entry in found.items()
                if name.startswith("_delta_log/")
            }
            self._sizes = {name: entry.size for name, entry in found.items()}
            self._is_large = len(found) >= _LISTED_AT_ONCE
        self._listed_at = seconds_since_boot()
        # Whose commit the next one is to follow: ours by now, and not only what was opened.
        written = self.writer.version() if self.writer is not None else -1
        if written > self._opened_at and (seen := self._listed.get(commit_file(written))):
            self._opened_at, self._opened_tag = written, seen.tag

    def forget(self) -> None:
        """List anew the next time."""
        self._listed_at = -math.inf

    def open_writer(self, open_anew: Callable[[], DeltaTable]) -> DeltaTable:
        """Return the table to write to: the one that was opened last, if it still is that table."""
        with self._busy:
            names = self.names()
            known = self._listed.get(commit_file(self._opened_at), _GONE).tag
            if self.writer is not None and known is not None and known == self._opened_tag:
                self.writer.update_incremental()
            else:
                self.writer = open_anew()
            self._opened_at = max(map(_number, filter(COMMIT.fullmatch, names)), default=-1)
            self._opened_tag = self._listed.get(commit_file(self._opened_at), _GONE).tag
            return self.writer

    def read(self, name: str) -> bytes:
        """Return what an object of the log holds; it is fetched unless it is here."""
        with self._busy:
            if name not in self._listed:
                self.names()
            if name not in self._listed:
                raise FileNotFoundError(str(self.table / "_delta_log" / name))
            self._fetch({f"_delta_log/{name}": self._listed[name]})
            return (self._folder / "_delta_log" / name).read_bytes()

    def table_here(self, version: int | None = None) -> tuple[Path, int | None]:
        """Fetch the checkpoint before a version, and the commits since, as they were listed.

        The newest is that of the listing: beyond it the mirror may hold another table's.
        """
        with self._busy:
            if version is None or commit_file(version) not in self._listed:
                self.names()
            newest = version if version is not None else max(map(_number, self._listed), default=-1)
            checkpoints = filter(CHECKPOINT.fullmatch, self._listed)
            begin = max((n for n in map(_number, checkpoints) if n <= newest), default=-1)
            wanted = {
                f"_delta_log/{name}": entry
                for name, entry in self._listed.items()
                if (COMMIT.fullmatch(name) and begin <= _number(name) <= newest)
                or (CHECKPOINT.fullmatch(name) and _number(name) == begin)
                or name.startswith("_sidecars/")
            }
            # It names a checkpoint that may have been listed, or not be needed: any will do.
            (self._folder / "_delta_log" / "_last_checkpoint").unlink(missing_ok=True)
            self._remove_up_to(newest)
            self._fetch(wanted)
            return self._folder, newest if newest >= 0 else None

    def rows_here(self, files: Mapping[str, int]) -> Path:
        """Fetch data files that are not here; for tables that are read whole, again and again."""
        with self._busy:
            # Their names are unique, so that nothing else need tell them apart.
            self._fetch({name: Entry(size, None) for name, size in files.items()})
            return self._folder

    def _fetch(self, wanted: Mapping[str, Entry]) -> None:
        """Fetch objects, unless they are here as they were listed."""
        tags = self._tags()
        missing = [name for name, entry in wanted.items() if not self._is_here(name, entry, tags)]
        if not missing:
            return
        with ThreadPoolExecutor(_JOBS) as pool:
            fetched = list(pool.map(lambda name: (self.table / name).read_tagged(), missing))
        for name, (content, tag) in zip(missing, fetched, strict=True):
            _write(self._folder / name, content)
            tags[name] = tag.e_tag
        _write(self._folder / "tags.json", json.dumps(tags).encode())

    def _is_here(self, name: str, entry: Entry, tags: Mapping[str, str | None]) -> bool:
        try:
            size = (self._folder / name).stat().st_size
        except OSError:
            return False
        return entry.size == size and entry.tag in (None, tags.get(name))

    def _tags(self) -> dict[str, str | None]:
        try:
            tags: dict[str, str | None] = json.loads((self._folder / "tags.json").read_bytes())
        except (OSError, ValueError):
            return {}
        return tags

    def remove_others(self) -> None:
        """Remove all that is not in the log now, such as another table's that was here."""
        with self._busy:
            self.forget()
            self.names()
            self._remove_up_to(sys.maxsize)

    def _remove_up_to(self, newest: int) -> None:
        """Remove what is not in the log up to a version, though no tag may tell of it.

        What is beyond is not opened, and may be what another process has listed since.
        """
        for file in (self._folder / "_delta_log").glob("*"):
            is_of_log = COMMIT.fullmatch(file.name) or CHECKPOINT.fullmatch(file.name)
            if is_of_log and file.name not in self._listed and _number(file.name) <= newest:
                file.unlink(missing_ok=True)


_GONE: Final = Entry(size=-1, tag=None)


@cache
def log_files(table: Location) -> LogFiles:
    """Return the files of a table's log; a process keeps one mirror of each table in a store."""
    return LogFiles(table) if table.is_local else MirroredLogFiles(table)


def _number(name: str) -> int:
    return int(name[:20]) if name[:20].isdigit() else -1


@cache
def _cache_of_this_process() -> tempfile.TemporaryDirectory[str]:
    """Make a folder that is removed when the process ends."""
    return tempfile.TemporaryDirectory(prefix="oncelake-")


def _write(path: Path, content: bytes) -> None:
    """Write a file that is whole when it appears."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f"{path.name}.{os.getpid()}.{threading.get_ident()}")
    draft.write_bytes(content)
    draft.replace(path)
