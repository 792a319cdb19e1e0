"""Every write mode, and real kills around its commit: the next run heals what they left.

Only for ``make modes-matrix``: in ``make test`` every mode dies in its own process (test_modes.py).
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

from oncelake.ingestion.errors import StreamLockedError
from oncelake.ingestion.pipeline.report import RunReport
from oncelake.ingestion.storage.failpoints import Failpoint
from tests.modes.scenario import (
    RECORDS,
    SCENARIOS,
    Scenario,
    assert_proven,
    reader_of,
    table_of,
)
from tests.support.world import World
from tests.trials.failpoints import PlannedCrash
from tests.trials.kills import run_to_its_end

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.slow]

BY_NAME = {scenario.name: scenario for scenario in SCENARIOS}
# By offsets a batch: a topic long enough for more than one, and short enough for batches of 1.
RECORDS_BY_BATCH = {1: RECORDS, 7: RECORDS, RECORDS: RECORDS, 1_000: 2_500}


class Cell(NamedTuple):
    """What is tried: a mode, where it dies, offsets a batch, and whether the checkpoint is lost."""

    scenario: Scenario
    place: Failpoint
    batch: int
    is_checkpoint_lost: bool

    @property
    def records(self) -> int:
        """How many records it reads."""
        return RECORDS_BY_BATCH[self.batch]

    def __str__(self) -> str:
        """Name it."""
        lost = " checkpoint lost" if self.is_checkpoint_lost else ""
        return f"{self.scenario} {self.place} {self.batch}{lost}"


CELLS = [
    Cell(*parts)
    for parts in product(
        SCENARIOS, (Failpoint.PREPARED, Failpoint.COMMITTED), RECORDS_BY_BATCH, (False, True)
    )
]

Table = list[tuple[Any, ...]]


@pytest.fixture(scope="module")
def whole(
    sources: Callable[[int], World], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[str, int], Table]]:
    """The table of a topic that is read in one go, by the scenario's name and its records."""
    folder = tmp_path_factory.mktemp("whole")

    @cache
    def read(name: str, records: int) -> Table:
        world = reader_of(sources(records), folder / f"{name}-{records}", BY_NAME[name])
        world.run()
        return table_of(world)

    yield read
    shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.parametrize("cell", CELLS, ids=str)
def test_a_killed_run_loses_and_doubles_nothing(
    sources: Callable[[int], World],
    whole: Callable[[str, int], Table],
    cell: Cell,
    tmp_path: Path,
) -> None:
    """Killed before or behind the commit of a batch, the next run ends at the same table."""
    source = sources(cell.records)
    cut = reader_of(source, tmp_path / "cut", cell.scenario, max_offsets_per_trigger=cell.batch)
    cut.write_declaration()
    cut.settings.state.mkdir(parents=True)
    nth = 1 if cell.batch == cell.records else 2
    visits = str(cut.settings.state / "visits")
    ended, evidence = run_to_its_end(
        cut, PlannedCrash(place=cell.place, nth=nth, way="kill_group", visits=visits)
    )
    if cell.is_checkpoint_lost:
        shutil.rmtree(cut.paths.checkpoints)
    report = _run_when_free(cut)

    assert (ended, evidence) == ("killed", ())
    assert len(report.recovered) == (cell.place == Failpoint.COMMITTED)
    assert report.is_balanced
    assert table_of(cut) == whole(cell.scenario.name, cell.records)
    assert_proven(cut, cell.scenario)


def _run_when_free(world: World) -> RunReport:
    """Run; the JVM of a killed run holds the lock for a moment more."""
    deadline = time.monotonic() + 60
    while True:
        try:
            return world.run()
        except StreamLockedError:
            assert time.monotonic() < deadline, "the stream stays locked"
            time.sleep(0.5)
