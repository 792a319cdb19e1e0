"""How the rows of a table are written as the records of a topic, and read again: as JSON.

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

from ingestion.declaration.ddl import DeclaredColumn
from ingestion.declaration.sql import identifier, literal
from ingestion.declaration.types import SqlType

# A record as confluent-kafka's ``produce_batch`` takes it.
Record = dict[str, str | None]

RECORDS_AT_ONCE: Final = 5_000
_SETTINGS: Final[dict[str, str | bool | int | float | list[str]]] = {
    "memory_limit": "1GB",
    # Nothing is fetched from the network.
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
}
# Each type without parts: DuckDB's name of it, and Arrow's.
_TYPES: Final[dict[str, tuple[str, pa.DataType]]] = {
    "BOOLEAN": ("BOOLEAN", pa.bool_()),
    "TINYINT": ("TINYINT", pa.int8()),
    "SMALLINT": ("SMALLINT", pa.int16()),
    "INT": ("INTEGER", pa.int32()),
    "BIGINT": ("BIGINT", pa.int64()),
    "FLOAT": ("FLOAT", pa.float32()),
    "DOUBLE": ("DOUBLE", pa.float64()),
    "STRING": ("VARCHAR", pa.string()),
    "VARCHAR": ("VARCHAR", pa.string()),
    # As its base64.
    "BINARY": ("VARCHAR", pa.binary()),
    "DATE": ("DATE", pa.date32()),
    "TIMESTAMP": ("TIMESTAMPTZ", pa.timestamp("us", "UTC")),
    "TIMESTAMP_NTZ": ("TIMESTAMP", pa.timestamp("us")),
}
_TEXTS: Final = ("STRING", "VARCHAR")
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


def arrow_schema(columns: Sequence[DeclaredColumn]) -> pa.Schema:
    """Return the Arrow schema of rows with these columns."""
    return pa.schema([(column.name, _arrow_type(column.type)) for column in columns])


def unwritable(column: DeclaredColumn) -> str | None:
    """Say why a column cannot be written, if so."""
    for part in column.type.walk():
        if part.word == "MAP" and part.parts["key"].word not in _TEXTS:
            return f"its type {column.type} has a MAP whose keys are not STRING"
        if not part.parts and part.word not in _TYPES and part.word != "DECIMAL":
            return f"its type {column.type} has no form in JSON"
    return None


def records(
    rows: pa.Table, columns: Sequence[DeclaredColumn], keys: Sequence[str], *, are_gone: bool
) -> Iterator[list[Record]]:
    """Write rows as records, in their order, some at once.

    Args:
        rows: Whole rows, or, of rows that are gone, at least their keys.
        columns: The table's columns.
        keys: The names of those that make a record's key; without any it has none.
        are_gone: Whether the records have no value.
    """
    by_name = {column.name: column for column in columns}
    of_key = [by_name[name] for name in keys]
    written = of_key if are_gone else columns
    stored = rows.select([column.name for column in written]).cast(arrow_schema(written))
    texts = [_object(of_key), "NULL" if are_gone else _object(columns)]
    with closing(_connected()) as engine:
        engine.register("stored", stored)
        query = f"SELECT {', '.join(texts)} FROM stored"
        for batch in engine.sql(query).to_arrow_reader(RECORDS_AT_ONCE):
            pairs = zip(*(column.to_pylist() for column in batch.columns), strict=True)
            yield [{"key": key, "value": value} for key, value in pairs]


def decode(values: pa.Array, columns: Sequence[DeclaredColumn]) -> pa.Table:
    """Read some columns of the values of records.

    Raises:
        ValueError: one is no such object.
    """
    shape = json.dumps({column.name: "JSON" for column in columns})
    fields = ", ".join(_read(column.type, f"r.{identifier(column.name)}") for column in columns)
    query = f"""
        WITH objects AS (
            SELECT CASE WHEN json_type(value) = 'OBJECT' THEN value ELSE error('no object') END v
            FROM texts
        ), rows AS (SELECT from_json(v, {literal(shape)}) AS r FROM objects)
        SELECT {fields} FROM rows
    """
    try:
        texts = pa.table({"value": values.cast(pa.string())})
        with closing(_connected()) as engine:
            engine.register("texts", texts)
            read = engine.sql(query).to_arrow_table()
        schema = arrow_schema(columns)
        return read.rename_columns(schema.names).cast(schema)
    except (duckdb.Error, pa.ArrowInvalid):
        # What they say quotes the record.
        raise ValueError("a value is no object of these columns") from None


class NewestPerKey:
    """The newest record of each key; what does not fit into memory goes to a folder."""

    def __init__(self, scratch: str) -> None:
        """Take the folder; it must be there."""
        self._engine = _connected()
        self._engine.execute(f"SET temp_directory = {literal(scratch)}")
        self._engine.execute("CREATE TABLE records (key BLOB, value BLOB, place BIGINT)")

    def add(self, more: pa.Table) -> None:
        """Add records by key, value and offset."""
        self._engine.register("more", more)
        self._engine.execute("INSERT INTO records SELECT * FROM more")
        self._engine.unregister("more")

    def values(self) -> Iterator[pa.Array]:
        """Yield the values of those that are not deleted."""
        query = """
            SELECT value FROM records
            WHERE value IS NOT NULL AND place IN (SELECT max(place) FROM records GROUP BY key)
        """
        for batch in self._engine.sql(query).to_arrow_reader(RECORDS_AT_ONCE):
            yield batch.column(0)

    def close(self) -> None:
        """Forget them."""
        self._engine.close()


def _connected() -> duckdb.DuckDBPyConnection:
    engine = duckdb.connect(config=_SETTINGS)
    engine.execute("SET TimeZone = 'UTC'")
    return engine


def _arrow_type(type_: SqlType) -> pa.DataType:
    parts = {name: _arrow_type(part) for name, part in type_.parts.items()}
    match type_.word:
        case "DECIMAL":
            return pa.decimal128(type_.precision, type_.scale)
        case "ARRAY":
            return pa.list_(parts["element"])
        case "MAP":
            return pa.map_(parts["key"], parts["value"])
        case "STRUCT":
            return pa.struct(list(parts.items()))
    return _TYPES[type_.word][1]


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
    return _TYPES[type_.word][0]


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
