"""Many streams in one process: how fresh ``oncelake follow`` keeps them, and what it costs.

A record's latency is the time from its Kafka timestamp, which the producer sets, to the commit that
holds it, as the ledger has it.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import numpy as np
import psutil
from confluent_kafka import Producer
from deltalake import DeltaTable

from bench.cpu import memory_mb, process_tree
from bench.topic import Topic
from oncelake.ingestion.kafka.client import client_options
from oncelake.ingestion.lake.ledger import Ledger
from oncelake.ingestion.storage.location import Location

PACE: Final = {"every_seconds": 1, "min_records": 1}
_TICK: Final = 0.1
_SETTLED_AFTER_SECONDS: Final = 20


def measure_freshness(
    topics: Sequence[Topic],
    environment: Mapping[str, str],
    scratch: Path,
    *,
    rate: int,
    minutes: float,
) -> dict[str, float]:
    """Follow topics into which records come, then topics into which none come.

    Args:
        topics: Empty topics, whose streams are declared.
        environment: Of the process that follows; its lake is empty.
        scratch: Folder for the log.
        rate: Records a second into each topic.
        minutes: How long records come; the first minute is not counted. Then a minute without.

    Returns:
        Latency in seconds (``p50``, ``p99``), ``runs``, cores used by an idle process (``idle``),
        and its memory in MB after the first minute and at the end.
    """
    log = scratch / "follow.log"
    with _following([topic.name for topic in topics], environment, log) as process:
        began = time.time()
        _send(topics, rate=rate, seconds=60)
        warm = memory_mb(process_tree(process.pid))
        _send(topics, rate=rate, seconds=minutes * 60 - 60)
        time.sleep(_SETTLED_AFTER_SECONDS)
        idle = _cores_used(process.pid, seconds=60)
        end = memory_mb(process_tree(process.pid))
    lake = Path(environment["ONCELAKE_LAKE"])
    latencies = np.concatenate([_latencies(lake, topic.name, since=began + 60) for topic in topics])
    return {
        "p50": round(float(np.percentile(latencies, 50)), 2),
        "p99": round(float(np.percentile(latencies, 99)), 2),
        "records": float(len(latencies)),
        "runs": float(sum(line.startswith('{"at"') for line in log.read_text().splitlines())),
        "idle": round(idle, 3),
        "jvm_mb": warm[0],
        "python_mb": warm[1],
        "jvm_mb_end": end[0],
        "python_mb_end": end[1],
    }


@contextmanager
def _following(
    names: Sequence[str], environment: Mapping[str, str], log: Path
) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "ingestion", "follow", *names, "--every", "1s", "--json"]
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, env=environment, stdout=output, stderr=subprocess.STDOUT
        )
        try:
            yield process
        finally:
            _, *children = process_tree(process.pid)
            process.send_signal(signal.SIGTERM)
            process.wait(60)
            psutil.wait_procs(children, 30)


def _send(topics: Sequence[Topic], *, rate: int, seconds: float) -> None:
    """Send records as a steady trickle, with the time of their sending."""
    producer = Producer({**client_options(topics[0].settings), "linger.ms": 5})
    end = time.monotonic() + seconds
    due = time.monotonic()
    while due < end:
        for topic in topics:
            for message in topic.next_inserts(round(rate * _TICK)):
                now = time.time_ns() // 1_000_000
                producer.produce(topic.name, message.value, message.key, timestamp=now)
        producer.poll(0)
        due += _TICK
        time.sleep(max(0.0, due - time.monotonic()))
    if producer.flush(30):
        raise SystemExit("not all records were acknowledged")


def _cores_used(pid: int, *, seconds: float) -> float:
    """Return the cores that a process and its descendants use; of those that end, nothing."""
    before = {each: sum(each.cpu_times()[:2]) for each in process_tree(pid)}
    time.sleep(seconds)
    # PySpark ends workers that have been idle for a minute, and what those had used goes with them.
    used = (sum(each.cpu_times()[:2]) - before.get(each, 0.0) for each in process_tree(pid))
    return sum(used) / seconds


def _latencies(lake: Path, stream: str, *, since: float) -> np.ndarray:
    """Return each record's latency in seconds, of those that were sent since then."""
    committed = {
        row.seq: row.committed_at.timestamp()
        for row in Ledger(Location.of(lake / f"{stream}__ledger")).rows()
    }
    rows = DeltaTable(lake / stream).to_pyarrow_table(columns=["_timestamp", "_seq"])
    sent = rows["_timestamp"].cast("int64").to_numpy() / 1e6
    at = np.array([committed[seq] for seq in rows["_seq"].to_pylist()])
    return np.asarray((at - sent)[sent >= since])
