"""The notes of a topic, the authority on its batches.

They are records of a topic of their own, ``<topic>.oncelake``, in one partition: a reader of
committed records sees the rows of a batch and its note, or neither::

    <topic id>/<seq>       a commit: its note, how many rows it wrote, and where each partition ends
    <topic id>/columns     the columns and keys of a new topic; a note has those that it changes
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from oncelake.ingestion.declaration.ddl import DeclaredColumn, parse_type
from oncelake.ingestion.errors import DamagedTableError
from oncelake.ingestion.kafka.admin import Topics
from oncelake.ingestion.kafka.offsets import Range, TopicPartition
from oncelake.ingestion.sinks.kafka.writer import Record, TopicPlace, TopicWriter
from oncelake.ingestion.tables.commit_log import Commit, CommitLog, operation_of
from oncelake.ingestion.tables.commit_metadata import CommitMetadata, DamagedMetadataError, app_id
from oncelake.ingestion.tables.format import known, marks, refuse_newer

# An offset is a note's or a marker's; the first look shows some 25 notes.
_OFFSETS_READ_FIRST: Final = 50
# Ends the key of a record that is no commit's.
_COLUMNS: Final = "columns"


@dataclass(frozen=True, kw_only=True, slots=True)
class TopicSchema:
    """The stream that a topic belongs to, and the columns of its rows.

    Attributes:
        keys: The columns of a record's key; without any, records have none.
        format: How a row is written.
        schema_ids: Of ``key`` and ``value``, what their schemas are registered by, newest last.
    """

    stream: str
    columns: tuple[DeclaredColumn, ...]
    keys: tuple[str, ...]
    format: str = "json"
    schema_ids: Mapping[str, Sequence[int]] = field(default_factory=dict)

    @property
    def key_columns(self) -> tuple[DeclaredColumn, ...]:
        """The columns of a record's key, which are never null, in their order."""
        by_name = {column.name: column for column in self.columns}
        return tuple(replace(by_name[name], nullable=False) for name in self.keys)

    @classmethod
    def of_row(cls, row: Mapping[str, Any]) -> TopicSchema:
        """Read what ``as_row`` wrote."""
        columns = (
            DeclaredColumn(**known(DeclaredColumn, each) | {"type": parse_type(each["type"])})
            for each in row["columns"]
        )
        read = {"columns": tuple(columns), "keys": tuple(row["keys"])}
        return cls(**known(cls, row) | read)

    def as_row(self) -> dict[str, Any]:
        """Return the fields as JSON holds them."""
        fields = ("name", "nullable", "comment")
        columns = [
            {field: getattr(each, field) for field in fields} | {"type": str(each.type)}
            for each in self.columns
        ]
        return {name: getattr(self, name) for name in self.__slots__} | {"columns": columns}


@dataclass(frozen=True, kw_only=True, slots=True)
class TopicNote:
    """A commit, as its record says.

    Attributes:
        note: The text of its metadata.
        counts: How many rows it inserted, updated and deleted.
        spans: Of each partition, the table's first offset, and where this commit ended.
        written: How many rows all commits so far wrote, this one included.
    """

    seq: int
    note: str
    counts: Mapping[str, int]
    spans: Mapping[str, tuple[int, int]]
    timestamp_ms: int
    written: int
    schema: TopicSchema

    def as_record(self, topic_id: str) -> Record:
        """Write it as a record."""
        row = {name: getattr(self, name) for name in self.__slots__}
        value = json.dumps(row | {"schema": self.schema.as_row(), **marks()})
        return {"key": f"{topic_id}/{self.seq}", "value": value}

    def ranges(self, topic: str) -> tuple[Range, ...]:
        """Return what the table has of each partition."""
        return tuple(
            Range(topic=topic, partition=int(partition), start=start, end=end)
            for partition, (start, end) in self.spans.items()
        )


class TopicLog(CommitLog):
    """The notes of a topic, as of one moment, read from the newest back as far as asked for."""

    def __init__(self, place: TopicPlace, *, is_fence: bool = False) -> None:
        """Take the place, which remembers with ``is_fence`` of what topic this is."""
        self._place, self._is_fence = place, is_fence
        self.look_again()

    def look_again(self) -> None:
        """Forget what was read."""
        self._topics: Topics | None = None
        self._by_seq: dict[int, TopicNote] = {}
        self._schema: TopicSchema | None = None
        self._first = self._down_to = self._end = 0
        self._step = _OFFSETS_READ_FIRST

    def _looked(self) -> Topics:
        place = self._place
        if self._topics is None:
            if place.unsettled_id is not None:
                TopicWriter(place, place.unsettled_id)
                place.unsettled_id = None
            topics = place.kafka.known_topics(place.topics, refuse_hidden=True)
            if place.topic in topics.ids and place.notes in topics.partitions:
                self._first = place.kafka.earliest([place.notes])[place.notes]
                self._down_to = self._end = place.kafka.stable_end([place.notes])[place.notes]
            self._topics = topics
            if self._is_fence:
                place.topic_id = topics.ids.get(place.topic)
        return self._topics

    @property
    def exists(self) -> bool:
        """Tell whether the topic is there."""
        return self._place.topic in self._looked().ids

    @property
    def topic_id(self) -> str:
        """Kafka's own id of the topic."""
        if not self.exists:
            raise FileNotFoundError(f"{self._place.where} is not there")
        return self._looked().ids[self._place.topic]

    def partitions_of(self, topic: str) -> tuple[TopicPartition, ...]:
        """Return the partitions of the topic, or of its notes'."""
        return tuple(at for at in self._looked().partitions if at.topic == topic)

    @property
    def newest(self) -> TopicNote | None:
        """The newest note, whatever stream's."""
        while not self._by_seq and self._read_further():
            pass
        return self._by_seq[max(self._by_seq)] if self._by_seq else None

    @property
    def schema(self) -> TopicSchema | None:
        """The declaration that makes the rows; ``None`` if the topic is not there, or nobody's."""
        return self._schema if self.newest or self._schema else None

    def note(self, seq: int) -> TopicNote:
        """Read a note, and those after it."""
        newest = self.newest
        while seq not in self._by_seq and self._read_further():
            pass
        if seq in self._by_seq:
            return self._by_seq[seq]
        if newest is not None and 0 <= seq < newest.seq:
            raise self._damaged(f"the note of seq {seq} is gone")
        raise FileNotFoundError(f"{self._place.where} has no note of version {seq}")

    def oldest_first(self) -> Iterator[TopicNote]:
        """Read all notes."""
        if self.exists:
            records = self._records(self._first, self._end)
            yield from (each for each in records if isinstance(each, TopicNote))

    def _read_further(self) -> bool:
        """Read the records before those that were read; tell whether there were any offsets."""
        self._looked()
        start = max(self._first, self._down_to - self._step)
        if start >= self._down_to:
            return False
        for record in (records := [*self._records(start, self._down_to)]):
            if isinstance(record, TopicNote):
                self._by_seq[record.seq] = record
        if records and self._schema is None:
            newest = records[-1]
            self._schema = newest.schema if isinstance(newest, TopicNote) else newest
        self._down_to, self._step = start, self._step * 2
        return True

    def _records(self, start: int, end: int) -> Iterator[TopicNote | TopicSchema]:
        """Yield the content of the records that are about this very topic."""
        at, prefix = self._place.notes, f"{self.topic_id}/".encode()
        span = Range(topic=at.topic, partition=at.partition, start=start, end=end)
        for message in self._place.kafka.messages_in([span]):
            key, value = message.key() or b"", message.value()
            if not key.startswith(prefix) or value is None:
                continue
            try:
                row = json.loads(value)
                refuse_newer(self._place.stream, self._place.where, row)
                schema = TopicSchema.of_row(row["schema"])
                is_note = key != prefix + _COLUMNS.encode()
                yield TopicNote(**known(TopicNote, row) | {"schema": schema}) if is_note else schema
            except (ValueError, TypeError, KeyError, AttributeError) as error:
                problem = f"the record at offset {message.offset()} of {at} is no note"
                raise self._damaged(problem) from error

    def _damaged(self, problem: str) -> DamagedTableError:
        stream = self._place.stream
        remedy = f"delete both topics, and oncelake reset {stream} --yes, to write them anew"
        return DamagedTableError.of(stream, self._place.where, problem, remedy=remedy)

    @property
    def is_empty(self) -> bool:
        """Tell whether no row was ever committed, and, without a note, no record."""
        if self.newest is not None or not self.exists:
            return not (self.newest and self.newest.written)
        kafka, partitions = self._place.kafka, self.partitions_of(self._place.topic)
        spans = kafka.earliest(partitions).ranges_to(kafka.stable_end(partitions))
        return next(kafka.records_in(spans), None) is None

    def table_id(self) -> str:
        """Return Kafka's own id of the topic."""
        return f"kafka:{self.topic_id}"

    def versions(self) -> list[int]:
        """List the seqs, newest first; compaction keeps all of them."""
        return list(range(self.newest.seq, -1, -1)) if self.newest else []

    def read(self, version: int) -> Commit:
        """Read one commit."""
        note = self.note(version)
        try:
            place = self._place
            metadata = CommitMetadata.from_json(note.note, place.stream, place.where)
        except DamagedMetadataError as error:
            raise self._damaged(f"the note of seq {version}: {error}") from error
        return Commit(
            version=version,
            timestamp_ms=note.timestamp_ms,
            operation=operation_of(note.counts),
            metrics=note.counts,
            txns={app_id(note.schema.stream): version},
            changes_rows=any(note.counts.values()),
            metadata=metadata,
        )

    def last_seq(self, stream: str) -> int | None:
        """Return the newest note's seq, if it is of this stream."""
        newest = self.newest
        return newest.seq if newest is not None and newest.schema.stream == stream else None

    def row_count(self) -> int | None:
        """Return what was written; with keys, only reading all of it would tell."""
        newest = self.newest
        if newest is None or not newest.written:
            return 0
        return None if newest.schema.keys else newest.written

    def refuse_torn(self, stream: str, commit: Commit) -> None:
        """Compare the seq of a note with that of its metadata."""
        if commit.is_torn(stream):
            raise self._damaged(f"the note of seq {commit.version} says another")


def columns_record(topic_id: str, schema: TopicSchema) -> Record:
    """Write the stream of a topic, and its columns."""
    return {
        "key": f"{topic_id}/{_COLUMNS}",
        "value": json.dumps({"schema": schema.as_row(), **marks()}),
    }
