"""Two runs at once: one writes, the other is told who does."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from ingestion.lake.failpoints import Failpoint
from tests.crash.failpoint_hook import PlannedCrash
from tests.support.proof import find_problems
from tests.support.world import ROOT, World, row

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.slow]

DOUBLE_STARTS = int(os.environ.get("DOUBLE_STARTS", "1"))
_HOLDER = r"run \S+ \(pid \d+ on \S+, since \d{4}-\S+\) holds this stream"


@pytest.mark.parametrize("nth", range(DOUBLE_STARTS))
def test_of_two_runs_at_once_one_writes(world: World, nth: int) -> None:
    """Started at the same moment, both end well or the loser exits 4 and names the holder."""
    world.declare(sequence_by=["at"], max_offsets_per_trigger=40)
    world.write_declaration()
    world.send(*(row(i % 30, f"{nth}.{i}", at=i) for i in range(100)), b"garbage")
    world.settings.state.mkdir(parents=True)

    said = _both(world, place=Failpoint.BEFORE_LOCK if nth % 2 else Failpoint.LOCK_HELD)

    codes = sorted(code for code, _ in said)
    assert codes in ([0, 0], [0, 4]), said
    for code, text in said:
        assert code == 0 or re.search(_HOLDER, text), text
    assert find_problems(world) == ()


def _both(world: World, *, place: Failpoint) -> list[tuple[int, str]]:
    """Start two runs that wait for one another before they take the lock, or while they hold it."""
    runs = []
    for name in ("one", "other"):
        crash = PlannedCrash(
            place=place, nth=1, way="wait_for_the_other", visits=_visits(world, name)
        )
        runs.append(
            subprocess.Popen(
                world.command,
                cwd=ROOT,
                env={**world.environment(), **crash.environment()},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        )
    told = [run.communicate(timeout=180)[0] for run in runs]
    return [(run.returncode, text) for run, text in zip(runs, told, strict=True)]


def _visits(world: World, name: str) -> str:
    return str(Path(world.settings.state) / f"visits.{name}")
