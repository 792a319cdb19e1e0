"""The archive of a stream: what decisions took away can be looked at, brought back, and deleted."""

from __future__ import annotations

import datetime as dt
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

from ingestion.errors import IngestionError, InvalidSpecError, RefusedError
from ingestion.lake.archive import Archived, archived, finish_swap, swap_tables
from ingestion.lake.ledger import Ledger
from ingestion.lake.lock import Holder, held_by_python
from ingestion.lake.paths import StreamPaths
from ingestion.lake.storage import translate_disk_errors
from ingestion.lake.table_log import TableLog
from ingestion.operations.status import known_waiting
from ingestion.settings import Settings

_EVERYTHING = 2**63 - 1


@dataclass(frozen=True, kw_only=True, slots=True)
class ArchiveEntry:
    """One entry, as a person chooses by it; ``None`` is what could not be read.

    Attributes:
        waiting: Records of its quarantine that no redrive had sent in.
    """

    entry: str
    at: dt.datetime
    why: str
    tables: tuple[str, ...]
    rows: int | None
    waiting: int | None
    size_bytes: int


def list_archive(stream: str, settings: Settings) -> tuple[ArchiveEntry, ...]:
    """Describe what was taken away from a stream, oldest first."""
    paths = StreamPaths.of(stream, settings)
    return tuple(_describe(each, paths) for each in archived(paths))


def waiting_records(stream: str, settings: Settings) -> int:
    """Count the records in a stream's quarantine that no redrive has sent in, as far as it reads.

    They go wherever the quarantine goes: a rebuild or reset takes them out of sight.
    """
    return known_waiting(StreamPaths.of(stream, settings), _EVERYTHING) or 0


def restore(stream: str, entry: str, settings: Settings, *, run_id: str) -> tuple[Path, ...]:
    """Put an entry's tables in place of the stream's; return where the present ones went.

    The entry stays in the archive, since a copy of it takes the place. A crash while copying leaves
    the stream as it was; one while the tables change places is finished by the next run.

    Raises:
        InvalidSpecError: there is no such entry.
        RefusedError: it is no whole stream, a rebuild is under way, or a key has been erased since.
        StreamLockedError: a run holds the stream.
    """
    paths = StreamPaths.of(stream, settings)
    chosen = _find(paths, entry)
    whole = {paths.data.name, paths.ledger.name}
    if not whole <= set(chosen.tables):
        raise RefusedError(
            stream,
            f"{entry} holds {', '.join(chosen.tables)}, and no whole stream: nothing was changed.",
            remedy=f"read it where it is: {chosen.path}",
        )
    with (
        translate_disk_errors(stream, *paths.written),
        held_by_python(paths, Holder.me(run_id)),
    ):
        finish_swap(paths)
        _refuse_rebuild(paths)
        _refuse_erased(paths, chosen)
        shutil.rmtree(paths.workshop, ignore_errors=True)
        _copying(paths).mkdir(parents=True)
        for table in chosen.tables:
            shutil.copytree(chosen.path / table, paths.workshop / table)
        return swap_tables(paths, why=f"archive restore {entry}")


def prune(stream: str, entries: tuple[str, ...], settings: Settings) -> tuple[ArchiveEntry, ...]:
    """Delete entries for good, and return what they were.

    Raises:
        InvalidSpecError: there is no such entry; nothing was deleted.
    """
    paths = StreamPaths.of(stream, settings)
    chosen = [_find(paths, entry) for entry in entries]
    described = tuple(_describe(each, paths) for each in chosen)
    for each in chosen:
        shutil.rmtree(each.path)
    return described


def _find(paths: StreamPaths, entry: str) -> Archived:
    for each in archived(paths):
        if each.name == entry:
            return each
    raise InvalidSpecError(
        f"{paths.stream}: the archive has no {entry}. Next: oncelake archive list {paths.stream}"
    )


def _refuse_rebuild(paths: StreamPaths) -> None:
    """Make sure that what a restore would clear away is only what a restore left."""
    if paths.workshop.is_dir() and any(paths.workshop.iterdir()) and not _copying(paths).exists():
        raise RefusedError(
            paths.stream,
            "a rebuild is under way, whose tables are where a restore needs room.",
            remedy=f"oncelake rebuild {paths.stream}, and then restore",
        )


def _refuse_erased(paths: StreamPaths, chosen: Archived) -> None:
    """Make sure that a restore does not bring back what was erased after the entry was archived."""
    folders = (each.path for each in archived(paths))
    ledgers = (paths.ledger, *(folder / paths.ledger.name for folder in folders))
    for ledger in map(Ledger, ledgers):
        rows = ledger.rows() if ledger.exists else ()
        if any(row.kind == "erase" and row.committed_at > chosen.at for row in rows):
            raise RefusedError(
                paths.stream,
                f"a key was erased after {chosen.name} was archived, which may still hold it.",
                remedy=f"oncelake archive prune {paths.stream} {chosen.name}",
            )


def _copying(paths: StreamPaths) -> Path:
    """Return the folder that says that what is in the workshop is a copy."""
    return paths.workshop / "RESTORING"


def _describe(each: Archived, paths: StreamPaths) -> ArchiveEntry:
    try:
        log = TableLog(each.path / paths.data.name)
        rows = log.row_count() if log.exists else None
    except (IngestionError, OSError, ValueError):
        rows = None
    files = (file for file in each.path.rglob("*") if file.is_file())
    return ArchiveEntry(
        entry=each.name,
        at=each.at,
        why=each.why or "unknown",
        tables=each.tables,
        rows=rows,
        waiting=known_waiting(
            replace(paths, quarantine=each.path / paths.quarantine.name), _EVERYTHING
        ),
        size_bytes=sum(file.stat().st_size for file in files),
    )
