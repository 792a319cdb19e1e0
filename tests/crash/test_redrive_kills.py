"""A redrive that dies either happened or did not, and the next one makes it whole."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from oncelake.ingestion.settings import Settings
from oncelake.ingestion.storage.failpoints import Failpoint
from tests.support.long import only_long
from tests.support.proof import find_problems
from tests.support.world import World, row
from tests.trials.failpoints import PlannedCrash
from tests.trials.kills import IN_PROCESS, run_to_its_end

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.slow, only_long]


@pytest.fixture
def world(settings: Settings, spark: SparkSession) -> Iterator[World]:
    """A stream with two records in quarantine that its declaration has been mended for."""
    with World.made(settings, spark) as made:
        made.operation = ("redrive",)
        made.declare(tombstones="quarantine")
        made.send(row(1, "a"), row(2, "b"), b"garbage")
        made.send(None, id=1)
        made.send(None, id=7)
        made.run()
        made.declare(tombstones="delete")
        made.write_declaration()
        yield made


@pytest.mark.parametrize(
    ("place", "way", "happened"),
    [
        pytest.param(Failpoint.PREPARED, IN_PROCESS, False, id="prepared"),
        pytest.param(Failpoint.COMMITTED, IN_PROCESS, True, id="committed"),
        pytest.param(Failpoint.PREPARED, "kill_python", False, id="prepared, killed"),
        pytest.param(Failpoint.COMMITTED, "kill_group", True, id="committed, killed"),
        pytest.param(Failpoint.QUARANTINED, "kill_group", False, id="marked, killed"),
    ],
)
def test_a_redrive_that_dies_is_whole_or_nothing(
    world: World, place: Failpoint, way: str, *, happened: bool
) -> None:
    """No reader meets a mark before its commit; made or not, it is made whole exactly once."""
    crash = PlannedCrash(place=place, nth=1, way=way, visits=str(world.settings.state / "visits"))

    _, evidence = run_to_its_end(world, crash, here=world.redrive)

    assert evidence == ()
    assert [each["redriven_seq"] for each in world.quarantined()] == [None, None, None]
    assert world.log.last_seq(world.topic) == (2 if happened else 1)
    world.send(row(3, "in between"))
    report = world.redrive()
    assert report.redriven == (0 if happened else 2)
    assert [each["redriven_seq"] for each in world.quarantined()] == [None, 2, 2]
    assert [each.kind for each in world.ledger].count("redrive") == 1
    world.run()
    assert world.rows() == [row(2, "b"), row(3, "in between")]
    assert find_problems(world) == ()
