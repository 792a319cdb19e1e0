"""A topic read a second time, batch by batch, by confluent-kafka.

One consumer reads every partition; what it delivers beyond the current batch waits for the next
one. That nothing is delivered between two offsets proves that there is nothing.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, cast

from confluent_kafka import Consumer, KafkaError, Message
from confluent_kafka import TopicPartition as ClientTopicPartition

from oncelake.ingestion.errors import DependencyError
from oncelake.ingestion.kafka.admin import Kafka
from oncelake.ingestion.kafka.client import (
    client_options,
    headers_of,
    is_about_group,
    unreachable,
)
from oncelake.ingestion.kafka.offsets import TopicPartition
from oncelake.ingestion.settings import Settings
from oncelake.ingestion.verify.read.record import Record
from oncelake.ingestion.verify.read.snapshot import OffsetRange

_MESSAGES: Final = 5_000
# A partition that is not being read waits, once so much of all of them has come ahead of time.
_AHEAD_BYTES: Final = 32 * 1024 * 1024
_QUEUE_KILOBYTES: Final = 64 * 1024
_RECORD_BYTES: Final = 300
_GONE: Final = (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE)


@dataclass(kw_only=True)
class _PartitionState:
    """How far one partition has been read.

    ``served_to`` is the end of the last range; every record before ``known_to`` has come, and
    those that were not asked for yet are ``ahead``.
    """

    served_to: int = -1
    known_to: int = -1
    ahead: deque[Message] = field(default_factory=deque)
    bytes_ahead: int = 0
    is_assigned: bool = False

    def add(self, messages: Sequence[Message]) -> None:
        """Keep the next messages, in order, without those that were asked for before."""
        if _offset(messages[0]) < self.known_to:
            messages = [each for each in messages if _offset(each) >= self.known_to]
        self.ahead.extend(messages)
        self.bytes_ahead += _size(messages)
        self.known_to = max(self.known_to, _offset(messages[-1]) + 1) if messages else self.known_to

    def take_until(self, end: int) -> list[Message]:
        if self.known_to <= end:
            taken, self.ahead, self.bytes_ahead = list(self.ahead), deque(), 0
            return taken
        taken = []
        while self.ahead and _offset(self.ahead[0]) < end:
            taken.append(self.ahead.popleft())
        self.bytes_ahead -= _size(taken)
        return taken


class TopicReader:
    """Reads ranges of topics, committed records only."""

    def __init__(self, settings: Settings, *, partitions: int) -> None:
        self._settings = settings
        self._partitions: dict[TopicPartition, _PartitionState] = {}
        self._consumer = Consumer(
            {
                **client_options(settings),
                "group.id": "oncelake-verify",
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "enable.partition.eof": True,
                "isolation.level": "read_committed",
                "queued.max.messages.kbytes": max(1_024, _QUEUE_KILOBYTES // max(1, partitions)),
                "fetch.wait.max.ms": 10,
            }
        )

    def close(self) -> None:
        """Disconnect."""
        self._consumer.close()

    def read(self, ranges: Iterable[OffsetRange]) -> Iterator[list[Record]]:
        """Yield every record of some ranges, in chunks, a partition's in order."""
        return ([*map(record_of, messages)] for _, messages in self.messages(ranges))

    def messages(
        self, ranges: Iterable[OffsetRange]
    ) -> Iterator[tuple[TopicPartition, list[Message]]]:
        """Yield every message of some ranges, in chunks, a partition's in order."""
        ends = {}
        for part in (part for part in ranges if part.span):
            state = self._partitions.setdefault(part.at, _PartitionState())
            if state.served_to != part.start:
                self._pause(part.at)
                self._partitions[part.at] = _PartitionState(known_to=part.start)
            ends[part.at] = part.end
        while True:
            for at, end in list(ends.items()):
                state = self._partitions[at]
                if messages := state.take_until(end):
                    yield at, messages
                if state.known_to >= end:
                    state.served_to = end
                    del ends[at]
            if not ends:
                return
            self._fetch(ends)

    def _fetch(self, ends: Iterable[TopicPartition]) -> None:
        """Read the next records, at least those of the partitions in ``ends``."""
        for at in ends:
            state = self._partitions[at]
            if not state.is_assigned:
                self._consumer.incremental_assign([ClientTopicPartition(*at, state.known_to)])
                state.is_assigned = True
        messages, ends_seen = self._consume()
        of_partition: dict[tuple[Any, Any], list[Message]] = {}
        for message in messages:
            of_partition.setdefault((message.topic(), message.partition()), []).append(message)
        for place, part in of_partition.items():
            self._partitions[TopicPartition(*place)].add(part)
        for message in ends_seen:
            state = self._partitions[TopicPartition(*_at(message))]
            state.known_to = max(state.known_to, _offset(message))
        if sum(state.bytes_ahead for state in self._partitions.values()) > _AHEAD_BYTES:
            for at in self._partitions.keys() - set(ends):
                self._pause(at)

    def _pause(self, at: TopicPartition) -> None:
        state = self._partitions[at]
        if state.is_assigned:
            self._consumer.incremental_unassign([ClientTopicPartition(*at)])
            state.is_assigned = False

    def _consume(self) -> tuple[list[Message], list[Message]]:
        """Return the next messages, and those that say that their partition has no more.

        Raises:
            DependencyError: Kafka stopped answering, or retention overtook the reading.
        """
        timeout = self._settings.kafka_timeout_seconds
        silent_since = time.monotonic()
        while time.monotonic() - silent_since < timeout:
            # It waits for that many or that long, so the end of a topic would cost a long timeout.
            messages = self._consumer.consume(_MESSAGES, timeout=0.1)
            failed = [message for message in messages if message.error() is not None]
            ends = [message for message in failed if not is_about_group(message)]
            for message in ends:
                self._refuse_error(message)
            if failed:
                messages = [message for message in messages if message.error() is None]
            if messages or ends:
                return messages, ends
        raise unreachable(self._settings, "it sent nothing")

    def _refuse_error(self, message: Message) -> None:
        """Raise what a message without a record says, unless its partition has no more."""
        error = message.error()
        assert error is not None, "it has no record"
        if error.code() in _GONE:
            raise DependencyError(
                f"Kafka deleted records while they were read ({error}). Next: run the same "
                "command again; it proves what is left"
            )
        if error.code() != KafkaError._PARTITION_EOF:
            right = f"READ on topic {message.topic()!r}"
            raise unreachable(self._settings, error, right=right)


def is_compacted(settings: Settings, topic: str) -> bool:
    """Return whether a topic may drop records that a newer one of their Kafka key follows.

    Raises:
        DependencyError: Kafka does not answer, or does not report it.
    """
    return "compact" in str(Kafka(settings).topic_configs([topic])[topic]["cleanup.policy"])


def record_of(message: Message) -> Record:
    """Return the record of a message."""
    sent, headers = message.timestamp()[1], headers_of(message)
    return Record(*_at(message), _offset(message), sent, message.key(), message.value(), headers)


def _at(message: Message) -> tuple[str, int]:
    return cast("str", message.topic()), cast("int", message.partition())


def _offset(message: Message) -> int:
    return cast("int", message.offset())


def _size(messages: Sequence[Message]) -> int:
    """Return about how many bytes messages take."""
    return _RECORD_BYTES * len(messages) + sum(map(len, messages))
