"""Schedules worth a name: an aged log, and what happens between two questions."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

import pytest

from ingestion.errors import TopicRecreatedError
from tests.model.cluster import Record
from tests.model.lake_rules import commit_by_somebody_else
from tests.model.oracle import Oracle
from tests.model.process import Process
from tests.model.seams import simulated
from tests.model.world import World


@pytest.fixture(autouse=True)
def _simulated() -> Iterator[None]:
    with simulated():
        yield


def finish(world: World, process: Process) -> Any:
    """Let a process end, and return what it ended with."""
    process.finish()
    world.sweep()
    return process.outcome


def forget_commits(world: World) -> None:
    """Let the log hold nothing but somebody else's commit."""
    commit_by_somebody_else(world, Random(0))
    table = world.paths.data.table
    assert table is not None
    table.kept_from = len(table.commits) - 1


def test_the_ledger_orders_offsets_by_seq_and_not_by_the_clock() -> None:
    """A clock that was set back between two batches does not turn their order around."""
    world = World(partitions=1)
    oracle, slots = Oracle(world), world.cluster.partitions[0].slots
    slots += [Record("row", 1, 1)]
    finish(world, world.start_run())
    world.clock_ms -= 60_000
    slots += [Record("bad", 1, 1)]
    finish(world, world.start_run())
    forget_commits(world)
    slots += [Record("row", 2, 2)]

    report = finish(world, world.start_run())

    oracle.look()
    assert [batch.counts["read"] for batch in report.batches] == [1]


def test_a_decision_on_an_aged_log_says_its_topic() -> None:
    """A topic that is made again after the decision is noticed, though no batch came between."""
    world = World(partitions=1)
    world.cluster.partitions[0].slots += [Record("row", 1, 1)]
    finish(world, world.start_run())
    forget_commits(world)
    world.cluster.partitions[0].slots += [Record("row", 2, 2)]
    world.cluster.partitions[0].first = 2

    accepted = finish(world, world.start_accept())
    world.cluster.create(partitions=1)
    world.cluster.partitions[0].slots += [Record("row", 3, 3)] * 5

    assert accepted.kind == "accept"
    assert isinstance(finish(world, world.start_run()), TopicRecreatedError)


def test_nothing_is_given_up_for_a_topic_created_since() -> None:
    """The first offsets of a topic that was made again during the decision decide nothing."""
    world = World(partitions=1)
    world.cluster.partitions[0].slots += [Record("row", 1, 1)]
    finish(world, world.start_run())
    world.cluster.partitions[0].slots += [Record("row", 2, 2)]
    world.cluster.partitions[0].first = 2
    accepting = world.start_accept()
    while accepting.at != "ask for the first offsets":
        accepting.advance()

    world.cluster.create(partitions=1)
    world.cluster.partitions[0].slots += [Record("row", 3, 3)] * 5
    world.cluster.partitions[0].first = 4

    assert isinstance(finish(world, accepting), TopicRecreatedError)
