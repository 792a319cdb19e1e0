"""Debezium's envelopes in Avro, framed by the ids of a schema registry.

The schemas have the units and scales that JSON leaves to the declaration. The Kafka key is not
read: with a registry's converter, ``before`` has the key of every table that has one.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from pyspark.sql.types import StructField, TimestampType

from ingestion.declaration.formats import DebeziumOptions
from ingestion.formats.avro import parsed
from ingestion.formats.avro.types import AvroTypes
from ingestion.formats.coerce import Convert, Source, exact
from ingestion.formats.debezium.envelope import CLOCKS, RowPlan, paths_of, row_of
from ingestion.formats.decoder import BadBytesError, Decode, Decoded, Encoded, Read
from ingestion.formats.wire_format import by_writer_schema
from ingestion.kafka.schema_registry import WriterSchema


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
    paths = paths_of(options)
    plans, extra = {}, {}
    for side in ("before", "after"):
        row = types.fields(types.record_in(fields[side]))
        nodes = {**row, **{name: _node_at(types, fields, path) for name, path in paths.items()}}
        converts = {c.name: _convert(types, nodes, paths, c) for c in encoded.schema}
        plans[side] = RowPlan(converts, paths, side)
        extra[side] = [name for name in row if name not in encoded.schema.names]

    def read_envelope(payload: bytes) -> Decoded:
        envelope = {name: _bare(value) for name, value in read(payload).items()}
        side, row = row_of(envelope)
        return plans[side].decoded(row, envelope, extra[side])

    return read_envelope


def _node_at(types: AvroTypes, fields: Mapping[str, Any], path: list[str]) -> Any:
    node = fields.get(path[0])
    for name in path[1:]:
        node = None if node is None else types.fields(types.record_in(node)).get(name)
    return node


def _convert(
    types: AvroTypes, nodes: Mapping[str, Any], paths: Mapping[str, list[str]], column: StructField
) -> Convert | None:
    unit = CLOCKS.get(paths.get(column.name, [""])[-1])
    if unit and isinstance(column.dataType, TimestampType):
        return exact(Source("timestamp", unit), column.dataType)
    node = nodes.get(column.name)
    return None if node is None else types.converter(node, column.dataType)


def _bare(value: Any) -> Any:
    """Return a value without the name that fastavro gives to records of a union."""
    return value[1] if type(value) is tuple else value
