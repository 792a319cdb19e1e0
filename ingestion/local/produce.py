"""Sends messages to a topic, for `oncelake kafka`, the demo, the tests and benchmarks."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from confluent_kafka import KafkaError, Producer

from oncelake.ingestion.errors import InvalidSpecError
from oncelake.ingestion.kafka.admin import Kafka
from oncelake.ingestion.kafka.client import client_options, unreachable
from oncelake.ingestion.settings import Settings

# The demo's messages are stamped 2013: by Kafka's default of a week they would expire at once.
_KEPT_FOR_EVER: Final = {"retention.ms": "-1", "cleanup.policy": "delete"}

_SAMPLE: Final = Path(__file__).parent / "templates" / "orders.txt"
SAMPLE_TOPIC: Final = "orders"


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


class Line(NamedTuple):
    """A message that a line of text stands for: key, colon, value; without a value, a tombstone.

    A key does not begin with a brace: such a line is a JSON value whose key was forgotten.
    """

    key: bytes
    value: bytes | None
    timestamp_ms: int

    @classmethod
    def of(cls, number: int, line: str) -> Line:
        """Read a line.

        Raises:
            InvalidSpecError: it has no colon, or no key.
        """
        key, colon, value = line.strip().partition(":")
        if not colon or key[:1] in ("", "{"):
            problem = f"line {number} is not key:value, and nothing was sent"
            raise InvalidSpecError(f"{problem}. Next: write key:value, or key: for a tombstone")
        return cls(key.encode(), value.encode() or None, time.time_ns() // 1_000_000)


def send_lines(settings: Settings, topic: str, lines: Iterable[str]) -> int:
    """Send a message for each line that is not blank, or none where one is wrong; return how many.

    Raises:
        InvalidSpecError: a line has no colon, or no key.
        TopicMissingError: the topic does not exist.
    """
    messages = [Line.of(number, line) for number, line in enumerate(lines, 1) if line.strip()]
    Kafka(settings).topics(topic, [topic])
    return produce(settings, topic, messages)


def send_sample(settings: Settings) -> int:
    """Fill the sample's topic, unless it has messages; return how many were sent."""
    create(settings, SAMPLE_TOPIC, partitions=2)
    if offset_count(settings, SAMPLE_TOPIC):
        return 0
    return send_lines(settings, SAMPLE_TOPIC, _SAMPLE.read_text().splitlines())


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
