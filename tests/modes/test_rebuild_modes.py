"""Every write mode: read again as a whole into a new table, the topic gives the same one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.modes.scenario import REBUILT, Scenario, assert_proven, reader_of, table_of
from tests.support.world import World

pytestmark = [pytest.mark.kafka, pytest.mark.spark]


@pytest.mark.parametrize("scenario", REBUILT, ids=str)
def test_a_rebuild_makes_the_same_table(source: World, scenario: Scenario, tmp_path: Path) -> None:
    """Also where the first was written in other batches, and where it cannot be replayed."""
    world = reader_of(source, tmp_path, scenario, max_offsets_per_trigger=8)
    world.run()
    before = table_of(world)
    world.declare(max_offsets_per_trigger=1_000)

    world.rebuild()

    assert table_of(world) == before
    assert len(world.ledger) == 1
    assert_proven(world, scenario)
