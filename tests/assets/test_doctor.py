"""A run that Dagster lost is found, named and cured, and what it did is told by the next."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.assets.shell import ROOT, STALLING, environment, make_home, reported_batches
from tests.support.world import World, row

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.slow]


@pytest.fixture
def home(world: World, tmp_path: Path) -> Path:
    """A Dagster home, and a stream that is declared."""
    world.write_declaration()
    return make_home(tmp_path / "dagster")


@pytest.fixture
def lost_run(world: World, home: Path) -> str:
    """A run that was killed, with its JVM, after its commits and before its result."""
    world.send(row(1, "a"), row(2, "b"), b"garbage")
    stalled = home / "stalled"
    run = subprocess.Popen(
        materialize(world, STALLING),
        cwd=ROOT,
        env=environment(world, home),
        start_new_session=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    deadline = time.monotonic() + 180
    while not stalled.exists():
        if run.poll() is not None or time.monotonic() > deadline:
            os.killpg(run.pid, signal.SIGKILL) if run.poll() is None else None
            pytest.fail(run.communicate()[0].decode()[-3000:])
        time.sleep(0.1)
    os.killpg(run.pid, signal.SIGKILL)
    run.communicate(timeout=30)
    return world.ledger[-1].run_id


def materialize(world: World, module: str = "assets.definitions") -> list[str]:
    """Return the command that materializes the stream."""
    return [
        *(sys.executable, "-m", "dagster", "asset", "materialize"),
        *("--select", world.topic, "-m", module),
    ]


def examine(world: World, home: Path) -> tuple[int, list[dict[str, Any]]]:
    """Call the doctor; return its exit code and what it found, notes apart."""
    called = subprocess.run(
        [sys.executable, "-m", "ingestion", "doctor", world.topic, "--json"],
        cwd=ROOT,
        env=environment(world, home),
        capture_output=True,
        text=True,
        check=False,
        timeout=180,
    )
    assert called.stdout, called.stderr
    findings = json.loads(called.stdout)["findings"]
    return called.returncode, [each for each in findings if each["exit_code"]]


def test_a_lost_run_is_found_cured_and_reported(world: World, home: Path, lost_run: str) -> None:
    """The doctor's commands free what a kill left, and the next run tells what it committed."""
    shell = environment(world, home)
    code, findings = examine(world, home)
    for finding in findings:
        subprocess.run(finding["command"], shell=True, env=shell, check=True, timeout=120)
    healthy = examine(world, home)
    again = subprocess.run(materialize(world), cwd=ROOT, env=shell, timeout=240, check=False)

    assert code == 1
    assert [each["what"] for each in findings] == [
        f"run {lost_run[:8]} is STARTED, and its process is gone",
        f"the slot of pool {world.topic} is claimed by run {lost_run[:8]}, which is dead",
    ]
    assert all(lost_run in each["evidence"] for each in findings)
    assert healthy == (0, [])
    assert again.returncode == 0
    assert reported_batches(home, world.topic) == [(True, [1]), (False, [])]
