"""Compacted topics: offsets whose record was replaced by a later one are gaps, and proven to be."""

from __future__ import annotations

import time

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer
from confluent_kafka import TopicPartition as ClientTopicPartition
from confluent_kafka.admin import NewTopic

from tests.support.frail_broker import FrailBroker
from tests.support.world import World, row

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

QUICKLY_COMPACTED = {
    "cleanup.policy": "compact",
    "segment.ms": "1",
    "min.cleanable.dirty.ratio": "0.01",
    "min.compaction.lag.ms": "0",
    "max.compaction.lag.ms": "1",
}


def test_gaps_of_a_compacted_topic_are_proven_and_the_books_balance(frail_world: World) -> None:
    """Before, between and after runs, compaction takes records, and none of them is missed."""
    world = frail_world
    make_compacted(world)
    for version in range(4):
        send_keyed(world, *(row(n, f"v{version}") for n in range(3)))
    # The open segment is never compacted, and this record opens the last one.
    send_keyed(world, row(2, "v3"))
    wait_until_compacted(world)

    first = world.run()
    send_keyed(world, *(row(n, "last") for n in range(2)))
    second = world.run()

    assert world.rows() == [row(0, "last"), row(1, "last"), row(2, "v3")]
    assert first.total("gaps") > 0
    assert first.total("offsets") == first.total("read") + first.total("gaps") == 13
    assert (first.total("gaps_unproven"), first.lag, second.lag) == (0, 0, 0)
    assert first.is_balanced
    assert second.is_balanced


def test_where_the_last_record_is_compacted_its_leader_tells_of_the_log(
    frail: FrailBroker, frail_world: World
) -> None:
    """A broker that was started again is no reason to doubt a log whose last record is gone."""
    world = frail_world
    make_compacted(world)
    send_keyed(world, *(row(n, "first") for n in range(3)))
    world.run()
    send_keyed(world, *(row(n, "last") for n in (2, 1, 0)))
    wait_until_compacted(world, through=2)
    frail.stop()
    frail.start()

    report = world.run()

    assert (report.total("read"), report.total("log_unproven")) == (3, 0)
    assert world.rows() == [row(n, "last") for n in range(3)]


def test_where_retention_and_another_leader_leave_nothing_to_compare_it_is_said(
    frail: FrailBroker, frail_world: World
) -> None:
    """The run goes on, its notice and the ledger say *not proven*; the next is certain again."""
    world = frail_world
    world.send(row(1, "a"))
    world.run()
    world.send(row(2, "b"))
    world.forget_before(0, 1)
    assert world.run().total("log_unproven") == 0, "no other leader, so no other log"
    world.forget_before(0, 2)
    frail.stop()
    frail.start()
    world.send(row(3, "c"))

    doubtful = world.run()
    world.send(row(4, "d"))
    certain = world.run()

    assert doubtful.total("log_unproven") == world.ledger[-2].counts["log_unproven"] == 1
    assert any("-0: not proven that this is the log" in notice for notice in doubtful.notices)
    assert certain.total("log_unproven") == 0
    assert not any("not proven" in notice for notice in certain.notices)
    assert world.rows() == [row(1, "a"), row(2, "b"), row(3, "c"), row(4, "d")]


def make_compacted(world: World) -> None:
    """Make the topic again, of one partition, as one that is compacted at once."""
    world.delete_topic()
    new = NewTopic(world.topic, 1, 1, config=QUICKLY_COMPACTED)
    world.admin.create_topics([new])[world.topic].result(30)


def send_keyed(world: World, *records: dict[str, object]) -> None:
    """Send records under their keys, each in a batch of its own: a later one rolls the segment."""
    for record in records:
        world.send(record, id=record["id"])


def wait_until_compacted(world: World, *, through: int | None = None) -> None:
    """Wait until the topic, read whole, holds fewer records than were sent, or one no more."""
    deadline = time.monotonic() + 60
    while len(there := offsets(world)) > 9 or through in there:
        assert time.monotonic() < deadline, "the topic was never compacted"


def offsets(world: World) -> list[int | None]:
    """Read the topic whole, and return the offsets that hold a record."""
    consumer = Consumer(
        {
            "bootstrap.servers": world.settings.bootstrap_servers(),
            "group.id": "unused",
            "enable.partition.eof": True,
        }
    )
    consumer.assign([ClientTopicPartition(world.topic, 0, OFFSET_BEGINNING)])
    found = []
    while (message := consumer.poll(30)) is not None and message.error() is None:
        found.append(message.offset())
    consumer.close()
    return found
