"""Reads the committed records of a few ranges with confluent-kafka, independently of Spark."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import cast

from confluent_kafka import Consumer, KafkaError, KafkaException, Message
from confluent_kafka import TopicPartition as ClientTopicPartition

from ingestion.kafka.client import ClientErrors, client_options, unreachable
from ingestion.kafka.offsets import Range, TopicPartition
from ingestion.settings import Settings

# Up to this distance, reading on is faster than seeking.
_SEEK_BEYOND = 1_000


def records_in(holes: Iterable[Range], settings: Settings) -> Iterator[tuple[TopicPartition, int]]:
    """Yield (partition, offset) of every committed record inside ``holes``.

    Raises:
        DependencyError: Kafka stopped answering before the proof was complete.
    """
    heard = ClientErrors()
    consumer = Consumer(
        {
            **client_options(settings, heard),
            "group.id": "oncelake-proof",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
            "fetch.wait.max.ms": 10,
        }
    )
    reading = _Reading(consumer, settings, heard)
    try:
        ordered = sorted(holes, key=lambda hole: (hole.topic_partition, hole.start))
        for at, in_partition in groupby(ordered, key=lambda hole: hole.topic_partition):
            yield from reading.of_partition(at, in_partition)
    finally:
        consumer.close()


class _Reading:
    """One consumer, moved from hole to hole."""

    def __init__(self, consumer: Consumer, settings: Settings, heard: ClientErrors) -> None:
        self._consumer = consumer
        self._settings = settings
        self._heard = heard

    def of_partition(
        self, at: TopicPartition, holes: Iterable[Range]
    ) -> Iterator[tuple[TopicPartition, int]]:
        """Yield the records inside the holes of one partition; ``holes`` must be sorted."""
        position = -_SEEK_BEYOND - 1
        for hole in holes:
            if hole.start - position > _SEEK_BEYOND:
                self._consumer.assign([ClientTopicPartition(at.topic, at.partition, hole.start)])
                position = hole.start
            while position < hole.end:
                offset, is_record = self._next()
                if is_record and hole.start <= offset < hole.end:
                    yield at, offset
                position = offset + 1 if is_record else max(offset, hole.end)

    def _next(self) -> tuple[int, bool]:
        message: Message | None = self._consumer.poll(self._settings.kafka_timeout_seconds)
        if message is None:
            raise unreachable(self._settings, "it sent no record", self._heard)
        error = message.error()
        if error is not None and error.code() != KafkaError._PARTITION_EOF:
            raise unreachable(self._settings, KafkaException(error), self._heard)
        return cast("int", message.offset()), error is None
