"""Clocks that differ by a day: a run's from its lake's, and a producer's from everybody's."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from uuid import uuid4

import pytest

from oncelake.ingestion.settings import Settings
from oncelake.ingestion.storage.lease import Lease
from tests.support.long import only_long
from tests.support.world import World, changed, row

pytestmark = [pytest.mark.kafka, only_long]

_LIBRARIES = [*Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1")]
_DAY_MS = 86_400_000
needs_faketime = pytest.mark.skipif(not _LIBRARIES, reason="libfaketime is not installed")
either_way = pytest.mark.parametrize("by", ["+1d", "-1d"])


@pytest.fixture
def leased(settings: Settings) -> Iterator[World]:
    """A stream whose runs are locked by leases, and read by librdkafka."""
    leasing = changed(settings, lock="lease", lease_seconds=60, reader="librdkafka")
    world = World.over(f"clocks{uuid4().hex[:8]}", leasing)
    world.create_topic(**{"message.timestamp.after.max.ms": str(3 * _DAY_MS)})
    world.declare(sequence_by=["at"])
    world.write_declaration()
    yield world
    world.delete_topic()


def run(world: World, by: str) -> tuple[int, str]:
    """Run on a host whose clock is wrong."""
    clock = {"LD_PRELOAD": str(_LIBRARIES[0]), "FAKETIME": by, "FAKETIME_DONT_FAKE_MONOTONIC": "1"}
    done = world.run_elsewhere(**clock)
    return done.returncode, done.stdout + done.stderr


def command(world: World, *words: str) -> tuple[int, str]:
    """Run another command on the stream, by the right clock."""
    done = replace(world, operation=words).run_elsewhere()
    return done.returncode, done.stdout + done.stderr


def leave_lease(world: World, seconds: float) -> None:
    """Leave the lease of a run on another machine."""
    assert world.paths.lease is not None
    lease = Lease(
        token=7,
        run_id="other",
        host="elsewhere",
        since="2026-01-01T00:00:00+00:00",
        seconds=seconds,
        machine="elsewhere",
        workers=(),
    )
    world.paths.lease.put(json.dumps(asdict(lease)).encode())


@needs_faketime
@either_way
def test_a_wrong_clock_takes_no_lease_away_and_waits_for_none_for_ever(
    leased: World, by: str
) -> None:
    """How old a lease is, the file system says; it is kept while it lasts, and taken when over."""
    leased.send(*(row(id, "first", 1) for id in range(50)))
    assert run(leased, by)[0] == 0
    leased.send(*(row(id, "second", 2) for id in range(50)))
    leave_lease(leased, seconds=600)
    refused, said = run(leased, by)
    leave_lease(leased, seconds=1)
    time.sleep(1.5)

    taken, _ = run(leased, by)

    assert (refused, taken) == (4, 0), said
    assert [each["name"] for each in leased.rows()] == ["second"] * 50


@needs_faketime
def test_runs_of_hosts_a_day_apart_commit_one_after_the_other(leased: World) -> None:
    """No order of batches is taken from a clock."""
    for at, by in enumerate(["+1d", "-1d", "+1d", "-1d"]):
        leased.send(*(row(id, by, at) for id in range(20)))
        code, said = run(leased, by)
        assert code == 0, said

    assert {each["at"] for each in leased.rows()} == {3}
    assert command(leased, "verify")[0] == 0


@pytest.mark.parametrize("days", [1, -1])
def test_a_producer_whose_clock_is_wrong_by_a_day_loses_nothing(leased: World, days: int) -> None:
    """The time of a record decides nothing: all are read, and proven, and status goes on."""
    for id in range(50):
        value = json.dumps(row(id, "odd", id)).encode()
        sent = int(time.time() * 1000) + days * _DAY_MS
        leased.producer.produce(leased.topic, value, partition=0, timestamp=sent)
    assert leased.producer.flush(30) == 0

    assert command(leased, "run")[0] == 0
    assert len(leased.rows()) == 50
    assert command(leased, "verify")[0] == 0
    code, said = command(leased, "status", "--json")
    assert (code, "Traceback" in said) == (0, False), said
