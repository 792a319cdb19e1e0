"""Streams that read together die together, and each heals by what its own table says."""

from __future__ import annotations

import pytest

from oncelake.ingestion.storage.failpoints import Failpoint
from tests.operations.test_routes import MIXED, Shop, record
from tests.support.long import twins
from tests.support.world import World
from tests.trials.failpoints import PlannedCrash
from tests.trials.kills import run_to_its_end

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.slow]


@pytest.mark.parametrize(
    ("place", "nth"), [(Failpoint.COMMITTED, 5), *twins((Failpoint.PREPARED, 2))]
)
def test_a_process_that_is_killed_between_siblings_leaves_each_where_it_stands(
    world: World, place: Failpoint, nth: int
) -> None:
    """The one that is behind catches up alone, and the others by the batches that they lack."""
    shop = Shop(world, max_offsets_per_trigger=4)
    world.send(*MIXED, *(record("paid", id) for id in range(2, 8)))
    crash = PlannedCrash(
        place=place, nth=nth, way="kill_group", visits=str(world.settings.state / "visits")
    )
    world.settings.state.mkdir(parents=True, exist_ok=True)

    ended, evidence = run_to_its_end(world, crash)

    stands = {
        table: stream.paths.table.log().last_seq(stream.name) or 0
        for table, stream in shop.streams.items()
    }
    assert (ended, evidence) == ("killed", ())
    assert len({*stands.values()}) == 2, "the kill came between two siblings"
    behind = min(stands, key=lambda table: stands[table])
    alone = shop.streams[behind].run()
    together = shop.run_together()
    assert (alone.lag, alone.total("overlap")) == (0, 0)
    assert [each for each in together.values() if isinstance(each, Exception)] == []
    assert shop.problems() == []
