"""One trial: a run crashes, runs follow, and each record must be applied exactly once."""

from __future__ import annotations

import os
import random
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from oncelake.ingestion.delta.files import open_delta
from oncelake.ingestion.delta.log_files import log_files
from oncelake.ingestion.pipeline.report import RunReport
from oncelake.ingestion.storage.failpoints import Failpoint
from tests.power.cuts import POWER_CUT, run_and_cut
from tests.support.proof import rows_of_no_commit
from tests.support.traffic import GONE, Traffic
from tests.support.world import World
from tests.trials.failpoints import PlannedCrash
from tests.trials.judge import Acknowledged, committed_in, judge, lost_batches
from tests.trials.kills import IN_PROCESS, NTH_RENAME, run_to_its_end, run_when_free

PARTITIONS = 3
_ENGINES = ("local", "spark")
_SECONDS = 180.0
# What keeps the rows, where it is not the lake.
SINK = os.environ.get("SINK", "")


@dataclass(frozen=True, kw_only=True, slots=True)
class Cell:
    """What is tried.

    Attributes:
        place: Where the run crashes: a named place, or ``rename 7``.
        way: How; see ``tests.trials.failpoints``.
        follow_up: What comes after; see ``FOLLOW_UPS``.
        seed: Makes the records, and which of several batches it is.
    """

    place: str
    way: str
    follow_up: str
    seed: int

    def __str__(self) -> str:
        """Write it as one line of a report."""
        return f"{self.place} {self.way} {self.follow_up} {self.seed}"

    @property
    def engines(self) -> tuple[str, str, str]:
        """Which engine ran before the crash, which crashes, and which heals."""
        before, crashing, healing = random.Random(f"engines {self.seed}").choices(_ENGINES, k=3)
        return before, crashing, healing


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """What came of a trial.

    Attributes:
        ended: How the run ended: ``killed``, ``crashed``, ``exit 5``, or ``not reached``.
        runs: How many runs it took until nothing was left to read.
        seconds: How long the following runs took.
        evidence: What is wrong; nothing when the guarantee held.
    """

    ended: str
    runs: int
    seconds: float
    evidence: tuple[str, ...]


def attempt(world: World, cell: Cell) -> Outcome:
    """Let a run crash, run again, and look for evidence against the guarantee."""
    dice = random.Random(cell.seed)
    before, crashing, healing = cell.engines
    _use(world, before)
    traffic = _prepare(world, cell, dice)
    _use(world, crashing)
    ended, acknowledged, problems = _crash(world, cell, dice)
    if cell.way != POWER_CUT:
        problems = (*problems, *rows_of_no_commit(world))
    FOLLOW_UPS[cell.follow_up](world, traffic)
    _use(world, healing)
    began = time.monotonic()
    runs, report = _run_until_read(world)
    took, evidence = time.monotonic() - began, [*problems]
    if report.lag or runs > 2:
        evidence.append(f"lag {report.lag} after {runs} runs")
    evidence += lost_batches(acknowledged, committed_in(world.ledger), "ledger")
    evidence += rows_of_no_commit(world)
    return Outcome(ended=ended, runs=runs, seconds=took, evidence=(*evidence, *judge(world)))


def _crash(
    world: World, cell: Cell, dice: random.Random
) -> tuple[str, Acknowledged, tuple[str, ...]]:
    """Let a run crash; return how it ended, what it had acknowledged, and what is wrong with it."""
    nth, visits = _nth(cell.place, dice), world.settings.state / "visits"
    if cell.way == POWER_CUT:
        return *run_and_cut(world, cell.place, nth, dice), ()
    volume = str(world.settings.lake) if world.paths.lake.is_local else ""
    crash = PlannedCrash(place=cell.place, nth=nth, way=cell.way, visits=str(visits), volume=volume)
    ended, problems = run_to_its_end(world, crash)
    has_reached = cell.way in {NTH_RENAME, IN_PROCESS} or (
        visits.exists() and cell.place in visits.read_text().split()
    )
    return ended if has_reached else "not reached", {}, problems


def _use(world: World, engine: str) -> None:
    world.settings = world.settings.model_copy(update={"merge_engine": engine})


def _prepare(world: World, cell: Cell, dice: random.Random) -> Traffic:
    """Declare the stream in one of its two orders, and give it some past."""
    by_time = dice.random() < 0.5
    world.declare(
        sequence_by=["at"] if by_time else [],
        apply_as_deletes=f"name = '{GONE}'",
        max_offsets_per_trigger=90,
        # So many bad records end Dagster's run with 1, as a kill of its JVM may not.
        quarantine_rate={"fail_above": 1},
    )
    if SINK:
        _declare_sink(world, dice)
    elif random.Random(f"vectors {cell.seed}").random() < 0.5:
        world.declare(deletion_vectors=True)
    layouts = {"": ["name"], "iceberg": ["name", "bucket(2, id)"]}
    if SINK in layouts and random.Random(f"partitions {cell.seed}").random() < 0.5:
        world.declare(partition_by=layouts[SINK])
    elif SINK in layouts and random.Random(f"clustering {cell.seed}").random() < 0.5:
        world.declare(cluster_by=["name"])
    world.write_declaration()
    traffic = Traffic(
        settings=world.settings, topic=world.topic, partitions=PARTITIONS, seed=cell.seed
    )
    world.add_partitions(PARTITIONS)
    world.settings.state.mkdir(parents=True, exist_ok=True)
    if world.paths.lake.is_local:
        Path(world.settings.lake).mkdir(parents=True, exist_ok=True)
    if cell.place == Failpoint.TABLE_CREATED or dice.random() < 0.2:
        traffic.send(100)
        return traffic
    traffic.send(60)
    world.run()
    if cell.place == Failpoint.LEDGER_HEALED:
        open_delta(world.paths.ledger).delete("seq > 1")
        log_files(world.paths.ledger).forget()
    traffic.send(100)
    return traffic


def _declare_sink(world: World, dice: random.Random) -> None:
    """Keep the rows in another sink, half of the time all of them."""
    world.declare(sink=SINK)
    if SINK == "kafka":
        world.declare(sequence_by=[])
    if dice.random() < 0.5:
        world.declare(mode="append", keys=[], sequence_by=[], tombstones="quarantine")
        del world.declared["apply_as_deletes"]


def _nth(place: str, dice: random.Random) -> int:
    """Choose at which of its batches a run crashes; other places are reached once."""
    if place.startswith(("rename ", "sync ")):
        return int(place.split()[1])
    of_a_batch = list(Failpoint)[
        list(Failpoint).index(Failpoint.BATCH_PLANNED) : list(Failpoint).index(
            Failpoint.QUERY_ENDED
        )
    ]
    return dice.choice((1, 2)) if place in of_a_batch else 1


def _run_until_read(world: World) -> tuple[int, RunReport]:
    """Run until there is no lag, three times at most."""
    runs, report = 1, run_when_free(world, _SECONDS)
    while report.lag and runs < 3:
        runs, report = runs + 1, run_when_free(world, _SECONDS)
    return runs, report


def _nothing(_: World, __: Traffic) -> None:
    """Run again as if nothing had happened."""


def _without_checkpoint(world: World, _: Traffic) -> None:
    shutil.rmtree(world.paths.checkpoints, ignore_errors=True)


def _with_new_records(_: World, traffic: Traffic) -> None:
    traffic.send(75)


def _in_smaller_batches(world: World, _: Traffic) -> None:
    world.declare(max_offsets_per_trigger=40)
    world.write_declaration()


FOLLOW_UPS: dict[str, Callable[[World, Traffic], None]] = {
    "plain": _nothing,
    "checkpoint_deleted": _without_checkpoint,
    "new_records": _with_new_records,
    "smaller_batches": _in_smaller_batches,
}
