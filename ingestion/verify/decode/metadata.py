"""Columns that a record's headers and its Kafka key give, whatever the value says of them."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import replace
from typing import Any

from oncelake.ingestion.declaration.ddl import DeclaredColumn
from oncelake.ingestion.declaration.formats import FORMATS
from oncelake.ingestion.declaration.spec import StreamSpec
from oncelake.ingestion.verify.decode import Decode, DecodedRecord, Expected, csv, java
from oncelake.ingestion.verify.decode.coerce import utf8
from oncelake.ingestion.verify.read.record import Record


class ReadRecord:
    """Reads the columns of a record from its value, its headers and its Kafka key."""

    def __init__(self, spec: StreamSpec, read_value: Decode, read_key: Decode | None) -> None:
        """Take what reads the bytes of values, and of Kafka keys where any column needs them."""
        self._read_value, self._read_key = read_value, read_key
        self._names = [column.name for column in spec.value_columns]
        self._of_value = [column.name for column in spec.payload_columns]
        self._of_key, self._takes_key = spec.key_columns, bool(spec.from_key)
        types = {column.name: column for column in spec.value_columns}
        formats = spec.header_format
        self._headers = [
            (n, h, _reader(types[n], formats.get(n))) for n, h in spec.from_headers.items()
        ]
        self._of_tombstone = frozenset(spec.tombstone_columns)

    def value(self, record: Record) -> DecodedRecord:
        """Read a record that has a value."""
        assert record.value is not None, "a null value is read by its key"
        decoded = self._read_value(record.value, record.key, record.headers or ())
        if decoded.is_other or len(self._names) == len(self._of_value):
            return decoded
        given = dict(self._of_headers(record, self._names))
        if self._takes_key and record.key is not None:
            given |= self._key(record)
        return self._with(decoded, given)

    def tombstone(self, record: Record) -> Mapping[str, Any]:
        """Read key and order of a null value, which has nothing else, by Kafka key and headers."""
        known = {**self._key(record), **dict(self._of_headers(record, self._of_tombstone))}
        return {name: value for name, value in known.items() if name in self._of_tombstone}

    def _key(self, record: Record) -> Mapping[str, Any]:
        if not self._of_key:
            return {}
        assert self._read_key is not None, "a column needs the Kafka key"
        values = self._read_key(record.key, None, record.headers or ()).values
        return dict(zip(self._of_key, values, strict=True))

    def _of_headers(self, record: Record, asked: Container[str]) -> Iterator[tuple[str, Any]]:
        for name, header, take in self._headers:
            if name not in asked:
                continue
            raw = next((v for each, v in reversed(record.headers or ()) if each == header), None)
            yield name, None if raw is None else take(raw)

    def _with(self, decoded: DecodedRecord, given: Mapping[str, Any]) -> DecodedRecord:
        """Put columns among those of the value, and of the row before it where that is told."""
        columns = {**dict(zip(self._of_value, decoded.values, strict=True)), **given}
        moved_from = decoded.moved_from
        return replace(
            decoded,
            values=tuple([columns.get(name) for name in self._names]),
            moved_from=None if moved_from is None else {**moved_from, **given},
            ended=decoded.ended and self._with(decoded.ended, given),
        )


def _reader(column: DeclaredColumn, format_: str | None) -> Callable[[bytes], Any]:
    """Return what takes the bytes of a header: by its format, as text of a field of CSV, or all."""
    if format_ is not None:
        options = FORMATS[format_].options()
        of_java = java.reading(Expected(columns=[column], options=options, settings=None))
        return lambda raw: of_java(raw).values[0]
    if column.type.word == "BINARY":
        return lambda raw: raw
    take = csv.of_text(column.type)
    return lambda raw: take(utf8(raw))
