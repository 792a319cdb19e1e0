"""The second Kafka client: topics, offsets and the records of a few ranges, without Spark.

Spark's source reports neither topic ids nor the cluster's id, and cannot prove by itself that an
offset holds no record. Every request here has a time limit.
"""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby
from typing import Any, cast

from confluent_kafka import (
    OFFSET_INVALID,
    TIMESTAMP_NOT_AVAILABLE,
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Message,
    TopicCollection,
)
from confluent_kafka import TopicPartition as ClientTopicPartition
from confluent_kafka.admin import (
    AclOperation,
    AdminClient,
    ClusterMetadata,
    ConfigResource,
    NewTopic,
    OffsetSpec,
)

from oncelake.ingestion.errors import (
    DependencyError,
    MissingRightError,
    TopicMissingError,
    hint,
)
from oncelake.ingestion.kafka.client import (
    ClientErrors,
    client_options,
    code_of,
    is_about_group,
    timestamp_ms_of,
    unreachable,
)
from oncelake.ingestion.kafka.offsets import Ends, Offsets, Range, TopicPartition
from oncelake.ingestion.settings import Settings

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
# A broker's answers while a partition gets another leader, or its first one.
_LEADER_IS_MOVING = (
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.FENCED_LEADER_EPOCH,
    KafkaError.UNKNOWN_LEADER_EPOCH,
    # A leader's own, until it knows how far its followers had come before it was elected.
    KafkaError.OFFSET_NOT_AVAILABLE,
    # The client's own error for a partition without one; also for one that it may not describe.
    KafkaError._NOENT,
)
# The client gives the reason why it would begin elsewhere only in the text of its error.
_TRUNCATED = KafkaError(KafkaError._LOG_TRUNCATION).str()
# How soon a client that knows a topic hears of another controller; by default in five minutes.
_REFRESHED = {"topic.metadata.refresh.interval.ms": 1000}
_MOVED_WITHIN_SECONDS = 0.5
_SHOWN_WITHIN_SECONDS = 0.05
_LEAST_SECONDS = 0.05
_Timestamps = dict[TopicPartition, dt.datetime]
# Up to this distance, reading on is faster than seeking.
_SEEK_BEYOND = 1_000


@dataclass(frozen=True, kw_only=True, slots=True)
class Topics:
    """Some topics, with their KIP-516 ids: a topic that is made again gets a new one."""

    cluster_id: str
    ids: Mapping[str, str]
    partitions: tuple[TopicPartition, ...]

    @classmethod
    def of(cls, cluster_id: str, described: Mapping[str, Any]) -> Topics:
        """Take them from Kafka's descriptions, by name."""
        return cls(
            cluster_id=cluster_id,
            ids={name: str(each.topic_id) for name, each in described.items()},
            partitions=tuple(
                TopicPartition(name, part.id)
                for name, each in sorted(described.items())
                for part in each.partitions
            ),
        )


class Kafka:
    """Requests to one cluster, by confluent-kafka, which connects with the first.

    Raises:
        DependencyError: no Kafka is configured and the embedded one is not up; from any request, no
            answer came in time.
        KafkaSettingsError: the client cannot read its key.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._timeout = settings.kafka_timeout_seconds
        self.address = settings.bootstrap_servers()
        self._heard = ClientErrors()
        try:
            self._admin = AdminClient({**_REFRESHED, **client_options(settings, self._heard)})
        except KafkaException as error:
            raise unreachable(settings, error) from error

    def cluster_id(self, topic: str | None = None) -> str:
        """Return Kafka's own id of the cluster.

        Args:
            topic: What the client keeps asking for from now on. One that knows no topic asks for
                nothing, and would wait for a controller that has died (librdkafka 2.16).
        """
        return str(self._metadata(topic).cluster_id)

    def names(self) -> tuple[str, ...]:
        """Return the names of all topics, except Kafka's internal ones."""
        return tuple(sorted({at.topic for at in self.partitions()}))

    def partitions(self) -> tuple[TopicPartition, ...]:
        """Return the partitions of all topics, except Kafka's internal ones."""
        return tuple(
            TopicPartition(name, partition)
            for name, topic in self._metadata().topics.items()
            if not name.startswith("__")
            for partition in topic.partitions
        )

    def topics(self, stream: str, names: Iterable[str]) -> Topics:
        """Return ids and partitions of topics.

        Raises:
            TopicMissingError: a topic does not exist.
        """
        wanted = sorted(names)
        cluster_id = self.cluster_id(*wanted[:1])
        described = {
            name: self._described(stream, name, each) for name, each in self._describe(wanted)
        }
        return Topics.of(cluster_id, described)

    def known_topics(self, names: Iterable[str], *, refuse_hidden: bool = False) -> Topics:
        """Return ids and partitions of those topics that exist, and that this user may see.

        One request; the cluster's id is not read, and empty.

        Raises:
            MissingRightError: with ``refuse_hidden``, this user may not describe one, which may
                exist or not.
        """
        described = {}
        for name, each in self._describe(names):
            try:
                described[name] = self._answer(each, right=_right_to_describe(name))
            except DependencyError as error:
                is_hidden = isinstance(error, MissingRightError) and not refuse_hidden
                if not is_hidden and code_of(error.__cause__) != KafkaError.UNKNOWN_TOPIC_OR_PART:
                    raise
        return Topics.of("", described)

    def earliest(self, partitions: Iterable[TopicPartition]) -> Offsets:
        """Return the first offset of each partition that retention has not deleted."""
        return self._offsets(partitions, OffsetSpec.earliest())

    def stable_end(self, partitions: Iterable[TopicPartition]) -> Ends:
        """Return the last stable offset of each partition: read_committed reads up to it."""
        return self._offsets(partitions, OffsetSpec.latest())

    def known_ends(self, partitions: Iterable[TopicPartition]) -> Ends:
        """Return the last stable offsets, without those that Kafka cannot give now."""
        asked = self._asked(partitions, OffsetSpec.latest(), IsolationLevel.READ_COMMITTED)
        known = {}
        for at, answer in asked.items():
            with suppress(KafkaException, TimeoutError):
                found = answer.result(self._timeout + 1)
                if not _is_unknown(found):
                    known[at] = found.offset, found.leader_epoch
        return Ends(known)

    def first_since(self, partitions: Iterable[TopicPartition], moment: dt.datetime) -> Offsets:
        """Return the offset of the first record with a timestamp of ``moment`` or later.

        For a partition without one, or without a stable one: its last stable offset.
        """
        ends = self.stable_end(partitions)
        found = self._offsets_since(ends, moment, IsolationLevel.READ_COMMITTED)
        return Offsets(
            {at: found[at] if 0 <= found[at] <= end else end for at, end in ends.items()}
        )

    def withheld(self, partitions: Iterable[TopicPartition], *, since: dt.datetime) -> Offsets:
        """Return the last stable offset of each partition that has been held back since a time.

        The record there is the first of the oldest open transaction. Its timestamp, and that of
        every earlier record, is before ``since``.
        """
        stable = self.stable_end(partitions)
        ends = self._offsets(stable, OffsetSpec.latest(), IsolationLevel.READ_UNCOMMITTED)
        held = {at: ends[at] for at, offset in stable.items() if offset < ends[at]}
        younger = self._offsets_since(held, since, IsolationLevel.READ_UNCOMMITTED)
        return Offsets({at: stable[at] for at in held if not 0 <= younger[at] <= stable[at]})

    def written_end(self, partitions: Iterable[TopicPartition]) -> Offsets:
        """Return where each partition ends, what an open transaction withholds included."""
        return self._offsets(partitions, OffsetSpec.latest(), IsolationLevel.READ_UNCOMMITTED)

    def topic_configs(self, names: Iterable[str]) -> Mapping[str, Mapping[str, str]]:
        """Return the configuration of topics, with what the brokers' defaults give them.

        Raises:
            DependencyError: Kafka does not answer, or this user lacks the right.
        """
        wanted = [ConfigResource(ConfigResource.Type.TOPIC, name) for name in sorted(names)]
        asked = self._admin.describe_configs(wanted, request_timeout=self._timeout)
        return {
            topic.name: {
                name: entry.value
                for name, entry in self._answer(
                    answer, right=f"DESCRIBE_CONFIGS on topic {topic.name!r}"
                ).items()
            }
            for topic, answer in asked.items()
        }

    def create_topic(self, name: str, config: Mapping[str, str], *, partitions: int = -1) -> None:
        """Make a topic, unless it is there, and wait until the broker shows it.

        Args:
            partitions: How many; by default the brokers' setting.
        """
        topic = NewTopic(name, partitions, -1, config=dict(config))
        asked = self._admin.create_topics([topic], request_timeout=self._timeout)[name]
        try:
            self._answer(asked, of=f"to make topic {name!r}", right=f"CREATE on topic {name!r}")
        except DependencyError as error:
            if code_of(error.__cause__) != KafkaError.TOPIC_ALREADY_EXISTS:
                raise
        deadline = time.monotonic() + self._timeout
        while name not in self.known_topics([name], refuse_hidden=True).ids:
            if time.monotonic() > deadline:
                problem = f"topic {name!r} was made, and is not shown"
                raise unreachable(self._settings, problem, self._heard)
            time.sleep(_SHOWN_WITHIN_SECONDS)

    def unwritable(self, names: Iterable[str]) -> tuple[str, ...]:
        """Return those topics that this user may not write to, as far as the broker reports it."""
        asked = self._admin.describe_topics(
            TopicCollection([*names]),
            include_authorized_operations=True,
            request_timeout=self._timeout,
        )
        allowed = {
            name: self._answer(answer, right=_right_to_describe(name)).authorized_operations
            for name, answer in asked.items()
        }
        return tuple(
            name for name, found in allowed.items() if found and AclOperation.WRITE not in found
        )

    def longest_transaction_ms(self, topic: str) -> int:
        """Return how long a transaction may be open, by the configuration of one broker."""
        broker = min(self._metadata(topic).brokers)
        resource = ConfigResource(ConfigResource.Type.BROKER, str(broker))
        asked = self._admin.describe_configs([resource], request_timeout=self._timeout)
        answer = self._answer(asked[resource], right="DESCRIBE_CONFIGS on the cluster")
        return int(answer["transaction.max.timeout.ms"].value)

    def timestamps_at(self, offsets: Mapping[TopicPartition, int]) -> _Timestamps:
        """Return when the first record at or after each offset was written, by its timestamp.

        A partition that holds no record there, or one without a timestamp, is left out.
        """
        return {
            at: _EPOCH + dt.timedelta(milliseconds=timestamp_ms_of(message))
            for at, message in self.first_records(offsets).items()
            if message.timestamp()[0] != TIMESTAMP_NOT_AVAILABLE
        }

    def first_records(self, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, Message]:
        """Return the first record at or after each offset, also one that was aborted.

        A partition that holds none there is left out. One that begins after the offset, or ends
        before it, gives its first record.
        """
        places = [ClientTopicPartition(*at, offset) for at, offset in offsets.items()]
        answers = self._first_messages(places, reset="earliest")
        return {at: message for at, message in answers.items() if message.error() is None}

    def truncated(
        self, ends: Mapping[TopicPartition, int], leader_epochs: Mapping[TopicPartition, int]
    ) -> frozenset[TopicPartition]:
        """Return the partitions in which a leader's epoch ended before the last offset read.

        Also those without that epoch: retention may have removed all of it.

        Args:
            ends: For each partition, the offset after the last one that was read.
            leader_epochs: Epochs under which the offset before it was read.
        """
        places = [
            ClientTopicPartition(*at, end, leader_epoch=leader_epochs[at])
            for at, end in ends.items()
        ]
        answers = self._first_messages(places, reset="error")
        errors = {at: message.error() for at, message in answers.items()}
        return frozenset(at for at, error in errors.items() if error and _TRUNCATED in error.str())

    def _first_messages(
        self, places: Sequence[ClientTopicPartition], *, reset: str
    ) -> dict[TopicPartition, Message]:
        """Return the first record of each place, or the error that stands for it."""
        if not places:
            return {}
        reader = RecordReader(
            self._settings,
            {
                "isolation.level": "read_uncommitted",
                "auto.offset.reset": reset,
                "queued.min.messages": 1,
                "max.partition.fetch.bytes": 65536,
            },
        )
        # The consumer may not begin elsewhere: the error that it would have to is the result.
        answer = KafkaError._AUTO_OFFSET_RESET if reset == "error" else KafkaError._PARTITION_EOF
        try:
            return reader.first_messages(places, answer=answer)
        finally:
            reader.consumer.close()

    def records_in(self, holes: Iterable[Range]) -> Iterator[tuple[TopicPartition, int]]:
        """Yield (partition, offset) of every committed record inside ``holes``.

        If nothing is yielded, the holes are proven empty: a read_committed client skips only
        markers, aborted records and compacted records.

        Raises:
            DependencyError: Kafka stopped answering before the proof was complete.
        """
        for message in self.messages_in(holes):
            at = TopicPartition(cast("str", message.topic()), cast("int", message.partition()))
            yield at, cast("int", message.offset())

    def messages_in(self, ranges: Iterable[Range]) -> Iterator[Message]:
        """Yield every committed record inside ``ranges``, by partition and offset.

        Raises:
            DependencyError: Kafka stopped answering before the end of the ranges.
        """
        reader = RecordReader(self._settings)
        try:
            ordered = sorted(ranges, key=lambda each: (each.topic_partition, each.start))
            for at, in_partition in groupby(ordered, key=lambda each: each.topic_partition):
                yield from reader.records_of(at, in_partition)
        finally:
            reader.consumer.close()

    def _metadata(self, topic: str | None = None) -> ClusterMetadata:
        """Ask a broker; another one where it ends meanwhile: this request does not survive that."""
        deadline = time.monotonic() + self._timeout - _LEAST_SECONDS
        while True:
            # Less than nothing would be for ever.
            left = max(deadline - time.monotonic(), 0) + _LEAST_SECONDS
            try:
                return self._admin.list_topics(topic, timeout=left)
            except KafkaException as error:
                if time.monotonic() >= deadline or code_of(error) != KafkaError._TRANSPORT:
                    self._admin.poll(0)
                    raise unreachable(self._settings, error, self._heard) from error

    def _describe(self, names: Iterable[str]) -> Iterable[tuple[str, Future[Any]]]:
        wanted = TopicCollection(sorted(names))
        if not wanted.topic_names:
            return ()
        return self._admin.describe_topics(wanted, request_timeout=self._timeout).items()

    def _described(self, stream: str, name: str, asked: Future[Any]) -> Any:
        try:
            return self._answer(asked, of=f"topic {name!r}", right=_right_to_describe(name))
        except DependencyError as error:
            if code_of(error.__cause__) != KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise
            raise TopicMissingError(
                stream,
                f"topic {name!r} does not exist at {self.address}.",
                remedy="create the topic, or correct `topic:` in the stream's file"
                + hint(name, self.names()),
            ) from error

    def _offsets(
        self,
        partitions: Iterable[TopicPartition],
        spec: OffsetSpec,
        isolation: IsolationLevel = IsolationLevel.READ_COMMITTED,
    ) -> Ends:
        wanted, deadline = tuple(partitions), time.monotonic() + self._timeout
        failure = None
        while True:
            asked = self._asked(wanted, spec, isolation)
            try:
                answers = {
                    at: self._answer(answer, right=_right_to_describe(at.topic))
                    for at, answer in asked.items()
                }
            except DependencyError as error:
                code = code_of(error.__cause__)
                if failure and code == KafkaError._TIMED_OUT:
                    # What was answered before says more than that the time is over.
                    raise failure from error
                if code not in _LEADER_IS_MOVING:
                    raise
                failure = error
            else:
                unknown = [str(at) for at, each in answers.items() if _is_unknown(each)]
                if not unknown:
                    places = {at: (each.offset, each.leader_epoch) for at, each in answers.items()}
                    return Ends(places)
                problem = f"it gives no offset of {', '.join(unknown)}"
                failure = unreachable(self._settings, problem, self._heard)
            leaderless = self._leaderless(wanted)
            if time.monotonic() > deadline:
                raise leaderless or failure
            time.sleep(_MOVED_WITHIN_SECONDS)

    def _leaderless(self, partitions: Iterable[TopicPartition]) -> DependencyError | None:
        """Let the client learn who leads, and name the partitions that nobody does.

        After FENCED_LEADER_EPOCH it would use the old epoch for ever; of a partition without a
        leader it reports that of a missing right.
        """
        try:
            topics = self._admin.list_topics(timeout=_MOVED_WITHIN_SECONDS).topics
        except KafkaException:
            return None
        leaders = {
            TopicPartition(name, number): part.leader
            for name, topic in topics.items()
            for number, part in topic.partitions.items()
        }
        leaderless = [str(at) for at in partitions if leaders.get(at, 0) < 0]
        problem = f"no broker leads {', '.join(leaderless)}"
        return unreachable(self._settings, problem, self._heard) if leaderless else None

    def _offsets_since(
        self, ends: Mapping[TopicPartition, int], moment: dt.datetime, isolation: IsolationLevel
    ) -> dict[TopicPartition, int]:
        """Return the offset of the first record of a time or later; -1 without one.

        Of a log whose first records were deleted out of the middle of a segment (DeleteRecords), a
        broker says that there is none, where the first lay among these (Kafka 4.1.2). Then it is
        the first that is left.
        """
        since = _milliseconds(moment)
        found = dict(self._offsets(ends, OffsetSpec.for_timestamp(since), isolation))
        first = self.earliest(at for at, offset in found.items() if offset < 0)
        deleted = [at for at, offset in first.items() if 0 < offset < ends[at]]
        newest = self._asked(deleted, OffsetSpec.max_timestamp(), IsolationLevel.READ_UNCOMMITTED)
        for at, answer in newest.items():
            if self._answer(answer, right=_right_to_describe(at.topic)).timestamp >= since:
                found[at] = first[at]
        return found

    def _asked(
        self, partitions: Iterable[TopicPartition], spec: OffsetSpec, isolation: IsolationLevel
    ) -> dict[TopicPartition, Future[Any]]:
        wanted = {ClientTopicPartition(at.topic, at.partition): spec for at in partitions}
        if not wanted:
            return {}
        asked = self._admin.list_offsets(
            wanted, isolation_level=isolation, request_timeout=self._timeout
        )
        return {TopicPartition(at.topic, at.partition): answer for at, answer in asked.items()}

    def _answer(self, asked: Future[Any], *, of: str = "", right: str = "") -> Any:
        try:
            # The client's own time-out comes first: it names what it waited for.
            return asked.result(self._timeout + 1)
        except (KafkaException, TimeoutError) as error:
            # The client reports errors of its connections only when it is polled.
            self._admin.poll(0)
            raise unreachable(self._settings, error, self._heard, of=of, right=right) from error


class RecordReader:
    """One consumer of committed records, moved from range to range."""

    def __init__(self, settings: Settings, options: Mapping[str, Any] | None = None) -> None:
        self._settings = settings
        self._heard = ClientErrors()
        self.consumer = Consumer(
            {
                **client_options(settings, self._heard),
                "group.id": "oncelake-proof",
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "enable.partition.eof": True,
                "isolation.level": "read_committed",
                "fetch.wait.max.ms": 10,
                **(options or {}),
            }
        )

    def records_of(self, at: TopicPartition, ranges: Iterable[Range]) -> Iterator[Message]:
        """Yield the records inside the ranges of one partition; ``ranges`` must be sorted."""
        position = -_SEEK_BEYOND - 1
        for each in ranges:
            if each.start - position > _SEEK_BEYOND:
                self.consumer.assign([ClientTopicPartition(at.topic, at.partition, each.start)])
                position = each.start
            while position < each.end:
                message = self.poll()
                offset, is_record = cast("int", message.offset()), message.error() is None
                if is_record and each.start <= offset < each.end:
                    yield message
                # A new leader tells of an end before the range's, until it knows of the rest.
                position = offset + 1 if is_record else offset

    def first_messages(
        self, places: Sequence[ClientTopicPartition], *, answer: int
    ) -> dict[TopicPartition, Message]:
        """Return the first record at or after each place, or the error that stands for it."""
        left = {TopicPartition(place.topic, place.partition): place for place in places}
        self.consumer.assign(list(places))
        answers: dict[TopicPartition, Message] = {}
        while left:
            message = self.poll(but=answer)
            at = TopicPartition(str(message.topic()), cast("int", message.partition()))
            if at in left:
                self.consumer.incremental_unassign([left.pop(at)])
                answers[at] = message
        return answers

    def poll(self, *, but: int = KafkaError._PARTITION_EOF) -> Message:
        """Return the next record, or the message that a partition has no more.

        Raises:
            DependencyError: an error, but the one that the caller expects of a place.
        """
        message: Message | None = self.consumer.poll(self._settings.kafka_timeout_seconds)
        if message is None:
            left = ", ".join(f"{at.topic}-{at.partition}" for at in self.consumer.assignment())
            raise unreachable(self._settings, f"it sent no record of {left}", self._heard)
        if is_about_group(message):
            return self.poll(but=but)
        return self._sound(message, but=but)

    def poll_many(self, at_most: int) -> list[Message]:
        """Return the next record, or end of a partition, and what else is here already.

        Raises:
            DependencyError: an error.
        """
        # With a time-out it would wait until there are so many.
        messages = [self.poll(), *self.consumer.consume(at_most, 0)]
        return [self._sound(each) for each in messages if not is_about_group(each)]

    def _sound(self, message: Message, *, but: int = KafkaError._PARTITION_EOF) -> Message:
        error = message.error()
        if error is not None and error.code() not in (KafkaError._PARTITION_EOF, but):
            right = f"READ on topic {message.topic()!r}"
            raise unreachable(self._settings, KafkaException(error), self._heard, right=right)
        return message


def _is_unknown(answer: Any) -> bool:
    """Tell whether an answer has neither an offset nor an error, as while a leader moves."""
    return bool(answer.offset == OFFSET_INVALID)


def _right_to_describe(topic: str) -> str:
    return f"DESCRIBE on topic {topic!r}"


def _milliseconds(moment: dt.datetime) -> int:
    """Return the Kafka timestamp of a moment, rounded up so that earlier records are excluded."""
    return -((_EPOCH - moment) // dt.timedelta(milliseconds=1))
