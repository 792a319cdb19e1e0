"""Topics in memory answer as a broker does: tests without one show what the product does."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from oncelake.ingestion.errors import DependencyError, TopicMissingError
from oncelake.ingestion.kafka.admin import Kafka
from oncelake.ingestion.kafka.offsets import Range, TopicPartition
from oncelake.ingestion.verify.read.snapshot import OffsetRange
from oncelake.ingestion.verify.read.topic import TopicReader, is_compacted
from tests.support.arrow_source import ArrowSession
from tests.support.topics_in_memory import Cluster
from tests.support.world import World, settings_in, transactional

LONG_AGO = dt.datetime(2020, 1, 1, tzinfo=dt.UTC)


@pytest.mark.kafka
def test_topics_in_memory_answer_as_a_broker_does(
    kafka_address: str, arrow_session: ArrowSession, tmp_path: Path
) -> None:
    """Whatever the product asks of a topic, through its own clients."""
    answers = []
    for address in (kafka_address, Cluster().address):
        settings: Any = settings_in(tmp_path, address)
        with World.made(settings, arrow_session) as world:  # type: ignore[arg-type]
            answers.append([*_answers(world)])

    of_broker, in_memory = answers
    assert in_memory == of_broker


def _answers(world: World) -> Iterator[Any]:
    """Do to a topic what producers, operators and retention do, and ask of it after each step."""
    kafka = Kafka(world.settings)
    zero, one = (TopicPartition(world.topic, number) for number in (0, 1))
    yield _places(world, kafka.topics("s", [world.topic]).partitions)
    yield [*_asked(world, kafka)]
    produce = world.producer.produce
    produce(world.topic, b"a", b"k", 0, timestamp=1_000, headers=[("h", b"x"), ("h", None)])
    produce(world.topic, None, b"k", 0, timestamp=3_000)
    produce(world.topic, b"c", None, 1, timestamp=2_000)
    assert world.producer.flush(30) == 0
    yield [*_asked(world, kafka)]
    producer = transactional(world)
    for end in ("commit", "abort", "nothing"):
        producer.begin_transaction()
        for partition in (0, 1):
            producer.produce(
                world.topic, f"{end} {partition}", partition=partition, timestamp=4_000
            )
        assert producer.flush(30) == 0
        if end != "nothing":
            getattr(producer, f"{end}_transaction")(30)
            ends = (4, 3) if end == "commit" else (6, 5)
            for partition in (0, 1):
                world.wait_for_end(ends[partition], partition)
        yield [*_asked(world, kafka)]
    yield _values(kafka.withheld([zero, one], since=dt.datetime.now(dt.UTC)))
    producer.abort_transaction(30)
    world.wait_for_end(8, 0)
    world.wait_for_end(7, 1)
    world.forget_before(0, 3)
    yield [*_asked(world, kafka)]
    reader = TopicReader(world.settings, partitions=2)
    with pytest.raises(DependencyError, match="deleted records while they were read"):
        list(reader.read([OffsetRange(zero, 0, 5, 5, 0)]))
    reader.close()
    world.add_partitions(3)
    yield _places(world, kafka.topics("s", [world.topic]).partitions)
    before = kafka.topics("s", [world.topic]).ids
    world.delete_topic()
    while kafka.known_topics([world.topic]).ids:
        pass
    with pytest.raises(TopicMissingError, match="does not exist"):
        kafka.topics("s", [world.topic])
    world.create_topic(1, **{"cleanup.policy": "compact"})
    yield kafka.topics("s", [world.topic]).ids == before
    yield is_compacted(world.settings, world.topic)
    yield kafka.topic_configs([world.topic])[world.topic]["cleanup.policy"]


def _asked(world: World, kafka: Kafka) -> Iterator[Any]:
    places = kafka.topics("s", [world.topic]).partitions
    earliest, written = kafka.earliest(places), kafka.written_end(places)
    ends = kafka.stable_end(places)
    yield from map(_values, (earliest, ends, kafka.known_ends(places), written))
    for moment in (LONG_AGO, dt.datetime.fromtimestamp(2.5, dt.UTC)):
        yield _values(kafka.first_since(places, moment))
    yield _values(kafka.withheld(places, since=LONG_AGO))
    for offset in (0, 1, 4, 99):
        first = kafka.first_records(dict.fromkeys(places, offset))
        yield sorted((at.partition, each.offset(), each.value()) for at, each in first.items())
    ranges = [
        Range(topic=at.topic, partition=at.partition, start=earliest[at], end=ends[at])
        for at in places
    ]
    yield [(at.partition, offset) for at, offset in kafka.records_in(ranges)]
    yield [
        (each.partition(), each.offset(), each.key(), each.value(), each.headers())
        for each in kafka.messages_in(ranges)
    ]
    reader = TopicReader(world.settings, partitions=2)
    parts = [OffsetRange(each.topic_partition, each.start, each.end, 0, 0) for each in ranges]
    records = [record for chunk in reader.read(parts) for record in chunk]
    reader.close()
    yield sorted((each.partition, each.offset, each.value, each.headers) for each in records)
    yield [at.partition for at in kafka.truncated(ends, dict.fromkeys(places, 0))]


def _values(offsets: Any) -> list[tuple[int, int]]:
    return sorted((at.partition, offset) for at, offset in offsets.items())


def _places(world: World, places: Any) -> list[int]:
    return [at.partition for at in places if at.topic == world.topic]
