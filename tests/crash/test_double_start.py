"""Two runs at once: one writes, the other is told who does."""

from __future__ import annotations

import os
import re
from contextlib import ExitStack
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from oncelake.ingestion.settings import Settings
from oncelake.ingestion.storage.failpoints import Failpoint
from tests.support.long import only_long
from tests.support.proof import find_problems
from tests.support.world import World, row
from tests.trials.failpoints import PlannedCrash
from tests.trials.kills import process_group

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.slow]

DOUBLE_STARTS = int(os.environ.get("DOUBLE_STARTS", "1"))
# Runs a command as if on a host of its own: it sees no process of another.
_HOST = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
_HOLDER = r"run \S+ \(pid \d+ on \S+, since \d{4}-\S+\) holds this stream"


@pytest.mark.parametrize("nth", range(DOUBLE_STARTS))
def test_of_two_runs_at_once_one_writes(world: World, nth: int) -> None:
    """Started at the same moment, both end well or the loser exits 4 and names the holder."""
    _declare_and_send(world, nth)

    said = _both(world, nth)

    assert _one_was_refused_at_most(said)
    assert find_problems(world) == ()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes a host of a namespace")
@pytest.mark.parametrize("nth", range(DOUBLE_STARTS))
@only_long
def test_of_two_hosts_at_once_one_writes_to_a_store(
    bucket: str, settings: Settings, spark: SparkSession, nth: int
) -> None:
    """Neither sees the other's process: by the lease in the store one waits for the other."""
    engine = "spark" if nth % 4 > 1 else "local"
    settings = settings.model_copy(update={"lake": bucket, "merge_engine": engine})
    with World.made(settings, spark) as world:
        _declare_and_send(world, nth)

        said = _both(world, nth, host=_HOST)

        assert _one_was_refused_at_most(said)
        assert find_problems(world) == ()


def _declare_and_send(world: World, nth: int) -> None:
    world.declare(sequence_by=["at"], max_offsets_per_trigger=40)
    world.write_declaration()
    world.send(*(row(i % 30, f"{nth}.{i}", at=i) for i in range(100)), b"garbage")
    world.settings.state.mkdir(parents=True)


def _one_was_refused_at_most(said: list[tuple[int, str]]) -> bool:
    codes = sorted(code for code, _ in said)
    assert codes in ([0, 0], [0, 4]), said
    for code, text in said:
        assert code == 0 or re.search(_HOLDER, text), text
    return True


def _both(world: World, nth: int, host: tuple[str, ...] = ()) -> list[tuple[int, str]]:
    """Start two runs that wait for one another before they take the lock, or while they hold it.

    Args:
        world: The stream.
        nth: Which trial; they wait with the lock in every second one.
        host: What runs each of them, where that is not this host.
    """
    place = Failpoint.LOCK_HELD if nth % 2 else Failpoint.BEFORE_LOCK
    state = Path(world.settings.state)
    with ExitStack() as ends:
        runs = []
        for name in ("one", "other"):
            visits, log = state / f"visits.{name}", state / f"{name}.log"
            crash = PlannedCrash(place=place, way="wait_for_the_other", visits=str(visits))
            environment = {**world.environment(), **crash.environment()}
            started = process_group([*host, *world.command], environment, log)
            runs.append((ends.enter_context(started), log))
        return [(run.wait(180), log.read_text()) for run, log in runs]
