"""Compacted topics: offsets whose record was replaced by a later one are gaps, and proven to be."""

from __future__ import annotations

import time

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer
from confluent_kafka import TopicPartition as ClientTopicPartition
from confluent_kafka.admin import NewTopic

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


def make_compacted(world: World) -> None:
    """Make the topic again, of one partition, as one that is compacted at once."""
    world.delete_topic()
    new = NewTopic(world.topic, 1, 1, config=QUICKLY_COMPACTED)
    world.admin.create_topics([new])[world.topic].result(30)


def send_keyed(world: World, *records: dict[str, object]) -> None:
    """Send records under their keys, each in a batch of its own: a later one rolls the segment."""
    for record in records:
        world.send(record, id=record["id"])


def wait_until_compacted(world: World) -> None:
    """Wait until the topic, read whole, holds fewer records than were sent."""
    deadline = time.monotonic() + 60
    while len(offsets(world)) > 9:
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
