"""The topic that keeps a stream's rows: each batch is one Kafka transaction, rows and note.

    begin    take over the transactional id; only then read the last note, and compare its seq
    commit   send the rows, make sure that the broker has all of them, send the note, commit

How a row is written: see ``topic_json`` and ``topic_avro``; how notes are kept: ``topic_notes``;
who may write: ``topic_writer``. A log finds no row by its key, and nothing in it can be taken back.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Final

import pyarrow as pa
from confluent_kafka import Message

from oncelake.ingestion.declaration.ddl import DeclaredColumn
from oncelake.ingestion.declaration.sinks import SINKS, KafkaSink
from oncelake.ingestion.errors import (
    DamagedTableError,
    DependencyError,
    ForeignTableError,
    InvalidSpecError,
    TableSettingsError,
)
from oncelake.ingestion.kafka.offsets import Range
from oncelake.ingestion.settings import Settings
from oncelake.ingestion.sinks.kafka.avro import AvroRows
from oncelake.ingestion.sinks.kafka.json import JsonRows
from oncelake.ingestion.sinks.kafka.notes import TopicLog, TopicNote, TopicSchema, columns_record
from oncelake.ingestion.sinks.kafka.rows import NewestPerKey, RowFormat
from oncelake.ingestion.sinks.kafka.writer import TopicPlace, TopicWriter
from oncelake.ingestion.storage.location import Location
from oncelake.ingestion.storage.processes import scratch_of_this_process
from oncelake.ingestion.tables.commit_log import INSERTED, UPDATED, Commit
from oncelake.ingestion.tables.commit_metadata import CommitMetadata
from oncelake.ingestion.tables.table import (
    REPLACED,
    Change,
    Layout,
    SinkTable,
    TableDefinition,
    Transaction,
    counts_of,
    seq_conflict,
    since,
)

# Of the notes' topic: a note of a megabyte fits, which the default does not allow.
_LARGEST_NOTE_BYTES: Final = 4 * 1024 * 1024
_BYTES_READ_AT_ONCE: Final = 16 * 1024 * 1024
_RECORDS: Final = pa.schema([("key", pa.binary()), ("value", pa.binary()), ("place", pa.int64())])
_PARTS: Final = (Message.key, Message.value, Message.offset)
_FORMATS: Final[Mapping[str, type[RowFormat]]] = {"json": JsonRows, "avro": AvroRows}
_KIND: Final = SINKS["kafka"]
_ANOTHER: Final = "write to another topic, by `sink: {kafka: {topic: …}}`"


def open_table(stream: str, sink: KafkaSink, settings: Settings, lake: Location) -> TopicTable:
    """Open a stream's topic; it need not be there."""
    del lake
    there = settings.of_sink_cluster()
    place = TopicPlace(stream=stream, topic=sink.table_of(stream), settings=there)
    return TopicTable(place, sink)


class TopicTable(SinkTable):
    """A stream's topic; see ``SinkTable``."""

    def __init__(self, place: TopicPlace, sink: KafkaSink) -> None:
        self._place, self._sink, self.stream = place, sink, place.stream

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
        return TopicLog(self._place, is_fence=True)

    def create(self, wanted: TableDefinition) -> None:
        """Make the topic and its notes', or take an empty topic that somebody made beforehand.

        With keys it is compacted; without any, records have no key.

        Raises:
            InvalidSpecError: the format cannot hold a column.
            ForeignTableError: it has records, and no note; or it is another stream's.
            TableSettingsError: what is there cannot keep the rows, or their notes.
            RefusedError: the schema registry does not take their schema.
        """
        keys, place, log = wanted.keys, self._place, self.log()
        stored = tuple(map(self._stored, wanted.columns))
        self._refuse_another(log)
        if log.schema is None and not log.is_empty:
            problem = f"{self.where} has records, and no commit of this stream is in its notes."
            raise ForeignTableError(self.stream, problem, remedy=_ANOTHER)
        format_ = self._sink.format
        new = TopicSchema(stream=self.stream, columns=stored, keys=keys, format=format_)
        schema = log.schema or self._rows(new).registered()
        compacted = {"cleanup.policy": "compact"}
        place.kafka.create_topic(place.topic, compacted if keys else {"cleanup.policy": "delete"})
        of_notes = {**compacted, "max.message.bytes": str(_LARGEST_NOTE_BYTES)}
        place.kafka.create_topic(place.notes.topic, of_notes, partitions=1)
        log = self.log()
        if (error := self._settings_error(log, log.schema or schema)) is not None:
            raise error
        if log.schema is None:
            self._write(log.topic_id, schema)

    def _stored(self, column: DeclaredColumn) -> DeclaredColumn:
        problems = [f"it has a {word}" for word in _KIND.refused_in(column.type)]
        if other := self._sink.refused_name(column.name, column.type):
            problems.append(f"{other!r} is no name in Avro")
        if problems:
            raise InvalidSpecError(
                f"{self.stream}: column {column.name} cannot be written to a topic: {problems[0]}. "
                "Next: declare another"
            )
        return replace(column, type=_KIND.stored_type(column.type))

    def _rows(self, schema: TopicSchema) -> RowFormat:
        return _FORMATS[schema.format](place=self._place, schema=schema)

    def _write(self, topic_id: str, schema: TopicSchema) -> None:
        writer = TopicWriter(self._place, topic_id)
        with writer.transaction():
            writer.send(self._place.notes.topic, [columns_record(topic_id, schema)])

    def columns(self) -> tuple[DeclaredColumn, ...]:
        """Return the columns that ``create`` and our commits have noted."""
        schema = TopicLog(self._place).schema
        return schema.columns if schema else ()

    def begin(self, seq: int) -> TopicTransaction:
        """Take over the topic's transactional id, and then compare its last note."""
        return TopicTransaction(self, self._place, seq)

    def scan(
        self, names: Sequence[str], version: int | None = None, *, since_seq: int | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Read the topic up to where a commit left it; with keys, each key's newest record.

        Of an earlier version, compaction may have removed what was the newest then.

        Raises:
            DamagedTableError: a record is no row, or not its key's, or records were deleted.
        """
        log = self.log()
        note = log.newest if version is None else log.note(version)
        if note is None:
            return
        rows = self._rows(_present(log))
        by_name = {column.name: column for column in rows.schema.columns}
        columns, keys = [by_name[name] for name in names], {*note.schema.keys}
        is_whole = since_seq is None and bool(keys) and keys <= {*names}
        for span in self._spans(note):
            for records in self._rows_in(span, has_keys=bool(keys)):
                try:
                    decoded = rows.decode(records["value"], columns)
                    if is_whole:
                        rows.refuse_other_keys(decoded, records["key"])
                    for batch in decoded.to_batches():
                        yield since(batch, since_seq)
                except ValueError as error:
                    raise self._damaged(
                        f"a record of {span} is no row of this stream, or has another's key",
                        "find out who else writes to the topic",
                    ) from error

    def _spans(self, note: TopicNote) -> Iterator[Range]:
        """Yield what there is of each partition; whatever was deleted of it is an error."""
        spans = note.ranges(self._place.topic)
        self._place.wait_for_stable({span.topic_partition: span.end for span in spans})
        starts = self._place.kafka.earliest(span.topic_partition for span in spans)
        for span in spans:
            if (first := starts[span.topic_partition]) > span.start:
                gone = replace(span, end=min(first, span.end))
                raise self._damaged(
                    f"the records of {gone} were deleted, by retention or by somebody",
                    "set retention.ms of the topic to -1, so that it keeps all of them",
                )
            if len(span):
                yield span

    def _rows_in(self, span: Range, *, has_keys: bool) -> Iterator[pa.RecordBatch]:
        """Yield key and value of the rows' records, some megabytes at once."""
        chunks = _records_in(self._place, span)
        if not has_keys:
            for chunk in chunks:
                yield from chunk.filter(chunk["value"].is_valid()).combine_chunks().to_batches()
            return
        scratch = scratch_of_this_process(self._place.settings.state)
        scratch.mkdir(parents=True, exist_ok=True)
        with (
            tempfile.TemporaryDirectory(prefix="topic-", dir=scratch) as folder,
            closing(NewestPerKey(folder)) as newest,
        ):
            for chunk in chunks:
                newest.add(chunk)
            yield from newest.records()

    def _damaged(self, problem: str, remedy: str) -> DamagedTableError:
        remedy += f"; then delete it and its notes, and oncelake reset {self.stream} --yes"
        return DamagedTableError.of(self.stream, self.where, problem, remedy=remedy)

    def rows_of_seq(self, seq: int, *, commit: Commit) -> int:
        """Return how many rows' records the broker has taken, as the commit has noted."""
        del seq
        return commit.metrics[INSERTED] + commit.metrics[UPDATED]

    def notes(self, through: int) -> Iterator[tuple[int, int | None, str | None]]:
        """Read the notes from the first on."""
        for note in self.log().oldest_first():
            if note.seq <= through:
                yield note.seq, note.seq, note.note

    def check(self, log: TopicLog) -> TableSettingsError | None:
        """Make sure that the topic is this stream's; find settings that lose notes or rows."""
        self._refuse_another(log)
        return self._settings_error(log, log.schema) if log.schema else None

    def _refuse_another(self, log: TopicLog) -> None:
        if log.schema is not None and log.schema.stream != self.stream:
            problem = f"{self.where} is the topic of stream {log.schema.stream}."
            raise ForeignTableError(self.stream, problem, remedy=_ANOTHER)

    def _settings_error(self, log: TopicLog, schema: TopicSchema) -> TableSettingsError | None:
        rows, notes = self._place.topic, self._place.notes.topic
        if schema.format != self._sink.format:
            problem = f"topic {rows} has rows as {schema.format}, not {self._sink.format}."
            remedy = f"write `format: {schema.format}` again, or {_ANOTHER}, and then oncelake "
            return TableSettingsError(
                self.stream, problem, remedy=f"{remedy}reset {self.stream} --yes"
            )
        configs = self._place.kafka.topic_configs([rows, notes])
        wanted = {rows: "compact" if schema.keys else "delete", notes: "compact"}
        for topic, policy in wanted.items():
            found = configs[topic]["cleanup.policy"]
            if found != policy:
                problem = f"topic {topic} has cleanup.policy={found}, and needs {policy}."
                alter = f"kafka-configs.sh --alter --topic {topic} --add-config"
                remedy = f"{alter} cleanup.policy={policy}"
                return TableSettingsError(self.stream, problem, remedy=remedy)
        if not (count := len(log.partitions_of(notes))):
            raise DependencyError(
                f"topic {notes} is there, and not every broker shows it yet. Next: run the same "
                "command again"
            )
        if count != 1:
            problem = f"topic {notes} has {count} partitions, and needs one."
            return TableSettingsError(self.stream, problem, remedy=_ANOTHER)
        return self.partitions_error(log)

    def partitions_error(self, log: TopicLog) -> TableSettingsError | None:
        """Return that somebody has changed the number of partitions of a topic with keys."""
        newest, count = log.newest, len(log.partitions_of(self._place.topic))
        if newest is None or not newest.schema.keys or len(newest.spans) == count:
            return None
        problem = (
            f"topic {self._place.topic} has {count} partitions and had {len(newest.spans)}, so "
            "that newer records of a key would be in another."
        )
        return TableSettingsError(self.stream, problem, remedy=_ANOTHER)


class TopicTransaction(Transaction):
    """One transaction of Kafka, by a producer that has fenced every other."""

    def __init__(self, table: TopicTable, place: TopicPlace, seq: int) -> None:
        """Fence, and then compare the last note's seq.

        Raises:
            CommitConflictError: the topic does not stand there, or is another than was read.
            TableSettingsError: somebody has changed its partitions since.
        """
        self._table, self._place, self._seq = table, place, seq
        self._topic_id = TopicLog(place).topic_id
        if place.topic_id not in (None, self._topic_id):
            raise seq_conflict(place.stream, place.where, seq, last=None, but=REPLACED)
        self._writer: TopicWriter | None = TopicWriter(place, self._topic_id)
        log = TopicLog(place)
        schema, last = log.schema, log.last_seq(place.stream)
        is_ours = schema is not None and schema.stream == place.stream
        is_next = seq == (-1 if last is None else last) + 1
        if schema is None or not (is_ours and log.topic_id == self._topic_id and is_next):
            raise seq_conflict(place.stream, place.where, seq, last=last)
        if (error := table.partitions_error(log)) is not None:
            raise error
        self._last, self._rows = log.newest, table._rows(schema)
        self._starts = place.kafka.written_end(log.partitions_of(place.topic))

    def rows_of(self, keys: pa.Table, columns: Sequence[str] | None = None) -> pa.Table:
        """Raise: a log has no lookup of rows by their keys."""
        raise NotImplementedError(f"{self._place.where} is a log, and finds no row by its key")

    def commit(self, change: Change | None, metadata: CommitMetadata) -> None:
        """Write rows and note as one transaction, which is open only here."""
        if metadata.seq != self._seq:
            raise ValueError(f"seq {self._seq} was begun, and not {metadata.seq}")
        if self._writer is None:
            raise ValueError("a transaction that is closed cannot commit")
        with closing(self), self._writer.transaction():
            if change is not None:
                self._send(self._writer, change)
            note = self._note(metadata, change)
            self._writer.send(self._place.notes.topic, [note.as_record(self._topic_id)])

    def reshape(self, layout: Layout, metadata: CommitMetadata) -> None:
        """Note more columns, once their schema is registered; records stay as they are.

        Raises:
            RefusedError: the schema registry does not take it, or another column differs.
        """
        schema, types = self._rows.schema, {each.name: each.type for each in layout.columns}
        if layout.renamed or any(types.get(each.name) != each.type for each in schema.columns):
            raise NotImplementedError("no column of it can go, or get another name or type")
        stored = tuple(map(self._table._stored, layout.columns))
        registered = self._table._rows(replace(schema, columns=stored)).registered()
        self._rows = self._table._rows(registered)
        self.commit(None, metadata)

    def close(self) -> None:
        """Give up the producer."""
        self._writer = None

    def _send(self, writer: TopicWriter, change: Change) -> None:
        """Send the rows, and make sure that the broker has all of them."""
        if change.deleted.num_rows and not self._rows.schema.keys:
            raise ValueError("a topic without keys takes no deletes")
        for rows in (change.inserted, change.updated, change.deleted):
            if rows.num_rows:
                for some in self._rows.records(rows, are_gone=rows is change.deleted):
                    writer.send(self._place.topic, some)
        writer.flush()

    def _note(self, metadata: CommitMetadata, change: Change | None) -> TopicNote:
        """Note where the partitions end now, which others may have written to as well.

        Raises:
            DependencyError: they do not hold all that was sent.
        """
        counts = counts_of(change)
        ends = self._place.kafka.written_end(self._starts)
        taken, sent = sum(ends.values()) - sum(self._starts.values()), sum(counts.values())
        if taken < sent:
            raise DependencyError(
                f"{self._place.where}: the broker has {taken} of {sent} records that it has "
                "acknowledged. Nothing was committed. Next: run the same command again"
            )
        spans = dict(self._last.spans) if self._last else {}
        for at, start in self._starts.items():
            first = spans[str(at.partition)][0] if str(at.partition) in spans else start
            spans[str(at.partition)] = first, ends[at]
        before = self._last.written if self._last else 0
        return TopicNote(
            seq=self._seq,
            note=metadata.to_json(),
            counts=counts,
            spans=spans,
            timestamp_ms=time.time_ns() // 1_000_000,
            written=before + counts[INSERTED] + counts[UPDATED],
            schema=self._rows.schema,
        )


def _present(log: TopicLog) -> TopicSchema:
    if log.schema is None:
        raise FileNotFoundError("the topic is not there, or nobody's")
    return log.schema


def _records_in(place: TopicPlace, span: Range) -> Iterator[pa.Table]:
    """Yield key, value and offset of the committed records, some megabytes at once."""
    messages = place.kafka.messages_in([span])
    while chunk := _some_megabytes(messages):
        parts = ([part(each) for each in chunk] for part in _PARTS)
        yield pa.table([*map(pa.array, parts, _RECORDS.types)], schema=_RECORDS)


def _some_megabytes(messages: Iterator[Message]) -> list[Message]:
    chunk, size = list[Message](), 0
    for message in messages:
        chunk.append(message)
        size += len(message)
        if size >= _BYTES_READ_AT_ONCE:
            break
    return chunk
