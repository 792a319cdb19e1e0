"""Whether a process is still there, as far as its number alone can tell."""

from __future__ import annotations

import fcntl
import os
import struct
import sys
from pathlib import Path

from ingestion.lake import StreamPaths

# Clocks of kernel and writer differ by rounding, and a little by adjustment.
_TOLERANCE_SECONDS = 60.0


def is_running(pid: int, *, since: float) -> bool:
    """Tell whether the process that had this pid at a time is still running.

    A zombie is not, nor is a process that was given the number later. Where the system does not
    tell when a process began, its number alone must do.

    Args:
        pid: The process id.
        since: When the process is known to have run, in seconds since 1970.
    """
    if not Path("/proc/self/stat").exists():
        return _answers(pid)
    try:
        state, began = _state_and_begin(pid)
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z" and began <= since + _TOLERANCE_SECONDS


def _state_and_begin(pid: int) -> tuple[str, float]:
    # The command's name, in parentheses, may itself hold blanks and parentheses.
    fields = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()
    ticks = int(fields[19])
    return fields[0], _booted_at() + ticks / os.sysconf("SC_CLK_TCK")


def _booted_at() -> float:
    lines = Path("/proc/stat").read_text("ascii").splitlines()
    return float(next(line for line in lines if line.startswith("btime")).split()[1])


def _answers(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def process_holding(paths: StreamPaths) -> int | None:
    """Return the id of the process that holds a stream's lock, as the kernel knows it.

    That is the JVM of a run, whose driver may be dead already. ``None`` where nobody does, and
    where this system tells it in another form. Takes nothing; like ``holder_of``, not for the
    process that holds the lock by ``held_by_python``.
    """
    if not paths.lock.exists() or sys.platform != "linux":
        return None
    # struct flock of 64-bit Linux: type, whence, start, length, pid.
    form = "hhqqi"
    with paths.lock.open("a") as file:
        asked = struct.pack(form, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        kind, *_, pid = struct.unpack(form, fcntl.fcntl(file, fcntl.F_GETLK, asked))
    return None if kind == fcntl.F_UNLCK else pid
