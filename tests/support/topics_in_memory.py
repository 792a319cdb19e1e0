"""A Kafka in this process: topics in memory, behind the clients that the product is made of.

It answers what confluent-kafka's clients are asked by the product and by the tests, as a broker
would: transactions, retention, compaction by hand, and topics that are made again. That it answers
as a broker does is tried in ``tests/kafka/test_topics_in_memory.py``, on both.
"""

from __future__ import annotations

import time
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, Final

from confluent_kafka import Consumer as ClientConsumer
from confluent_kafka import (
    IsolationLevel,
    KafkaError,
    KafkaException,
    Message,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka import Producer as ClientProducer
from confluent_kafka.admin import AdminClient as ClientAdmin
from confluent_kafka.admin import ConfigResource, NewPartitions, NewTopic, OffsetSpec

_SUFFIX: Final = ".in-memory:9092"
_DEFAULTS: Final = {"cleanup.policy": "delete", "retention.ms": "604800000"}
_EARLIEST, _LATEST, _MAX_TIMESTAMP = -2, -1, -3
Headers = list[tuple[str, bytes | None]]


@dataclass(slots=True)
class Transaction:
    """The records that a producer sends at a time; ``is_aborted`` is unknown while it is open."""

    is_aborted: bool | None = None


@dataclass(kw_only=True, slots=True)
class Record:
    """What an offset holds; a marker of a transaction has no ``transaction``, and no content."""

    timestamp_ms: int
    key: bytes | None = None
    value: bytes | None = None
    headers: Headers | None = None
    transaction: Transaction | None = None
    is_marker: bool = False

    @property
    def is_committed(self) -> bool:
        """Tell whether a reader of committed records gets it."""
        return not self.is_marker and not (self.transaction and self.transaction.is_aborted)


@dataclass(slots=True)
class Partition:
    """A partition's log, of which retention has left what begins at ``first``."""

    records: dict[int, Record] = field(default_factory=dict)
    first: int = 0
    end: int = 0

    def append(self, record: Record) -> int:
        """Add a record, and return its offset."""
        self.records[self.end] = record
        self.end += 1
        return self.end - 1

    def stable_end(self) -> int:
        """Return where the oldest open transaction begins, or the end."""
        unsettled = (
            offset
            for offset, record in self.records.items()
            if record.transaction and record.transaction.is_aborted is None
        )
        return min(unsettled, default=self.end)

    def offset_since(self, timestamp_ms: int, end: int) -> int:
        """Return the offset of the first record of that time or later; -1 without one."""
        late = (
            offset
            for offset, record in self.records.items()
            if self.first <= offset < end and record.timestamp_ms >= timestamp_ms
        )
        return min(late, default=-1)


@dataclass(kw_only=True, slots=True)
class Topic:
    """One life of a topic."""

    id: str
    partitions: list[Partition]
    config: dict[str, str]


class Cluster:
    """Topics by name, and an address by which the clients find them.

    Attributes:
        is_up: Whether it answers.
    """

    by_address: Final[dict[str, Cluster]] = {}

    def __init__(self) -> None:
        self.id = uuid.uuid4().hex
        self.address = f"{self.id}{_SUFFIX}"
        self.topics: dict[str, Topic] = {}
        self.is_up = True
        self.by_address[self.address] = self

    def create(self, name: str, partitions: int, config: Mapping[str, str]) -> None:
        """Create a topic."""
        if name in self.topics:
            raise KafkaException(KafkaError(KafkaError.TOPIC_ALREADY_EXISTS))
        made = [Partition() for _ in range(max(1, partitions))]
        self.topics[name] = Topic(
            id=uuid.uuid4().hex, partitions=made, config={**_DEFAULTS, **config}
        )

    def topic(self, name: str) -> Topic:
        """Return a topic."""
        if name not in self.topics:
            raise KafkaException(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART))
        return self.topics[name]

    def partition(self, at: Any) -> Partition:
        """Return a partition."""
        partitions = self.topic(at.topic).partitions
        if at.partition >= len(partitions):
            raise KafkaException(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART))
        return partitions[at.partition]


class _Client:
    """What every client does."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._cluster = Cluster.by_address[options["bootstrap.servers"]]
        self._options = options

    def _connect(self) -> None:
        if not self._cluster.is_up:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))

    def _metadata(self, topic: str | None) -> Any:
        self._connect()
        known = self._cluster.topics
        names = known if topic is None else [topic]
        found = {
            name: SimpleNamespace(
                partitions=dict.fromkeys(
                    range(len(known[name].partitions)), SimpleNamespace(leader=1)
                )
                if name in known
                else {}
            )
            for name in names
        }
        return SimpleNamespace(topics=found, cluster_id=self._cluster.id)

    def list_topics(self, topic: str | None = None, timeout: float = -1) -> Any:
        """Return topics with their partitions."""
        del timeout
        return self._metadata(topic)

    def poll(self, timeout: float = 0) -> Any:
        """Serve no callback."""
        del timeout

    def _answer(self, act: Callable[[], Any]) -> Future[Any]:
        answer: Future[Any] = Future()
        try:
            self._connect()
            answer.set_result(act())
        except KafkaException as error:
            answer.set_exception(error)
        return answer


class Admin(_Client):
    """Takes the place of ``confluent_kafka.admin.AdminClient``."""

    def create_topics(self, topics: Iterable[NewTopic], **_: Any) -> dict[str, Future[Any]]:
        """Create topics."""
        create = self._cluster.create
        return {
            each.topic: self._answer(
                lambda each=each: create(each.topic, each.num_partitions, each.config or {})
            )
            for each in topics
        }

    def delete_topics(self, names: Iterable[str], **_: Any) -> dict[str, Future[Any]]:
        """Delete topics."""

        def delete(name: str) -> None:
            self._cluster.topic(name)
            del self._cluster.topics[name]

        return {name: self._answer(lambda name=name: delete(name)) for name in names}

    def create_partitions(self, more: Iterable[NewPartitions]) -> dict[str, Future[Any]]:
        """Raise the number of partitions."""

        def add(each: NewPartitions) -> None:
            partitions = self._cluster.topic(each.topic).partitions
            partitions += [Partition() for _ in range(each.new_total_count - len(partitions))]

        return {each.topic: self._answer(lambda each=each: add(each)) for each in more}

    def delete_records(self, places: Iterable[TopicPartition]) -> dict[Any, Future[Any]]:
        """Delete what lies before offsets."""

        def delete(at: TopicPartition) -> None:
            partition = self._cluster.partition(at)
            partition.first = at.offset
            for offset in [each for each in partition.records if each < at.offset]:
                del partition.records[offset]

        return {at: self._answer(lambda at=at: delete(at)) for at in places}

    def describe_topics(self, wanted: TopicCollection, **_: Any) -> dict[str, Future[Any]]:
        """Tell ids and partitions of topics."""

        def described(name: str) -> Any:
            topic = self._cluster.topic(name)
            partitions = [SimpleNamespace(id=at) for at in range(len(topic.partitions))]
            return SimpleNamespace(
                topic_id=topic.id, partitions=partitions, authorized_operations=None
            )

        return {
            name: self._answer(lambda name=name: described(name)) for name in wanted.topic_names
        }

    def describe_configs(self, wanted: Iterable[ConfigResource], **_: Any) -> dict[Any, Any]:
        """Tell the configuration of topics."""

        def described(name: str) -> dict[str, Any]:
            config = self._cluster.topic(name).config
            return {each: SimpleNamespace(value=value) for each, value in config.items()}

        return {each: self._answer(lambda each=each: described(each.name)) for each in wanted}

    def list_offsets(
        self,
        wanted: Mapping[TopicPartition, OffsetSpec],
        *,
        isolation_level: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
        **_: Any,
    ) -> dict[TopicPartition, Future[Any]]:
        """Tell offsets of partitions."""
        is_committed = isolation_level == IsolationLevel.READ_COMMITTED

        def offset_of(at: TopicPartition, spec: Any) -> Any:
            partition = self._cluster.partition(at)
            end = partition.stable_end() if is_committed else partition.end
            offset = {_EARLIEST: partition.first, _LATEST: end, _MAX_TIMESTAMP: -1}.get(spec._value)
            if offset is None:
                offset = partition.offset_since(spec._value, end)
            # Whoever asks for the newest time has heard that there is none since another.
            return SimpleNamespace(offset=offset, leader_epoch=0, timestamp=-1)

        return {
            at: self._answer(lambda at=at, spec=spec: offset_of(at, spec))
            for at, spec in wanted.items()
        }


class Producer(_Client):
    """Takes the place of ``confluent_kafka.Producer``."""

    _transaction: Transaction | None = None

    def init_transactions(self, _timeout: float = 0) -> None:
        """Begin to be one with transactions."""

    def begin_transaction(self) -> None:
        """Begin one."""
        self._transaction, self._written = Transaction(), list[Partition]()

    def produce(
        self,
        topic: str,
        value: bytes | str | None = None,
        key: bytes | str | None = None,
        partition: int = 0,
        *,
        timestamp: int = 0,
        headers: Sequence[tuple[str, bytes | str | None]] | None = None,
    ) -> None:
        """Send a record."""
        value, key = _bytes(value), _bytes(key)
        at = self._cluster.partition(TopicPartition(topic, max(0, partition)))
        at.append(
            Record(
                timestamp_ms=timestamp or time.time_ns() // 1_000_000,
                key=key,
                value=value,
                headers=[(name, _bytes(content)) for name, content in headers or ()] or None,
                transaction=self._transaction,
            )
        )
        if self._transaction:
            self._written.append(at)

    def flush(self, _timeout: float = 0) -> int:
        """Wait for nothing."""
        return 0

    def commit_transaction(self, _timeout: float = 0) -> None:
        """Commit what was sent."""
        self._end(is_aborted=False)

    def abort_transaction(self, _timeout: float = 0) -> None:
        """Abort what was sent."""
        self._end(is_aborted=True)

    def _end(self, *, is_aborted: bool) -> None:
        assert self._transaction is not None
        self._transaction.is_aborted, self._transaction = is_aborted, None
        for partition in {id(each): each for each in self._written}.values():
            now = time.time_ns() // 1_000_000
            partition.append(Record(timestamp_ms=now, is_marker=True))


class Consumer(_Client):
    """Takes the place of ``confluent_kafka.Consumer``, of one that is given its partitions."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        super().__init__(options)
        self._waiting: dict[tuple[str, int], deque[Message]] = {}

    def assign(self, places: Sequence[TopicPartition]) -> None:
        """Read partitions, and no others."""
        self._waiting.clear()
        self.incremental_assign(places)

    def incremental_assign(self, places: Sequence[TopicPartition]) -> None:
        """Read partitions, too."""
        for at in places:
            self._waiting[at.topic, at.partition] = deque(self._messages(at))

    def incremental_unassign(self, places: Sequence[TopicPartition]) -> None:
        """Read partitions no more."""
        for at in places:
            del self._waiting[at.topic, at.partition]

    def assignment(self) -> list[TopicPartition]:
        """Return the partitions that are read."""
        return [TopicPartition(*at) for at in self._waiting]

    def poll(self, timeout: float = 0) -> Message | None:
        """Return the next record, or the end of a partition, once."""
        return next(iter(self.consume(1, timeout)), None)

    def consume(self, count: int = 1, timeout: float = 0) -> list[Message]:
        """Return the next messages."""
        del timeout
        messages = []
        for waiting in self._waiting.values():
            while waiting and len(messages) < count:
                messages.append(waiting.popleft())
        return messages

    def close(self) -> None:
        """Read nothing more."""
        self._waiting.clear()

    def _messages(self, at: TopicPartition) -> Iterator[Message]:
        partition = self._cluster.partition(at)
        is_committed = self._options.get("isolation.level") == "read_committed"
        end = partition.stable_end() if is_committed else partition.end
        begin = at.offset
        if not partition.first <= begin <= partition.end:
            if self._options["auto.offset.reset"] == "error":
                error = KafkaError(KafkaError._AUTO_OFFSET_RESET)
                yield Message(at.topic, at.partition, begin, error=error)
                return
            begin = partition.first
        for offset in range(begin, end):
            record = partition.records.get(offset)
            if record is None or record.is_marker or (is_committed and not record.is_committed):
                continue
            yield Message(
                at.topic,
                at.partition,
                offset,
                record.key,
                record.value,
                record.headers,
                timestamp=(1, record.timestamp_ms),
            )
        if self._options.get("enable.partition.eof"):
            error = KafkaError(KafkaError._PARTITION_EOF)
            yield Message(at.topic, at.partition, max(begin, end), error=error)


def _bytes(content: bytes | str | None) -> bytes | None:
    return content.encode() if isinstance(content, str) else content


def is_in_memory(options: Mapping[str, Any]) -> bool:
    """Tell whether a client of these options is to talk to topics in memory."""
    return str(options.get("bootstrap.servers")).endswith(_SUFFIX)


def admin_client(options: Mapping[str, Any]) -> Any:
    """Return a client for requests to whichever Kafka the options name."""
    return Admin(options) if is_in_memory(options) else ClientAdmin(dict(options))


def consumer(options: Mapping[str, Any]) -> Any:
    """Return a client that reads from whichever Kafka the options name."""
    return Consumer(options) if is_in_memory(options) else ClientConsumer(dict(options))


def producer(options: Mapping[str, Any]) -> Any:
    """Return a client that writes to whichever Kafka the options name."""
    return Producer(options) if is_in_memory(options) else ClientProducer(dict(options))
