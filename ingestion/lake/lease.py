"""A lease: what stands in for a kernel lock on a file system that has none.

A kernel lock goes with its process; a lease is a file, and stays when its holder is killed. So it
names every process that may commit under it, by pid and start time, and ``oncelake unlock`` takes
it away only when none of them is left. Nothing expires by the clock: a run that was suspended for
an hour would wake up and commit beside its successor.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from ingestion.errors import StreamLockedError

_CLOCK_SECONDS = 2.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Worker:
    """A process that may commit.

    Attributes:
        pid: Its id on its host.
        started: When it started, in seconds of that host's clock; ids are used again.
    """

    pid: int
    started: float

    @classmethod
    def of(cls, pid: int) -> Worker:
        """Describe a process of this host."""
        return cls(pid=pid, started=psutil.Process(pid).create_time())

    def is_alive(self) -> bool:
        """Tell whether it still runs, seen from its own host."""
        began = began_at(self.pid)
        # The system reckons it from its boot time, which moves when the clock is set.
        return began is not None and abs(began - self.started) < _CLOCK_SECONDS


@dataclass(frozen=True, kw_only=True, slots=True)
class Lease:
    """Who holds a stream by a lease.

    Attributes:
        run_id: The run.
        host: Machine it runs on.
        since: When it began, UTC, ISO 8601.
        workers: Its processes, driver and JVM.
    """

    run_id: str
    host: str
    since: str
    workers: tuple[Worker, ...]

    def living(self) -> tuple[Worker, ...]:
        """Return those of its processes that still run, seen from its own host."""
        return tuple(each for each in self.workers if each.is_alive())


@contextmanager
def leased(path: Path, lease: Lease, *, taken: Callable[[], StreamLockedError]) -> Iterator[None]:
    """Hold a lease while the block runs.

    Raises:
        StreamLockedError: there is one already: what ``taken`` returns.
    """
    draft = path.with_name(f"{path.name}.{os.getpid()}")
    draft.write_text(json.dumps(asdict(lease)))
    try:
        # Of two links to one name only one succeeds, and the file is whole when it appears.
        os.link(draft, path)
    except FileExistsError:
        raise taken() from None
    finally:
        draft.unlink()
    try:
        yield
    finally:
        if read_lease(path) == lease:
            path.unlink()


def began_at(pid: int) -> float | None:
    """Return when a process of this host started, or ``None`` when it has ended; a zombie has."""
    try:
        process = psutil.Process(pid)
        began, status = process.create_time(), process.status()
    except psutil.NoSuchProcess:
        return None
    return None if status == psutil.STATUS_ZOMBIE else began


def read_lease(path: Path) -> Lease | None:
    """Return the lease of a stream, or ``None`` when there is none."""
    try:
        told = json.loads(path.read_text())
    except FileNotFoundError:
        return None
    return Lease(**{**told, "workers": tuple(Worker(**each) for each in told["workers"])})
