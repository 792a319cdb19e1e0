"""``oncelake reset``: begin again from the topic. Nothing is deleted; everything is moved away."""

from __future__ import annotations

import shutil
from pathlib import Path

from ingestion.lake.archive import archive_table
from ingestion.lake.lock import Holder, held_by_python
from ingestion.lake.paths import StreamPaths
from ingestion.lake.storage import translate_disk_errors
from ingestion.settings import Settings


def reset(stream: str, settings: Settings, *, run_id: str) -> tuple[Path, ...]:
    """Move a stream's tables into the lake's archive, and drop its checkpoints.

    The next run makes a new table and begins at ``starting``.

    Returns:
        Where each table went.
    """
    paths = StreamPaths.of(stream, settings)
    with (
        translate_disk_errors(stream, *paths.written),
        held_by_python(paths, Holder.me(run_id)),
    ):
        # The ledger goes last: a table gone beside its ledger is refused, so a reset that stops
        # halfway cannot be mistaken for a new stream.
        moved = archive_table(paths, [paths.tombstones, paths.quarantine, paths.data, paths.ledger])
        shutil.rmtree(paths.checkpoints, ignore_errors=True)
        return moved
