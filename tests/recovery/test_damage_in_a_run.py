"""Damage that a start cannot see, or that comes while a run is at work."""

from __future__ import annotations

from typing import Any

import pytest
from deltalake import DeltaTable, write_deltalake

from oncelake.ingestion.errors import DamagedTableError, UnbalancedBatchError
from oncelake.ingestion.modes.upsert import UpsertMode
from oncelake.ingestion.operations.decisions import accept
from oncelake.ingestion.tables.commit_metadata import CommitMetadata
from tests.support.damage import data_file
from tests.support.world import World, row


def test_a_value_that_a_disk_has_changed_is_found_when_it_is_copied(world: World) -> None:
    """The file is of its length, and Parquet reads it: only its checksums tell."""
    world.send(row(1, "a"), row(2, "banana"))
    world.run()
    damaged = data_file(world.paths.data)
    damaged.write_bytes(damaged.read_bytes().replace(b"banana", b"bananb", 1))
    world.send(row(1, "c"))

    report = world.run()

    assert world.rows() == [row(1, "c"), row(2, "bananb")]
    assert [batch.is_red for batch in report.batches] == [True]
    assert damaged.name in report.batches[0].problems[0]
    with pytest.raises(UnbalancedBatchError, match=f"oncelake accept {world.topic}"):
        world.run()


@pytest.mark.kafka
@pytest.mark.spark
@pytest.mark.parametrize("engine", ["local", "spark"])
def test_a_data_file_that_cannot_be_read_is_named(world: World, engine: str) -> None:
    """Spark checks the sums of a file of delta-rs as of its own; Parquet fails for delta-rs."""
    world.send(row(1, "a"))
    world.run()
    damaged = data_file(world.paths.data)
    whole = damaged.read_bytes()
    footer = 8 + int.from_bytes(whole[-8:-4], "little")
    damaged.write_bytes(bytes(len(whole) - footer) + whole[-footer:])
    world.send(row(1, "b"))
    before = world.log.versions()

    with pytest.raises(DamagedTableError, match=damaged.name):
        world.run(settings=world.settings.model_copy(update={"merge_engine": engine}))

    assert world.log.versions() == before


def test_a_write_by_somebody_else_during_a_run_turns_the_next_batch_red(world: World) -> None:
    """Between two batches of one run, too, nobody changes rows unnoticed."""
    world.declare(max_offsets_per_trigger=1)
    world.send(row(1, "a"), row(2, "b"), row(3, "c"))

    def intrude(*_: Any) -> None:
        if len(DeltaTable(world.paths.data.path).file_uris()) == 1:
            copy = DeltaTable(world.paths.data.path).to_pyarrow_table()
            write_deltalake(world.paths.data.path, copy, mode="append")

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
    honest = UpsertMode.commit

    def vacuumed(sink: UpsertMode, metadata: CommitMetadata) -> None:
        honest(sink, metadata)
        for file in world.paths.data.path.glob("*.parquet"):
            file.unlink()

    monkeypatch.setattr(UpsertMode, "commit", vacuumed)

    for _ in range(2):
        with pytest.raises(DamagedTableError, match=r"\.parquet"):
            world.run()
