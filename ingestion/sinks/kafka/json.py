"""The rows of a topic as JSON.

Every value comes back as it was, to the bit::

    BOOLEAN, whole numbers    as JSON has them: true, 42
    FLOAT, DOUBLE             the shortest number that is exactly it; "NaN", "Infinity", "-Infinity"
    DECIMAL                   "12.50", with all digits of its scale
    STRING, VARCHAR           text
    BINARY                    "AAE=", base64
    DATE                      "2024-01-31"
    TIMESTAMP                 "2024-01-31T12:00:00.000000Z", UTC, always six digits
    TIMESTAMP_NTZ             the same without the Z
    ARRAY, STRUCT             an array, an object
    MAP                       an object; its keys must be texts

A record's value is an object of all columns, nulls included; a column that a record lacks, since it
is older than the column, is null. Its key is an object of the key columns in their order. A delete
has a key and no value. DuckDB writes and reads all of it; no row passes through Python.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Final

import duckdb
import pyarrow as pa

from oncelake.ingestion.declaration.ddl import DeclaredColumn
from oncelake.ingestion.declaration.sql import identifier, literal
from oncelake.ingestion.declaration.types import SqlType
from oncelake.ingestion.sinks.kafka.rows import RECORDS_AT_ONCE, RowFormat, connected
from oncelake.ingestion.sinks.kafka.writer import Record
from oncelake.ingestion.tables.arrow_types import arrow_schema

# Where DuckDB has another name of a type without parts.
_TYPES: Final = {
    "STRING": "VARCHAR",
    # As its base64.
    "BINARY": "VARCHAR",
    "TIMESTAMP": "TIMESTAMPTZ",
    "TIMESTAMP_NTZ": "TIMESTAMP",
}
# How a value is written where DuckDB's own JSON would not give it back as it was.
_FINITE: Final = (
    "CASE WHEN isfinite({0}) THEN {1} WHEN isnan({0}) THEN to_json('NaN') "
    "WHEN {0} > 0 THEN to_json('Infinity') WHEN {0} < 0 THEN to_json('-Infinity') END"
)
_WRITTEN: Final = {
    # As a DOUBLE a FLOAT has more digits than it needs.
    "FLOAT": _FINITE.format("{0}", "CAST(CAST({0} AS VARCHAR) AS JSON)"),
    "DOUBLE": _FINITE.format("{0}", "to_json({0})"),
    "DECIMAL": "CAST({0} AS VARCHAR)",
    "BINARY": "to_base64({0})",
    "DATE": "strftime({0}, '%Y-%m-%d')",
    "TIMESTAMP": "strftime({0}, '%Y-%m-%dT%H:%M:%S.%fZ')",
    "TIMESTAMP_NTZ": "strftime({0}, '%Y-%m-%dT%H:%M:%S.%f')",
}
_READ: Final = {"BINARY": "from_base64({0})"}


class JsonRows(RowFormat):
    """Rows that DuckDB writes as JSON, and reads."""

    def records(self, rows: pa.Table, *, are_gone: bool) -> Iterator[list[Record]]:
        """Write each as two objects."""
        columns = self.schema.key_columns if are_gone else self.schema.columns
        stored = rows.select([column.name for column in columns]).cast(arrow_schema(columns))
        texts = [_object(self.schema.key_columns), "NULL" if are_gone else _object(columns)]
        with closing(connected()) as engine:
            engine.register("stored", stored)
            query = f"SELECT {', '.join(texts)} FROM stored"
            for batch in engine.sql(query).to_arrow_reader(RECORDS_AT_ONCE):
                pairs = zip(*(column.to_pylist() for column in batch.columns), strict=True)
                yield [{"key": key, "value": value} for key, value in pairs]

    def decode(self, values: pa.Array, columns: Sequence[DeclaredColumn]) -> pa.Table:
        """Read the columns of objects."""
        shape = json.dumps({column.name: "JSON" for column in columns})
        fields = ", ".join(_read(column.type, f"r.{identifier(column.name)}") for column in columns)
        query = f"""
            WITH objects AS (
                SELECT CASE json_type(value) WHEN 'OBJECT' THEN value ELSE error('no object') END v
                FROM texts
            ), rows AS (SELECT from_json(v, {literal(shape)}) AS r FROM objects)
            SELECT {fields} FROM rows
        """
        try:
            texts = pa.table({"value": values.cast(pa.string())})
            with closing(connected()) as engine:
                engine.register("texts", texts)
                read = engine.sql(query).to_arrow_table()
            schema = arrow_schema(columns)
            return read.rename_columns(schema.names).cast(schema)
        except (duckdb.Error, pa.ArrowInvalid):
            # What they say quotes the record.
            raise ValueError("a value is no object of these columns") from None


def _json_type(type_: SqlType) -> str:
    """Name the type, for DuckDB, that a JSON of this type has."""
    parts = {name: _json_type(part) for name, part in type_.parts.items()}
    match type_.word:
        case "DECIMAL":
            return str(type_)
        case "ARRAY":
            return f"{parts['element']}[]"
        case "MAP":
            return f"MAP(VARCHAR, {parts['value']})"
        case "STRUCT":
            return (
                f"STRUCT({', '.join(f'{identifier(name)} {part}' for name, part in parts.items())})"
            )
    return _TYPES.get(type_.word, type_.word)


def _object(columns: Sequence[DeclaredColumn]) -> str:
    """Write, for DuckDB, the text of an object of columns; null without any."""
    fields = (
        f"{literal(column.name)}: {_converted(column.type, identifier(column.name), _WRITTEN)}"
        for column in columns
    )
    return f"CAST(to_json({{{', '.join(fields)}}}) AS VARCHAR)" if columns else "NULL"


def _read(type_: SqlType, value: str) -> str:
    """Write, for DuckDB, the value of this type that a JSON says."""
    is_text = _json_type(type_) == "VARCHAR"
    plain = f"({value} ->> '$')" if is_text else f"CAST({value} AS {_json_type(type_)})"
    return _converted(type_, plain, _READ)


def _converted(type_: SqlType, value: str, forms: dict[str, str], depth: int = 0) -> str:
    """Write, for DuckDB, a value with all in it that has a form of its own put into that."""
    each, parts = f"e{depth}", type_.parts

    def inner(name: str, value: str) -> str:
        return _converted(parts[name], value, forms, depth + 1)

    match type_.word if type_.contains(*forms) else "":
        case "STRUCT":
            fields = (
                f"{literal(name)}: {inner(name, f'struct_extract({each}, {literal(name)})')}"
                for name in parts
            )
            # A list of one, so that what the struct comes from is computed once.
            made = f"list_transform([{value}], lambda {each}: {{{', '.join(fields)}}})[1]"
            return f"CASE WHEN {value} IS NOT NULL THEN {made} END"
        case "ARRAY":
            return f"list_transform({value}, lambda {each}: {inner('element', each)})"
        case "MAP":
            entry = f"{{'key': {each}.key, 'value': {inner('value', f'{each}.value')}}}"
            entries = f"list_transform(map_entries({value}), lambda {each}: {entry})"
            return f"map_from_entries({entries})"
    return forms.get(type_.word, "{0}").format(value)
