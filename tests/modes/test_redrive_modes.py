"""Every write mode: what a redrive sends in later makes the table that it would have made then."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ingestion.lake.stream import Stream
from ingestion.pipeline.create_table import create_table
from tests.modes.scenario import (
    REDRIVEN,
    SCHEMA,
    Scenario,
    assert_proven,
    produce_records,
    reader_of,
    table_of,
)
from tests.support.world import World

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

STRICT = SCHEMA.replace("amount DECIMAL(9, 2)", "amount DECIMAL(9, 2) NOT NULL")


@pytest.mark.parametrize("scenario", REDRIVEN, ids=str)
def test_a_redrive_makes_the_table_whole(world: World, scenario: Scenario, tmp_path: Path) -> None:
    """Half of the records wait until the declaration is mended; each is then folded once."""
    produce_records(world)
    world.send(b"garbage")
    whole = reader_of(world, tmp_path / "whole", scenario)
    whole.run()
    late = reader_of(world, tmp_path / "late", scenario)
    create_table(world.spark, Stream(spec=late.spec, settings=late.settings), run_id="the first")
    strict = replace(late, declared={**late.declared, "schema": STRICT})
    waited = strict.run().total("quarantined")

    report = late.redrive()

    assert report.is_balanced
    assert report.waiting == waited > report.redriven > 1
    assert late.redrive().batches == ()
    assert table_of(late) == table_of(whole)
    assert_proven(late, scenario)
