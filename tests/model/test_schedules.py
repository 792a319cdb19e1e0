"""Schedules worth a name: an aged log, and what happens between two questions."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

import pytest

from oncelake.ingestion.errors import CommitConflictError, DependencyError, TopicRecreatedError
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


@pytest.mark.parametrize("lost", [1, 2])
def test_a_log_that_is_cut_while_a_batch_is_read_is_noticed(lost: int) -> None:
    """Also where the cut takes the very last record that was read, and no other."""
    world = World(partitions=1)
    oracle, part = Oracle(world), world.cluster.partitions[0]
    part.slots += [Record("row", n, n, n) for n in range(3)]
    run = world.start_run()
    while run.at != "fetch":
        run.advance()
    run.advance()

    part.lose_end(3 - lost)
    part.slots += [Record("row", n, n, 10 + n) for n in range(4)]

    assert isinstance(finish(world, run), DependencyError)
    report = finish(world, world.start_run())
    oracle.look()
    assert report.total("read") == len(part.slots)


def begin_a_batch(world: World) -> Process:
    """Send a record, and stop delta-rs right before its commit lands."""
    world.engine = "local"
    world.cluster.partitions[0].slots += [Record("row", 1, 1)]
    finish(world, world.start_run())
    world.cluster.partitions[0].slots += [Record("row", 2, 2)]
    run = world.start_run()
    while run.at != "land the commit":
        run.advance()
    return run


def test_a_commit_that_an_optimize_overtakes_is_made_again() -> None:
    """delta-rs commits on no version but the one that was looked at, and looks again."""
    world = World(partitions=1)
    oracle, run = Oracle(world), begin_a_batch(world)
    commit_by_somebody_else(world, Random(1))

    report = finish(world, run)

    oracle.look()
    assert [batch.seq for batch in report.batches] == [2]
    assert world.taken["commit overtaken"] == 1


@pytest.mark.parametrize("engine", ["spark", "local"])
def test_a_zombie_that_is_overtaken_adds_nothing(engine: Any) -> None:
    """The seq of a run whose lock went to another is found in the table, and not written again."""
    world = World(partitions=1, locking="lease")
    oracle, zombie = Oracle(world), begin_a_batch(world)
    world.lock, world.engine = None, engine

    report = finish(world, world.start_run())

    assert isinstance(finish(world, zombie), CommitConflictError)
    oracle.look()
    assert [batch.seq for batch in report.batches] == [2]
