"""Every write mode: one table, whatever the batches, and whatever dies or waits on the way."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from oncelake.ingestion.errors import NotReplayableError
from oncelake.ingestion.lake.stream import Stream
from oncelake.ingestion.pipeline.schema.create_table import create_table
from oncelake.ingestion.storage.failpoints import Failpoint
from tests.modes.scenario import (
    IS_WHOLE,
    REBUILT,
    REDRIVEN,
    REPLAYED,
    SCHEMA,
    Scenario,
    assert_proven,
    produce_records,
    reader_of,
    table_of,
)
from tests.support.world import World
from tests.trials.failpoints import crashing_at

# Some fold what Spark alone folds.
pytestmark = [pytest.mark.spark, pytest.mark.kafka] if IS_WHOLE else []
STRICT = SCHEMA.replace("amount DECIMAL(9, 2)", "amount DECIMAL(9, 2) NOT NULL")


@pytest.mark.parametrize("scenario", REBUILT, ids=str)
def test_the_table_is_the_same_however_the_topic_is_read(
    source: World, scenario: Scenario, tmp_path: Path
) -> None:
    """In one batch; in three, where runs die around their commits and checkpoints are lost."""
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
    shutil.rmtree(cut.paths.checkpoints)
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


@pytest.mark.parametrize("scenario", REPLAYED, ids=str)
def test_no_mode_takes_a_record_twice(source: World, scenario: Scenario, tmp_path: Path) -> None:
    """The table is the same before and after, and proven, in small batches, too."""
    world = reader_of(source, tmp_path, scenario, max_offsets_per_trigger=8)
    world.run()
    before = table_of(world)

    if scenario.declared.get("mode") == "aggregate" or "ignore_null_updates" in scenario.declared:
        with pytest.raises(
            NotReplayableError, match=r"would count twice.*rewind to a batch that oncelake history"
        ):
            world.replay()
        return
    report = world.replay()

    assert len(report.batches) > 1
    assert table_of(world) == before
    assert_proven(world, scenario)


@pytest.mark.parametrize("scenario", REDRIVEN, ids=str)
def test_a_redrive_makes_the_table_whole(world: World, scenario: Scenario, tmp_path: Path) -> None:
    """Half of the records wait until the declaration is mended; each is then folded once."""
    produce_records(world)
    world.send(b"garbage")
    whole = reader_of(world, tmp_path / "whole", scenario)
    whole.run()
    late = reader_of(world, tmp_path / "late", scenario)
    opened = Stream(spec=late.spec, settings=late.settings)
    create_table(opened, run_id="the first")
    strict = replace(late, declared={**late.declared, "schema": STRICT})
    waited = strict.run().total("quarantined")

    report = late.redrive()

    assert report.is_balanced
    assert report.waiting == waited > report.redriven > 1
    assert late.redrive().batches == ()
    assert table_of(late) == table_of(whole)
    assert_proven(late, scenario)
