"""What each record says: a row, a delete, nothing, or that it belongs in quarantine.

The words of the declaration, implemented a second time: a record without its key, its order or a
required column cannot be applied; a delete needs no more than key and order; a null value takes
its key from the Kafka key.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from ingestion.declaration.ddl import DeclaredColumn
from ingestion.declaration.spec import StreamSpec
from ingestion.settings import Settings
from ingestion.verify.decode import DecodedRecord, DecodeKeyAndValue, Expected, reading
from ingestion.verify.decode.coerce import UnprovableError
from ingestion.verify.decode.strict_json import BadRecordError, UnknownSchemaError
from ingestion.verify.fold.predicate import Condition
from ingestion.verify.fold.transform import Asked, transformation
from ingestion.verify.read.record import SYSTEM_COLUMNS, Place, Record, Row, RowChange, text_of

_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_NO_SEQUENCE: Final = ("ARRAY", "MAP", "STRUCT")


@dataclass(kw_only=True, slots=True)
class Classified:
    """What some records say.

    Attributes:
        changes: What the good ones say of their keys.
        bad: Those that belong in quarantine, with the reason.
        unread: Those whose schema the registry does not know today, with its id.
        ignored: How many tombstones the stream ignores.
        filtered: How many rows the declared transformation leaves out.
        exploded: How many rows there are beyond the first of their record.
    """

    changes: list[RowChange] = field(default_factory=list)
    bad: list[tuple[Record, str]] = field(default_factory=list)
    unread: list[tuple[Record, str]] = field(default_factory=list)
    ignored: int = 0
    filtered: int = 0
    exploded: int = 0


class Classifier:
    """Judges the records of a stream under its declaration."""

    def __init__(
        self, spec: StreamSpec, *, epoch: int = 1, settings: Settings | None = None
    ) -> None:
        """Take the declaration, and the epoch whose records will be shown.

        Raises:
            UnprovableError: it holds a format, a type or a condition that only the engine knows.
        """
        self._epoch = epoch
        self._types = {column.name: column.type for column in spec.columns}
        self._read = reading(spec.format, _expected(spec, spec.value_columns, settings))
        self.transformation = transformation(spec, settings)
        asked = [column.name for column in spec.value_columns]
        self._array_at = asked.index(spec.explode) if spec.explode else None
        self._value_required = [asked.index(name) for name in spec.required_of_value]
        names = list(self._types)
        self._keys = spec.keys
        self._key_at = [names.index(name) for name in spec.keys]
        self._never_null = [names.index(name) for name in spec.never_null]
        self._order_at = [names.index(n) if n != "_timestamp" else -1 for n in spec.sequence_by]
        for name in spec.sequence_by:
            if self._types.get(name, "").startswith(_NO_SEQUENCE):
                raise UnprovableError(f"an order by {self._types[name]} is not provable")
        self._required = [i for i, column in enumerate(spec.columns) if not column.nullable]
        self._tombstones = spec.tombstone_policy
        self._is_soft = spec.deletes == "soft"
        self._has_deletes = spec.write_mode.has_deletes
        self._is_delete = (
            Condition("apply_as_deletes", spec.apply_as_deletes, spec.columns)
            if spec.apply_as_deletes
            else None
        )
        self._read_key = None
        if self._tombstones == "delete":
            by_name = {column.name: column for column in spec.columns}
            keys = _expected(spec, [by_name[name] for name in spec.keys], settings, is_key=True)
            self._read_key = reading(spec.key_format, keys)

    def judge(self, records: Iterable[Record], *, seq: int) -> Classified:
        """Judge records of one batch.

        Raises:
            UnprovableError: it cannot be told which of them are deletes.
        """
        found = Classified()
        asked: list[Asked] = []
        for record in records:
            if record.value is None and self._tombstones == "ignore":
                found.ignored += 1
                continue
            try:
                asked.extend(self._exploded(record, self._said(record), found))
            except UnknownSchemaError as error:
                found.unread.append((record, str(error)))
            except (ValueError, OverflowError) as error:
                found.bad.append((record, str(error)))
        made = self._transformed(asked)
        told = [each for each in made if each is not None]
        bad: dict[Record, str] = {}
        for each, selected in zip(told, self._selected(told), strict=True):
            try:
                found.changes.append(self._change(each, is_delete=selected, seq=seq))
            except BadRecordError as error:
                bad.setdefault(each.record, str(error))
        found.filtered += sum(
            row is None and each.record not in bad for each, row in zip(asked, made, strict=True)
        )
        found.exploded += sum(each.element > 0 and each.record not in bad for each in asked)
        if bad and self._array_at is not None:
            # A record is applied as a whole, or not at all.
            places = {(str(record.at), record.offset) for record in bad}
            whole = (each for each in found.changes if (str(each.at), each.offset) not in places)
            found.changes = list(whole)
        found.bad.extend(bad.items())
        return found

    def key_of(self, row: Row) -> str:
        """Return the text that stands for a row's key."""
        return text_of(row[i] for i in self._key_at)

    def place_of(self, row: Row) -> Place:
        """Return the place in the order of a row as the table holds it."""
        topic, partition, offset, timestamp, epoch, _ = row[-len(SYSTEM_COLUMNS) :]
        index = 0 if self._array_at is None else row[-len(SYSTEM_COLUMNS) - 1]
        return (epoch, *self._order(row, timestamp), topic, partition, offset, index)

    def _exploded(self, record: Record, said: DecodedRecord, found: Classified) -> list[Asked]:
        """Ask about each element for itself; a record without any counts as filtered."""
        at = self._array_at
        if record.value is None:
            return [Asked(record, said)]
        lacks = any(said.values[each] is None for each in self._value_required)
        if at is None:
            return [Asked(record, said, lacks=lacks)]
        elements = said.values[at] or ((None,) if said.is_delete else ())
        found.filtered += not elements
        return [
            Asked(
                record,
                replace(said, values=(*said.values[:at], each, *said.values[at + 1 :])),
                element=n,
                lacks=lacks,
            )
            for n, each in enumerate(elements)
        ]

    def _transformed(self, asked: list[Asked]) -> list[Asked | None]:
        """Make rows of values; a null value has none, and stays as its key says."""
        if self.transformation is None:
            return list(asked)
        rows = iter(self.transformation([each for each in asked if each.record.value is not None]))
        return [each if each.record.value is None else _told(each, next(rows)) for each in asked]

    def _selected(self, told: Sequence[Asked]) -> list[bool]:
        if self._is_delete is None or not told:
            return [each.said.is_delete for each in told]
        selected = self._is_delete([each.said.values for each in told])
        return [a or each.said.is_delete for a, each in zip(selected, told, strict=True)]

    def _said(self, record: Record) -> DecodedRecord:
        if record.value is None:
            return self._of_tombstone(record)
        if isinstance(self._read, DecodeKeyAndValue):
            return self._read.both(record.value, record.key)
        return self._read(record.value)

    def _change(self, told: Asked, *, is_delete: bool, seq: int) -> RowChange:
        record, values = told.record, told.said.values
        sent = _EPOCH + dt.timedelta(milliseconds=record.timestamp_ms)
        order = self._order(values, sent)
        if is_delete and not self._has_deletes:
            raise BadRecordError("a delete, in a mode that deletes nothing")
        self._refuse_null(values, self._never_null, "a key column")
        if None in order:
            raise BadRecordError("a column of sequence_by is null")
        if not is_delete:
            self._refuse_null(values, self._required, "a NOT NULL column")
            if told.lacks:
                raise BadRecordError("a NOT NULL column of value_schema is null")
        at = (record.topic, record.partition, record.offset)
        flag = (is_delete,) if self._is_soft else ()
        index = () if self._array_at is None else (told.element,)
        row = (*values, *flag, *index, *at, sent, self._epoch, seq)
        return RowChange(
            key=self.key_of(values),
            place=(self._epoch, *order, *at, told.element),
            row=None if is_delete and not self._is_soft else row,
            seq=seq,
        )

    def _order(self, values: Row, timestamp: dt.datetime) -> Row:
        return tuple([values[i] if i >= 0 else timestamp for i in self._order_at])

    @staticmethod
    def _refuse_null(values: Row, at: Sequence[int], what: str) -> None:
        if any(values[i] is None for i in at):
            raise BadRecordError(f"{what} is null")

    def _of_tombstone(self, record: Record) -> DecodedRecord:
        if self._tombstones == "quarantine":
            raise BadRecordError("a tombstone is not for this stream")
        if record.key is None:
            raise BadRecordError("a tombstone without a key")
        assert self._read_key is not None, "tombstones are read by their keys"
        said = self._read_key(record.key)
        values: list[Any] = [None] * len(self._types)
        for at, value in zip(self._key_at, said.values, strict=True):
            values[at] = value
        return DecodedRecord(values=tuple(values), is_delete=True)


def _told(asked: Asked, row: Row | None) -> Asked | None:
    return None if row is None else asked._replace(said=replace(asked.said, values=row))


def _expected(
    spec: StreamSpec,
    columns: Sequence[DeclaredColumn],
    settings: Settings | None,
    *,
    is_key: bool = False,
) -> Expected:
    format_spec = spec.key_format if is_key else spec.format
    return Expected(
        columns=columns,
        is_key=is_key,
        options=format_spec.options,
        extra_fields="ignore" if is_key else spec.extra_fields,
        settings=settings,
    )
