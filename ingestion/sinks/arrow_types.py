"""Arrow's types of the columns of a table: one map of declared types, for all sinks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import pyarrow as pa

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
