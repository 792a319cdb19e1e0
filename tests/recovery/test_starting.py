"""Where the very first run begins: resolved to offsets once, and proven from there."""

from __future__ import annotations

import datetime as dt
import time

import pytest

from oncelake.ingestion.errors import InvalidSpecError
from oncelake.ingestion.kafka.admin import Kafka
from oncelake.ingestion.kafka.offsets import TopicPartition
from oncelake.ingestion.recovery.start import starting_offsets
from oncelake.ingestion.verify.verify import verify
from tests.support.proof import find_problems
from tests.support.world import World, row


def starting(world: World, where: object) -> list[int]:
    """Resolve a beginning to the offsets of the topic's two partitions."""
    world.declare(starting=where)
    found = starting_offsets(world.spec, Kafka(world.settings), partitions(world))
    return [found[at] for at in partitions(world)]


def partitions(world: World) -> list[TopicPartition]:
    """Return the topic's partitions."""
    return [TopicPartition(world.topic, number) for number in (0, 1)]


def test_every_kind_of_start_is_one_offset_a_partition(world: World) -> None:
    """Times and offsets are held to what Kafka has; what does not fit is refused with its place."""
    world.send(row(1, "a"), row(2, "b"))
    time.sleep(0.05)
    moment = dt.datetime.now(dt.UTC)
    # Kafka's clock has milliseconds: what is sent within this one may seem to come before it.
    time.sleep(0.05)
    world.send(row(3, "c"))
    world.send(row(4, "d"), partition=1)
    at = f"{world.topic}-"

    assert starting(world, "earliest") == [0, 0]
    assert starting(world, "latest") == [3, 1]
    assert starting(world, {"timestamp": moment.isoformat()}) == [2, 0]
    assert starting(world, {"timestamp": "2001-01-01T00:00:00Z"}) == [0, 0]
    assert starting(world, {"timestamp": "2999-01-01T00:00:00Z"}) == [3, 1]
    assert starting(world, {"offsets": {world.topic: {"0": 3, "1": 0}}}) == [3, 0]
    with pytest.raises(InvalidSpecError, match=f"names no offset for {at}1; {at}7 does not exist"):
        starting(world, {"offsets": {world.topic: {0: 1, 7: 0}}})
    with pytest.raises(InvalidSpecError, match=f"{at}1: 9 lies outside .* 0 to 1"):
        starting(world, {"offsets": {world.topic: {0: 1, 1: 9}}})


def test_a_stream_that_begins_in_the_middle_is_proven_from_there(world: World) -> None:
    """What lies before is nobody's; the beginning holds for good, whatever is declared later."""
    world.send(b"garbage", row(1, "before"), row(2, "b"))
    world.send(row(3, "c"), partition=1)
    world.declare(starting={"offsets": {world.topic: {0: 2, 1: 0}}})
    world.run()
    world.declare(starting="earliest")
    world.send(row(4, "d"))
    world.run()

    assert [each["id"] for each in world.rows()] == [2, 3, 4]
    metadata = [world.log.read(version).metadata for version in sorted(world.log.versions())]
    opened = next(metadata for metadata in metadata if metadata)
    assert (opened.seq, [opened.next[at] for at in partitions(world)]) == (0, [2, 0])
    (first, second) = verify(world.spec, world.settings).proven
    assert ((first.start, first.end), (second.start, second.end)) == ((2, 4), (0, 1))
    assert find_problems(world) == ()
