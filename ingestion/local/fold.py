"""What a table must hold, worked out from its topic alone: the independent second opinion.

It shares no decoding, de-duplication or merging with the engine: every record is read strictly,
and folded per key in the declared order, with deletes remembered for good. Pure: the records come
from ``ingestion.local.topic``, and ``ingestion.local.compare`` holds the rows against a table's.
"""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from ingestion.local.strict_json import BadRecordError, Value, parse, parse_object, reader
from ingestion.spec import StreamSpec

Row = tuple[Value, ...]
Place = tuple[str, int, int]
IsDelete = Callable[[Mapping[str, Value]], bool]

COORDINATES: Final = ("_topic", "_partition", "_offset")
_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


class Record(NamedTuple):
    """One Kafka record, undecoded."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None

    @property
    def place(self) -> Place:
        """Where the record lies: the order of records that nothing else orders."""
        return self.topic, self.partition, self.offset


@dataclass(frozen=True, kw_only=True, slots=True)
class Folded:
    """What the topic says.

    Attributes:
        rows: The row of each living key: the declared columns, then topic, partition and offset.
        deleted: How many keys are dead.
        bad: How many records cannot be applied, by reason.
        ignored: How many tombstones the stream ignores.
        records: How many records there were.
        incomparable: Keys that came from two partitions without a declared order.
    """

    rows: Mapping[Row, Row]
    deleted: int
    bad: Mapping[str, int]
    ignored: int
    records: int
    incomparable: tuple[Row, ...]


class _Change(NamedTuple):
    key: Row
    order: tuple[Any, ...]
    row: Row | None
    place: Place


def fold(
    records: Iterable[Record], spec: StreamSpec, *, is_delete: IsDelete | None = None
) -> Folded:
    """Fold the records of a topic into the rows that an upsert stream's table must hold.

    Args:
        records: Every record of the topic; a partition's in the order of their offsets.
        spec: The declared stream.
        is_delete: The stream's ``apply_as_deletes``, said again in Python over the typed columns.

    Raises:
        ValueError: the stream is no upsert of JSON, or ``is_delete`` does not match it.
    """
    _refuse_unfoldable(spec, is_delete)
    judge = _Judge(spec, is_delete)
    newest: dict[Row, _Change] = {}
    incomparable: dict[Row, None] = {}
    for change in judge.changes(records):
        other = newest.setdefault(change.key, change)
        if not spec.sequence_by and other.place[:2] != change.place[:2]:
            incomparable[change.key] = None
        elif change.order > other.order:
            newest[change.key] = change
    return _folded(newest.values(), judge, tuple(incomparable))


def _folded(newest: Iterable[_Change], judge: _Judge, incomparable: tuple[Row, ...]) -> Folded:
    dead, rows = 0, {}
    for change in newest:
        if change.row is None:
            dead += 1
        else:
            rows[change.key] = change.row
    return Folded(
        rows=rows,
        deleted=dead,
        bad=judge.bad,
        ignored=judge.ignored,
        records=judge.records,
        incomparable=incomparable,
    )


def _refuse_unfoldable(spec: StreamSpec, is_delete: IsDelete | None) -> None:
    if spec.mode != "upsert" or spec.format.type != "json":
        raise ValueError(f"{spec.name}: only upserts of JSON can be folded")
    if (spec.apply_as_deletes is None) != (is_delete is None):
        raise ValueError(
            f"{spec.name}: give `is_delete` exactly when `apply_as_deletes` is declared"
        )


class _Judge:
    """Reads records as changes to keys, and counts those that are none."""

    def __init__(self, spec: StreamSpec, is_delete: IsDelete | None) -> None:
        self._keys, self._order = spec.keys, spec.sequence_by
        self._tombstones = spec.tombstone_policy
        self._types = {column.name: column.type for column in spec.columns}
        self._readers = [(name, reader(type)) for name, type in self._types.items()]
        self._required = [column.name for column in spec.columns if not column.nullable]
        self._is_delete = is_delete or (lambda row: False)
        self.bad: Counter[str] = Counter()
        self.ignored = 0
        self.records = 0

    def changes(self, records: Iterable[Record]) -> Iterator[_Change]:
        for record in records:
            self.records += 1
            if record.value is None and self._tombstones == "ignore":
                self.ignored += 1
                continue
            try:
                yield self._change(record)
            except BadRecordError as error:
                self.bad[str(error).partition(":")[0]] += 1
            except (ValueError, OverflowError):
                self.bad["not a value of the declared type"] += 1

    def _change(self, record: Record) -> _Change:
        fields = self._of_tombstone(record) if record.value is None else parse_object(record.value)
        row: dict[str, Value] = {}
        for name, read in self._readers:
            value = fields.get(name)
            row[name] = None if value is None else read(value)
        is_delete = record.value is None or self._is_delete(row)
        key = tuple([row[name] for name in self._keys])
        order = self._order_of(record, row)
        if None in key or None in order or not (is_delete or self._is_complete(row)):
            raise BadRecordError("a column that must not be null is null")
        place = record.place
        living = None if is_delete else (*row.values(), *place)
        return _Change(key, (*order, *place), living, place)

    def _order_of(self, record: Record, row: Mapping[str, Value]) -> Row:
        if "_timestamp" in self._order:
            sent = _EPOCH + dt.timedelta(milliseconds=record.timestamp_ms)
            row = {**row, "_timestamp": sent}
        return tuple([row[name] for name in self._order])

    def _is_complete(self, row: Mapping[str, Value]) -> bool:
        return None not in [row[name] for name in self._required]

    def _of_tombstone(self, record: Record) -> Mapping[str, Any]:
        if self._tombstones == "quarantine":
            raise BadRecordError("a tombstone has no order")
        if record.key is None:
            raise BadRecordError("a tombstone without a key")
        fields = self._key_fields(record.key)
        return {name: fields.get(name) for name in self._keys}

    def _key_fields(self, key: bytes) -> Mapping[str, Any]:
        """Read a Kafka key: an object, or for a single column a scalar, JSON or plain text."""
        if key.lstrip().startswith(b"{") or len(self._keys) != 1:
            return parse_object(key)
        (name,) = self._keys
        if self._types[name] == "STRING" and not key.startswith(b'"'):
            return {name: key.decode("utf-8")}
        return {name: parse(key)}
