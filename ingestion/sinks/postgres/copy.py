"""Rows on their way to PostgreSQL and back: as CSV, by COPY.

What comes back is, to the bit, what was sent, or it was refused: the server rounds numbers and cuts
blanks without a word, so a value has the column's own type before it leaves.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from itertools import islice
from typing import Any, Final, LiteralString

import duckdb
import psycopg
import pyarrow as pa
import pyarrow.compute as pc
from psycopg.sql import SQL, Composable, Composed, Identifier
from pyarrow import csv

from oncelake.ingestion.declaration.ddl import DeclaredColumn, parse_type
from oncelake.ingestion.declaration.sinks import SINKS
from oncelake.ingestion.declaration.types import SqlType
from oncelake.ingestion.errors import RefusedError
from oncelake.ingestion.tables.arrow_types import TYPES, arrow_schema

Connection = psycopg.Connection[tuple[Any, ...]]

_BYTES_READ_AT_ONCE: Final = 8 << 20
_ROWS_READ_AT_ONCE: Final = 256
_ROWS_SENT_AT_ONCE: Final = 8_192

# PostgreSQL's name of each type of a column. DECIMAL and VARCHAR have digits more.
_TYPES: Final = SINKS["postgres"].statements.type_names
# What others have put to a table, of a type that no stream has, is read as text.
_ARROW: Final = defaultdict(pa.string, TYPES)
_WORDS: Final = {name: word for word, name in _TYPES.items()} | {"character varying": "STRING"}
_WORDS_WITH_DIGITS: Final = {"numeric(": "DECIMAL(", "character varying(": "VARCHAR("}
# What is read in place of a text that no reader of CSV takes in all its range.
_MICROSECONDS: Final = ("(extract(epoch FROM {}) * 1000000)::bigint", pa.int64())
_READ_AS: Final[dict[str, tuple[LiteralString, pa.DataType]]] = {
    "BINARY": ("encode({}, 'hex')", pa.string()),
    "DATE": ("{} - date '1970-01-01'", pa.int32()),
    "TIMESTAMP": _MICROSECONDS,
    "TIMESTAMP_NTZ": _MICROSECONDS,
}
# A null is nothing, and an empty text is two quotes: in both directions.
_WRITTEN: Final = csv.WriteOptions(include_header=False)
_PARSED: Final = csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=False)
_COLUMNS: Final = """
    SELECT attname, format_type(atttypid, atttypmod)
               -- By it two texts may be equal that are not the same.
               || coalesce((SELECT ' collate ' || collname FROM pg_collation c
                            WHERE c.oid = attcollation AND NOT collisdeterministic), ''),
           NOT attnotnull, coalesce(col_description(attrelid, attnum), ''),
           CASE WHEN attgenerated <> '' THEN 'generated'
                WHEN attidentity = 'a' THEN 'always identity'
                WHEN attidentity = 'd' THEN 'identity'
                WHEN atthasdef OR typdefault IS NOT NULL THEN 'default'
                ELSE '' END
    FROM pg_attribute JOIN pg_type t ON t.oid = atttypid
    WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped
    ORDER BY attnum
"""


def columns_of(connection: Connection, table: Identifier) -> tuple[DeclaredColumn, ...]:
    """Read a table's columns from the server's catalog."""
    return tuple(_column(*found) for found in connection.execute(_COLUMNS, (table.as_string(),)))


def _column(name: str, type_: str, nullable: bool, comment: str, filled_by: Any) -> DeclaredColumn:
    column = DeclaredColumn(
        name=name, type=_sql_type(type_), nullable=nullable, comment=comment, filled_by=filled_by
    )
    # No stream has ever written to it, and none can.
    is_of_others = nullable and not is_readable(column)
    return replace(column, filled_by=filled_by or "default") if is_of_others else column


def _sql_type(name: str) -> SqlType:
    """Read PostgreSQL's name of a type; one that no declaration has is a word of its own."""
    base, bracket, digits = name.partition("(")
    try:
        return parse_type(_WORDS.get(name) or _WORDS_WITH_DIGITS[base + bracket] + digits)
    except (KeyError, ValueError):
        return SqlType(word=name.upper())


def is_readable(column: DeclaredColumn) -> bool:
    """Tell whether a column's type is one that a stream's can have."""
    return column.type.word in _TYPES or column.type.word in ("DECIMAL", "VARCHAR")


def server_type(type_: SqlType) -> str:
    """Return PostgreSQL's name of a type."""
    return _TYPES.get(type_.word, str(type_))


def column_list(columns: Sequence[str], *, of: str = "") -> Composed:
    """Write the names of columns, of a table."""
    prefix = (of,) if of else ()
    return SQL(", ").join(Identifier(*prefix, column) for column in columns)


def as_stored(stream: str, rows: pa.Table, columns: Sequence[DeclaredColumn]) -> pa.Table:
    """Return rows, or keys, with the types of their columns.

    Raises:
        RefusedError: the server would refuse a text without naming its column, or cut it short.
    """
    by_name = {column.name: column for column in columns}
    own = [by_name[name] for name in rows.column_names]
    stored = rows.cast(arrow_schema(own, _ARROW))
    for column in own:
        if column.type.word in ("STRING", "VARCHAR"):
            _refuse_unstorable(stream, column, stored.column(column.name))
    return stored


def _refuse_unstorable(stream: str, column: DeclaredColumn, texts: pa.ChunkedArray) -> None:
    name, problem = column.name, ""
    longest = column.type.precision and (pc.max(pc.utf8_length(texts)).as_py() or 0)
    if longest > column.type.precision:
        problem = f"has {longest} characters, and its type is {column.type}"
        remedy = "declare the column as STRING, or as a longer VARCHAR"
    if pc.any(pc.match_substring(texts, "\0")).as_py():
        problem = "has the character NUL in it, which PostgreSQL cannot keep"
        remedy = (
            f"declare `select: {{{name}: replace({name}, chr(0), '')}}`, or a `where` that leaves "
            "such records out"
        )
    if problem:
        problem = f"a text of column {name} {problem}. Nothing was changed."
        raise RefusedError(stream, problem, remedy=remedy)


def send_rows(connection: Connection, target: Identifier, rows: pa.Table) -> int:
    """Copy rows to a table; return how many the server has taken."""
    if not rows.num_rows:
        return 0
    statement = SQL("COPY {} ({}) FROM STDIN (FORMAT csv)").format(
        target, column_list(rows.column_names)
    )
    with connection.cursor() as cursor:
        with cursor.copy(statement) as copy, closing(duckdb.connect()) as engine:
            texts = engine.from_arrow(_in_utc(rows)).project(", ".join(map(_as_text, rows.schema)))
            for batch in texts.to_arrow_reader(_ROWS_SENT_AT_ONCE):
                text = pa.BufferOutputStream()
                csv.write_csv(batch, text, _WRITTEN)
                copy.write(text.getvalue())
        return cursor.rowcount


def _in_utc(rows: pa.Table) -> pa.Table:
    """Return moments without their zone, which is the session's."""
    types = [(each, pa.types.is_timestamp(each.type)) for each in rows.schema]
    naive = [each.with_type(pa.timestamp("us")) if is_moment else each for each, is_moment in types]
    return rows.cast(pa.schema(naive))


def _as_text(column: pa.Field) -> str:
    """Write, for DuckDB, as text what Arrow's CSV would not write as PostgreSQL reads it."""
    name = Identifier(column.name).as_string()
    if pa.types.is_binary(column.type):
        return f"'\\x' || hex({name}) AS {name}"
    # Years before 1 and beyond 9999 included.
    return f"CAST({name} AS VARCHAR) AS {name}" if pa.types.is_temporal(column.type) else name


def read_rows(
    connection: Connection, columns: Sequence[DeclaredColumn], source: Composable
) -> Iterator[pa.RecordBatch]:
    """Copy columns of the table ``t``, which ``source`` names, from the server, few at once.

    The first batch is empty, so that without any row there is a schema, too.
    """
    yield pa.RecordBatch.from_pylist([], schema=arrow_schema(columns, _ARROW))
    wanted = SQL(", ").join(
        SQL(_READ_AS.get(column.type.word, ("{}",))[0]).format(Identifier("t", column.name))
        for column in columns
    )
    query = SQL("COPY (SELECT {} {}) TO STDOUT (FORMAT csv, FORCE_QUOTE *)").format(wanted, source)
    with connection.cursor() as cursor, cursor.copy(query) as copy:
        lines = iter(copy)
        while text := _some_megabytes(lines):
            yield from _parsed(text, columns).to_batches()


def _some_megabytes(lines: Iterator[Any]) -> bytes:
    parts, size = [], 0
    while size < _BYTES_READ_AT_ONCE and (part := b"".join(islice(lines, _ROWS_READ_AT_ONCE))):
        parts.append(part)
        size += len(part)
    return b"".join(parts)


def _parsed(text: bytes, columns: Sequence[DeclaredColumn]) -> pa.Table:
    schema = arrow_schema(columns, _ARROW)
    read_as = [_READ_AS.get(c.type.word, ("", schema.field(c.name).type))[1] for c in columns]
    converted = csv.ConvertOptions(
        column_types=dict(zip(schema.names, read_as, strict=True)),
        null_values=[""],
        true_values=["t"],
        false_values=["f"],
        strings_can_be_null=True,
        quoted_strings_can_be_null=False,
    )
    # One block: a value may be larger than any size that is chosen.
    read = csv.ReadOptions(column_names=schema.names, block_size=len(text) + 1)
    rows = csv.read_csv(pa.py_buffer(text), read, _PARSED, converted)
    if binary := [Identifier(c.name).as_string() for c in columns if c.type.word == "BINARY"]:
        decoded = ", ".join(f"unhex({name}) AS {name}" for name in binary)
        with closing(duckdb.connect()) as engine:
            rows = engine.from_arrow(rows).project(f"* REPLACE ({decoded})").to_arrow_table()
    return rows.cast(schema)
