"""Arrow's types of the columns of a table: one map of declared types, for all sinks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from oncelake.ingestion.declaration.ddl import DeclaredColumn
from oncelake.ingestion.declaration.types import SqlType

# Of each type without parts.
TYPES: Final[Mapping[str, pa.DataType]] = {
    "BOOLEAN": pa.bool_(),
    "TINYINT": pa.int8(),
    "SMALLINT": pa.int16(),
    "INT": pa.int32(),
    "BIGINT": pa.int64(),
    "FLOAT": pa.float32(),
    "DOUBLE": pa.float64(),
    "STRING": pa.string(),
    "VARCHAR": pa.string(),
    "BINARY": pa.binary(),
    "DATE": pa.date32(),
    "TIMESTAMP": pa.timestamp("us", "UTC"),
    "TIMESTAMP_NTZ": pa.timestamp("us"),
}


# As files of a table have it; its parts may not be null.
VARIANT: Final = pa.struct(
    [pa.field(name, pa.binary(), nullable=False) for name in ("metadata", "value")]
)
_VARIANT: Final = str(VARIANT)


def arrow_schema(
    columns: Sequence[DeclaredColumn], types: Mapping[str, pa.DataType] = TYPES
) -> pa.Schema:
    """Return the Arrow schema of rows with these columns, by their types without parts."""
    return pa.schema([(column.name, _arrow_type(column.type, types)) for column in columns])


def _arrow_type(type_: SqlType, types: Mapping[str, pa.DataType]) -> pa.DataType:
    parts = {name: _arrow_type(part, types) for name, part in type_.parts.items()}
    match type_.word:
        case "DECIMAL":
            return pa.decimal128(type_.precision, type_.scale)
        case "ARRAY":
            return pa.list_(parts["element"])
        case "MAP":
            return pa.map_(parts["key"], parts["value"])
        case "STRUCT":
            return pa.struct(list(parts.items()))
    return types[type_.word]


def cast_rows(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Cast the columns of rows to the types of others of the same names.

    Raises:
        ValueError: a value does not fit, or is null and may not be; so do Arrow's own errors.
    """
    for field in schema:
        if not field.nullable and rows.column(field.name).null_count:
            raise ValueError(f"column {field.name!r} is null in a row, and NOT NULL")
    columns = [
        pa.chunked_array([cast_values(each, f.type) for each in rows.column(f.name).chunks], f.type)
        for f in schema
    ]
    return pa.table(columns, schema=schema)


def cast_values(values: pa.Array, type_: pa.DataType) -> pa.Array:
    """Cast values as Arrow does, which would refuse a VARIANT that is null for its parts."""
    if _VARIANT not in str(type_):
        return values.cast(type_)
    if types.is_list(type_):
        return _with_items(values, type_, cast_values(values.values, type_.value_type))
    if types.is_map(type_):
        items = [values.keys.cast(type_.key_type), cast_values(values.items, type_.item_type)]
        entries = pa.StructArray.from_arrays(items, fields=[type_.key_field, type_.item_field])
        return _with_items(values, type_, entries)
    if type_ == VARIANT:
        parts = [pc.fill_null(values.field(part.name), b"") for part in type_]
    else:
        parts = [cast_values(_part(values, part), part.type) for part in type_]
    return pa.StructArray.from_arrays(parts, fields=list(type_), mask=values.is_null())


def _part(values: pa.Array, field: pa.Field) -> pa.Array:
    """Return a field of structs, null where their type does not have it."""
    is_there = values.type.get_field_index(field.name) >= 0
    return values.field(field.name) if is_there else pa.nulls(len(values), field.type)


def _with_items(values: pa.Array, type_: pa.DataType, items: pa.Array) -> pa.Array:
    """Return lists, or maps, with other items in the places of theirs."""
    buffers, at = values.buffers()[:2], values.offset
    return pa.Array.from_buffers(type_, len(values), buffers, offset=at, children=[items])
