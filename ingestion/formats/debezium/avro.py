"""Debezium's envelopes in Avro, framed by the ids of a schema registry.

The schemas have the units and scales that JSON leaves to the declaration. The Kafka key is not
read: with a registry's converter, ``before`` has the key of every table that has one.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from pyspark.sql.types import StructField, StructType, TimestampType

from ingestion.declaration.formats import DebeziumOptions
from ingestion.formats.avro import parsed
from ingestion.formats.avro.types import AvroTypes
from ingestion.formats.coerce import Convert, Source, exact
from ingestion.formats.debezium.envelope import CLOCKS, at_path, row_of, value_of
from ingestion.formats.decoder import BadBytesError, Decode, Decoded, Encoded, Read
from ingestion.formats.wire_format import by_writer_schema
from ingestion.kafka.schema_registry import WriterSchema

Converts = Mapping[str, Convert | None]


def opened_avro(encoded: Encoded, options: DebeziumOptions) -> Decode:
    """Decode each envelope with its writer's schema."""
    return by_writer_schema(encoded, "AVRO", partial(compiled, options))


def compiled(options: DebeziumOptions, schema: WriterSchema, encoded: Encoded) -> Read:
    """Return a reader of the envelopes of one schema.

    Raises:
        BadBytesError: the schema is not an envelope's.
    """
    read, types, root = parsed(schema)
    fields = types.fields(root) if types.is_record(root) else {}
    if not {"op", "before", "after"} <= fields.keys():
        raise BadBytesError("malformed_debezium", "the schema has no op, before and after")
    plans = {
        side: _Plan(types, fields, side=side, columns=encoded.schema, options=options)
        for side in ("before", "after")
    }

    def read_envelope(payload: bytes) -> Decoded:
        envelope = {name: _bare(value) for name, value in read(payload).items()}
        side, row = row_of(envelope)
        return plans[side].said(row, envelope)

    return read_envelope


class _Plan:
    """Converts the rows of one side of an envelope to the declared columns."""

    def __init__(
        self,
        types: AvroTypes,
        fields: Mapping[str, Any],
        *,
        side: str,
        columns: StructType,
        options: DebeziumOptions,
    ) -> None:
        self._is_delete = side == "before"
        self._paths = {name: path.split(".") for name, path in options.columns.items()}
        self._types, self._fields = types, fields
        row = types.fields(types.record_in(fields[side]))
        self._extra = () if self._is_delete else tuple(row.keys() - set(columns.names))
        self._converts = {each.name: self._convert(each, row) for each in columns}

    def said(self, row: Mapping[str, Any], envelope: Mapping[str, Any]) -> Decoded:
        values = [self._value(name, row, envelope) for name in self._converts]
        return Decoded(values, self._extra, self._is_delete)

    def _convert(self, column: StructField, row: Mapping[str, Any]) -> Convert | None:
        path = self._paths.get(column.name)
        if path is None:
            node = row.get(column.name)
            return None if node is None else self._types.converter(node, column.dataType)
        node = self._fields.get(path[0])
        for name in path[1:]:
            node = (
                None if node is None else self._types.fields(self._types.record_in(node)).get(name)
            )
        if path[-1] in CLOCKS and isinstance(column.dataType, TimestampType):
            return exact(Source("timestamp", CLOCKS[path[-1]]), column.dataType)
        return None if node is None else self._types.converter(node, column.dataType)

    def _value(self, name: str, row: Mapping[str, Any], envelope: Mapping[str, Any]) -> Any:
        path, convert = self._paths.get(name), self._converts[name]
        value = at_path(envelope, path) if path else row.get(name)
        if convert is None:
            return None
        return value_of(name, value, convert, of_row=not path, is_delete=self._is_delete)


def _bare(value: Any) -> Any:
    """Return a value without the name that fastavro gives to records of a union."""
    return value[1] if type(value) is tuple else value
