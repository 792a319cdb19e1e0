"""Every write mode: one table, whatever the batches, and whatever dies on the way."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from ingestion.lake.failpoints import Failpoint
from tests.modes.scenario import TRIED, Scenario, assert_proven, crashing_at, reader_of, table_of
from tests.support.world import World

pytestmark = [pytest.mark.kafka, pytest.mark.spark]


@pytest.mark.parametrize("scenario", TRIED, ids=str)
def test_the_table_is_the_same_however_the_topic_is_read(
    source: World, scenario: Scenario, tmp_path: Path
) -> None:
    """In one batch; in three and a lost checkpoint; and where runs die around their commits."""
    whole = reader_of(source, tmp_path / "whole", scenario)
    report = whole.run()
    cut = reader_of(source, tmp_path / "cut", scenario, max_offsets_per_trigger=8)
    with (
        crashing_at(Failpoint.PREPARED, nth=2) as prepared,
        pytest.raises(Exception, match="prepared"),
    ):
        cut.run()
    shutil.rmtree(cut.paths.checkpoints)
    with crashing_at(Failpoint.COMMITTED) as committed, pytest.raises(Exception, match="committed"):
        cut.run()
    healed = cut.run()

    assert table_of(cut) == table_of(whole)
    clocks = [world.ledger[-1].counts.get("clock_ms") for world in (whole, cut)]
    assert clocks[0] == clocks[1]
    assert (clocks[0] is None) == ("window" not in scenario.declared)
    assert (report.is_balanced, len(report.batches)) == (True, 1)
    assert (healed.is_balanced, [row.seq for row in healed.recovered]) == (True, [2])
    assert (prepared(), committed()) == (2, 1)
    for world in (whole, cut):
        assert_proven(world, scenario)
