"""The lake's archive: what is taken away from a stream is moved there, and never deleted."""

from __future__ import annotations

import datetime as dt
import shutil
from collections.abc import Iterable
from pathlib import Path

from ingestion.lake import StreamPaths


def put_away(paths: StreamPaths, tables: Iterable[Path]) -> tuple[Path, ...]:
    """Move tables, in this order, into a folder of the archive that is named for the time.

    Returns:
        Where each that was there went.
    """
    archive = paths.archive / dt.datetime.now(dt.UTC).strftime("%Y%m%dT%H%M%S%fZ")
    moved = []
    for table in tables:
        if table.exists():
            archive.mkdir(parents=True, exist_ok=True)
            moved.append(Path(shutil.move(table, archive / table.name)))
    return tuple(moved)
