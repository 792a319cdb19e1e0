"""The daemon with a real sensor, a real queue and real kills: one writer, and nothing is stuck."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import dagster as dg
import pytest

from tests.assets.shell import ROOT, environment, make_home, reported_batches
from tests.support.world import World, row

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.slow]

PATIENCE_SECONDS = 240


@pytest.fixture
def home(world: World, tmp_path: Path) -> Path:
    """A Dagster home, and a stream whose sensor looks often."""
    world.declare(sensor_seconds=5)
    world.write_declaration()
    return make_home(tmp_path / "dagster")


@contextmanager
def daemon(world: World, home: Path) -> Iterator[None]:
    """Let a daemon run; it is killed in the end, with everything that it started."""
    with (home / "daemon.log").open("a") as log:
        process = subprocess.Popen(
            ["dagster-daemon", "run", "-w", str(home / "workspace.yaml")],
            cwd=ROOT,
            env=environment(world, home),
            start_new_session=True,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    try:
        yield
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(30)


def dagster(world: World, home: Path, *words: str) -> None:
    """Type a command of Dagster's."""
    subprocess.run(
        [sys.executable, "-m", "dagster", *words, "-w", str(home / "workspace.yaml")],
        cwd=ROOT,
        env=environment(world, home),
        check=True,
        capture_output=True,
        timeout=PATIENCE_SECONDS,
    )


def daemon_log(home: Path) -> str:
    """Return what daemons have said so far."""
    return (home / "daemon.log").read_text()


def wait_until(fact: Callable[[], bool], home: Path, what: str) -> None:
    """Wait for what a daemon is to bring about; when it does not, show what it said."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not fact():
        assert time.monotonic() < deadline, f"{what} never came about:\n{daemon_log(home)[-3000:]}"
        time.sleep(0.5)


def test_a_killed_worker_and_a_killed_daemon_leave_nothing_stuck(world: World, home: Path) -> None:
    """A run by the sensor dies beside one by hand, then the daemon: each record is there once."""
    job, stalled = f"ingest_{world.topic}_job", home / "stalled"
    world.send(row(1, "a"), row(2, "b"))
    with dg.DagsterInstance.from_config(str(home)) as instance, daemon(world, home):
        dagster(world, home, "sensor", "start", f"{world.topic}_lag")
        wait_until(stalled.exists, home, "a run by the sensor")
        world.send(row(1, "c"))
        dagster(world, home, "job", "launch", "-j", job)
        wait_until(
            lambda: "of this stream is queued" in daemon_log(home), home, "a tick that waits"
        )
        of_one_writer = [batch.seq for batch in world.ledger]
        os.kill(int(stalled.read_text()), signal.SIGKILL)
        wait_until(lambda: _ended(instance) == 3, home, "the end of both runs, and of a retry")
    statuses = [run.status.value for run in instance.get_runs()]
    world.send(row(3, "d"))
    with daemon(world, home):
        wait_until(lambda: len(world.rows()) == 3, home, "a run by the next daemon")
        wait_until(lambda: _ended(instance) == 4, home, "its end")

    assert of_one_writer == [1]
    assert sorted(statuses) == ["FAILURE", "SUCCESS", "SUCCESS"]
    assert world.rows() == [row(1, "c"), row(2, "b"), row(3, "d")]
    assert [(each.seq, each.balanced) for each in world.ledger] == [(1, True), (2, True), (3, True)]
    of_dagster = reported_batches(home, world.topic)
    assert [seq for _, seqs in of_dagster for seq in seqs] == [1, 2, 3]
    assert of_dagster[0] == (True, [1])


def _ended(instance: dg.DagsterInstance) -> int:
    """Count the runs that are over, when all of them are."""
    runs = instance.get_runs()
    return len(runs) if all(run.is_finished for run in runs) else 0
