"""What a stream's dead runs may have left: a lock that outlives its driver, and half-done work."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import pyarrow.compute as pc
from deltalake import DeltaTable

from ingestion.lake.lease import read_lease
from ingestion.lake.ledger import Ledger
from ingestion.lake.lock import Holder, holder_of
from ingestion.lake.paths import StreamPaths
from ingestion.lake.processes import is_running, process_locking
from ingestion.lake.side_tables import count_rows
from ingestion.lake.table_log import TableLog
from ingestion.operations.doctor.findings import (
    DEAD_HOLDER,
    OLD_GENERATIONS,
    ORPHANED_CHECKPOINT,
    RUN_ELSEWHERE,
    RUN_UNDER_WAY,
    UNCOMMITTED_ROWS,
    UNRECORDED_COMMITS,
    Finding,
)
from ingestion.recovery.heal import commits_of


@dataclass(frozen=True, kw_only=True, slots=True)
class Leftovers:
    """What lies around of a stream.

    Attributes:
        holder: Who holds the stream now; while somebody does, nothing else is a leftover.
        is_leased: Whether it is held by a lease, which outlives its processes.
        locking_pid: A process that may still commit: it has the kernel's lock, or stands in the
            lease and lives.
        driver_is_alive: Whether the holder's driver runs; ``None`` on another machine.
        unrecorded: Seqs of commits that have no ledger row.
        side_rows: Rows of a seq that was never committed, by table.
        generations: Generations of the Spark checkpoint; a run leaves one.
    """

    stream: str
    holder: Holder | None = None
    is_leased: bool = False
    locking_pid: int | None = None
    driver_is_alive: bool | None = None
    unrecorded: tuple[int, ...] = ()
    side_rows: tuple[tuple[Path, int], ...] = ()
    generations: tuple[Path, ...] = ()


def find_leftovers(stream: str, paths: StreamPaths) -> Leftovers:
    """Gather what lies around of a stream, without Spark and without Kafka."""
    holder = holder_of(paths)
    if holder is not None:
        return Leftovers(
            stream=stream,
            holder=holder,
            is_leased=paths.lease is not None,
            locking_pid=_locking_pid(paths),
            driver_is_alive=_is_alive(holder),
        )
    seq = _last_seq(stream, paths)
    sides = (paths.quarantine, paths.tombstones)
    return Leftovers(
        stream=stream,
        unrecorded=_unrecorded(stream, paths, seq),
        side_rows=tuple((side, rows) for side in sides if (rows := _rows_beyond(side, seq))),
        generations=_generations(paths.checkpoints),
    )


def diagnose_stream(left: Leftovers) -> Iterator[Finding]:
    """Say what is left over, and what puts it right: nearly always the next run."""
    if left.holder is not None:
        yield _finding_of_holder(left, left.holder)
    if left.unrecorded:
        yield UNRECORDED_COMMITS.of(left.stream, f"seq {', '.join(map(str, left.unrecorded))}")
    for table, rows in left.side_rows:
        yield UNCOMMITTED_ROWS.of(left.stream, f"{table}: {rows:,}")
    if len(left.generations) > 1:
        yield OLD_GENERATIONS.of(left.stream, ", ".join(map(str, left.generations)))


def orphans(checkpoints: Path, declared: set[str]) -> Iterator[Finding]:
    """Say which checkpoints belong to no declared stream."""
    for folder in sorted(checkpoints.iterdir()) if checkpoints.is_dir() else ():
        if folder.is_dir() and folder.name not in declared:
            yield ORPHANED_CHECKPOINT.of(folder.name, str(folder), path=folder)


def _finding_of_holder(left: Leftovers, holder: Holder) -> Finding:
    evidence = f"run {holder.run_id}, pid {holder.pid} on {holder.host}, since {holder.since}"
    if left.driver_is_alive is None:
        return RUN_ELSEWHERE.of(left.stream, evidence)
    if left.driver_is_alive:
        return RUN_UNDER_WAY.of(left.stream, evidence)
    evidence += f"; process {left.locking_pid or 'unknown'} has the lock"
    return DEAD_HOLDER.of(left.stream, evidence, release=_release(left))


def _release(left: Leftovers) -> str:
    """Return what ends the hold of a dead driver: its JVM goes first, and then the lease."""
    steps = [f"kill {left.locking_pid}"] if left.locking_pid else []
    steps += [f"oncelake unlock {left.stream}"] if left.is_leased else []
    return " && ".join(steps) or "find the java process of that run, and kill it"


def _locking_pid(paths: StreamPaths) -> int | None:
    if paths.lease is None:
        return process_locking(paths.lock)
    lease = read_lease(paths.lease)
    return next((worker.pid for worker in lease.living()), None) if lease else None


def _is_alive(holder: Holder) -> bool | None:
    if holder.host != socket.gethostname():
        return None
    try:
        since = datetime.fromisoformat(holder.since).timestamp()
    except ValueError:
        return None
    return is_running(holder.pid, since=since)


def _last_seq(stream: str, paths: StreamPaths) -> int:
    log = TableLog(paths.data)
    return (log.last_seq(stream) or 0) if log.exists else 0


def _unrecorded(stream: str, paths: StreamPaths, seq: int) -> tuple[int, ...]:
    log = TableLog(paths.data)
    if not log.exists:
        return ()
    known = {row.seq for row in Ledger(paths.ledger).rows_of(log.table_id())}
    commits = commits_of(TableLog(paths.data), stream, set(range(1, seq + 1)) - known)
    return tuple(sorted(each.metadata.seq for each in commits if each.metadata))


def _rows_beyond(table: Path, seq: int) -> int:
    return count_rows(table, pc.field("_seq") > seq) if DeltaTable.is_deltatable(str(table)) else 0


def _generations(folder: Path) -> tuple[Path, ...]:
    found = (at for at in (folder.iterdir() if folder.is_dir() else ()) if at.name.isdigit())
    return tuple(sorted(found, key=lambda at: int(at.name)))
