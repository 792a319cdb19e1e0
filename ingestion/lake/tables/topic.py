"""The topic that keeps a stream's rows: each batch is one Kafka transaction, rows and note.

The notes are records of a topic of their own, ``<topic>.oncelake``, in one partition: a reader of
committed records sees both, or neither. ``create`` puts the columns there, too::

    <topic id>/<seq>       a commit: its note, how many rows it wrote, and where each partition ends
    <topic id>/columns     the columns and keys, anew with every change of them

Whoever begins a commit takes over the topic's transactional id: Kafka then ends what another has
left open, and takes nothing more from it. Only after that the last note is read, so it stays the
last until this commits. What a batch wrote is known by the broker's acknowledgement of each record.

How a row is written: see ``ingestion.lake.tables.topic_rows``. The user needs the rights to create,
describe, read and write both topics, to describe their configuration, and to use transactional ids
that begin with ``oncelake-``.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar, Final

import pyarrow as pa
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer
from confluent_kafka import TopicPartition as ClientTopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic

from ingestion.declaration.ddl import DeclaredColumn, parse_type
from ingestion.declaration.sinks import KafkaSink
from ingestion.errors import (
    CommitConflictError,
    DamagedTableError,
    DependencyError,
    ForeignTableError,
    InvalidSpecError,
    RefusedError,
    TableSettingsError,
)
from ingestion.kafka.admin import Kafka, Topics
from ingestion.kafka.client import ClientErrors, client_options, code_of, unreachable
from ingestion.kafka.offsets import Offsets, Range, TopicPartition
from ingestion.lake.commit_log import (
    DELETED,
    INSERTED,
    UPDATED,
    Commit,
    CommitLog,
    UnknownOutcomeError,
)
from ingestion.lake.commit_metadata import CommitMetadata, DamagedMetadataError, app_id
from ingestion.lake.data_table import Ability, Change, DataTable, Transaction
from ingestion.lake.location import Location
from ingestion.lake.processes import scratch_of_this_process
from ingestion.lake.tables.topic_rows import (
    NewestPerKey,
    Record,
    UndecodableError,
    decode,
    records,
    unwritable,
)
from ingestion.settings import Settings

_AGAIN: Final = "run the same command again"
_COLUMNS: Final = "columns"
# Of the notes' topic: a note of a megabyte fits, which the default does not allow.
_LARGEST_NOTE_BYTES: Final = 4 * 1024 * 1024
# Above what brokers take by default; the topic's own `max.message.bytes` decides.
_LARGEST_RECORD_BYTES: Final = 64 * 1024 * 1024
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
}
_CONSUMER: Final[dict[str, Any]] = {
    "group.id": "oncelake-sink",
    "enable.auto.commit": False,
    "auto.offset.reset": "earliest",
    "enable.partition.eof": True,
    "isolation.level": "read_committed",
}
_FENCED: Final = (
    *(KafkaError._FENCED, KafkaError.INVALID_PRODUCER_EPOCH),
    *(KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_ID_MAPPING),
)
# An offset is a note's or a marker's; the first look shows some 25 notes.
_OFFSETS_READ_FIRST: Final = 50
_MESSAGES_AT_ONCE: Final = 500
_BYTES_READ_AT_ONCE: Final = 8 * 1024 * 1024
_LOOK_AGAIN_SECONDS: Final = 0.005
_KEPT: Final = "a topic keeps what was written to it"


def open_table(stream: str, sink: KafkaSink, settings: Settings, lake: Location) -> TopicTable:
    """Open a stream's topic; it need not be there."""
    del lake
    topic = sink.topic or f"oncelake.{stream}"
    return TopicTable(_Place(stream=stream, topic=topic, settings=settings.of_sink_cluster()))


@dataclass(frozen=True, kw_only=True, slots=True)
class _Schema:
    """What a topic's rows are made of.

    Attributes:
        keys: The columns of a record's key; without any, records have none.
        partitions: How many the topic had; with another number a key's records would be in two.
    """

    columns: tuple[DeclaredColumn, ...]
    keys: tuple[str, ...]
    partitions: int

    @classmethod
    def of_row(cls, row: Mapping[str, Any]) -> _Schema:
        """Read what ``as_row`` wrote."""
        columns = (each | {"type": parse_type(each["type"])} for each in row["columns"])
        return cls(
            columns=tuple(DeclaredColumn(**each) for each in columns),
            keys=tuple(row["keys"]),
            partitions=row["partitions"],
        )

    def as_row(self) -> dict[str, Any]:
        """Return the fields as JSON holds them."""
        columns = [
            {
                "name": each.name,
                "type": str(each.type),
                "nullable": each.nullable,
                "comment": each.comment,
            }
            for each in self.columns
        ]
        return {"columns": columns, "keys": [*self.keys], "partitions": self.partitions}


@dataclass(frozen=True, kw_only=True, slots=True)
class _Note:
    """A commit, as its record says.

    Attributes:
        note: The text of its metadata.
        counts: How many rows it inserted, updated and deleted.
        ranges: Start and end, in each partition, of what it wrote; end exclusive.
        written: How many rows all commits so far wrote, this one included.
        schema: What its rows are made of.
    """

    seq: int
    stream: str
    note: str
    counts: Mapping[str, int]
    ranges: Mapping[str, tuple[int, int]]
    timestamp_ms: int
    written: int
    schema: _Schema

    @classmethod
    def from_json(cls, text: bytes) -> _Note:
        """Read what ``to_json`` wrote."""
        row = json.loads(text)
        return cls(**row | {"schema": _Schema.of_row(row["schema"])})

    def to_json(self) -> str:
        """Write it as the record's value."""
        return json.dumps(asdict(self) | {"schema": self.schema.as_row()})

    def ends(self, topic: str) -> Offsets:
        """Return where each partition of the topic ended."""
        return Offsets(
            {TopicPartition(topic, int(number)): end for number, (_, end) in self.ranges.items()}
        )


@dataclass(kw_only=True)
class _Place:
    """Where a topic is, and how its cluster is spoken to.

    Attributes:
        settings: With the sink's cluster in the place of the source's.
        unsettled_id: Id of the topic for which a commit got no answer, with no log read since.
        behind_ours: By the topic's id, the notes' offset behind the last record of our own.
    """

    stream: str
    topic: str
    settings: Settings
    unsettled_id: str | None = None
    behind_ours: dict[str, int] = field(default_factory=dict)

    @property
    def where(self) -> str:
        return f"topic {self.topic} (Kafka at {self.settings.kafka or 'the embedded broker'})"

    @property
    def notes(self) -> TopicPartition:
        return TopicPartition(f"{self.topic}.oncelake", 0)

    @property
    def timeout(self) -> float:
        return self.settings.kafka_timeout_seconds

    @cached_property
    def kafka(self) -> Kafka:
        return Kafka(self.settings)

    def topics(self) -> Topics:
        """Return what is there of the topic and its notes'."""
        return self.kafka.known_topics([self.topic, self.notes.topic])

    def partitions(self, topics: Topics) -> tuple[TopicPartition, ...]:
        """Return the partitions of the rows' topic."""
        return tuple(at for at in topics.partitions if at.topic == self.topic)

    def wait_for_stable(self, ends: Mapping[TopicPartition, int]) -> Offsets:
        """Return the last stable offsets, once all is readable that lies before ``ends``.

        A broker answers a commit shortly before it shows it.

        Raises:
            DependencyError: somebody's open transaction withholds it.
        """
        deadline = time.monotonic() + self.timeout
        while True:
            stable = self.kafka.stable_end(ends)
            late = [at for at, end in ends.items() if stable[at] < end]
            if not late:
                return stable
            if time.monotonic() > deadline:
                raise DependencyError(
                    f"{self.where}: {late[0]} cannot be read beyond offset {stable[late[0]]}, "
                    f"where a transaction is open, and was to be read up to {ends[late[0]]}. "
                    "Next: let its producer end it, or wait until it times out"
                )
            time.sleep(_LOOK_AGAIN_SECONDS)

    def new_producer(self, topic_id: str) -> tuple[Producer, ClientErrors]:
        """Return a producer that alone writes to the topic from now on, and what it hears.

        What another has left open is committed or aborted by then, and nothing more is taken from
        it.
        """
        try:
            return self._initialized(topic_id, _TRANSACTION_MS)
        except DependencyError as error:
            if code_of(error.__cause__) != KafkaError.INVALID_TRANSACTION_TIMEOUT:
                raise
        return self._initialized(topic_id, self._longest_transaction_ms())

    def _initialized(self, topic_id: str, timeout_ms: int) -> tuple[Producer, ClientErrors]:
        heard = ClientErrors()
        options = {
            **client_options(self.settings, heard),
            **_PRODUCER,
            # Of the topic and not the stream: of two streams one fences the other.
            "transactional.id": f"oncelake-{self.topic}-{topic_id}",
            "transaction.timeout.ms": timeout_ms,
        }
        producer = Producer(options)
        try:
            producer.init_transactions(self.timeout)
        except KafkaException as error:
            of = "to take over its transactional id"
            raise unreachable(self.settings, error, heard, of=of) from error
        return producer, heard

    def _longest_transaction_ms(self) -> int:
        with self.admin() as admin:
            broker = str(next(iter(admin.list_topics(timeout=self.timeout).brokers)))
            resource = ConfigResource(ConfigResource.Type.BROKER, broker)
            asked = admin.describe_configs([resource], request_timeout=self.timeout)
            return int(asked[resource].result()["transaction.max.timeout.ms"].value)

    @contextmanager
    def admin(self, *, of: str = "") -> Iterator[AdminClient]:
        """Make a client for what ``Kafka`` has no request for, and translate its errors."""
        heard = ClientErrors()
        try:
            yield AdminClient(client_options(self.settings, heard))
        except KafkaException as error:
            raise unreachable(self.settings, error, heard, of=of) from error

    def settle(self) -> None:
        """After a commit without an answer, make the broker decide it."""
        if self.unsettled_id is not None:
            self.new_producer(self.unsettled_id)
            self.unsettled_id = None


class TopicTable(DataTable):
    """A stream's topic; see ``DataTable``."""

    cannot: ClassVar[Mapping[Ability, str]] = {
        "rewind": _KEPT,
        "replay": f"{_KEPT}, so records that are read again would come after newer ones",
        "redrive": f"{_KEPT}, so a record from quarantine would come after newer ones",
        "rebuild": _KEPT,
        "erase": f"{_KEPT}, until compaction or retention removes it",
        "see foreign changes": "Kafka does not tell which producer has written a record",
        "look up": "a log finds no row by its key",
    }

    def __init__(self, place: _Place) -> None:
        self._place, self.stream = place, place.stream

    @property
    def where(self) -> str:
        """Name the topic, and the brokers."""
        return self._place.where

    @property
    def uri(self) -> str:
        """Name the topic and the brokers, as a URI."""
        return f"kafka://{self._place.settings.bootstrap_servers()}/{self._place.topic}"

    def log(self) -> TopicLog:
        """Open the log; after a commit without an answer, it makes the broker decide it."""
        return TopicLog(self._place)

    def create(
        self, columns: Sequence[DeclaredColumn], *, keys: Sequence[str], description: str
    ) -> None:
        """Make the topic and its notes', or take an empty topic that somebody made beforehand.

        With keys it is compacted; without any, records have no key.

        Raises:
            InvalidSpecError: a column has a type that JSON cannot hold.
            ForeignTableError: it has records, and no note.
            TableSettingsError: what is there cannot keep the rows, or their notes.
        """
        del description
        self._refuse_unwritable(*columns)
        place, log = self._place, self.log()
        if log.exists and not (log.has_schema or log.is_empty):
            raise ForeignTableError(
                self.stream,
                f"{self.where} has records, and no commit of this stream is in its notes.",
                remedy="write to another topic, by `sink: {kafka: {topic: …}}`",
            )
        self._make(place.topic, partitions=-1, config=_COMPACTED if keys else {})
        notes = {**_COMPACTED, "max.message.bytes": str(_LARGEST_NOTE_BYTES)}
        self._make(place.notes.topic, partitions=1, config=notes)
        self._wait_for_both()
        log = self.log()
        if not log.has_schema:
            schema = _Schema(
                columns=tuple(map(self._stored, columns)),
                keys=tuple(keys),
                partitions=len(log.partitions),
            )
            self._write(log.topic_id, schema)
        if (problem := self.settings_error()) is not None:
            raise problem

    def _refuse_unwritable(self, *columns: DeclaredColumn) -> None:
        for column in columns:
            if problem := unwritable(column):
                raise InvalidSpecError(
                    f"{self.stream}: column {column.name} cannot be written to a topic: {problem}. "
                    "Next: declare another type"
                )

    def _stored(self, column: DeclaredColumn) -> DeclaredColumn:
        return replace(column, type=self.stored_type(column.type))

    def _make(self, name: str, *, partitions: int, config: Mapping[str, str]) -> None:
        with self._place.admin(of=f"to make topic {name!r}") as admin:
            topic = NewTopic(name, partitions, -1, config=dict(config))
            asked = admin.create_topics([topic], request_timeout=self._place.timeout)
            try:
                asked[name].result()
            except KafkaException as error:
                if code_of(error) != KafkaError.TOPIC_ALREADY_EXISTS:
                    raise

    def _wait_for_both(self) -> None:
        """Wait until the broker that answers has heard of topics that were just made."""
        deadline = time.monotonic() + self._place.timeout
        while len(self._place.topics().ids) < 2:
            if time.monotonic() > deadline:
                raise DependencyError(
                    f"{self.where} and its notes were made, and the broker does not show them. "
                    f"Next: {_AGAIN}"
                )
            time.sleep(_LOOK_AGAIN_SECONDS)

    def _write(self, topic_id: str, schema: _Schema) -> None:
        """Write the columns among the notes, by a producer without transactions."""
        place, heard, delivery = self._place, ClientErrors(), _Delivery()
        producer = Producer({**client_options(place.settings, heard), **_PRODUCER})
        producer.produce(
            place.notes.topic,
            json.dumps(schema.as_row()),
            f"{topic_id}/{_COLUMNS}",
            place.notes.partition,
            on_delivery=delivery.last,
        )
        producer.flush(place.timeout)
        if delivery.offset is None:
            cause = delivery.errors[0] if delivery.errors else "the columns were not acknowledged"
            raise unreachable(place.settings, cause, heard, of=f"topic {place.notes.topic!r}")
        place.behind_ours[topic_id] = delivery.offset + 1

    def columns(self) -> tuple[DeclaredColumn, ...]:
        """Return the columns that ``create`` and ``alter`` have noted."""
        log = self.log()
        return log.schema.columns if log.has_schema else ()

    def alteration(self, column: DeclaredColumn, *, is_new: bool) -> str:
        """Say what the records will have."""
        what = f"have {column.name} {column.type}" if is_new else f"may have null as {column.name}"
        return f"records of topic {self._place.topic} {what} from now on"

    def alter(self, column: DeclaredColumn, *, is_new: bool, spark: Any) -> None:
        """Note the column; records that are there stay as they are."""
        del spark
        self._refuse_unwritable(column)
        log = self.log()
        by_name = {each.name: each for each in log.schema.columns}
        if is_new:
            by_name.setdefault(column.name, replace(self._stored(column), nullable=True))
        else:
            by_name[column.name] = replace(by_name[column.name], nullable=True)
        self._write(log.topic_id, replace(log.schema, columns=tuple(by_name.values())))

    def begin(self, seq: int) -> TopicTransaction:
        """Take over the topic's transactional id, and then compare its last note."""
        return TopicTransaction(self._place, seq)

    def scan(self, names: Sequence[str], version: int | None = None) -> Iterator[pa.RecordBatch]:
        """Read the topic up to where a commit left it; with keys, each key's newest record.

        What compaction or retention has removed since is not there, whatever the version.

        Raises:
            DamagedTableError: a record is no row.
        """
        log = self.log()
        note = log.newest if version is None else log.note(version)
        if note is None:
            return
        by_name = {column.name: column for column in note.schema.columns}
        columns = [by_name[name] for name in names]
        for at, start, end in _spans(self._place, note):
            reader = _Reader(self._place, at, start=start, end=end)
            chunks = reader.newest_per_key() if note.schema.keys else reader.live()
            for values, offsets in chunks:
                yield from self._decoded(at, values, offsets, columns).to_batches()

    def _decoded(
        self,
        at: TopicPartition,
        values: pa.Array,
        offsets: pa.Array,
        columns: Sequence[DeclaredColumn],
    ) -> pa.Table:
        try:
            return decode(values, columns)
        except UndecodableError as error:
            raise DamagedTableError(
                self.stream,
                f"{self.where} is damaged: the record at offset {offsets[error.index]} of {at} is "
                "no row of this stream.",
                remedy="find out who else writes to the topic; if nobody may, oncelake reset "
                f"{self.stream} --yes writes it anew, once the topic is deleted",
            ) from error

    def rows_of_seq(self, seq: int, *, commit: Commit) -> int:
        """Return how many rows' records the broker acknowledged, as the commit has noted."""
        del seq
        return commit.metrics[INSERTED] + commit.metrics[UPDATED]

    def notes(self, through: int) -> Iterator[tuple[int, int | None, str | None]]:
        """Read the notes from the first on."""
        log = self.log()
        if log.newest is None:
            return
        for note in log.oldest_first():
            if note.seq <= through:
                yield note.seq, note.seq, note.note

    def settings_error(self) -> TableSettingsError | None:
        """Look for settings by which notes or rows would be refused, or go."""
        log = self.log()
        if not log.has_schema:
            return None
        place, schema = self._place, log.schema
        rows, notes = place.topic, place.notes.topic
        configs = place.kafka.topic_configs([rows, notes])
        policy = {name: config["cleanup.policy"] for name, config in configs.items()}
        alter = "kafka-configs.sh --alter --entity-type topics --entity-name {} --add-config {}"
        problem = ""
        if policy[notes] != "compact":
            problem = f"{notes} has cleanup.policy {policy[notes]}, so that notes may be deleted"
            remedy = alter.format(notes, "cleanup.policy=compact")
        elif len(log.partitions_of_notes) != 1:
            problem = f"{notes} has {len(log.partitions_of_notes)} partitions, and needs one"
            remedy = "delete that topic, and run again"
        elif not schema.keys and "compact" in policy[rows]:
            problem = f"{rows} has cleanup.policy {policy[rows]}, and records without a key"
            remedy = alter.format(rows, "cleanup.policy=delete")
        elif schema.keys and len(log.partitions) != schema.partitions:
            problem = (
                f"{rows} has {len(log.partitions)} partitions and had {schema.partitions}, so that "
                "newer records of a key would be in another"
            )
            remedy = "write to another topic, by `sink: {kafka: {topic: …}}`"
        return (
            TableSettingsError(self.stream, f"topic {problem}.", remedy=remedy) if problem else None
        )


_COMPACTED: Final = {"cleanup.policy": "compact"}


class _Delivery:
    """What the broker acknowledges, and what it refuses."""

    def __init__(self) -> None:
        self.acknowledged = 0
        self.errors: list[KafkaError] = []
        self.offset: int | None = None

    def each(self, error: KafkaError | None, _: Message) -> None:
        """Count a record."""
        if error is None:
            self.acknowledged += 1
        else:
            self.errors.append(error)

    def last(self, error: KafkaError | None, message: Message) -> None:
        """Take the offset of a single record."""
        if error is None:
            self.offset = message.offset()
        else:
            self.errors.append(error)


class TopicTransaction(Transaction):
    """One transaction of Kafka, by a producer that has fenced every other."""

    def __init__(self, place: _Place, seq: int) -> None:
        """Fence, and then compare the last note's seq.

        Raises:
            CommitConflictError: the topic does not stand there.
        """
        self._place, self._seq = place, seq
        self._topic_id = TopicLog(place).topic_id
        self._producer: Producer | None
        self._producer, self._heard = place.new_producer(self._topic_id)
        self._delivery = _Delivery()
        log = TopicLog(place)
        last = log.last_seq(place.stream)
        is_another = log.topic_id != self._topic_id or (log.newest is not None and last is None)
        if is_another or not log.has_schema or seq != (-1 if last is None else last) + 1:
            self.close()
            holds = "no commit of this stream" if last is None else f"seq {last} as its last"
            raise self._conflict(
                f"holds {holds}, so that seq {seq} is another writer's, or another topic's"
            )
        self._last, self._schema = log.newest, log.schema
        self._starts = place.kafka.written_end(log.partitions)

    def rows_of(self, keys: pa.Table) -> pa.Table:
        """Raise: nobody asks a log for rows by their keys."""
        raise NotImplementedError(f"{self._place.where} is a log, and finds no row by its key")

    def commit(self, change: Change | None, metadata: CommitMetadata) -> None:
        """Write rows and note, make sure of each, and commit; then the producer is given up."""
        if metadata.seq != self._seq:
            raise ValueError(f"seq {self._seq} was begun, and not {metadata.seq}")
        with closing(self), self._translated():
            producer = self._open
            producer.begin_transaction()
            counts, ends = dict.fromkeys((INSERTED, UPDATED, DELETED), 0), self._starts
            if change is not None:
                self._send(change)
                counts, ends = dict(change.counts), self._place.kafka.written_end(self._starts)
            self._send_note(self._note(metadata, counts, ends))
            self._finish(metadata)
            self._place.behind_ours[self._topic_id] = (self._delivery.offset or 0) + 1

    def close(self) -> None:
        """Give up the producer; what it has left open is aborted by its successor, or in time."""
        self._producer = None

    @property
    def _open(self) -> Producer:
        if self._producer is None:
            raise ValueError("a transaction that is closed cannot commit")
        return self._producer

    def _send(self, change: Change) -> None:
        columns, keys = self._schema.columns, self._schema.keys
        if change.deleted.num_rows and not keys:
            raise ValueError("a topic without keys takes no deletes")
        for rows, are_gone in (
            *((change.inserted, False), (change.updated, False)),
            (change.deleted, True),
        ):
            if rows.num_rows:
                for some in records(rows, columns, keys, are_gone=are_gone):
                    self._queue(some)
        self._flush()
        expected = sum(change.counts.values())
        if self._delivery.acknowledged != expected:
            raise DependencyError(
                f"{self._place.where}: the broker has acknowledged {self._delivery.acknowledged} "
                f"of {expected} records. Nothing was committed. Next: {_AGAIN}"
            )

    def _queue(self, some: list[Record]) -> None:
        """Hand records to the client, as far as its queue has room, until it has all."""
        producer, topic = self._open, self._place.topic
        while producer.produce_batch(topic, some, on_delivery=self._delivery.each) < len(some):
            self._raise_failures()
            some = [record for record in some if "_error" in record]
            for record in some:
                refused: Any = record.pop("_error")
                if refused.code() != KafkaError._QUEUE_FULL:
                    raise KafkaException(refused)
            if not producer.poll(self._place.timeout):
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
        producer.poll(0)
        self._raise_failures()

    def _flush(self) -> None:
        """Wait until the broker has answered for every record, as long as it answers at all."""
        producer = self._open
        left = len(producer)
        while waiting := producer.flush(self._place.timeout):
            if waiting >= left:
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
            left = waiting
        self._raise_failures()

    def _raise_failures(self) -> None:
        """Raise the failure that says most: others only follow from it."""
        failures = [*(each for each in self._heard if each.fatal()), *self._delivery.errors]
        if failures:
            raise KafkaException(max(failures, key=lambda each: (_is_fenced(each), each.code())))

    def _note(
        self,
        metadata: CommitMetadata,
        counts: Mapping[str, int],
        ends: Mapping[TopicPartition, int],
    ) -> _Note:
        before = self._last.written if self._last else 0
        return _Note(
            seq=self._seq,
            stream=self._place.stream,
            note=metadata.to_json(),
            counts=counts,
            ranges={str(at.partition): (start, ends[at]) for at, start in self._starts.items()},
            timestamp_ms=time.time_ns() // 1_000_000,
            written=before + counts[INSERTED] + counts[UPDATED],
            schema=self._schema,
        )

    def _send_note(self, note: _Note) -> None:
        self._open.produce(
            self._place.notes.topic,
            note.to_json(),
            f"{self._topic_id}/{self._seq}",
            self._place.notes.partition,
            on_delivery=self._delivery.last,
        )
        self._flush()

    def _finish(self, metadata: CommitMetadata) -> None:
        """Commit; without an answer, ask again, for as long as any answer is waited for.

        Raises:
            UnknownOutcomeError: none came.
        """
        place, deadline = self._place, time.monotonic() + self._place.timeout
        while True:
            try:
                return self._open.commit_transaction(max(1, deadline - time.monotonic()))
            except KafkaException as error:
                cause: KafkaError = error.args[0]
                if _is_fenced(cause):
                    # Whoever has fenced this has settled it, either way.
                    if self._is_committed(metadata):
                        return None
                    raise
                if cause.txn_requires_abort():
                    raise
                if not cause.retriable() or time.monotonic() > deadline:
                    place.unsettled_id = self._topic_id
                    raise UnknownOutcomeError(
                        f"{place.where}: no answer came to a commit ({cause.str()}). "
                        f"Next: {_AGAIN}, which looks first whether it was made"
                    ) from error

    def _is_committed(self, metadata: CommitMetadata) -> bool:
        commit = TopicLog(self._place).find(self._place.stream, metadata.seq)
        return commit is not None and commit.metadata == metadata

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """Translate what the client raises; nothing of the batch is visible then.

        Raises:
            CommitConflictError: another producer has taken over, or the transaction took too long.
            RefusedError: the broker does not take a record.
            DependencyError: it does not answer.
        """
        try:
            yield
        except (KafkaException, SystemError) as error:
            # A fenced producer that calls back raises so, over the exception it means.
            kafkas = error.__cause__ if isinstance(error, SystemError) else error
            if not isinstance(kafkas, KafkaException):
                raise
            cause: KafkaError = kafkas.args[0]
            if _is_fenced(cause):
                raise self._conflict(
                    "is written to by another run, or the batch took longer than its transaction "
                    "may. Nothing of it was committed"
                ) from error
            if cause.code() < 0 or cause.retriable():
                raise unreachable(self._place.settings, error, self._heard) from error
            # The successor would do so, too; until then readers would wait for it.
            with suppress(KafkaException):
                self._open.abort_transaction(self._place.timeout)
            raise RefusedError(
                self._place.stream,
                f"{self._place.where} does not take a record of the batch: {cause.str()}. Nothing "
                "was committed.",
                remedy="let the topic take it (such as by its max.message.bytes), or change the "
                "declaration; then run again",
            ) from error

    def _conflict(self, problem: str) -> CommitConflictError:
        stream = self._place.stream
        return CommitConflictError(
            stream,
            f"{self._place.where} {problem}.",
            remedy=f"oncelake status {stream}, then run again from the table's offsets",
        )


def _is_fenced(error: KafkaError) -> bool:
    return bool(error.fatal()) or error.code() in _FENCED


class TopicLog(CommitLog):
    """The notes of a topic, as of one moment, read from the newest back as far as asked for."""

    def __init__(self, place: _Place) -> None:
        self._place = place
        self.look_again()

    def look_again(self) -> None:
        """Forget what was read."""
        self._topics: Topics | None = None
        self._by_seq: dict[int, _Note] = {}
        self._schema: tuple[int, _Schema] | None = None
        self._first = self._down_to = self._end = 0
        self._step = _OFFSETS_READ_FIRST

    def _looked(self) -> Topics:
        if self._topics is None:
            place = self._place
            place.settle()
            topics = place.topics()
            topic_id = topics.ids.get(place.topic)
            if topic_id and place.notes in topics.partitions:
                behind_ours = {place.notes: place.behind_ours.get(topic_id, 0)}
                self._down_to = self._end = place.wait_for_stable(behind_ours)[place.notes]
                self._first = place.kafka.earliest([place.notes])[place.notes]
            self._topics = topics
        return self._topics

    @property
    def topic_id(self) -> str:
        """Kafka's own id of the topic."""
        if not self.exists:
            raise FileNotFoundError(f"{self._place.where} is not there")
        return self._looked().ids[self._place.topic]

    @property
    def partitions(self) -> tuple[TopicPartition, ...]:
        """The partitions of the rows' topic."""
        return self._place.partitions(self._looked())

    @property
    def partitions_of_notes(self) -> tuple[TopicPartition, ...]:
        """The partitions of the notes' topic, which should be one."""
        return tuple(set(self._looked().partitions) - set(self.partitions))

    @property
    def exists(self) -> bool:
        """Tell whether the topic is there."""
        return self._place.topic in self._looked().ids

    @property
    def newest(self) -> _Note | None:
        """The newest note, whatever stream's."""
        if not self.exists:
            return None
        while not self._by_seq and self._read_further():
            pass
        return self._by_seq[max(self._by_seq)] if self._by_seq else None

    @property
    def has_schema(self) -> bool:
        """Tell whether the topic is ours: whether its columns were noted."""
        return self.newest is not None or self._schema is not None

    @property
    def schema(self) -> _Schema:
        """What rows are made of now."""
        if not self.has_schema or self._schema is None:
            raise FileNotFoundError(f"{self._place.where} is not there, or is not ours")
        return self._schema[1]

    def note(self, seq: int) -> _Note:
        """Read a note, and those after it."""
        newest = self.newest
        while seq not in self._by_seq and self._read_further():
            pass
        if seq in self._by_seq:
            return self._by_seq[seq]
        if newest is not None and 0 <= seq < newest.seq and not self._first:
            raise self._damaged(f"the note of seq {seq} is gone")
        raise FileNotFoundError(f"{self._place.where} has no note of version {seq}")

    def oldest_first(self) -> Iterator[_Note]:
        """Read all notes."""
        for _, said in self._records(self._first, self._end):
            if isinstance(said, _Note):
                yield said

    def _read_further(self) -> bool:
        """Read the records before those that were read; tell whether there were any offsets."""
        if self._down_to <= self._first:
            return False
        start = max(self._first, self._down_to - self._step)
        for offset, said in self._records(start, self._down_to):
            schema = said.schema if isinstance(said, _Note) else said
            if self._schema is None or offset > self._schema[0]:
                self._schema = offset, schema
            if isinstance(said, _Note):
                self._by_seq[said.seq] = said
        self._down_to, self._step = start, self._step * 2
        return True

    def _records(self, start: int, end: int) -> Iterator[tuple[int, _Note | _Schema]]:
        """Yield offset and content of the records that are about this very topic."""
        place, prefix = self._place, f"{self.topic_id}/".encode()
        topic, partition = place.notes
        span = Range(topic=topic, partition=partition, start=start, end=end)
        for message in place.kafka.messages_in([span]):
            key, value, offset = message.key() or b"", message.value(), message.offset() or 0
            if not key.startswith(prefix) or value is None:
                continue
            try:
                is_schema = key.removeprefix(prefix) == _COLUMNS.encode()
                yield (
                    offset,
                    _Schema.of_row(json.loads(value)) if is_schema else _Note.from_json(value),
                )
            except (ValueError, TypeError, KeyError) as error:
                raise self._damaged(
                    f"the record at offset {offset} of {place.notes} is no note"
                ) from error

    def _damaged(self, problem: str) -> DamagedTableError:
        stream = self._place.stream
        return DamagedTableError(
            stream,
            f"{self._place.where} is damaged: {problem}.",
            remedy=f"delete both topics, and oncelake reset {stream} --yes, to write them anew",
        )

    @property
    def is_empty(self) -> bool:
        """Tell whether no row was ever committed."""
        if not self.exists:
            return True
        if self.newest is not None:
            return not self.newest.written
        kafka = self._place.kafka
        spans = kafka.earliest(self.partitions).ranges_to(kafka.stable_end(self.partitions))
        with closing(kafka.messages_in(spans)) as found:
            return next(found, None) is None

    def table_id(self) -> str:
        """Return Kafka's own id of the topic."""
        return f"kafka:{self.topic_id}"

    def versions(self) -> list[int]:
        """List the seqs, newest first."""
        newest = self.newest
        if newest is None:
            return []
        if not self._first:
            return list(range(newest.seq, -1, -1))
        while self._read_further():
            pass
        return sorted(self._by_seq, reverse=True)

    def read(self, version: int) -> Commit:
        """Read one commit."""
        note = self.note(version)
        try:
            metadata = CommitMetadata.from_json(note.note)
        except DamagedMetadataError as error:
            raise self._damaged(f"the note of seq {version}: {error}") from error
        inserted, updated, deleted = (note.counts[name] for name in (INSERTED, UPDATED, DELETED))
        return Commit(
            version=version,
            timestamp_ms=note.timestamp_ms,
            operation="MERGE" if updated or deleted else "APPEND" if inserted else "WRITE",
            metrics=note.counts,
            txns={app_id(note.stream): version},
            changes_rows=bool(inserted or updated or deleted),
            metadata=metadata,
        )

    def last_seq(self, stream: str) -> int | None:
        """Return the newest note's seq, if it is of this stream."""
        newest = self.newest
        return newest.seq if newest is not None and newest.stream == stream else None

    def row_count(self) -> int:
        """Count what was written, or, with keys, read the topic for the keys that are there."""
        newest = self.newest
        if newest is None or not newest.schema.keys:
            return newest.written if newest else 0
        spans = _spans(self._place, newest)
        return sum(
            _Reader(self._place, at, start=start, end=end).count_keys() for at, start, end in spans
        )

    def highest_epoch(self) -> int:
        """Return the newest note's epoch."""
        newest = self.newest
        if newest is None or not newest.written:
            return 0
        metadata = self.read(newest.seq).metadata
        return metadata.epoch if metadata else 0

    def refuse_torn(self, stream: str, commit: Commit) -> None:
        """Compare the seq of a note with that of its key."""
        seq = commit.metadata.seq if commit.metadata else None
        if seq != commit.txns[app_id(stream)]:
            raise self._damaged(f"the note of seq {commit.version} says {seq}")


def _spans(place: _Place, note: _Note) -> Iterator[tuple[TopicPartition, int, int]]:
    """Yield each partition with what can be read of it, up to where a commit left it."""
    ends = note.ends(place.topic)
    place.wait_for_stable(ends)
    starts = place.kafka.earliest(ends)
    yield from ((at, starts[at], end) for at, end in ends.items() if starts[at] < end)


class _Reader:
    """Reads the committed records of a span of one partition."""

    def __init__(self, place: _Place, at: TopicPartition, *, start: int, end: int) -> None:
        self._place, self._at, self._start, self._end = place, at, start, end
        self._heard = ClientErrors()

    def live(self) -> Iterator[tuple[pa.Array, pa.Array]]:
        """Yield values and offsets, some megabytes at once, but for nulls."""
        for some in self._chunks():
            yield _column(some, Message.value), _column(some, Message.offset, pa.int64())

    def newest_per_key(self) -> Iterator[tuple[pa.Array, pa.Array]]:
        """Yield value and offset of each key's newest record, unless that deletes it."""
        with self._folded(with_values=True) as newest:
            yield from (tuple(batch.columns) for batch in newest.live())

    def count_keys(self) -> int:
        """Count the keys whose newest record does not delete them."""
        with self._folded(with_values=False) as newest:
            return newest.count()

    @contextmanager
    def _folded(self, *, with_values: bool) -> Iterator[NewestPerKey]:
        scratch = scratch_of_this_process(self._place.settings.state)
        scratch.mkdir(parents=True, exist_ok=True)
        with (
            tempfile.TemporaryDirectory(prefix="topic-", dir=scratch) as folder,
            closing(NewestPerKey(folder)) as newest,
        ):
            for some in self._chunks():
                values = _column(some, Message.value)
                newest.add(
                    _column(some, Message.key),
                    values if with_values else None,
                    values.is_valid(),
                    _column(some, Message.offset, pa.int64()),
                )
            yield newest

    def _chunks(self) -> Iterator[list[Message]]:
        consumer = Consumer({**client_options(self._place.settings, self._heard), **_CONSUMER})
        consumer.assign([ClientTopicPartition(*self._at, self._start)])
        try:
            position = self._start
            while position < self._end:
                some: list[Message] = []
                while position < self._end and sum(map(len, some)) < _BYTES_READ_AT_ONCE:
                    more, position = self._some(consumer)
                    some += more
                yield some
        finally:
            consumer.close()

    def _some(self, consumer: Consumer) -> tuple[list[Message], int]:
        """Return some records before the end, and where the next begin."""
        first = consumer.poll(self._place.timeout)
        if first is None:
            raise unreachable(self._place.settings, "it sent no record", self._heard)
        messages = [first, *consumer.consume(_MESSAGES_AT_ONCE, 0)]
        found = [each for each in messages if each.error() is None]
        if len(found) < len(messages):
            errors = [each.error() for each in messages if each.error() is not None]
            for error in errors:
                if error.code() != KafkaError._PARTITION_EOF:
                    raise unreachable(self._place.settings, KafkaException(error), self._heard)
            return [each for each in found if each.offset() < self._end], self._end
        position = found[-1].offset() + 1
        return [each for each in found if each.offset() < self._end], position


def _column(
    messages: Sequence[Message], part: Callable[[Message], Any], type_: pa.DataType | None = None
) -> pa.Array:
    return pa.array(map(part, messages), type_ or pa.binary(), size=len(messages))
