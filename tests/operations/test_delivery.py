"""A declared level decides what is done where Kafka takes records away, and nothing else."""

from __future__ import annotations

import pytest

from ingestion.errors import OffsetsExpiredError, RefusedError, TopicRecreatedError
from ingestion.verify.verify import verify
from tests.support.proof import find_problems
from tests.support.world import World, row

pytestmark = [pytest.mark.spark, pytest.mark.kafka]


@pytest.fixture
def behind(world: World) -> World:
    """A table that has read two records, and a topic that has lost the next two unread."""
    world.send(row(1, "a"), row(2, "b"))
    world.run()
    world.send(row(3, "c"), row(4, "d"), row(5, "e"))
    world.forget_before(partition=0, offset=4)
    return world


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


def made_again(world: World) -> None:
    """Delete the topic and make it again, with one record that was there before, and another."""
    world.send(row(1, "a"), row(2, "b"))
    world.run()
    world.delete_topic()
    world.create_topic()
    world.send(row(2, "b"), row(3, "c"), row(4, "d"))


@pytest.mark.parametrize("delivery", ["exactly_once", "at_most_once"])
def test_another_topic_is_a_persons_to_decide(world: World, delivery: str) -> None:
    """Neither level that promises no record twice reads a topic that was made again."""
    made_again(world)
    world.declare(delivery=delivery)

    with pytest.raises(TopicRecreatedError):
        world.run()
    assert [each["id"] for each in world.rows()] == [1, 2]


def test_at_least_once_reads_a_topic_that_was_made_again(world: World) -> None:
    """A new epoch begins by itself; an upsert ends as if every record had come once."""
    made_again(world)
    world.declare(delivery="at_least_once")

    report = world.run()

    assert [each["id"] for each in world.rows()] == [1, 2, 3, 4]
    assert report.notices[0].startswith("delivery: at_least_once: epoch 2 began")
    verdict = verify(world.spec, world.settings)
    assert verdict.holds


def test_at_least_once_may_double_what_has_no_key(world: World) -> None:
    """In a table of appended records, what the topic holds again is there again."""
    world.declare(mode="append", keys=[])
    made_again(world)
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
