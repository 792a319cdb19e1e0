"""A declared level decides what is done where Kafka takes records away, and nothing else."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from pathlib import Path

import pytest

from oncelake.ingestion.errors import OffsetsExpiredError, RefusedError, TopicRecreatedError
from oncelake.ingestion.verify.verify import verify
from tests.support.places import kafka_for, spark_for
from tests.support.proof import find_problems
from tests.support.world import World, row, settings_in


@pytest.fixture(scope="module")
def read(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Callable[[str], World]]:
    """Tables that have read two records each, and topics that have changed since."""
    folder = tmp_path_factory.mktemp("read")
    with ExitStack() as topics:

        @cache
        def read(change: str) -> World:
            settings = settings_in(folder / change, kafka_for(request))
            world = topics.enter_context(World.made(settings, spark_for(request)))
            world.send(row(1, "a"), row(2, "b"))
            world.run()
            CHANGES[change](world)
            return world

        yield read
    shutil.rmtree(folder)


def lose_two_records(world: World) -> None:
    """Let the next two records be gone before they are read."""
    world.send(row(3, "c"), row(4, "d"), row(5, "e"))
    world.forget_before(partition=0, offset=4)


def make_again(world: World) -> None:
    """Delete the topic and make it again, with one record that was there before, and others."""
    world.delete_topic()
    world.create_topic()
    world.send(row(2, "b"), row(3, "c"), row(4, "d"))


CHANGES = {"lost": lose_two_records, "made again": make_again}


@pytest.fixture
def behind(read: Callable[[str], World], tmp_path: Path) -> World:
    """A copy of a table whose topic has lost the next two records unread."""
    return read("lost").copied_to(tmp_path / "lake", state=tmp_path / "state")


@pytest.fixture
def of_another_topic(read: Callable[[str], World], tmp_path: Path) -> World:
    """A copy of a table whose topic was made again."""
    return read("made again").copied_to(tmp_path / "lake", state=tmp_path / "state")


@pytest.mark.parametrize("delivery", ["exactly_once", "at_least_once"])
def test_a_loss_is_a_persons_to_decide(behind: World, delivery: str) -> None:
    """Neither level that promises every record goes on behind records that are gone."""
    behind.declare(delivery=delivery)

    with pytest.raises(OffsetsExpiredError):
        behind.run()
    assert [each["id"] for each in behind.rows()] == [1, 2]


def test_at_most_once_goes_on_behind_a_loss_and_counts_it(behind: World) -> None:
    """What is gone stands in the ledger as lost; what is left is read, once."""
    behind.declare(delivery="at_most_once")

    report = behind.run()

    assert [each["id"] for each in behind.rows()] == [1, 2, 5]
    assert [(each.kind, each.counts.get("lost", 0)) for each in behind.ledger] == [
        ("ingest", 0),
        ("accept", 2),
        ("ingest", 0),
    ]
    assert f"{behind.topic}-0 [2, 4) was gone before it was read" in report.notices[0]
    verdict = verify(behind.spec, behind.settings)
    assert verdict.holds


@pytest.mark.parametrize("delivery", ["exactly_once", "at_most_once"])
def test_another_topic_is_a_persons_to_decide(of_another_topic: World, delivery: str) -> None:
    """Neither level that promises no record twice reads a topic that was made again."""
    of_another_topic.declare(delivery=delivery)

    with pytest.raises(TopicRecreatedError):
        of_another_topic.run()
    assert [each["id"] for each in of_another_topic.rows()] == [1, 2]


def test_at_least_once_reads_a_topic_that_was_made_again(of_another_topic: World) -> None:
    """A new epoch begins by itself; an upsert ends as if every record had come once."""
    of_another_topic.declare(delivery="at_least_once")

    report = of_another_topic.run()

    assert [each["id"] for each in of_another_topic.rows()] == [1, 2, 3, 4]
    assert report.notices[0].startswith("delivery: at_least_once: epoch 2 began")
    verdict = verify(of_another_topic.spec, of_another_topic.settings)
    assert verdict.holds


def test_at_least_once_may_double_what_has_no_key(world: World) -> None:
    """In a table of appended records, what the topic holds again is there again."""
    world.declare(mode="append", keys=[])
    world.send(row(1, "a"), row(2, "b"))
    world.run()
    make_again(world)
    world.declare(delivery="at_least_once")

    world.run()

    assert sorted(each["id"] for each in world.rows()) == [1, 2, 2, 3, 4]


def test_a_level_decides_nothing_else(world: World) -> None:
    """A refusal that is not about records that Kafka took away stays one."""
    world.send(row(1, "a"))
    world.run()
    world.declare(delivery="at_most_once", keys=["id", "name"])

    with pytest.raises(RefusedError, match="was written with keys"):
        world.run()
    world.declare(keys=["id"])
    assert find_problems(world) == ()
