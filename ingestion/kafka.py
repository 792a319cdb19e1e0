"""The second client: what Kafka says of topics and offsets, asked without Spark.

Spark's source knows neither topic ids nor the cluster's id, and cannot be its own witness when
an offset holds no record. Every question here is bounded in time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from itertools import groupby
from typing import Any, cast

from confluent_kafka import (
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Message,
    TopicCollection,
)
from confluent_kafka import TopicPartition as ClientTopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from ingestion.errors import DependencyError, TopicMissingError
from ingestion.kafka_client import client_options, unreachable
from ingestion.offsets import Offsets, Range, TopicPartition
from ingestion.settings import Settings

# Closer than this, reading on is quicker than seeking.
_SEEK_BEYOND = 1_000


@dataclass(frozen=True, kw_only=True, slots=True)
class Topics:
    """What the cluster says of some topics.

    Attributes:
        cluster_id: Kafka's own id of the cluster.
        ids: KIP-516 id of each topic; another one after it was deleted and made again.
        partitions: Every partition of these topics.
    """

    cluster_id: str
    ids: Mapping[str, str]
    partitions: tuple[TopicPartition, ...]


class Kafka:
    """Questions to one cluster, by confluent-kafka."""

    def __init__(self, settings: Settings) -> None:
        """Take the settings; nothing is connected until a question is asked.

        Raises:
            DependencyError: no Kafka is configured and the embedded one is not up.
        """
        self._settings = settings
        self._timeout = settings.kafka_timeout_seconds
        self.address = settings.bootstrap_servers()
        self._options = client_options(settings)
        self._admin = AdminClient(self._options)

    def topics(self, stream: str, names: Iterable[str]) -> Topics:
        """Return ids and partitions of topics.

        Raises:
            TopicMissingError: a topic does not exist.
            DependencyError: no answer in time.
        """
        wanted = sorted(names)
        cluster = self._answer(self._admin.describe_cluster(request_timeout=self._timeout))
        answers = self._admin.describe_topics(
            TopicCollection(wanted), request_timeout=self._timeout
        )
        described = {}
        for name, answer in answers.items():
            try:
                described[name] = answer.result(self._timeout)
            except KafkaException as error:
                if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                    raise unreachable(self._settings, error) from error
                raise TopicMissingError(
                    stream,
                    f"topic {name!r} does not exist at {self.address}.",
                    remedy="create the topic, or correct `topic:` in the stream's file",
                ) from error
        return Topics(
            cluster_id=cluster.cluster_id,
            ids={name: str(each.topic_id) for name, each in described.items()},
            partitions=tuple(
                TopicPartition(name, part.id)
                for name in wanted
                for part in described[name].partitions
            ),
        )

    def earliest(self, partitions: Iterable[TopicPartition]) -> Offsets:
        """Return the first offset that retention has left in each partition."""
        return self._offsets(partitions, OffsetSpec.earliest())

    def stable_end(self, partitions: Iterable[TopicPartition]) -> Offsets:
        """Return the last stable offset of each partition: what read_committed can reach."""
        return self._offsets(partitions, OffsetSpec.latest())

    def records_in(self, holes: Iterable[Range]) -> Iterator[tuple[TopicPartition, int]]:
        """Yield (partition, offset) of every committed record inside ``holes``.

        Nothing yielded proves the holes empty: markers, aborted records and compacted records
        are what a read_committed client passes over.

        Raises:
            DependencyError: Kafka stopped answering before the proof was complete.
        """
        consumer = Consumer(
            {
                **self._options,
                "group.id": "oncelake-proof",
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "enable.partition.eof": True,
                "isolation.level": "read_committed",
                "fetch.wait.max.ms": 10,
            }
        )
        try:
            ordered = sorted(holes, key=lambda hole: (hole.topic_partition, hole.start))
            for at, in_partition in groupby(ordered, key=lambda hole: hole.topic_partition):
                yield from self._records_in_partition(consumer, at, in_partition)
        finally:
            consumer.close()

    def _records_in_partition(
        self, consumer: Consumer, at: TopicPartition, holes: Iterable[Range]
    ) -> Iterator[tuple[TopicPartition, int]]:
        position = -_SEEK_BEYOND - 1
        for hole in holes:
            if hole.start - position > _SEEK_BEYOND:
                consumer.assign([ClientTopicPartition(at.topic, at.partition, hole.start)])
                position = hole.start
            while position < hole.end:
                offset, is_record = self._next(consumer)
                if is_record and hole.start <= offset < hole.end:
                    yield at, offset
                position = offset + 1 if is_record else max(offset, hole.end)

    def _next(self, consumer: Consumer) -> tuple[int, bool]:
        message: Message | None = consumer.poll(self._timeout)
        if message is None:
            raise DependencyError(f"Kafka at {self.address} sent nothing for {self._timeout:g} s")
        error = message.error()
        if error is not None and error.code() != KafkaError._PARTITION_EOF:
            raise unreachable(self._settings, KafkaException(error))
        return cast("int", message.offset()), error is None

    def _offsets(self, partitions: Iterable[TopicPartition], spec: OffsetSpec) -> Offsets:
        asked = {ClientTopicPartition(at.topic, at.partition): spec for at in partitions}
        if not asked:
            return Offsets()
        answers = self._admin.list_offsets(
            asked, isolation_level=IsolationLevel.READ_COMMITTED, request_timeout=self._timeout
        )
        return Offsets(
            {
                TopicPartition(at.topic, at.partition): self._answer(answer).offset
                for at, answer in answers.items()
            }
        )

    def _answer(self, asked: Future[Any]) -> Any:
        try:
            return asked.result(self._timeout)
        except (KafkaException, TimeoutError) as error:
            raise unreachable(self._settings, error) from error
