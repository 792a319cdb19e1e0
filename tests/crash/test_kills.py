"""Real kills: a process group dies by SIGKILL, and the next run heals what it left."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ingestion.verify import verify
from tests.crash.driver import POINTS
from tests.world import World, row

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.slow]

ROOT = Path(__file__).parent.parent.parent
RANDOM_KILLS = int(os.environ.get("RANDOM_KILLS", "3"))
SEED = int(os.environ.get("SEED", "20130101"))


@pytest.mark.parametrize("point", POINTS, ids=lambda point: point.replace(" ", "-"))
def test_a_kill_at_a_durable_step_is_healed(world: World, point: str) -> None:
    """Whatever step was the last, the next run ends with each record applied once."""
    world.send(row(1, "a"), row(2, "b"), b"garbage")
    world.run()
    world.send(row(1, "c"), row(3, "d"), b"more garbage")
    world.write_declaration()

    died = subprocess.run(
        [sys.executable, "-m", "tests.crash.driver", world.topic, point],
        cwd=ROOT,
        env=world.environment(),
        start_new_session=True,
        capture_output=True,
        check=False,
        timeout=120,
    )
    report = world.run()
    again = world.run()

    assert died.returncode == -signal.SIGKILL, died.stderr.decode()[-2000:]
    assert world.rows() == [row(1, "c"), row(2, "b"), row(3, "d")]
    assert [each["value"] for each in world.quarantined()] == [b"garbage", b"more garbage"]
    assert [(each.seq, each.balanced) for each in world.ledger] == [(1, True), (2, True)]
    assert [each.seq for each in report.recovered] == ([2] if point == "after the commit" else [])
    assert again.batches == ()


def test_kills_at_random_moments_lose_and_double_nothing(world: World) -> None:
    """After kills at random moments of runs, one plain run gives the rows of the fold."""
    world.declare(max_offsets_per_trigger=150, sequence_by=["at"])
    dice = random.Random(SEED)
    world.write_declaration()
    reached = []
    for attempt in range(RANDOM_KILLS):
        world.send(*(row(dice.randrange(200), f"{attempt}.{i}", at=i) for i in range(400)))
        world.send(b"garbage", row(dice.randrange(200), "old", at=-1), partition=1)
        reached.append(_kill_at_random(world, dice))

    report = world.run()

    verdict = verify(world.spec, world.settings)
    assert verdict.holds, f"seed {SEED}, killed at {reached}: {verdict.differences}"
    assert all(batch.balanced for batch in world.ledger)
    assert [batch.seq for batch in world.ledger] == list(range(1, report.seq + 1))
    assert report.lag == 0


def _kill_at_random(world: World, dice: random.Random) -> str:
    """Start a run, and kill its process group some seconds after it took the stream."""
    world.paths.holder.unlink(missing_ok=True)
    process = subprocess.Popen(
        [sys.executable, "-m", "ingestion", "run", world.topic],
        cwd=ROOT,
        env=world.environment(),
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + 90
    while not world.paths.holder.exists() and process.poll() is None:
        assert time.monotonic() < deadline, "the run never took its lock"
        time.sleep(0.05)
    try:
        process.wait(dice.uniform(3, 20))
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(30)
    return f"seq {world.log.last_seq(world.topic) if world.log.exists else None}"
