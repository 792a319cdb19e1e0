"""A real Dagster home on a bad day: nothing is stuck, and each record is there, and reported, once.

One scenario, since each run of it in another process starts a JVM.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from deltalake import DeltaTable

from tests.assets.shell import (
    ROOT,
    STALLING,
    background_process,
    environment,
    make_home,
    reported_batches,
)
from tests.support.long import IS_LONG
from tests.support.world import World, row

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.slow]

PATIENCE_SECONDS = 240


@dataclass(frozen=True, kw_only=True)
class Home:
    """A Dagster home, and somebody who types commands there."""

    world: World
    path: Path

    @property
    def stalled(self) -> Path:
        """The file with the pid of a run that waits to be killed."""
        return self.path / "stalled"

    def dagster(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Type a command of Dagster's."""
        return self._type("dagster", *words)

    def examine(self) -> tuple[int, list[dict[str, Any]]]:
        """Call the doctor; return its exit code and what it found, notes apart."""
        called = self._type("ingestion", "doctor", self.world.topic, "--json")
        assert called.stdout, called.stderr
        findings = json.loads(called.stdout)["findings"]
        return called.returncode, [found for found in findings if found["exit_code"]]

    def type_as_shown(self, command: str) -> None:
        """Type a command as it was shown."""
        shell = environment(self.world, self.path)
        subprocess.run(command, shell=True, env=shell, check=True, timeout=PATIENCE_SECONDS)

    def _type(self, module: str, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", module, *words],
            cwd=ROOT,
            env={**environment(self.world, self.path), "COLUMNS": "400"},
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE_SECONDS,
        )

    def lose_a_run(self) -> str:
        """Kill a run, with its JVM, after its commits and before its result; return its id."""
        with self._process(sys.executable, "-m", "dagster", *self.materialize(STALLING)):
            self.wait_until(self.stalled.exists, "a run that commits")
        self.stalled.unlink()
        return self.world.ledger[-1].run_id

    def materialize(self, module: str = "assets.definitions") -> list[str]:
        """Return the words that materialize the stream."""
        return ["asset", "materialize", "--select", self.world.topic, "-m", module]

    @contextmanager
    def daemon(self) -> Iterator[None]:
        """Let a daemon run; it is killed in the end, with everything that it started."""
        with self._process("dagster-daemon", "run", "-w", self.workspace):
            yield

    @property
    def workspace(self) -> str:
        """The workspace's file."""
        return str(self.path / "workspace.yaml")

    def _process(self, *command: str) -> AbstractContextManager[None]:
        log, variables = self.path / "log", environment(self.world, self.path)
        return background_process(command, log=log, environment=variables)

    @property
    def log(self) -> str:
        """What daemons, and runs that were lost, have written so far."""
        return (self.path / "log").read_text()

    def wait_until(self, fact: Callable[[], bool], what: str) -> None:
        """Wait for what another process is to bring about; show what it wrote when it does not."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not fact():
            assert time.monotonic() < deadline, f"{what} never came about:\n{self.log[-3000:]}"
            time.sleep(0.5)

    def ended(self) -> list[str]:
        """Return the statuses of the runs, newest first, when all of them are over."""
        with dg.DagsterInstance.from_config(str(self.path)) as instance:
            runs = instance.get_runs()
        return [run.status.value for run in runs] if all(run.is_finished for run in runs) else []


@pytest.fixture
def home(world: World, tmp_path: Path) -> Home:
    """A Dagster home, and a stream whose sensor looks often."""
    # A bad record among few is no failed run here.
    world.declare(sensor_seconds=5, quarantine_rate={"fail_above": 1})
    world.write_declaration()
    return Home(world=world, path=make_home(tmp_path / "dagster"))


def test_nothing_is_lost_or_stuck_whatever_dies(world: World, home: Home) -> None:
    """Runs die by hand and, where there is time, beside the daemon, and then the daemon."""
    _a_lost_run_is_found_cured_and_reported(world, home)
    rows, batches = [row(1, "a"), row(2, "b")], [1]
    if IS_LONG:
        _a_worker_dies_beside_a_queued_run(world, home)
        _the_next_daemon_goes_on(world, home)
        rows = [row(1, "c"), row(2, "b"), row(3, "d"), row(4, "e")]
        batches = [1, 2, 3, 4]
        assert (True, [2]) in reported_batches(home.path, world.topic)

    assert world.rows() == rows
    assert [(batch.seq, batch.balanced) for batch in world.ledger] == [
        (seq, True) for seq in batches
    ]
    reported = reported_batches(home.path, world.topic)
    assert [seq for _, seqs in reported for seq in seqs] == batches
    DeltaTable(world.paths.data.path).delete("id = 2")
    refused = home.dagster(*home.materialize())
    assert refused.returncode == 1
    assert f"oncelake accept {world.topic}" in refused.stdout + refused.stderr


def _a_lost_run_is_found_cured_and_reported(world: World, home: Home) -> None:
    """The doctor's commands free what a kill left, and the next run reports what it committed."""
    world.send(row(1, "a"), row(2, "b"), b"garbage")
    lost = home.lose_a_run()
    version = world.log.versions()[0]

    code, findings = home.examine()

    assert code == 1
    assert [finding["what"] for finding in findings] == [
        f"run {lost[:8]} is STARTED, and its process is gone",
        f"the slot of pool {world.topic} is claimed by run {lost[:8]}, which is dead",
    ], findings
    assert all(lost in finding["evidence"] for finding in findings)
    for finding in findings:
        home.type_as_shown(finding["command"])
    assert home.examine() == (0, [])
    again = home.dagster(*home.materialize())
    assert again.returncode == 0, again.stdout + again.stderr
    assert world.log.versions()[0] == version
    assert reported_batches(home.path, world.topic) == [(True, [1]), (False, [])]


def _a_worker_dies_beside_a_queued_run(world: World, home: Home) -> None:
    """One writer at a time: a run by hand waits for the sensor's, and goes on when that is dead."""
    before = len(home.ended())
    world.send(row(1, "c"))
    with home.daemon():
        home.dagster("sensor", "start", "lag", "-w", home.workspace)
        home.wait_until(home.stalled.exists, "a run by the sensor")
        world.send(row(3, "d"))
        home.dagster("job", "launch", "-j", "ingest_job", "-w", home.workspace)
        home.wait_until(lambda: "of this stream is queued" in home.log, "a tick that waits")
        of_one_writer = [batch.seq for batch in world.ledger]
        os.kill(int(home.stalled.read_text()), signal.SIGKILL)
        home.wait_until(lambda: len(home.ended()) == before + 3, "both runs' end, and a retry's")

    assert of_one_writer == [1, 2]
    assert sorted(home.ended()[:3]) == ["FAILURE", "SUCCESS", "SUCCESS"]


def _the_next_daemon_goes_on(world: World, home: Home) -> None:
    """A daemon that was killed has left nothing that keeps the next from its work."""
    before = len(home.ended())
    world.send(row(4, "e"))
    with home.daemon():
        home.wait_until(lambda: len(world.rows()) == 4, "a run by the next daemon")
        home.wait_until(lambda: len(home.ended()) == before + 1, "its end")
