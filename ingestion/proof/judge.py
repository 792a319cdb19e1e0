"""What each record says: a row, a delete, nothing, or that it belongs in quarantine.

The words of the declaration, implemented a second time: a record without its key, its order or a
required column cannot be applied; a delete needs no more than key and order; a null value takes
its key from the Kafka key.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from ingestion.proof.predicate import Deletes
from ingestion.proof.record import Change, Place, Record, Row
from ingestion.proof.strict_json import BadRecordError, parse, parse_object
from ingestion.proof.values import UnprovableError, reader
from ingestion.spec import StreamSpec

_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_NO_SEQUENCE: Final = ("ARRAY", "MAP", "STRUCT")


@dataclass(kw_only=True, slots=True)
class Judged:
    """What some records say.

    Attributes:
        changes: What the good ones say of their keys.
        bad: Those that belong in quarantine, with the reason.
        ignored: How many tombstones the stream ignores.
    """

    changes: list[Change] = field(default_factory=list)
    bad: list[tuple[Record, str]] = field(default_factory=list)
    ignored: int = 0


class Judge:
    """Judges the records of a stream under its declaration."""

    def __init__(self, spec: StreamSpec, *, epoch: int = 1) -> None:
        """Take the declaration, and the epoch whose records will be shown.

        Raises:
            UnprovableError: it holds a mode, a format, a type or a condition that only the engine
                knows.
        """
        if spec.mode != "upsert" or spec.format.type != "json":
            raise UnprovableError(f"{spec.mode} of {spec.format.type} is not provable")
        self._epoch = epoch
        self._types = {column.name: column.type for column in spec.columns}
        self._readers = [(name, reader(type_)) for name, type_ in self._types.items()]
        names = list(self._types)
        self._keys = spec.keys
        self._key_at = [names.index(name) for name in spec.keys]
        self._order_at = [names.index(n) if n != "_timestamp" else -1 for n in spec.sequence_by]
        for name in spec.sequence_by:
            if self._types.get(name, "").startswith(_NO_SEQUENCE):
                raise UnprovableError(f"an order by {self._types[name]} is not provable")
        self._required = [i for i, column in enumerate(spec.columns) if not column.nullable]
        self._tombstones = spec.tombstone_policy
        self._is_delete = Deletes(spec) if spec.apply_as_deletes else None

    def judge(self, records: Iterable[Record], *, seq: int) -> Judged:
        """Judge records of one batch.

        Raises:
            UnprovableError: it cannot be told which of them are deletes.
        """
        found = Judged()
        typed: list[tuple[Record, Row]] = []
        for record in records:
            if record.value is None and self._tombstones == "ignore":
                found.ignored += 1
                continue
            try:
                typed.append((record, self._values(record)))
            except (ValueError, OverflowError) as error:
                found.bad.append((record, str(error)))
        for (record, values), selected in zip(typed, self._selected(typed), strict=True):
            try:
                is_delete = selected or record.value is None
                found.changes.append(self._change(record, values, is_delete=is_delete, seq=seq))
            except BadRecordError as error:
                found.bad.append((record, str(error)))
        return found

    def key_of(self, row: Row) -> str:
        """Return the text that stands for a row's key."""
        return repr([row[i] for i in self._key_at])

    def place_of(self, row: Row) -> Place:
        """Return the place in the order of a row as the table holds it."""
        topic, partition, offset, timestamp, epoch, _ = row[len(self._types) :]
        return (epoch, *self._order(row, timestamp), topic, partition, offset)

    def _selected(self, typed: Sequence[tuple[Record, Row]]) -> list[bool]:
        if self._is_delete is None or not typed:
            return [False] * len(typed)
        return self._is_delete([values for _, values in typed])

    def _values(self, record: Record) -> Row:
        fields = self._of_tombstone(record) if record.value is None else parse_object(record.value)
        given = [(fields.get(name), read) for name, read in self._readers]
        return tuple([None if value is None else read(value) for value, read in given])

    def _change(self, record: Record, values: Row, *, is_delete: bool, seq: int) -> Change:
        sent = _EPOCH + dt.timedelta(milliseconds=record.timestamp_ms)
        order = self._order(values, sent)
        self._refuse_null(values, self._key_at, "a key column")
        if None in order:
            raise BadRecordError("a column of sequence_by is null")
        if not is_delete:
            self._refuse_null(values, self._required, "a NOT NULL column")
        at = (record.topic, record.partition, record.offset)
        return Change(
            key=self.key_of(values),
            place=(self._epoch, *order, *at),
            row=None if is_delete else (*values, *at, sent, self._epoch, seq),
            seq=seq,
        )

    def _order(self, values: Row, timestamp: dt.datetime) -> Row:
        return tuple([values[i] if i >= 0 else timestamp for i in self._order_at])

    @staticmethod
    def _refuse_null(values: Row, at: Sequence[int], what: str) -> None:
        if any(values[i] is None for i in at):
            raise BadRecordError(f"{what} is null")

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
