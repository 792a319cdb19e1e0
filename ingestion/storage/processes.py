"""Which process is meant by a number, which one holds a file, and the scratch folder of each.

A pid is given away again when its process has ended; together with the time at which the process
started it means one process only. A zombie counts as ended: it can no longer write.

A JVM that is killed takes nothing away: its shuffle files and copies of batches, or what a proof
spilled, would fill the disk, a kill at a time. So later processes sweep the folders of the dead.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import socket
import struct
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

# The system reckons a start time from its boot time, which moves when the clock is set.
_CLOCK_SECONDS = 2.0
# Clocks of kernel and writer differ by rounding, and a little by adjustment.
_TOLERANCE_SECONDS = 60.0
# A JVM outlives the driver that was killed by seconds.
_LEFT_ALONE_SECONDS = 3600.0
# Of another machine, or container, nothing else tells whether a process is alive.
_LEFT_TO_OTHERS_SECONDS = 24 * 3600.0
# JSON of 900 levels needs a call or two a level.
_CALLS = 3_000
# struct flock of 64-bit Linux: type, whence, start, length, pid.
_FLOCK = "hhqqi"


@dataclass(frozen=True, kw_only=True, slots=True)
class ProcessId:
    """One process of one host, for good; ``started`` is in seconds of that host's clock."""

    pid: int
    started: float

    @classmethod
    def of(cls, pid: int) -> ProcessId:
        """Describe a process of this host.

        Raises:
            psutil.NoSuchProcess: there is none of this id.
        """
        return cls(pid=pid, started=psutil.Process(pid).create_time())

    def is_alive(self) -> bool:
        """Tell whether it still runs, seen from its own host."""
        started = _start_time(self.pid)
        return started is not None and abs(started - self.started) < _CLOCK_SECONDS


@contextmanager
def deeper_calls() -> Iterator[None]:
    """Let functions call themselves as often as the deepest JSON that is taken needs."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(before + _CALLS)
    try:
        yield
    finally:
        sys.setrecursionlimit(before)


def this_machine() -> str:
    """Return the identity of the place in which a pid means a process: host, boot, namespace."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        namespace = os.readlink("/proc/self/ns/pid")
    except OSError:
        return socket.gethostname()
    return f"{socket.gethostname()} {boot} {namespace}"


def _machine() -> str:
    return hashlib.sha256(this_machine().encode()).hexdigest()[:8]


def seconds_since_boot() -> float:
    """Return the time of a clock that goes on while the machine sleeps, where there is one."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


def is_running(pid: int, *, since: float) -> bool:
    """Tell whether the process that had this pid at a time (seconds since 1970) is still running.

    For a process of which only that time is known, and not when it started.
    """
    started = _start_time(pid)
    return started is not None and started <= since + _TOLERANCE_SECONDS


def process_locking(path: Path) -> int | None:
    """Return the id of the process that holds a file's kernel lock, and take nothing.

    ``None`` where nobody does, and where this system tells it in another form. Not for the
    process that holds it: asking would drop its lock.
    """
    if not path.exists() or sys.platform != "linux":
        return None
    with path.open("a") as file:
        query = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        kind, *_, pid = struct.unpack(_FLOCK, fcntl.fcntl(file, fcntl.F_GETLK, query))
    return None if kind == fcntl.F_UNLCK else pid


def scratch_of_this_process(state: Path) -> Path:
    """Return this process's folder, which may not be there yet, and say that it is in use."""
    me = ProcessId.of(os.getpid())
    folder = state / "scratch" / f"{_machine()}-{me.pid}-{me.started:.0f}"
    with suppress(OSError):
        os.utime(folder)
    return folder


def sweep_scratch(state: Path, *, even_if_young: bool = False) -> tuple[Path, ...]:
    """Remove the folders of processes that are gone, and return them.

    Args:
        state: The state folder, in which a rebuild has one of its own.
        even_if_young: Even where a JVM may outlive its driver, which then dies without a commit.
    """
    folders = (*state.glob("scratch/*-*-*"), *state.glob("rebuild/scratch/*-*-*"))
    swept = tuple(each for each in folders if _is_left_over(each, even_if_young))
    for folder in swept:
        shutil.rmtree(folder, ignore_errors=True)
    return swept


def _is_left_over(folder: Path, even_if_young: bool) -> bool:
    machine, pid, started = folder.name.split("-")[-3:]
    if not (pid.isdigit() and started.isdigit()):
        return False
    try:
        age = time.time() - folder.stat().st_mtime
    except FileNotFoundError:
        # Another process is sweeping, too.
        return False
    if machine != _machine():
        return age > _LEFT_TO_OTHERS_SECONDS
    owner = ProcessId(pid=int(pid), started=float(started))
    return (even_if_young or age > _LEFT_ALONE_SECONDS) and not owner.is_alive()


def _start_time(pid: int) -> float | None:
    """Return when a process of this host started, or ``None`` when it has ended."""
    try:
        process = psutil.Process(pid)
        started, status = process.create_time(), process.status()
    except psutil.NoSuchProcess:
        return None
    return None if status == psutil.STATUS_ZOMBIE else started
