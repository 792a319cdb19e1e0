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
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

import psutil

_SET_CHILD_SUBREAPER: Final = 36
_ORPHANS_END_WITHIN_SECONDS: Final = 120
_LOOKS_EVERY_SECONDS: Final = 0.2


class Cost(NamedTuple):
    """Seconds that something took; of a process the most memory at a time, in MB, too."""

    wall: float
    cpu: float
    jvm_mb: float = 0.0
    python_mb: float = 0.0


@dataclass
class _Watched:
    """What is seen of a process's descendants while they live.

    Attributes:
        others: Processes that were there before.
        workers: CPU seconds of each worker of PySpark's daemons.
        jvm_mb, python_mb: Most resident memory of the JVM, and of all other processes together;
            a page that forked workers share is counted once (PSS).
    """

    others: Sequence[psutil.Process]
    workers: dict[tuple[int, float], float] = field(default_factory=dict)
    jvm_mb: float = 0.0
    python_mb: float = 0.0

    def look(self) -> None:
        """Look at them now."""
        members = psutil.Process().children(recursive=True)
        members = [process for process in members if process not in self.others]
        for process in members:
            with suppress(psutil.NoSuchProcess):
                parent = process.parent()
                if parent is not None and _is_of_daemon(process) and _is_of_daemon(parent):
                    used = sum(process.cpu_times()[:2])
                    self.workers[process.pid, process.create_time()] = used
        jvm_mb, python_mb = memory_mb(members)
        self.jvm_mb, self.python_mb = max(self.jvm_mb, jvm_mb), max(self.python_mb, python_mb)


def cpu_seconds(pid: int) -> float:
    """Return the CPU seconds of a process and its descendants, the ended ones included."""
    total = 0.0
    for member in process_tree(pid):
        # User and system time of its own, and of the children that it has waited for.
        with suppress(psutil.NoSuchProcess):
            total += sum(member.cpu_times()[:4])
    return total


def process_tree(pid: int) -> list[psutil.Process]:
    """Return a process, and behind it its descendants."""
    root = psutil.Process(pid)
    return [root, *root.children(recursive=True)]


def memory_mb(processes: Iterable[psutil.Process]) -> tuple[float, float]:
    """Return the resident memory of the JVMs among some processes, and of all others."""
    resident = Counter[bool]()
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            is_jvm = process.name() == "java"
            memory = process.memory_info().rss if is_jvm else process.memory_full_info().pss
            resident[is_jvm] += memory
    return round(resident[True] / 2**20), round(resident[False] / 2**20)


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
    with log.open("wb") as output, _watching() as watched:
        code = subprocess.run(
            command, env=environment, stdout=output, stderr=subprocess.STDOUT, check=False
        ).returncode
        wall = time.monotonic() - started
        _await_orphans()
    if code:
        raise SystemExit(f"exit {code}: {' '.join(command)}\n{log.read_text()[-3000:]}")
    cpu = _of_ended_children() - before + sum(watched.workers.values())
    return Cost(wall, cpu, watched.jvm_mb, watched.python_mb)


@contextmanager
def _watching() -> Iterator[_Watched]:
    """Watch this process's descendants while the block runs."""
    watched = _Watched(psutil.Process().children(recursive=True))
    over = threading.Event()

    def watch() -> None:
        while not over.wait(_LOOKS_EVERY_SECONDS):
            watched.look()

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield watched
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
