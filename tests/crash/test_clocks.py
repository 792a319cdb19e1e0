"""Clocks that differ by a day: a run's from its lake's, and a producer's from everybody's."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from uuid import uuid4

import pytest

from oncelake.ingestion.lake.paths import StreamPaths
from oncelake.ingestion.local.process import run_and_capture
from oncelake.ingestion.settings import Settings
from oncelake.ingestion.storage.lease import Lease
from oncelake.ingestion.storage.processes import ProcessId
from tests.support.long import only_long
from tests.support.world import ROOT, World, changed, row

_LIBRARIES = [*Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1")]
_DAY_MS = 86_400_000
_HOLD = """
import sys
from oncelake.ingestion.errors import StreamLockedError
from oncelake.ingestion.lake.lock import Holder, held_by_python
from oncelake.ingestion.lake.paths import StreamPaths
from oncelake.ingestion.settings import Settings
paths = StreamPaths.of("orders", Settings(lake=sys.argv[1], state=sys.argv[1], lock="lease"))
try:
    with held_by_python(paths, Holder.me("skewed")):
        print("held")
except StreamLockedError:
    print("locked")
"""
needs_faketime = pytest.mark.skipif(not _LIBRARIES, reason="libfaketime is not installed")
either_way = pytest.mark.parametrize("by", ["+1d", "-1d"])


@pytest.fixture
def told(settings: Settings) -> Iterator[World]:
    """A stream that librdkafka reads."""
    reading = changed(settings, reader="librdkafka")
    world = World.over(f"clocks{uuid4().hex[:8]}", reading)
    world.create_topic(**{"message.timestamp.after.max.ms": str(3 * _DAY_MS)})
    world.declare(sequence_by=["at"])
    world.write_declaration()
    yield world
    world.delete_topic()


def command(world: World, *words: str) -> tuple[int, str]:
    """Run another command on the stream, by the right clock."""
    done = replace(world, operation=words).run_elsewhere()
    return done.returncode, done.stdout + done.stderr


@needs_faketime
@either_way
def test_a_wrong_clock_takes_no_lease_away_and_waits_for_none_for_ever(
    tmp_path: Path, by: str
) -> None:
    """How old a lease is, the file system says: it is kept while it lasts, and taken when over."""
    paths = StreamPaths.of("orders", Settings(lake=tmp_path, state=tmp_path, lock="lease"))
    leave_lease(paths, seconds=600)
    kept = hold(tmp_path, by)
    leave_lease(paths, seconds=0.5)
    time.sleep(1)

    assert (kept, hold(tmp_path, by)) == ("locked", "held")


def hold(lake: Path, by: str) -> str:
    """Try to take a stream on a host whose clock is wrong."""
    clock = {"LD_PRELOAD": str(_LIBRARIES[0]), "FAKETIME": by, "DONT_FAKE_MONOTONIC": "1"}
    environment = {**os.environ, **clock, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", _HOLD, str(lake)]
    done = run_and_capture(command, env=environment, seconds=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def leave_lease(paths: StreamPaths, *, seconds: float) -> None:
    """Leave the lease of a run on another machine."""
    assert paths.lease is not None
    lease = Lease(
        token=7,
        run_id="other",
        host="elsewhere",
        since="2026-01-01T00:00:00+00:00",
        seconds=seconds,
        machine="elsewhere",
        workers=(ProcessId.of(os.getpid()),),
    )
    paths.lease.put(json.dumps(asdict(lease)).encode())


@pytest.mark.kafka
@only_long
@pytest.mark.parametrize("days", [1, -1])
def test_a_producer_whose_clock_is_wrong_by_a_day_loses_nothing(told: World, days: int) -> None:
    """The time of a record decides nothing: all are read, and proven, and status goes on."""
    for id in range(50):
        value = json.dumps(row(id, "odd", id)).encode()
        sent = int(time.time() * 1000) + days * _DAY_MS
        told.producer.produce(told.topic, value, partition=0, timestamp=sent)
    assert told.producer.flush(30) == 0

    assert command(told, "run")[0] == 0
    assert len(told.rows()) == 50
    assert command(told, "verify")[0] == 0
    code, said = command(told, "status", "--json")
    assert (code, "Traceback" in said) == (0, False), said
