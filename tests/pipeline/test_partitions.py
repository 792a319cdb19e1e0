"""Partitions that are added: between runs, in mid-run, and just while Spark plans."""

from __future__ import annotations

import shutil
from typing import Any

import pytest
from pyspark.sql import DataFrame

import oncelake.ingestion.operations.run
from oncelake.ingestion.errors import DependencyError, OffsetsExpiredError
from oncelake.ingestion.lake.ledger import LedgerRow
from oncelake.ingestion.operations.decisions import accept
from tests.support.world import World, row


@pytest.mark.kafka
def test_an_expired_start_of_a_new_partition_is_refused_until_accepted(world: World) -> None:
    """The lost range of a partition that the table never saw begins at 0."""
    world.send(row(1, "a"))
    world.run()
    world.add_partitions(3)
    world.send(row(2, "lost"), row(3, "kept"), partition=2)
    world.forget_before(2, 1)

    with pytest.raises(OffsetsExpiredError, match=r"-2 \[0, 1\)"):
        world.run()
    accepted = accept(world.spec, world.settings, reason="seen too late", run_id="me")
    report = world.run()

    assert [str(counted.range) for counted in accepted.ranges] == [f"{world.topic}-2 [0, 1)"]
    assert world.rows() == [row(1, "a"), row(3, "kept")]
    assert report.lag == 0


@pytest.mark.kafka
@pytest.mark.spark
def test_partitions_added_in_mid_run_wait_for_the_next(world: World) -> None:
    """A partition that appears between batches is counted as lag, and read from 0 by the next run.

    That run finds no checkpoint, which changes nothing.
    """
    world.declare(max_offsets_per_trigger=2)
    world.send(*(row(n, "a") for n in range(4)))

    def grow(batch: LedgerRow, lag: int) -> None:
        if batch.seq == 1:
            world.add_partitions(3)
            world.send(row(9, "new"), partition=2)

    first = world.run(on_batch=grow)
    shutil.rmtree(world.paths.checkpoints)
    second = world.run()

    assert (len(first.batches), first.lag, second.lag) == (2, 1, 0)
    assert world.rows() == [*(row(n, "a") for n in range(4)), row(9, "new")]
    assert [str(c.range) for c in second.batches[0].ranges if c.records] == [
        f"{world.topic}-2 [0, 1)"
    ]


@pytest.mark.kafka
def test_partitions_added_before_a_run_that_fails_are_read_by_the_next(world: World) -> None:
    """A batch that fails after the topic has grown leaves nothing that the next run stumbles on."""
    world.declare(max_offsets_per_trigger=2)
    world.send(*(row(n, "a") for n in range(4)))

    def grow_and_fail(*_: object) -> None:
        world.add_partitions(3)
        world.send(row(9, "new"), partition=2)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        world.run(on_batch=grow_and_fail)
    report = world.run()

    assert world.rows() == [*(row(n, "a") for n in range(4)), row(9, "new")]
    assert (report.lag, [batch.seq for batch in world.ledger]) == (0, [1, 2, 3])


@pytest.mark.kafka
@pytest.mark.spark
def test_partitions_added_while_a_run_begins_need_only_another_run(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark refuses offsets that do not name every partition; the next run names them all."""
    world.send(row(1, "a"))
    honest = oncelake.ingestion.operations.run.read_stream

    def growing(*given: Any, **named: Any) -> DataFrame:
        world.add_partitions(3)
        return honest(*given, **named)

    with monkeypatch.context() as patch:
        patch.setattr(oncelake.ingestion.operations.run, "read_stream", growing)
        with pytest.raises(DependencyError, match=f"oncelake run {world.topic}"):
            world.run()
    world.run()

    assert world.rows() == [row(1, "a")]
