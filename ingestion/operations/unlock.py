"""``oncelake unlock``: remove the lease of a run that was killed, once it is certainly gone."""

from __future__ import annotations

import socket

from ingestion.errors import StreamLockedError
from ingestion.lake.lock import Lease, holder_of, read_lease
from ingestion.lake.paths import StreamPaths
from ingestion.settings import Settings


def unlock(stream: str, settings: Settings, *, force: bool = False) -> Lease | None:
    """Remove a dead run's lease; a kernel lock needs none of this.

    Args:
        force: A person vouches that a run on another host, which cannot be seen from here, is
            dead. It is not taken for a run on this host, where the truth can be seen.

    Returns:
        The lease that was removed, or ``None`` when the stream was free.

    Raises:
        StreamLockedError: the holder lives, or may live; names it.
    """
    paths = StreamPaths.of(stream, settings)
    if paths.lease is None:
        if holder := holder_of(paths):
            raise StreamLockedError(
                f"{stream}: {holder} lives: a lock of the kernel goes with its process. Next: wait "
                "for it to end, or end it"
            )
        return None
    lease = read_lease(paths.lease)
    if lease is None:
        return None
    run = f"{stream}: run {lease.run_id} on {lease.host} (since {lease.since})"
    if lease.host == socket.gethostname():
        if living := lease.living():
            pids = ", ".join(str(worker.pid) for worker in living)
            raise StreamLockedError(
                f"{run} lives (pid {pids}) and may commit. Next: wait for it to end, or end it"
            )
    elif not force:
        raise StreamLockedError(
            f"{run} cannot be seen from here. Next: run this on {lease.host}; or, once that "
            "host or run is certainly dead, oncelake unlock --force"
        )
    paths.lease.unlink()
    return lease
