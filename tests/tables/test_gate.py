"""A batch that is not published is in no sink, whoever looks and whenever; a published one is."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from oncelake.ingestion.errors import BatchWithheldError
from oncelake.ingestion.storage.failpoints import Failpoint
from tests.support.gate import publish
from tests.support.long import twins
from tests.support.proof import find_problems
from tests.support.world import World, row
from tests.trials.failpoints import PlannedError, crashing_at

RULE = {"rule": "name IS NOT NULL", "on_miss": "refuse"}
# A tenth of these is red; see docs/reliability.md.
BATCHES = int(os.environ.get("ONCELAKE_TEST_BATCHES", "10"))
SINKS = ["delta", "postgres", *twins("iceberg")]


class Reader:
    """Reads a table again and again, and notes what must never be seen."""

    def __init__(self, world: World) -> None:
        self._world, self.over = world, threading.Event()
        self.published: frozenset[int] = frozenset()
        self.wrong: list[str] = []
        self.looks = 0

    def look(self) -> None:
        """Read until it is over."""
        while not self.over.is_set():
            due = self.published
            rows = self._world.rows()
            self.wrong += [f"{each} was not published" for each in rows if each["name"] is None]
            self.wrong += [f"{id} is missing" for id in due - {each["id"] for each in rows}]
            self.looks += 1


@contextmanager
def watched(world: World) -> Iterator[Reader]:
    """Let somebody read the table meanwhile."""
    reader = Reader(world)
    thread = threading.Thread(target=reader.look, daemon=True)
    thread.start()
    try:
        yield reader
    finally:
        reader.over.set()
        thread.join(60)
    assert not reader.wrong, reader.wrong[:5]
    assert reader.looks


@pytest.mark.parametrize("sink", SINKS)
def test_a_reader_never_meets_what_was_held_back(world: World) -> None:
    """Every tenth batch is red: it is corrected, or its run dies between judging and commit."""
    world.declare(publish="checked", expect={"named": RULE})
    world.send(row(0, "a"))
    world.run()
    with watched(world) as reader:
        for number in range(1, BATCHES + 1):
            is_red = number % 10 == 3
            world.send(row(number, "a"), *([row(-number, None)] if is_red else []))
            if is_red:
                with pytest.raises(BatchWithheldError):
                    world.run()
                world.declare(expect={"named": {**RULE, "on_miss": "quarantine"}})
            if number % 10 == 5:
                with crashing_at(Failpoint.PREPARED), pytest.raises(PlannedError):
                    world.run()
            world.run()
            world.declare(expect={"named": RULE})
            reader.published |= {number}
    assert len(world.rows()) == BATCHES + 1
    assert find_problems(world) == ()


@pytest.mark.parametrize("sink", SINKS)
def test_what_was_accepted_is_there_as_it_was_shown(world: World) -> None:
    """Also where the run that publishes it dies before the commit, or behind it."""
    world.declare(publish="checked", expect={"named": RULE})
    for place in (Failpoint.PREPARED, Failpoint.COMMITTED):
        world.send(row(len(world.ledger) + 1, None))
        with pytest.raises(BatchWithheldError):
            world.run()
        with crashing_at(place), pytest.raises(PlannedError):
            publish(world)
        if place == Failpoint.PREPARED:
            publish(world)
        world.run()
    assert [each.accepted for each in world.ledger if each.counts["read"]] == 2 * ["looked at"]
    assert find_problems(world) == ()


@pytest.mark.kafka
@pytest.mark.spark
@pytest.mark.parametrize("sink", ["kafka"])
def test_a_topic_gets_nothing_of_a_batch_that_is_held_back(world: World) -> None:
    """The transaction of a red batch is never begun."""
    world.declare(publish="checked", expect={"named": RULE})
    world.send(row(1, "a"))
    world.run()
    world.send(row(2, None))
    with pytest.raises(BatchWithheldError):
        world.run()
    assert world.rows() == [row(1, "a")]
    publish(world)
    assert world.rows() == [row(1, "a"), row(2, None)]
    assert find_problems(world) == ()
