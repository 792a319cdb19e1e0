"""``oncelake reset``: begin again from the topic. Nothing is deleted; everything is moved away."""

from __future__ import annotations

import datetime as dt
import shutil
from pathlib import Path

from ingestion.lake import StreamPaths
from ingestion.lock import Holder, held_by_python
from ingestion.settings import Settings


def reset(stream: str, settings: Settings, *, run_id: str) -> tuple[Path, ...]:
    """Move a stream's tables into the lake's archive, and drop its checkpoints.

    The next run makes a new table and begins at ``starting``.

    Returns:
        Where each table went.
    """
    paths = StreamPaths.of(stream, settings)
    with held_by_python(stream, paths, Holder.me(run_id)):
        archive = paths.archive / dt.datetime.now(dt.UTC).strftime("%Y%m%dT%H%M%S%fZ")
        moved = []
        # The ledger goes last: a table gone beside its ledger is refused, so a reset that stops
        # halfway cannot be mistaken for a new stream.
        for table in (paths.tombstones, paths.quarantine, paths.data, paths.ledger):
            if table.exists():
                archive.mkdir(parents=True, exist_ok=True)
                moved.append(Path(shutil.move(table, archive / table.name)))
        shutil.rmtree(paths.checkpoints, ignore_errors=True)
        return tuple(moved)
