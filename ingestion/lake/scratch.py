"""Where a process keeps what it will not need again: a folder of its own, and none of the dead.

A JVM that is killed takes nothing away. Its shuffle files and copies of batches would stay, a kill
at a time, until the disk is full; the memory of a proof likewise.
"""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path
from typing import Final

from ingestion.lake.processes import ProcessId

# A JVM outlives the driver that was killed by seconds.
_LEFT_ALONE_SECONDS: Final = 3600.0


def scratch_of_this_process(state: Path) -> Path:
    """Return this process's folder, which may not be there yet."""
    me = ProcessId.of(os.getpid())
    return state / "scratch" / f"{me.pid}-{me.started:.0f}"


def sweep_scratch(state: Path) -> tuple[Path, ...]:
    """Remove the folders of processes that are gone.

    Returns:
        What was removed.
    """
    swept = tuple(each for each in (state / "scratch").glob("*-*") if _is_left_over(each))
    for folder in swept:
        shutil.rmtree(folder, ignore_errors=True)
    return swept


def _is_left_over(folder: Path) -> bool:
    pid, _, started = folder.name.partition("-")
    if not (pid.isdigit() and started.isdigit()):
        return False
    try:
        age = time.time() - folder.stat().st_mtime
    except FileNotFoundError:
        # Another process is sweeping, too.
        return False
    owner = ProcessId(pid=int(pid), started=float(started))
    return age > _LEFT_ALONE_SECONDS and not owner.is_alive()
