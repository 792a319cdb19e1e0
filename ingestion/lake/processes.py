"""Which process is meant by a number, and which one holds a file."""

from __future__ import annotations

import fcntl
import os
import struct
import sys
from pathlib import Path

from ingestion.lake.lease import began_at

# Clocks of kernel and writer differ by rounding, and a little by adjustment.
_TOLERANCE_SECONDS = 60.0
# struct flock of 64-bit Linux: type, whence, start, length, pid.
_FLOCK = "hhqqi"


def is_running(pid: int, *, since: float) -> bool:
    """Tell whether the process that had this pid at a time is still running.

    A zombie is not, nor is a process that was given the number later.

    Args:
        pid: The process id.
        since: When the process is known to have run, in seconds since 1970.
    """
    began = began_at(pid)
    return began is not None and began <= since + _TOLERANCE_SECONDS


def process_locking(path: Path) -> int | None:
    """Return the id of the process that holds a file's kernel lock, and take nothing.

    ``None`` where nobody does, and where this system tells it in another form. Not for the
    process that holds it: asking would drop its lock.
    """
    if not path.exists() or sys.platform != "linux":
        return None
    with path.open("a") as file:
        asked = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        kind, *_, pid = struct.unpack(_FLOCK, fcntl.fcntl(file, fcntl.F_GETLK, asked))
    return None if kind == fcntl.F_UNLCK else pid
