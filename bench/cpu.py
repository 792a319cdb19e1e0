"""Wall and CPU time of a process and all its descendants: the JVM is one, and so are its workers.

What a process has used while it lives is read from /proc (``cpu_seconds``). What it used from its
start until the last of its descendants was gone is the system's own account (``run_metered``): a
JVM outlives the Python that started it by seconds, so orphans become children of this process.
PySpark's daemon ignores the ends of its workers, so that the system forgets what those have used:
they are watched while they live.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

import psutil

_SET_CHILD_SUBREAPER: Final = 36
_ORPHANS_END_WITHIN_SECONDS: Final = 120
_LOOKS_EVERY_SECONDS: Final = 0.2


class Cost(NamedTuple):
    """Seconds that something took."""

    wall: float
    cpu: float


def cpu_seconds(pid: int) -> float:
    """Return the CPU seconds of a process and its descendants, the ended ones included."""
    process, total = psutil.Process(pid), 0.0
    for member in (process, *process.children(recursive=True)):
        # User and system time of its own, and of the children that it has waited for.
        with suppress(psutil.NoSuchProcess):
            total += sum(member.cpu_times()[:4])
    return total


def repeat(run: Callable[[Path], Mapping[str, Any] | None], folders: Iterable[str]) -> None:
    """Run once in each folder, and leave there what it took, as ``cost.json``."""
    for folder in map(Path, folders):
        wall, cpu = time.monotonic(), cpu_seconds(os.getpid())
        note = run(folder) or {}
        cost = Cost(time.monotonic() - wall, cpu_seconds(os.getpid()) - cpu)
        (folder / "cost.json").write_text(json.dumps({**cost._asdict(), **note}))


def run_metered(command: Sequence[str], environment: Mapping[str, str], log: Path) -> Cost:
    """Run a command to its end; its output goes to ``log``.

    Call it only while this process has no other child.

    Returns:
        Wall time until the command ended, and CPU time until its last descendant did.

    Raises:
        SystemExit: the command failed, or left a process behind.
    """
    ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    before, started = _of_ended_children(), time.monotonic()
    with log.open("wb") as output, _watching_workers() as workers:
        code = subprocess.run(
            command, env=environment, stdout=output, stderr=subprocess.STDOUT, check=False
        ).returncode
        wall = time.monotonic() - started
        _await_orphans()
    if code:
        raise SystemExit(f"exit {code}: {' '.join(command)}\n{log.read_text()[-3000:]}")
    return Cost(wall, _of_ended_children() - before + sum(workers.values()))


@contextmanager
def _watching_workers() -> Iterator[dict[tuple[int, float], float]]:
    """Give out the CPU seconds of each worker of PySpark's daemons, as last seen."""
    seen: dict[tuple[int, float], float] = {}
    over = threading.Event()

    def watch() -> None:
        while not over.wait(_LOOKS_EVERY_SECONDS):
            for process in psutil.Process().children(recursive=True):
                with suppress(psutil.NoSuchProcess):
                    parent = process.parent()
                    if parent is not None and _is_of_daemon(process) and _is_of_daemon(parent):
                        seen[process.pid, process.create_time()] = sum(process.cpu_times()[:2])

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield seen
    finally:
        over.set()
        watcher.join()


def _is_of_daemon(process: psutil.Process) -> bool:
    return "pyspark.daemon" in process.cmdline()


def _of_ended_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _await_orphans() -> None:
    deadline = time.monotonic() + _ORPHANS_END_WITHIN_SECONDS
    with suppress(ChildProcessError):
        while time.monotonic() < deadline:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                time.sleep(0.05)
        raise SystemExit(f"left behind: {psutil.Process().children(recursive=True)}")
