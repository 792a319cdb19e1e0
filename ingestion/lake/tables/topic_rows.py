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
from pathlib import Path
from typing import Final

import duckdb
import pyarrow as pa

from ingestion.declaration.ddl import DeclaredColumn
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
_ARROW: Final = {
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
_NUMBERS: Final = ("TINYINT", "SMALLINT", "INT", "BIGINT")
_TEXTS: Final = ("STRING", "VARCHAR")
# What DuckDB's own JSON would not give back as it was.
_WRITTEN_OTHERWISE: Final = (
    *("FLOAT", "DOUBLE", "DECIMAL", "BINARY"),
    *("DATE", "TIMESTAMP", "TIMESTAMP_NTZ"),
)
_FORMATS: Final = {
    "DATE": "%Y-%m-%d",
    "TIMESTAMP": "%Y-%m-%dT%H:%M:%S.%fZ",
    "TIMESTAMP_NTZ": "%Y-%m-%dT%H:%M:%S.%f",
}


class UndecodableError(ValueError):
    """A record's value is not as it should be; its cause quotes from it.

    Attributes:
        index: Which of the values.
    """

    def __init__(self, index: int) -> None:
        super().__init__(f"value {index} cannot be decoded")
        self.index = index


def arrow_schema(columns: Sequence[DeclaredColumn]) -> pa.Schema:
    """Return the Arrow schema of rows with these columns."""
    return pa.schema([(column.name, _arrow_type(column.type)) for column in columns])


def unwritable(column: DeclaredColumn) -> str | None:
    """Say why a column cannot be written, if so."""
    for part in column.type.walk():
        if part.word == "MAP" and part.parts["key"].word not in _TEXTS:
            return f"its type {column.type} has a MAP whose keys are not STRING"
        if not part.parts and part.word not in _ARROW and part.word != "DECIMAL":
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
    names = keys if are_gone else tuple(by_name)
    stored = rows.select(names).cast(arrow_schema([by_name[name] for name in names]))
    value = "NULL" if are_gone else _written(_row_type(columns), "r")
    key = _written(_row_type([by_name[name] for name in keys]), "r") if keys else "NULL"
    with closing(_connected()) as engine:
        query = f"SELECT {_text(key)}, {_text(value)} FROM (SELECT stored AS r FROM stored)"
        engine.register("stored", stored)
        for batch in engine.sql(query).to_arrow_reader(RECORDS_AT_ONCE):
            pairs = zip(*(column.to_pylist() for column in batch.columns), strict=True)
            yield [{"key": key, "value": value} for key, value in pairs]


def decode(values: pa.Array, columns: Sequence[DeclaredColumn]) -> pa.Table:
    """Read some columns of the values of records.

    Raises:
        UndecodableError: one is not such an object.
    """
    try:
        return _decoded(values, columns)
    except (duckdb.Error, pa.ArrowInvalid) as error:
        raise UndecodableError(_first_undecodable(values, columns)) from error


def _decoded(values: pa.Array, columns: Sequence[DeclaredColumn]) -> pa.Table:
    texts = pa.table({"value": values.cast(pa.string())})
    with closing(_connected()) as engine:
        engine.register("texts", texts)
        row = f"coalesce({_read(_row_type(columns), 'value')}, error('OBJECT expected'))"
        found = engine.sql(f"SELECT unnest(r) FROM (SELECT {row} AS r FROM texts)").to_arrow_table()
    return found.cast(arrow_schema(columns))


def _first_undecodable(values: pa.Array, columns: Sequence[DeclaredColumn]) -> int:
    """Find it by halves."""
    start, end = 0, len(values)
    while end - start > 1:
        middle = (start + end) // 2
        try:
            _decoded(values[start:middle], columns)
            start = middle
        except (duckdb.Error, pa.ArrowInvalid):
            end = middle
    return start


class NewestPerKey:
    """The newest record of each key; what does not fit into memory goes to a folder."""

    def __init__(self, scratch: Path) -> None:
        """Take the folder; it must be there."""
        self._engine = _connected()
        self._engine.execute(f"SET temp_directory = '{str(scratch).replace(chr(39), chr(39) * 2)}'")
        self._engine.execute(
            "CREATE TABLE records (key BLOB, value BLOB, is_live BOOL, place BIGINT)"
        )

    def add(self, keys: pa.Array, values: pa.Array | None, is_live: pa.Array, at: pa.Array) -> None:
        """Add records by their keys and offsets; values may be left out."""
        values = pa.nulls(len(keys), pa.binary()) if values is None else values
        self._engine.register("more", pa.table([keys, values, is_live, at], list("kvla")))
        self._engine.execute("INSERT INTO records SELECT k, v, l, a FROM more")
        self._engine.unregister("more")

    _LIVE: Final = """
        FROM records WHERE is_live AND place IN (SELECT max(place) FROM records GROUP BY key)
    """

    def live(self) -> Iterator[pa.RecordBatch]:
        """Yield value and offset of those that are not deleted."""
        yield from self._engine.sql(f"SELECT value, place {self._LIVE}").to_arrow_reader(
            RECORDS_AT_ONCE
        )

    def count(self) -> int:
        """Count those that are not deleted."""
        [(count,)] = self._engine.sql(f"SELECT count(*) {self._LIVE}").fetchall()
        return int(count)

    def close(self) -> None:
        """Forget them."""
        self._engine.close()


def _connected() -> duckdb.DuckDBPyConnection:
    engine = duckdb.connect(config=_SETTINGS)
    engine.execute("SET TimeZone = 'UTC'")
    return engine


def _row_type(columns: Sequence[DeclaredColumn]) -> SqlType:
    return SqlType(word="STRUCT", parts={column.name: column.type for column in columns})


def _arrow_type(type_: SqlType) -> pa.DataType:
    parts = {name: _arrow_type(part) for name, part in type_.parts.items()}
    if type_.word == "DECIMAL":
        return pa.decimal128(type_.precision, type_.scale)
    if type_.word == "ARRAY":
        return pa.list_(parts["element"])
    if type_.word == "MAP":
        return pa.map_(parts["key"], parts["value"])
    return pa.struct(list(parts.items())) if parts else _ARROW[type_.word]


def _text(value: str) -> str:
    return value if value == "NULL" else f"CAST(to_json({value}) AS VARCHAR)"


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _field(value: str, name: str) -> str:
    return f"struct_extract({value}, {_literal(name)})"


def _written(type_: SqlType, value: str, depth: int = 0) -> str:
    """Write, for DuckDB, what its ``to_json`` writes as a value of this type should be."""
    each = f"e{depth}"
    match type_.word:
        case "STRUCT" if depth == 0 or type_.contains(*_WRITTEN_OTHERWISE):
            fields = (
                f"{_literal(name)}: {_written(part, _field(value, name), depth + 1)}"
                for name, part in type_.parts.items()
            )
            return f"CASE WHEN {value} IS NOT NULL THEN {{{', '.join(fields)}}} END"
        case "ARRAY" if type_.contains(*_WRITTEN_OTHERWISE):
            element = _written(type_.parts["element"], each, depth + 1)
            return f"list_transform({value}, lambda {each}: {element})"
        case "MAP" if type_.contains(*_WRITTEN_OTHERWISE):
            return _mapped(value, each, _written(type_.parts["value"], f"{each}.value", depth + 1))
        case "FLOAT" | "DOUBLE":
            # As a DOUBLE a FLOAT has more digits than it needs.
            exact = f"CAST(CAST({value} AS VARCHAR) AS JSON)"
            return (
                f"CASE WHEN isfinite({value}) THEN {exact} "
                f"WHEN isnan({value}) THEN to_json('NaN') WHEN {value} > 0 THEN "
                f"to_json('Infinity') WHEN {value} < 0 THEN to_json('-Infinity') END"
            )
        case "DECIMAL":
            return f"CAST({value} AS VARCHAR)"
        case "BINARY":
            return f"to_base64({value})"
        case "DATE" | "TIMESTAMP" | "TIMESTAMP_NTZ" as word:
            return f"strftime({value}, '{_FORMATS[word]}')"
    return value


def _mapped(value: str, each: str, inner: str) -> str:
    entry = f"{{'key': {each}.key, 'value': {inner}}}"
    return f"map_from_entries(list_transform(map_entries({value}), lambda {each}: {entry}))"


def _read(type_: SqlType, value: str, depth: int = 0) -> str:
    """Write, for DuckDB, the value of this type that a JSON says; any other is an error."""
    each = f"e{depth}"
    text = f"{value} ->> '$'"
    match type_.word:
        case "STRUCT":
            # A list of one, so that an object is parsed once, whatever is taken from it.
            shape = _literal(json.dumps(dict.fromkeys(type_.parts, "JSON")))
            fields = (
                f"{_literal(name)}: {_read(part, _field(each, name), depth + 1)}"
                for name, part in type_.parts.items()
            )
            body = f"lambda {each}: {{{', '.join(fields)}}}"
            return _if(value, f"list_transform([from_json({value}, {shape})], {body})[1]", "OBJECT")
        case "ARRAY":
            inner = _read(type_.parts["element"], each, depth + 1)
            elements = f"CAST({value} AS JSON[])"
            return _if(value, f"list_transform({elements}, lambda {each}: {inner})", "ARRAY")
        case "MAP":
            inner = _read(type_.parts["value"], f"{each}.value", depth + 1)
            return _if(
                value, _mapped(f"CAST({value} AS MAP(VARCHAR, JSON))", each, inner), "OBJECT"
            )
        case "FLOAT" | "DOUBLE" as word:
            there = ("UBIGINT", "BIGINT", "DOUBLE", "VARCHAR")
            return _if(value, f"CAST({text} AS {word})", *there)
        case "BOOLEAN":
            return _if(value, f"CAST({value} AS BOOLEAN)", "BOOLEAN")
        case word if word in _NUMBERS:
            return _if(value, f"CAST({value} AS {word})", "UBIGINT", "BIGINT")
        case word if word in _TEXTS:
            return _if(value, text, "VARCHAR")
        case "BINARY":
            return _if(value, f"from_base64({text})", "VARCHAR")
    target = {"TIMESTAMP": "TIMESTAMPTZ", "TIMESTAMP_NTZ": "TIMESTAMP"}.get(type_.word, str(type_))
    return _if(value, f"CAST({text} AS {target})", "VARCHAR")


def _if(value: str, then: str, *types: str) -> str:
    """Write what takes a JSON of some types alone; null stays null."""
    found = f"json_type({value})"
    problem = f"error(concat('{types[-1]} expected, found ', {found}))"
    allowed = ", ".join(map(_literal, types))
    return (
        f"CASE WHEN {found} IN ({allowed}) THEN {then} "
        f"WHEN {value} IS NULL OR {found} = 'NULL' THEN NULL ELSE {problem} END"
    )
