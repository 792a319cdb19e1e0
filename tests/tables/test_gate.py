"""A batch that is not published is in no sink, whoever looks and whenever; a published one is."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from oncelake.ingestion.errors import BatchWithheldError, RefusedError
from oncelake.ingestion.operations.erase.erase import erase
from oncelake.ingestion.operations.upkeep.maintain import maintain
from oncelake.ingestion.storage.failpoints import Failpoint
from tests.support.gate import publish, waiting, withheld_by
from tests.support.long import only_long, twins
from tests.support.proof import find_problems
from tests.support.world import World, row
from tests.trials.failpoints import PlannedCrash, PlannedError, crashing_at

RULE = {"rule": "name IS NOT NULL", "on_miss": "refuse"}
# A tenth of these is red; see docs/reliability.md.
BATCHES = int(os.environ.get("ONCELAKE_TEST_BATCHES", "10"))
SINKS = ["delta", "postgres", *twins("iceberg")]
KILLS = int(os.environ.get("ONCELAKE_TEST_KILLS", "4"))
OF_KAFKA = pytest.param("kafka", marks=[pytest.mark.kafka, pytest.mark.spark])


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


@pytest.mark.parametrize("sink", [*SINKS, *twins(OF_KAFKA)])
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


@only_long
@pytest.mark.kafka
@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.parametrize("sink", ["delta", "postgres"])
def test_a_process_that_is_killed_publishes_all_of_a_batch_or_nothing(
    world: World, tmp_path: Path
) -> None:
    """A run of what passes, and an acceptance of what does not, around the commit."""
    world.declare(publish="checked", expect={"named": RULE})
    world.send(row(0, "a"))
    world.run()
    for nth in range(1, KILLS + 1):
        place = (Failpoint.PREPARED, Failpoint.COMMITTED)[nth % 2]
        is_red = nth % 4 < 2
        world.send(row(nth, None if is_red else "a"))
        words: tuple[str, ...] = ("run",)
        if is_red:
            assert withheld_by(world) == ["expect.named"]
            words = ("accept", "--batch", waiting(world).id, "--reason", "looked at")
        world.write_declaration()
        visits = str(tmp_path / f"visits-{nth}")
        crash = PlannedCrash(place=place, way="kill_python", visits=visits)
        killed = replace(world, operation=words).run_elsewhere(**crash.environment())
        assert killed.returncode == -signal.SIGKILL, killed.stderr
        there = len(world.rows())
        assert there == (nth if place == Failpoint.PREPARED else nth + 1)
        if is_red and place == Failpoint.PREPARED:
            publish(world)
        world.run()
        assert len(world.rows()) == nth + 1
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


@pytest.mark.parametrize("sink", ["iceberg"])
@pytest.mark.parametrize(
    "fields",
    [{}, {"deletion_vectors": True, "partition_by": ["name", "bucket(2, id)"]}],
    ids=["plain", "marked partitions"],
)
def test_a_branch_shows_what_is_withheld_and_main_does_not(
    world: World, fields: dict[str, Any]
) -> None:
    """Other tools can look at it there; it goes with the batch, with an erase, and with upkeep."""
    world.declare(publish={"branch": "audit"}, expect={"named": RULE}, **fields)
    world.send(row(1, "a"), row(2, "b"))
    world.run()
    world.send(row(1, None), row(3, "c"))

    assert withheld_by(world) == ["expect.named"]

    assert world.rows() == [row(1, "a"), row(2, "b")]
    assert shown_on(world, "audit") == [(1, None), (2, "b"), (3, "c")]
    world.send(row(4, "d"))
    assert withheld_by(world) == ["expect.named"]
    assert shown_on(world, "audit") == [(1, None), (2, "b"), (3, "c"), (4, "d")]
    publish(world)
    assert world.rows() == [row(1, None), row(2, "b"), row(3, "c"), row(4, "d")]
    assert shown_on(world, "audit") is None
    world.send(row(5, None))
    assert withheld_by(world) == ["expect.named"]
    maintain(world.spec, world.settings, run_id="m")
    assert shown_on(world, "audit") is not None
    erase(world.spec, world.settings, key='{"id": 5}', reason="asked", run_id="e")
    assert shown_on(world, "audit") is None
    world.declare(expect={})
    world.run()
    assert find_problems(world) == ()


@pytest.mark.parametrize("sink", ["iceberg"])
def test_a_branch_of_somebody_else_is_left_alone(world: World) -> None:
    """It is named, and its batch is refused; nothing is published either."""
    world.declare(publish={"branch": "audit"}, expect={"named": RULE})
    world.send(row(1, "a"))
    world.run()
    table = world.paths.table._entry.loaded()  # type: ignore[attr-defined]
    table.manage_snapshots().create_branch(table.current_snapshot().snapshot_id, "audit").commit()
    world.send(row(2, None))
    with pytest.raises(RefusedError, match="branch audit, which somebody else has made"):
        world.run()
    assert shown_on(world, "audit") == world_rows(world) == [(1, "a")]


def shown_on(world: World, branch: str) -> list[tuple[int, str | None]] | None:
    """Read a branch by pyiceberg, where it is there."""
    table = world.paths.table._entry.loaded()  # type: ignore[attr-defined]
    if (found := table.metadata.refs.get(branch)) is None:
        return None
    rows = table.scan(snapshot_id=found.snapshot_id).to_arrow().to_pylist()
    return sorted((each["id"], each["name"]) for each in rows)


def world_rows(world: World) -> list[tuple[int, str | None]]:
    """Read the table."""
    return [(each["id"], each["name"]) for each in world.rows()]
