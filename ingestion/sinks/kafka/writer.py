"""Where a stream's topic is, and the one producer that may write to it: a transaction a batch.

Whoever writes takes over the topic's transactional id: Kafka then ends what another has left open,
and takes nothing more from it. What is the last note then stays the last until this commits.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from oncelake.ingestion.errors import (
    CommitConflictError,
    DependencyError,
    IngestionError,
    RefusedError,
)
from oncelake.ingestion.kafka.admin import Kafka
from oncelake.ingestion.kafka.client import (
    ClientErrors,
    client_options,
    code_of,
    missing_right,
    unreachable,
)
from oncelake.ingestion.kafka.offsets import TopicPartition
from oncelake.ingestion.settings import Settings
from oncelake.ingestion.tables.commit_log import UnknownOutcomeError

# As confluent-kafka's ``produce_batch`` takes it.
Record = dict[str, str | bytes | None]

# Above what brokers take by default; the topic's own `max.message.bytes` decides.
_LARGEST_RECORD_BYTES: Final = 64 * 1024 * 1024
# Of one transaction, which is open only while a batch is sent.
_TRANSACTION_MS: Final = 300_000
_PRODUCER: Final[dict[str, Any]] = {
    "enable.idempotence": True,
    "acks": "all",
    "compression.type": "lz4",
    "linger.ms": 50,
    "batch.size": 1_000_000,
    "message.max.bytes": _LARGEST_RECORD_BYTES,
    "queue.buffering.max.messages": 200_000,
    "queue.buffering.max.kbytes": 256 * 1024,
    # As Java's clients choose a partition, so that others can join by key.
    "partitioner": "murmur2_random",
    # A call for each record would take as long as sending it.
    "delivery.report.only.error": True,
}
_FENCED: Final = (
    *(KafkaError._FENCED, KafkaError.INVALID_PRODUCER_EPOCH),
    *(KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_ID_MAPPING),
)
# The error of records whose transaction has no right to the topic.
_PURGED: Final = (KafkaError._PURGE_QUEUE, KafkaError.TOPIC_AUTHORIZATION_FAILED)
_ABORT_SECONDS: Final = 5.0
_LOOK_AGAIN_SECONDS: Final = 0.005


@dataclass(kw_only=True)
class TopicPlace:
    """Where a topic is, and how its cluster is spoken to.

    Attributes:
        settings: With the sink's cluster in the place of the source's.
        topic_id: Of the topic that a log has read last.
        unsettled_id: Id of the topic for which a commit got no answer, with no log read since.
    """

    stream: str
    topic: str
    settings: Settings
    topic_id: str | None = None
    unsettled_id: str | None = None

    @property
    def where(self) -> str:
        """Name the topic, and the brokers."""
        return (
            f"topic {self.topic} (Kafka at {self.settings.kafka.address or 'the embedded broker'})"
        )

    @property
    def notes(self) -> TopicPartition:
        """Where its notes are."""
        return TopicPartition(f"{self.topic}.oncelake", 0)

    @property
    def topics(self) -> tuple[str, str]:
        """The topic, and that of its notes."""
        return self.topic, self.notes.topic

    @cached_property
    def kafka(self) -> Kafka:
        """A client of the cluster."""
        return Kafka(self.settings)

    def wait_for_stable(self, ends: Mapping[TopicPartition, int]) -> None:
        """Wait until all can be read that lies before ``ends``.

        A broker answers a commit shortly before it shows it.

        Raises:
            DependencyError: somebody's open transaction withholds it.
        """
        deadline = time.monotonic() + self.settings.kafka_timeout_seconds
        while True:
            stable = self.kafka.stable_end(ends)
            late = next((at for at, end in ends.items() if stable[at] < end), None)
            if late is None:
                return
            if time.monotonic() > deadline:
                raise DependencyError(
                    f"{self.where}: {late} cannot be read beyond offset {stable[late]}, "
                    f"where a transaction is open, and was to be read up to {ends[late]}. "
                    "Next: let its producer end it, or wait until it times out"
                )
            time.sleep(_LOOK_AGAIN_SECONDS)


class TopicWriter:
    """A producer that alone writes to a topic from now on, until another takes over.

    What another has left open is committed or aborted by then, and nothing more is taken from it.
    """

    def __init__(self, place: TopicPlace, topic_id: str) -> None:
        self._place, self._topic_id = place, topic_id
        self._timeout = place.settings.kafka_timeout_seconds
        self._heard, self._failures = ClientErrors(), list[KafkaError]()
        try:
            self._producer = self._initialized(_TRANSACTION_MS)
        except DependencyError as error:
            if code_of(error.__cause__) != KafkaError.INVALID_TRANSACTION_TIMEOUT:
                raise
            self._producer = self._initialized(place.kafka.longest_transaction_ms(place.topic))

    def _initialized(self, transaction_ms: int) -> Producer:
        place = self._place
        producer = Producer(
            {
                **client_options(place.settings, self._heard),
                **_PRODUCER,
                # Of the topic and not the stream: of two streams one fences the other.
                "transactional.id": f"oncelake-{place.topic}-{self._topic_id}",
                "transaction.timeout.ms": transaction_ms,
            }
        )
        try:
            producer.init_transactions(self._timeout)
        except KafkaException as error:
            of = "to take over its transactional id"
            right = "WRITE on transactional ids that begin with 'oncelake-'"
            raise unreachable(place.settings, error, self._heard, of=of, right=right) from error
        return producer

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Commit what is sent within the block, or abort it.

        Raises:
            CommitConflictError: another has taken over, or the transaction took too long.
            RefusedError: the broker does not take a record.
            DependencyError: it does not answer. Nothing is visible then, either.
            UnknownOutcomeError: it does not answer to the commit.
        """
        place = self._place
        try:
            self._producer.begin_transaction()
            yield
            self.flush()
            end = place.kafka.written_end([place.notes])
            self._commit()
        except UnknownOutcomeError:
            raise
        except BaseException as error:
            # Whoever takes over would do so, too; until then readers would wait for it.
            with suppress(KafkaException, SystemError):
                self._producer.abort_transaction(_ABORT_SECONDS)
            if isinstance(error, KafkaException | SystemError):
                raise self._translated(error) from error
            raise
        try:
            place.wait_for_stable(end)
        except DependencyError as error:
            raise self._unknown(error) from error

    def send(self, topic: str, records: list[Record]) -> None:
        """Hand records to the client, as far as its queue has room, until it has all."""
        producer = self._producer
        while producer.produce_batch(topic, records, on_delivery=self._fail) < len(records):
            records = [record for record in records if "_error" in record]
            for record in records:
                refused: Any = record.pop("_error")
                if refused.code() != KafkaError._QUEUE_FULL:
                    raise KafkaException(refused)
            if not producer.poll(self._timeout):
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
            self._raise_failures()
        producer.poll(0)
        self._raise_failures()

    def flush(self) -> None:
        """Wait until the broker has answered for every record, as long as it answers at all."""
        left = len(self._producer)
        while waiting := self._producer.flush(self._timeout):
            if waiting >= left:
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
            left = waiting
        self._raise_failures()

    def _fail(self, error: KafkaError | None, _: Message) -> None:
        if error is not None:
            self._failures.append(error)

    def _raise_failures(self) -> None:
        """Raise the failure that says most: others only follow from it."""
        failures = [*(each for each in self._heard if each.fatal()), *self._failures]
        if failures:
            raise KafkaException(max(failures, key=lambda each: (_is_fenced(each), each.code())))

    def _commit(self) -> None:
        """Commit; without an answer ask again, and never abort.

        Whoever fences this has settled it: ``unless_committed`` looks which way.
        """
        deadline = time.monotonic() + self._timeout
        while True:
            try:
                return self._producer.commit_transaction(max(1, deadline - time.monotonic()))
            except KafkaException as error:
                cause: KafkaError = error.args[0]
                if cause.txn_requires_abort() or _is_fenced(cause):
                    raise
                if not cause.retriable() or time.monotonic() > deadline:
                    raise self._unknown(cause.str()) from error

    def _unknown(self, reason: object) -> UnknownOutcomeError:
        self._place.unsettled_id = self._topic_id
        return UnknownOutcomeError.of(self._place.where, reason)

    def _translated(self, error: KafkaException | SystemError) -> IngestionError:
        place = self._place
        # A fatal error that the client reports by a callback ends as a SystemError.
        cause = None if isinstance(error, SystemError) else error.args[0]
        if cause is None or _is_fenced(cause):
            return CommitConflictError(
                place.stream,
                f"{place.where} is written to by another run, or the batch took longer than its "
                "transaction may. Nothing of it was committed.",
                remedy=f"oncelake status {place.stream}, then run again from the table's offsets, "
                "by a smaller `max_offsets_per_trigger` if no other run is there",
            )
        if cause.code() in _PURGED and (topics := place.kafka.unwritable(place.topics)):
            named = " and ".join(map(repr, topics))
            return missing_right(place.settings, f"WRITE on topic {named}")
        if cause.code() < 0 or cause.retriable():
            return unreachable(place.settings, error, self._heard)
        return RefusedError(
            place.stream,
            f"{place.where} does not take a record of the batch: {cause.str()}. Nothing was "
            "committed.",
            remedy="let the topic take it (such as by its max.message.bytes), or change the "
            "declaration; then run again",
        )


def _is_fenced(error: KafkaError) -> bool:
    return bool(error.fatal()) or error.code() in _FENCED
