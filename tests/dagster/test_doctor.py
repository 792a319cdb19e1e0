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

import dagster as dg
import pytest

from tests.world import World, row

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.slow]

ROOT = Path(__file__).parents[2]
DAGSTER_YAML = """
telemetry: {enabled: false}
concurrency: {pools: {default_limit: 1, granularity: op}}
"""


@pytest.fixture
def home(world: World, tmp_path: Path) -> Path:
    """A Dagster home of the test's own, with a slot a pool as in the project."""
    folder = tmp_path / "dagster"
    folder.mkdir()
    (folder / "dagster.yaml").write_text(DAGSTER_YAML)
    world.write_declaration()
    return folder


@pytest.fixture
def environment(world: World, home: Path, tmp_path: Path) -> dict[str, str]:
    """What a shell has in which somebody works with that home."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    stalled = str(tmp_path / "stalled")
    return {**world.environment(), "DAGSTER_HOME": str(home), "PATH": path, "STALLED": stalled}


@pytest.fixture
def lost_run(world: World, environment: dict[str, str]) -> str:
    """A run that was killed, with its JVM, after its commits and before its result."""
    world.send(row(1, "a"), row(2, "b"), b"garbage")
    stalled = Path(environment["STALLED"])
    run = subprocess.Popen(
        materialize(world, "tests.dagster.stalling"),
        cwd=ROOT,
        env=environment,
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


def examine(world: World, environment: dict[str, str]) -> tuple[int, list[dict[str, Any]]]:
    """Call the doctor; return its exit code and what it found, notes apart."""
    called = subprocess.run(
        [sys.executable, "-m", "ingestion", "doctor", world.topic, "--json"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=180,
    )
    assert called.stdout, called.stderr
    findings = json.loads(called.stdout)["findings"]
    return called.returncode, [each for each in findings if each["exit_code"]]


def test_a_lost_run_is_found_cured_and_told(
    world: World, environment: dict[str, str], lost_run: str, home: Path
) -> None:
    """The doctor's commands free what a kill left, and the next run tells what it committed."""
    code, findings = examine(world, environment)
    for finding in findings:
        subprocess.run(finding["command"], shell=True, env=environment, check=True, timeout=120)
    healthy = examine(world, environment)
    again = subprocess.run(materialize(world), cwd=ROOT, env=environment, timeout=240, check=False)

    assert code == 1
    assert [each["what"] for each in findings] == [
        f"run {lost_run[:8]} is STARTED, and its process is gone",
        f"the slot of pool {world.topic} is claimed by run {lost_run[:8]}, which is dead",
    ]
    assert all(lost_run in each["evidence"] for each in findings)
    assert healthy == (0, [])
    assert again.returncode == 0
    assert told(home, world.topic) == [(True, lost_run, 3, 1), (False, None, 0, 1)]


def told(home: Path, asset: str) -> list[tuple[bool, str | None, int, int]]:
    """Return, of each materialization, whether it is recovered, of which run, records and seq."""
    with dg.DagsterInstance.from_config(str(home)) as instance:
        found = instance.fetch_materializations(dg.AssetKey(asset), limit=10, ascending=True)
    events = [record.asset_materialization.metadata for record in found.records]  # type: ignore[union-attr]
    return [
        (
            event["recovered"].value,
            event["run_id"].value if "run_id" in event else None,
            event["read"].value,
            event["seq"].value,
        )
        for event in events
    ]
