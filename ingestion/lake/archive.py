"""The lake's archive: what is taken away from a stream is moved there, and never deleted."""

from __future__ import annotations

import datetime as dt
import shutil
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ingestion.errors import TableReplacedError
from ingestion.lake.failpoints import Failpoint, hit
from ingestion.lake.paths import StreamPaths

_STAMP = "%Y%m%dT%H%M%S%fZ"
_WHY = "WHY"


def archive_table(paths: StreamPaths, tables: Iterable[Path], *, why: str = "") -> tuple[Path, ...]:
    """Move tables, in this order, into a folder that is named for the time; return where they went.

    A table that is not there is passed over; ``why`` is written down beside the others.
    """
    archive = paths.archive / dt.datetime.now(dt.UTC).strftime(_STAMP)
    moved = []
    for table in tables:
        if table.exists():
            archive.mkdir(parents=True, exist_ok=True)
            (archive / _WHY).write_text(why)
            moved.append(Path(shutil.move(table, archive / table.name)))
    return tuple(moved)


@dataclass(frozen=True, kw_only=True, slots=True)
class Archived:
    """What one decision took away from a stream.

    Attributes:
        at: When, in UTC.
        tables: The tables, by the names that they had in the lake.
        why: What took them away, and the reason that a person gave; empty where none is known.
    """

    path: Path
    at: dt.datetime
    tables: tuple[str, ...]
    why: str

    @property
    def name(self) -> str:
        """The name by which a person means it."""
        return self.path.name


def archived(paths: StreamPaths) -> tuple[Archived, ...]:
    """Return what was taken away from a stream, oldest first."""
    folders = sorted(paths.archive.iterdir()) if paths.archive.is_dir() else ()
    return tuple(found for folder in folders if (found := _archived(folder)))


def _archived(folder: Path) -> Archived | None:
    try:
        at = dt.datetime.strptime(folder.name, _STAMP).replace(tzinfo=dt.UTC)
    except ValueError:
        return None
    why = ""
    with suppress(OSError):
        why = (folder / _WHY).read_text()
    tables = tuple(sorted(each.name for each in folder.iterdir() if each.is_dir()))
    return Archived(path=folder, at=at, tables=tables, why=why)


_AWAY, _PLACE = "away", "place"


def swap_tables(paths: StreamPaths, *, why: str = "") -> tuple[Path, ...]:
    """Put the workshop's tables in place of the stream's, and return where the old ones went.

    Needs the stream's lock.
    """
    (paths.workshop / _WHY).write_text(why)
    _mark(paths, _AWAY)
    return finish_swap(paths)


def finish_swap(paths: StreamPaths) -> tuple[Path, ...]:
    """Go on with a swap that was cut short, if one was, and return where old tables went just now.

    Needs the stream's lock.
    """
    mark, moved = _mark_of(paths), tuple[Path, ...]()
    if not mark.exists():
        return ()
    hit(Failpoint.SWAP_BEGUN)
    old = (paths.tombstones, paths.quarantine, paths.data, paths.ledger)
    if mark.read_text() == _AWAY:
        why = ""
        with suppress(FileNotFoundError):
            why = (paths.workshop / _WHY).read_text()
        moved = archive_table(paths, old, why=why)
        shutil.rmtree(paths.checkpoints, ignore_errors=True)
        _mark(paths, _PLACE)
    hit(Failpoint.SWAP_CLEARED)
    for place in old:
        new = paths.workshop / place.name
        if new.exists():
            new.rename(place)
    mark.unlink()
    shutil.rmtree(paths.workshop, ignore_errors=True)
    return moved


def refuse_half_swapped(paths: StreamPaths) -> None:
    """Make sure that no rebuilt table is on its way to its place.

    Raises:
        TableReplacedError: one is.
    """
    if _mark_of(paths).exists():
        raise TableReplacedError(
            paths.stream,
            "a rebuild was cut short while its tables took the place of the old ones.",
            remedy=f"oncelake run {paths.stream}, which puts the rest in place first",
        )


def _mark(paths: StreamPaths, phase: str) -> None:
    draft = _mark_of(paths).with_suffix(".draft")
    draft.write_text(phase)
    draft.replace(_mark_of(paths))


def _mark_of(paths: StreamPaths) -> Path:
    return paths.workshop / "SWAP"
