"""Sends messages to a topic with confluent-kafka, for the demo, the tests and benchmarks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Protocol

from confluent_kafka import KafkaError, Producer

from oncelake.ingestion.kafka.admin import Kafka
from oncelake.ingestion.kafka.client import client_options, unreachable
from oncelake.ingestion.settings import Settings

# The demo's messages are stamped 2013: by Kafka's default of a week they would expire at once.
_KEPT_FOR_EVER: Final = {"retention.ms": "-1", "cleanup.policy": "delete"}


class OutgoingMessage(Protocol):
    """A message to send."""

    @property
    def key(self) -> bytes | None:
        """The Kafka key."""

    @property
    def value(self) -> bytes | None:
        """The Kafka value; none is a tombstone."""

    @property
    def timestamp_ms(self) -> int:
        """The timestamp that the record carries."""


def create(settings: Settings, topic: str, *, partitions: int) -> None:
    """Create a topic without retention, unless it is there already."""
    Kafka(settings).create_topic(topic, _KEPT_FOR_EVER, partitions=partitions)


def offset_count(settings: Settings, topic: str) -> int:
    """Count the offsets between a topic's beginning and its end."""
    kafka = Kafka(settings)
    partitions = kafka.topics(topic, [topic]).partitions
    return kafka.earliest(partitions).lag_to(kafka.stable_end(partitions))


def produce(settings: Settings, topic: str, messages: Iterable[OutgoingMessage]) -> int:
    """Send messages, spread over the partitions by key as Java's producer does; return how many.

    The producer is idempotent: its retries neither duplicate nor reorder messages.

    Raises:
        DependencyError: Kafka did not acknowledge every message.
    """
    failures: list[KafkaError] = []
    producer = Producer(
        {
            **client_options(settings),
            "enable.idempotence": True,
            "partitioner": "murmur2_random",
            "linger.ms": 50,
            "batch.size": 1 << 20,
            "compression.type": "lz4",
            "queue.buffering.max.messages": 200_000,
            "message.timeout.ms": int(settings.kafka_timeout_seconds * 1_000),
            "on_delivery": lambda error, _: failures.append(error) if error else None,
        }
    )
    sent = 0
    for message in messages:
        _send(producer, topic, message)
        sent += 1
    if producer.flush(settings.kafka_timeout_seconds) or failures:
        raise unreachable(settings, failures[0] if failures else "not all was acknowledged in time")
    return sent


def _send(producer: Producer, topic: str, message: OutgoingMessage) -> None:
    while True:
        try:
            producer.produce(topic, message.value, message.key, timestamp=message.timestamp_ms)
        except BufferError:
            producer.poll(1)
        else:
            producer.poll(0)
            return
