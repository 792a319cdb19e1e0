"""Every write mode, and real kills around its commit: the next run heals what they left.

One cell; ``make modes-matrix`` tries them all.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from ingestion.errors import StreamLockedError
from ingestion.lake.failpoints import Failpoint
from ingestion.pipeline.report import RunReport
from tests.crash.fates import Fate
from tests.crash.victim import meet_fate
from tests.modes.scenario import (
    IS_WHOLE,
    RECORDS,
    SCENARIOS,
    Scenario,
    hold,
    reading,
    table_of,
)
from tests.support.world import World

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.slow]

BY_NAME = {scenario.name: scenario for scenario in SCENARIOS}
# By offsets a batch: a story long enough for more than one, and short enough for batches of 1.
STORIES = {1: RECORDS, 7: RECORDS, RECORDS: RECORDS, 1_000: 2_500}


class Cell(NamedTuple):
    """What is tried: a mode, where it dies, offsets a batch, and whether the checkpoint is lost."""

    scenario: Scenario
    place: Failpoint
    batch: int
    is_checkpoint_lost: bool

    @property
    def records(self) -> int:
        """How many records it reads."""
        return STORIES[self.batch]

    def __str__(self) -> str:
        """Name it."""
        lost = " checkpoint lost" if self.is_checkpoint_lost else ""
        return f"{self.scenario} {self.place} {self.batch}{lost}"


EVERY = [
    Cell(*parts)
    for parts in product(
        SCENARIOS, (Failpoint.PREPARED, Failpoint.COMMITTED), STORIES, (False, True)
    )
]
# Where a batch applied twice would show: a fold is no set.
FEW = [Cell(BY_NAME["aggregate"], Failpoint.COMMITTED, 7, True)]
CELLS = EVERY if IS_WHOLE else FEW


Table = list[tuple[Any, ...]]


@pytest.fixture(scope="module")
def whole(
    stories: Callable[[int], World], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[str, int], Table]]:
    """What comes of a story that is read in one go, by the scenario's name and its records."""
    folder = tmp_path_factory.mktemp("whole")

    @cache
    def read(name: str, records: int) -> Table:
        world = reading(stories(records), folder / f"{name}-{records}", BY_NAME[name])
        world.run()
        return table_of(world)

    yield read
    shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.parametrize("cell", CELLS, ids=str)
def test_a_killed_run_loses_and_doubles_nothing(
    stories: Callable[[int], World],
    whole: Callable[[str, int], Table],
    cell: Cell,
    tmp_path: Path,
) -> None:
    """Killed before or behind the commit of a batch, the next run ends at the same table."""
    story = stories(cell.records)
    cut = reading(story, tmp_path / "cut", cell.scenario, max_offsets_per_trigger=cell.batch)
    cut.write_declaration()
    cut.settings.state.mkdir(parents=True)
    nth = 1 if cell.batch == cell.records else 2
    diary = str(cut.settings.state / "diary")
    ended, evidence = meet_fate(cut, Fate(place=cell.place, nth=nth, way="kill_group", diary=diary))
    if cell.is_checkpoint_lost:
        shutil.rmtree(cut.paths.checkpoints)
    report = _run_when_free(cut)

    assert (ended, evidence) == ("killed", ())
    assert len(report.recovered) == (cell.place == Failpoint.COMMITTED)
    assert report.is_balanced
    assert table_of(cut) == whole(cell.scenario.name, cell.records)
    hold(cut, cell.scenario)


def _run_when_free(world: World) -> RunReport:
    """Run; the JVM of a killed run holds the lock for a moment more."""
    deadline = time.monotonic() + 60
    while True:
        try:
            return world.run()
        except StreamLockedError:
            assert time.monotonic() < deadline, "the stream stays locked"
            time.sleep(0.5)
