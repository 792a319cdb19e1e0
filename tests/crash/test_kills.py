"""Real kills: a run dies at a named place or at any moment, and the next heals what it left.

The short form of ``python -m tests.crash``: the group is killed behind a commit. Another place dies
in this process, which leaves the same to heal. ``RANDOM_KILLS`` and ``SEED`` choose how many random
moments, and which.
"""

from __future__ import annotations

import os
import random
import subprocess
from contextlib import suppress

import dagster as dg
import pytest

from oncelake.ingestion.errors import SetupError
from oncelake.ingestion.operations.decisions import accept
from oncelake.ingestion.operations.history.rewind import rewind
from oncelake.ingestion.operations.upkeep.maintain import maintain
from oncelake.ingestion.storage import failpoints
from oncelake.ingestion.storage.failpoints import Failpoint
from oncelake.ingestion.verify.verify import verify
from tests.assets.shell import materialize
from tests.crash.trial import Cell, attempt
from tests.support.long import IS_LONG, twins
from tests.support.proof import find_problems
from tests.support.world import COLUMNS, World, row, wait_until
from tests.trials.failpoints import EVENT_WRITTEN
from tests.trials.kills import IN_PROCESS, process_group

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.slow]

RANDOM_KILLS = int(os.environ.get("RANDOM_KILLS", "1" if IS_LONG else "0"))
SEED = int(os.environ.get("SEED", "20130101"))

CELLS = (
    Cell(place=Failpoint.COMMITTED, way="kill_group", follow_up="checkpoint_deleted", seed=4),
    Cell(place=Failpoint.TABLE_CREATED, way=IN_PROCESS, follow_up="plain", seed=1),
    *twins(
        Cell(place=Failpoint.PREPARED, way="kill_group", follow_up="smaller_batches", seed=2),
        Cell(place=Failpoint.QUARANTINED, way="kill_jvm", follow_up="smaller_batches", seed=2),
        Cell(place=Failpoint.AUDITED, way="kill_python", follow_up="new_records", seed=3),
        Cell(place=Failpoint.PREPARED, way=IN_PROCESS, follow_up="plain", seed=6),
        Cell(place=Failpoint.TABLE_CREATED, way="kill_jvm", follow_up="plain", seed=1),
        Cell(place=Failpoint.PREPARED, way="kill_python", follow_up="new_records", seed=3),
        Cell(place=Failpoint.AUDITED, way="freeze", follow_up="plain", seed=6),
        Cell(place=EVENT_WRITTEN, way="kill_group", follow_up="plain", seed=8),
        Cell(place=Failpoint.COMMITTED, way="kill_jvm", follow_up="plain", seed=5),
        Cell(place=Failpoint.LEDGER_WRITTEN, way="exception", follow_up="new_records", seed=7),
    ),
)


@pytest.mark.parametrize("cell", CELLS, ids=str)
def test_a_run_that_ends_anywhere_loses_and_doubles_nothing(world: World, cell: Cell) -> None:
    """Whatever step was the last, and whoever died of it, each record is applied once."""
    outcome = attempt(world, cell)

    assert outcome.evidence == ()
    assert outcome.ended not in {"not reached", "exit 0", "went on"}


# Dagster's own, wherever one resource holds another.
@pytest.mark.filterwarnings("ignore:InitResourceContext.dagster_run:DeprecationWarning")
def test_every_place_is_reached(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs, a proof, decisions, a rebuild and a Dagster run pass every place: no dead letter."""
    reached: set[Failpoint] = set()
    monkeypatch.setattr(failpoints, "_hook", lambda: reached.add)
    world.send(row(1, "a"), row(2, "b"), b"garbage")
    world.run()
    world.send(row(9, "z"), partition=1)
    world.run()
    assert verify(world.spec, world.settings).holds
    wider = COLUMNS.replace("at INT", "at BIGINT")
    world.declare(schema=f"{wider}, more STRING", schema_change="evolve")
    world.run()
    maintain(world.spec, world.settings, run_id="me")
    rewind(world.spec, world.settings, to="seq:1", reason="a test", run_id="me")
    world.forget_before(0, 3)
    world.send(row(3, "c"), row(4, "d"))
    world.forget_before(0, 4)
    accept(world.spec, world.settings, reason="meant to", run_id="me")
    world.rebuild(without_lost=True)
    with dg.DagsterInstance.ephemeral() as instance:
        assert materialize(world, instance).success

    # Only a schema that comes with the records leads there, and a truncate of the source: see
    # test_evolution_kills.py and test_truncates.py.
    assert set(Failpoint) - reached == {Failpoint.COLUMNS_KEPT, Failpoint.SOURCE_TRUNCATED}


def test_nobody_but_a_test_can_plan_a_crash(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A variable that would make runs die is refused where no test has set it."""
    failpoints._hook.cache_clear()
    monkeypatch.setenv("ONCELAKE_CHAOS", "tests.trials.failpoints:act")

    with pytest.raises(SetupError, match="unset ONCELAKE_CHAOS"):
        world.run()
    failpoints._hook.cache_clear()


@pytest.mark.skipif(not RANDOM_KILLS, reason="left to make test-long and make kills")
def test_kills_at_random_moments_lose_and_double_nothing(world: World) -> None:
    """After kills at random moments of runs, one plain run gives the rows of the fold."""
    world.declare(max_offsets_per_trigger=150, sequence_by=["at"])
    dice = random.Random(SEED)
    world.write_declaration()
    reached = []
    for attempted in range(RANDOM_KILLS):
        world.send(*(row(dice.randrange(200), f"{attempted}.{i}", at=i) for i in range(400)))
        world.send(b"garbage", row(dice.randrange(200), "old", at=-1), partition=1)
        reached.append(_kill_at_random(world, dice))

    world.run()

    assert find_problems(world) == (), f"seed {SEED}, killed at {reached}"


def _kill_at_random(world: World, dice: random.Random) -> str:
    """Start a run, and kill its process group some seconds after it took the stream."""
    world.paths.holder.path.unlink(missing_ok=True)
    world.settings.state.mkdir(parents=True, exist_ok=True)
    log = world.settings.state / "run.log"
    with process_group(world.command, world.environment(), log) as process:
        wait_until(
            lambda: world.paths.holder.exists() or process.poll() is not None,
            "the run never took its lock",
            seconds=90,
        )
        with suppress(subprocess.TimeoutExpired):
            process.wait(dice.uniform(3, 20))
    return f"seq {world.log.last_seq(world.topic) if world.log.exists else None}"
