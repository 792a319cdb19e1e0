"""A lease: what stands in for a kernel lock on a file system that has none.

A kernel lock goes with its process; a lease is a file, and stays when its holder is killed. So it
names every process that may commit under it, by pid and start time, and ``oncelake unlock`` takes
it away only when none of them is left. Nothing expires by the clock: a run that was suspended for
an hour would wake up and commit beside its successor.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter

from ingestion.errors import StreamLockedError
from ingestion.lake.processes import ProcessId


@dataclass(frozen=True, kw_only=True, slots=True)
class Lease:
    """Who holds a stream by a lease.

    Attributes:
        since: When it began, UTC, ISO 8601.
        workers: Its processes, driver and JVM.
    """

    run_id: str
    host: str
    since: str
    workers: tuple[ProcessId, ...]

    def living(self) -> tuple[ProcessId, ...]:
        """Return those of its processes that still run, seen from its own host."""
        return tuple(worker for worker in self.workers if worker.is_alive())


_LEASE = TypeAdapter(Lease)


@contextmanager
def leased(path: Path, lease: Lease, *, taken: Callable[[], StreamLockedError]) -> Iterator[None]:
    """Hold a lease while the block runs.

    Raises:
        StreamLockedError: there is one already: what ``taken`` returns.
    """
    draft = path.with_name(f"{path.name}.{os.getpid()}")
    draft.write_bytes(_LEASE.dump_json(lease))
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


def read_lease(path: Path) -> Lease | None:
    """Return the lease of a stream, or ``None`` when there is none."""
    try:
        return _LEASE.validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
