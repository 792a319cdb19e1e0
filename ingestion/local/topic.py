"""A topic read as a whole by confluent-kafka: for the demo, the tests and benchmarks."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, cast

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
)
from confluent_kafka import TopicPartition as ClientTopicPartition

from ingestion.errors import DependencyError, SetupError
from ingestion.kafka_security import librdkafka_options
from ingestion.local.fold import Place, Record
from ingestion.offsets import TopicPartition
from ingestion.settings import Settings


def records(
    settings: Settings, topics: Iterable[str], *, until: Mapping[TopicPartition, int] | None = None
) -> Iterator[Record]:
    """Read topics from their beginning, committed records only.

    Args:
        settings: Where Kafka is.
        topics: Names.
        until: The offset to stop before, a partition; default: the last stable one.

    Raises:
        DependencyError: Kafka stopped answering before the end.
    """
    consumer = Consumer(
        {
            **client_options(settings),
            "group.id": "oncelake-second-opinion",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
        }
    )
    try:
        every = _partitions(settings, consumer, topics)
        open_ends = {at: (until or {}).get(at) for at in every if until is None or until.get(at)}
        consumer.assign([ClientTopicPartition(*at, OFFSET_BEGINNING) for at in open_ends])
        yield from _until_the_ends(settings, consumer, open_ends)
    finally:
        consumer.close()


def record_count(settings: Settings, topic: str) -> int:
    """Count the offsets in a topic between its beginning and its end."""
    consumer = Consumer({**client_options(settings), "group.id": "oncelake-second-opinion"})
    try:
        marks = [
            consumer.get_watermark_offsets(
                ClientTopicPartition(*at), timeout=settings.kafka_timeout_seconds
            )
            for at in _partitions(settings, consumer, [topic])
        ]
        return sum(high - low for low, high in marks)
    except KafkaException as error:
        raise unanswered(settings, error) from error
    finally:
        consumer.close()


def _until_the_ends(
    settings: Settings, consumer: Consumer, open_ends: dict[TopicPartition, int | None]
) -> Iterator[Record]:
    while open_ends:
        for message in _consume(settings, consumer):
            record = _record(message)
            at = TopicPartition(record.topic, record.partition)
            end, is_end = open_ends.get(at), message.error() is not None
            if not is_end and at in open_ends and (end is None or record.offset < end):
                yield record
            if is_end or (end is not None and record.offset + 1 >= end):
                open_ends.pop(at, None)


def _record(message: Message) -> Record:
    place = cast("Place", (message.topic(), message.partition(), message.offset()))
    _, timestamp_ms = message.timestamp()
    return Record(*place, timestamp_ms, message.key(), message.value())


def _consume(settings: Settings, consumer: Consumer) -> list[Message]:
    """Return the next messages; one whose error is set says that its partition has no more."""
    silent_since = time.monotonic()
    while time.monotonic() - silent_since < settings.kafka_timeout_seconds:
        # It waits for that many or that long, so a long timeout would be slept out at the end.
        messages: list[Message] = consumer.consume(5_000, timeout=0.1)
        for error in filter(None, (message.error() for message in messages)):
            if error.code() != KafkaError._PARTITION_EOF:
                raise unanswered(settings, error)
        if messages:
            return messages
    raise unanswered(settings, f"silent for {settings.kafka_timeout_seconds:g} s")


def _partitions(
    settings: Settings, consumer: Consumer, topics: Iterable[str]
) -> list[TopicPartition]:
    try:
        known = consumer.list_topics(timeout=settings.kafka_timeout_seconds).topics
    except KafkaException as error:
        raise unanswered(settings, error) from error
    return [TopicPartition(name, number) for name in topics for number in _numbers(known, name)]


def _numbers(known: Mapping[str, Any], topic: str) -> Iterable[int]:
    if topic not in known:
        raise SetupError(f"topic {topic!r} does not exist")
    return cast("Iterable[int]", known[topic].partitions)


def client_options(settings: Settings) -> dict[str, Any]:
    """Return what every confluent-kafka client here is told."""
    return {
        "bootstrap.servers": settings.bootstrap_servers(),
        "log_level": 0,
        "error_cb": lambda error: None,
        **librdkafka_options(settings),
    }


def unanswered(settings: Settings, cause: object) -> DependencyError:
    """Return the error that says who did not answer, and why."""
    return DependencyError(f"Kafka at {settings.bootstrap_servers()} does not answer: {cause}")
