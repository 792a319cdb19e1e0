"""What a stream's dead runs may have left: a lock that outlives its driver, and half-done work."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pyarrow.compute as pc
from deltalake import DeltaTable

from ingestion.lake.ledger import Ledger
from ingestion.lake.lock import Holder, holder_of, read_lease
from ingestion.lake.paths import StreamPaths
from ingestion.lake.processes import is_running, process_locking
from ingestion.lake.side_tables import count_rows
from ingestion.lake.table_log import TableLog
from ingestion.operations.doctor import findings
from ingestion.operations.doctor.findings import Finding
from ingestion.recovery.heal import commits_of


def examine_leftovers(stream: str, paths: StreamPaths) -> Iterator[Finding]:
    """Say what lies around of a stream, and what puts it right: nearly always the next run.

    Needs neither Spark nor Kafka. While somebody holds the stream, nothing else is a leftover.
    """
    if holder := holder_of(paths):
        yield _finding_of_holder(stream, paths, holder)
        return
    log, seq = TableLog(paths.data), 0
    if log.exists:
        seq = log.last_seq(stream) or 0
        recorded = {row.seq for row in Ledger(paths.ledger).rows_of(log.table_id())}
        commits = commits_of(log, stream, set(range(1, seq + 1)) - recorded)
        if seqs := sorted(commit.metadata.seq for commit in commits if commit.metadata):
            yield findings.UNRECORDED_COMMITS.of(stream, f"seq {', '.join(map(str, seqs))}")
    for table in (paths.quarantine, paths.tombstones):
        is_there = DeltaTable.is_deltatable(str(table))
        if is_there and (rows := count_rows(table, pc.field("_seq") > seq)):
            yield findings.UNCOMMITTED_ROWS.of(stream, f"{table}: {rows:,}")
    folders = paths.checkpoints.iterdir() if paths.checkpoints.is_dir() else ()
    generations = sorted((at for at in folders if at.name.isdigit()), key=lambda at: int(at.name))
    if len(generations) > 1:
        yield findings.OLD_GENERATIONS.of(stream, ", ".join(map(str, generations)))


def orphans(checkpoints: Path, declared: set[str]) -> Iterator[Finding]:
    """Say which checkpoints belong to no declared stream."""
    for folder in sorted(checkpoints.iterdir()) if checkpoints.is_dir() else ():
        if folder.is_dir() and folder.name not in declared:
            yield findings.ORPHANED_CHECKPOINT.of(folder.name, str(folder), path=folder)


def _finding_of_holder(stream: str, paths: StreamPaths, holder: Holder) -> Finding:
    evidence = f"run {holder.run_id}, pid {holder.pid} on {holder.host}, since {holder.since}"
    is_alive = _is_alive(holder)
    if is_alive is None:
        return findings.RUN_ELSEWHERE.of(stream, evidence)
    if is_alive:
        return findings.RUN_UNDER_WAY.of(stream, evidence)
    pid = _locking_pid(paths)
    # The JVM of a dead driver goes first, and then the lease, which outlives both.
    steps = [f"kill {pid}"] if pid else []
    steps += [f"oncelake unlock {stream}"] if paths.lease else []
    release = " && ".join(steps) or "find the java process of that run, and kill it"
    evidence += f"; process {pid or 'unknown'} has the lock"
    return findings.DEAD_HOLDER.of(stream, evidence, release=release)


def _locking_pid(paths: StreamPaths) -> int | None:
    """Return a process that may still commit: it has the lock, or is in the lease and lives."""
    if paths.lease is None:
        return process_locking(paths.lock)
    lease = read_lease(paths.lease)
    return next((worker.pid for worker in lease.living()), None) if lease else None


def _is_alive(holder: Holder) -> bool | None:
    """Tell whether the holder's driver runs; ``None`` on another machine."""
    if holder.host != socket.gethostname():
        return None
    try:
        since = datetime.fromisoformat(holder.since).timestamp()
    except ValueError:
        return None
    return is_running(holder.pid, since=since)
