"""The rows of a topic as Avro, each behind the id that its schema has in the schema registry.

    whole numbers             int, or long for BIGINT
    BOOLEAN, FLOAT, DOUBLE    boolean, float, double
    STRING, VARCHAR, BINARY   string, bytes
    DECIMAL                   bytes, a decimal
    DATE                      int, a date
    TIMESTAMP                 long, a timestamp-micros
    TIMESTAMP_NTZ             long, a local-timestamp-micros
    ARRAY, MAP, STRUCT        array, map, record; the keys of a MAP must be texts

What may be null is a union of null and that, with null as its default, so that a new column fits
every reader. The columns of a key are never null: no change of other columns changes its bytes.

The ids are in the notes, so that each record is written and read by the schema that the registry
has under its id. Dates and moments are numbers here: Python's own types are slower.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from io import BytesIO
from typing import Any, Final

import pyarrow as pa
from fastavro import parse_schema, schemaless_reader, schemaless_writer

from oncelake.ingestion.declaration.ddl import DeclaredColumn
from oncelake.ingestion.declaration.types import SqlType
from oncelake.ingestion.errors import DependencyError
from oncelake.ingestion.kafka.schema_registry import registry_of
from oncelake.ingestion.settings import variable
from oncelake.ingestion.sinks.kafka.notes import TopicSchema
from oncelake.ingestion.sinks.kafka.rows import RECORDS_AT_ONCE, RowFormat
from oncelake.ingestion.sinks.kafka.writer import Record
from oncelake.ingestion.tables.arrow_types import TYPES, arrow_schema

_TYPES: Final[Mapping[str, Any]] = {
    "BOOLEAN": "boolean",
    **dict.fromkeys(("TINYINT", "SMALLINT", "INT"), "int"),
    "BIGINT": "long",
    "FLOAT": "float",
    "DOUBLE": "double",
    **dict.fromkeys(("STRING", "VARCHAR"), "string"),
    "BINARY": "bytes",
    "DATE": {"type": "int", "logicalType": "date"},
    "TIMESTAMP": {"type": "long", "logicalType": "timestamp-micros"},
    "TIMESTAMP_NTZ": {"type": "long", "logicalType": "local-timestamp-micros"},
}
_NUMBERS: Final = {
    **TYPES,
    "DATE": pa.int32(),
    **dict.fromkeys(("TIMESTAMP", "TIMESTAMP_NTZ"), pa.int64()),
}
_MALFORMED: Final = (
    *(EOFError, LookupError, ValueError, TypeError, OverflowError, MemoryError, ArithmeticError),
    *(struct.error, pa.ArrowException),
)
_HEAD_BYTES: Final = 5


class AvroRows(RowFormat):
    """Rows that fastavro writes and reads, by schemas of the registry."""

    def registered(self) -> TopicSchema:
        """Register the schema of the value, and once that of the key, and return their ids, too.

        Raises:
            RefusedError: the registry does not take it, such as for its rules of compatibility.
            DependencyError: it does not answer.
        """
        stream, ids = self.schema.stream, dict(self.schema.schema_ids)
        columns = {"value": self.schema.columns}
        if self.schema.keys and "key" not in ids:
            columns["key"] = self.schema.key_columns
        for part, of_part in columns.items():
            fields = ((each.name, each.type, each.nullable) for each in of_part)
            text = json.dumps(_record(f"{stream}.{part.title()}", fields))
            subject = f"{self.place.topic}-{part}"
            new = registry_of(self.place.settings).register(stream, subject, text)
            ids[part] = [*ids.get(part, ()), new]
        return replace(self.schema, schema_ids=ids)

    def records(self, rows: pa.Table, *, are_gone: bool) -> Iterator[list[Record]]:
        """Write each as one Avro record of its key, and one of all columns."""
        for start in range(0, rows.num_rows, RECORDS_AT_ONCE):
            some = rows.slice(start, RECORDS_AT_ONCE)
            nothing = [None] * some.num_rows
            keys = self._encoded("key", some) if self.schema.keys else nothing
            values = nothing if are_gone else self._encoded("value", some)
            pairs = zip(keys, values, strict=True)
            yield [{"key": key, "value": value} for key, value in pairs]

    def _encoded(self, part: str, rows: pa.Table) -> list[bytes]:
        columns = self.schema.key_columns if part == "key" else self.schema.columns
        typed = rows.select([column.name for column in columns]).cast(arrow_schema(columns))
        plain = typed.cast(arrow_schema(columns, _NUMBERS))
        head = _head(self.schema.schema_ids[part][-1])
        schema = self._schemas(part)[head]
        return [_encoded(row, schema, head) for row in plain.to_pylist(maps_as_pydicts="strict")]

    def decode(self, values: pa.Array, columns: Sequence[DeclaredColumn]) -> pa.Table:
        """Read each by the schema whose id it names, which must be of this topic."""
        schemas = self._schemas("value")
        try:
            rows = [_decoded(value, schemas[value[:_HEAD_BYTES]]) for value in values.to_pylist()]
            plain = pa.Table.from_pylist(rows, arrow_schema(columns, _NUMBERS))
            return plain.cast(arrow_schema(columns))
        except _MALFORMED:
            # What they say may quote the record.
            raise ValueError("a value is no Avro record of these columns") from None

    def _schemas(self, part: str) -> dict[bytes, Any]:
        """Return the schemas of keys or values, oldest first, each by what records begin with.

        Raises:
            DependencyError: the registry does not have them, or does not answer.
        """
        ids, settings = self.schema.schema_ids[part], self.place.settings
        schemas = registry_of(settings).schemas(ids)
        if lost := set(ids) - schemas.keys():
            raise DependencyError(
                f"the schema registry at {settings.schema_registry} does not know schema id "
                f"{min(lost)}, by which {self.place.where} is written. Nothing is lost. Next: "
                f"check {variable('schema_registry')}, or restore the registry's schemas"
            )
        return {_head(number): _parsed(schemas[number].text) for number in ids}


def _head(number: int) -> bytes:
    """Write what stands before a record: a zero, and its schema's id."""
    return b"\0" + number.to_bytes(_HEAD_BYTES - 1)


def _encoded(row: Mapping[str, Any], schema: Any, head: bytes) -> bytes:
    stream = BytesIO()
    stream.write(head)
    schemaless_writer(stream, schema, row)
    return stream.getvalue()


def _decoded(value: bytes, schema: Any) -> Any:
    stream = BytesIO(value[_HEAD_BYTES:])
    row = schemaless_reader(stream, schema, None)
    if stream.read(1):
        raise ValueError("bytes are left over")
    return row


@cache
def _parsed(text: str) -> Any:
    """Parse a schema, with dates and moments as the numbers that they are made of."""

    def without_moments(node: dict[str, Any]) -> dict[str, Any]:
        if node.get("logicalType") == "decimal":
            return node
        return {name: part for name, part in node.items() if name != "logicalType"}

    return parse_schema(json.loads(text, object_hook=without_moments))


def _record(name: str, fields: Iterable[tuple[str, SqlType, bool]]) -> dict[str, Any]:
    """Write the schema of a record by name, type and nullability of each field.

    Records in it have its name, ``_.`` and the field's as their own, which no other record has.
    """

    def field(part: str, type_: SqlType, is_nullable: bool) -> dict[str, Any]:
        written = _type(type_, f"{name}_.{part}")
        if is_nullable:
            return {"name": part, "type": ["null", written], "default": None}
        return {"name": part, "type": written}

    return {
        "type": "record",
        "name": name,
        "fields": [field(*each) for each in fields],
    }


def _type(type_: SqlType, name: str) -> Any:
    """Write the schema of a type; a record in it gets the name."""
    match type_.word:
        case "DECIMAL":
            size = {"precision": type_.precision, "scale": type_.scale}
            return {"type": "bytes", "logicalType": "decimal", **size}
        case "ARRAY":
            return {"type": "array", "items": ["null", _type(type_.parts["element"], name)]}
        case "MAP":
            return {"type": "map", "values": ["null", _type(type_.parts["value"], name)]}
        case "STRUCT":
            return _record(name, ((part, each, True) for part, each in type_.parts.items()))
    return _TYPES[type_.word]
