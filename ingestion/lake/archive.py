"""The lake's archive: what is taken away from a stream is moved there, and never deleted."""

from __future__ import annotations

import datetime as dt
import shutil
from collections.abc import Iterable
from pathlib import Path

from ingestion.errors import TableReplacedError
from ingestion.lake.failpoints import Failpoint, hit
from ingestion.lake.paths import StreamPaths


def archive_table(paths: StreamPaths, tables: Iterable[Path]) -> tuple[Path, ...]:
    """Move tables, in this order, into a folder that is named for the time; return where they went.

    A table that is not there is passed over.
    """
    archive = paths.archive / dt.datetime.now(dt.UTC).strftime("%Y%m%dT%H%M%S%fZ")
    moved = []
    for table in tables:
        if table.exists():
            archive.mkdir(parents=True, exist_ok=True)
            moved.append(Path(shutil.move(table, archive / table.name)))
    return tuple(moved)


_AWAY, _PLACE = "away", "place"


def swap_tables(paths: StreamPaths) -> tuple[Path, ...]:
    """Put the workshop's tables in place of the stream's, and return where the old ones went.

    Needs the stream's lock.
    """
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
        moved = archive_table(paths, old)
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
