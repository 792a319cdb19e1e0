"""Damage that a start cannot see, or that comes while a run is at work."""

from __future__ import annotations

from typing import Any

import pytest
from deltalake import DeltaTable, write_deltalake

from ingestion.errors import DamagedTableError, UnbalancedBatchError
from ingestion.lake.commit_metadata import CommitMetadata
from ingestion.operations.accept import accept
from ingestion.sinks.upsert import UpsertSink
from tests.support.damage import data_file, do
from tests.support.world import World, row

pytestmark = [pytest.mark.kafka, pytest.mark.spark]


def test_a_flipped_bit_in_a_data_file_is_found_by_its_reader(world: World) -> None:
    """Its length is as it was, so the start lets it pass; the MERGE that reads it says where."""
    world.send(row(1, "a"))
    world.run()
    damaged = data_file(world.paths.data)
    do("flipped", damaged)
    world.send(row(1, "b"))
    before = world.log.versions()

    with pytest.raises(DamagedTableError, match=damaged.name):
        world.run()

    assert world.log.versions() == before


def test_a_write_by_somebody_else_during_a_run_turns_the_next_batch_red(world: World) -> None:
    """Between two batches of one run, too, nobody changes rows unnoticed."""
    world.declare(max_offsets_per_trigger=1)
    world.send(row(1, "a"), row(2, "b"), row(3, "c"))

    def intrude(*_: Any) -> None:
        if len(DeltaTable(world.paths.data).file_uris()) == 1:
            copy = DeltaTable(world.paths.data).to_pyarrow_table()
            write_deltalake(world.paths.data, copy, mode="append")

    report = world.run(on_batch=intrude)

    assert [each.balanced for each in report.batches] == [True, False]
    assert "by somebody else changed rows before this batch" in report.batches[1].problems[0]
    with pytest.raises(UnbalancedBatchError, match=f"oncelake accept {world.topic}"):
        world.run()
    accept(world.spec, world.settings, reason="a drill", run_id="me")
    assert world.run().lag == 0


def test_files_that_vanish_under_a_commit_are_missed_at_once(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a VACUUM without a safe retention takes is missed by the audit, and by later starts."""
    world.send(row(1, "a"))
    honest = UpsertSink.commit

    def vacuumed(sink: UpsertSink, metadata: CommitMetadata) -> None:
        honest(sink, metadata)
        for file in world.paths.data.glob("*.parquet"):
            file.unlink()

    monkeypatch.setattr(UpsertSink, "commit", vacuumed)

    for _ in range(2):
        with pytest.raises(DamagedTableError, match=r"\.parquet"):
            world.run()
