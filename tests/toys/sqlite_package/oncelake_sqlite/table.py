"""A sink of another package: a table of a SQLite file, whose rows and notes are one transaction."""

from __future__ import annotations

import json
import sqlite3
import struct
import time
import uuid
from collections.abc import Collection, Iterator, Sequence
from contextlib import closing
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa

from oncelake.sinks import (
    BESIDE,
    ROW_COUNTS,
    Change,
    Commit,
    CommitLog,
    CommitMetadata,
    DeclaredColumn,
    DependencyError,
    ErasableTable,
    Location,
    NamedTable,
    Settings,
    TableBusyError,
    TableDefinition,
    Transaction,
    app_id,
    arrow_schema,
    counts_of,
    equal,
    identifier,
    operation_of,
    parse_columns,
    quoted,
    seq_conflict,
    settings_of_sink,
)
from oncelake_sqlite import KIND, SqliteSink


def open_table(stream: str, sink: SqliteSink, settings: Settings, lake: Location) -> SqliteTable:
    """Open a stream's table; it need not be there."""
    del settings
    file = settings_of_sink("sqlite").get("") or str(lake.path / "rows.sqlite")
    return SqliteTable(stream, Path(file), sink.table_of(stream))


class SqliteTable(NamedTable, ErasableTable):
    """One table of rows, and one of notes: version, note, counts and time of each commit."""

    def __init__(self, stream: str, file: Path, name: str) -> None:
        self.stream, self.file, self.name = stream, file, name
        self.rows, self.kept, self.about = (
            identifier(f"{name}{end}") for end in ("", "__notes", "__about")
        )
        self.known_id: str | None = None

    @property
    def where(self) -> str:
        """Name the table and its file."""
        return f"table {self.name} of {self.file}"

    def connect(self) -> sqlite3.Connection:
        """Open the file; nothing is committed but by COMMIT."""
        self.file.parent.mkdir(parents=True, exist_ok=True)
        connection = sqlite3.connect(self.file, timeout=30, isolation_level=None)
        connection.execute("PRAGMA synchronous = FULL")
        return connection

    def read(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        """Return rows of a query; none where there is no table."""
        with closing(self.connect()) as connection:
            try:
                return connection.execute(query, values).fetchall()
            except sqlite3.OperationalError as error:
                if "no such table" in str(error):
                    return []
                raise DependencyError(f"{self.where}: {error}. Next: run again") from error

    def id_and_stream(self) -> tuple[str | None, str | None]:
        """Return the table's id, and the stream that it was made for, if it is there."""
        found = self.read(f"SELECT id, stream FROM {self.about}")
        return next(((id_, stream) for id_, stream in found), (None, None))

    @property
    def is_ours(self) -> bool:
        """Tell whether the table was made for this stream."""
        return self.id_and_stream()[1] == self.stream

    def log(self) -> SqliteLog:
        """Open the log; it looks once it is asked, and the table remembers of what table it was."""
        return SqliteLog(self)

    def create(self, wanted: TableDefinition) -> None:
        """Make the three tables, unless they are there."""
        stored = [(c.name, KIND.stored_type(c.type), c.nullable) for c in wanted.columns]
        ddl = [[name, str(type_), nullable] for name, type_, nullable in stored]
        names = ", ".join(identifier(each.name) for each in wanted.columns)
        with closing(self.connect()) as connection:
            connection.execute("BEGIN IMMEDIATE")
            connection.execute(f"CREATE TABLE IF NOT EXISTS {self.rows} ({names})")
            connection.execute(
                f"CREATE TABLE IF NOT EXISTS {self.kept} (version INTEGER PRIMARY KEY, note, "
                "inserted, updated, deleted, ms)"
            )
            connection.execute(f"CREATE TABLE IF NOT EXISTS {self.about} (id, stream, columns)")
            connection.execute(
                f"INSERT INTO {self.about} SELECT ?, ?, ? "
                f"WHERE NOT EXISTS (SELECT 1 FROM {self.about})",
                (uuid.uuid4().hex, self.stream, json.dumps(ddl)),
            )
            connection.execute("COMMIT")

    def columns(self) -> tuple[DeclaredColumn, ...]:
        """Return the columns as they were declared."""
        ((ddl,),) = self.read(f"SELECT columns FROM {self.about}")
        return tuple(
            column
            for name, type_, nullable in json.loads(ddl)
            for column in parse_columns(f"{quoted(name)} {type_}{'' if nullable else ' NOT NULL'}")
        )

    def schema(self) -> pa.Schema:
        """Return the columns in Arrow."""
        return arrow_schema(self.columns())

    def begin(self, seq: int) -> SqliteTransaction:
        """Lock the file, and make sure that the table stands at the seq before."""
        return SqliteTransaction(self, seq)

    def scan(
        self, names: Sequence[str], version: int | None = None, *, since_seq: int | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Read the rows, if the table has not gone on."""
        newest = self.log().versions()[:1]
        if version is not None and newest != [version]:
            raise TableBusyError(f"{self.where} has gone on from {version}. Next: run again")
        schema = self.schema()
        wanted = pa.schema([schema.field(name) for name in names])
        shown = ", ".join(map(identifier, names))
        where = "" if since_seq is None else f" WHERE _seq >= {since_seq}"
        yield from from_rows(
            self.read(f"SELECT {shown} FROM {self.rows}{where}"), wanted
        ).to_batches()

    def remove_older_versions(self, written: Collection[str]) -> int:
        """Remove what was deleted from the file; no version is kept."""
        del written
        with closing(self.connect()) as connection:
            connection.execute("VACUUM")
        return 0

    def drop(self) -> None:
        """Drop the three tables, if they are this stream's."""
        with closing(self.connect()) as connection:
            connection.execute("BEGIN IMMEDIATE")
            for name in (self.rows, self.kept, self.about) if self.is_ours else ():
                connection.execute(f"DROP TABLE {name}")
            connection.execute("COMMIT")

    def set_aside(self, entry: str, *, is_replaced: bool = False) -> str | None:
        """Give the tables another name, and theirs to those that were made beside them."""
        aside, ends = f"{self.name}__{entry}", ("", "__notes", "__about")
        with closing(self.connect()) as connection:
            there = {row[0] for row in connection.execute("SELECT name FROM sqlite_master")}
            connection.execute("BEGIN IMMEDIATE")
            moves = [(self.name, aside)]
            moves += [(f"{self.name}{BESIDE}", self.name)] if is_replaced else []
            is_ours = is_replaced or self.is_ours
            if aside not in there and self.name in there and is_ours:
                for old, new in moves:
                    for end in ends:
                        connection.execute(f'ALTER TABLE "{old}{end}" RENAME TO "{new}{end}"')
            connection.execute("COMMIT")
        return aside if aside in there or (self.name in there and is_ours) else None


class SqliteLog(CommitLog):
    """The notes of one table."""

    def __init__(self, table: SqliteTable) -> None:
        self.table = table

    @cached_property
    def about(self) -> tuple[str | None, str | None]:
        """Look which table this is, and of what stream."""
        found = self.table.id_and_stream()
        self.table.known_id = found[0]
        return found

    def look_again(self) -> None:
        """Forget which table it was."""
        self.__dict__.pop("about", None)

    @property
    def exists(self) -> bool:
        """Tell whether the table is there."""
        return self.about[0] is not None

    def table_id(self) -> str:
        """Return the id that the table was given."""
        return f"sqlite:{self.about[0]}"

    def versions(self) -> list[int]:
        """List the versions, newest first."""
        if not self.exists:
            return []
        found = self.table.read(f"SELECT version FROM {self.table.kept} ORDER BY version DESC")
        return [row[0] for row in found]

    def row_count(self) -> int:
        """Count the rows."""
        return next(
            (row[0] for row in self.table.read(f"SELECT count(*) FROM {self.table.rows}")), 0
        )

    def read(self, version: int) -> Commit:
        """Read one note."""
        query = (
            f"SELECT note, inserted, updated, deleted, ms FROM {self.table.kept} WHERE version = ?"
        )
        for note, *counts, ms in self.table.read(query, version):
            by_name = dict(zip(ROW_COUNTS, counts, strict=True))
            metadata = CommitMetadata.from_json(note, self.table.stream, self.table.where)
            assert metadata is not None, "only notes are kept"
            return Commit(
                version=version, timestamp_ms=ms, operation=operation_of(by_name), metrics=by_name,
                txns={app_id(self.about[1] or ""): version}, changes_rows=any(counts),
                metadata=metadata,
            )  # fmt: skip
        raise FileNotFoundError(f"{self.table.where} has no version {version}")


class SqliteTransaction(Transaction):
    """A transaction of SQLite, which keeps all other writers out."""

    def __init__(self, table: SqliteTable, seq: int) -> None:
        self.table, self.seq = table, seq
        self.connection = table.connect()
        try:
            self.connection.execute("BEGIN IMMEDIATE")
            last = self.connection.execute(f"SELECT max(version) FROM {table.kept}").fetchone()[0]
        except sqlite3.OperationalError as error:
            self.close()
            raise TableBusyError(f"{table.where}: {error}. Next: run again") from error
        id_, stream = table.id_and_stream()
        is_other = table.known_id not in (None, id_) or stream != table.stream
        if is_other or seq != (-1 if last is None else last) + 1:
            self.close()
            raise seq_conflict(table.stream, table.where, seq, last=last)

    def rows_of(self, keys: pa.Table, columns: Sequence[str] | None = None) -> pa.Table:
        """Join the rows with the keys."""
        schema = self.table.schema()
        shown = ", ".join(f"t.{identifier(name)}" for name in schema.names)
        query = f"SELECT {shown} FROM {self.table.rows} t JOIN wanted k ON {self._wanted(keys)}"
        return from_rows(self.connection.execute(query).fetchall(), schema)

    def commit(self, change: Change | None, metadata: CommitMetadata) -> None:
        """Delete and insert rows, note it, and commit."""
        if metadata.seq != self.seq:
            raise ValueError(f"seq {self.seq} was begun, and not {metadata.seq}")
        if change is not None:
            self._delete(
                pa.concat_tables(
                    [
                        change.deleted,
                        change.updated.select(change.deleted.column_names).cast(
                            change.deleted.schema
                        ),
                    ]
                )
            )
            for rows in (change.updated, change.inserted):
                marks = ", ".join("?" * rows.num_columns)
                names = ", ".join(map(identifier, rows.column_names))
                insert = f"INSERT INTO {self.table.rows} ({names}) VALUES ({marks})"
                self.connection.executemany(insert, to_rows(rows))
        counts = [counts_of(change)[name] for name in ROW_COUNTS]
        note = (self.seq, metadata.to_json(), *counts, time.time_ns() // 1_000_000)
        self.connection.execute(f"INSERT INTO {self.table.kept} VALUES (?, ?, ?, ?, ?, ?)", note)
        self.connection.execute("COMMIT")

    def erase(self, keys: pa.Table, metadata: CommitMetadata) -> None:
        """Do as ``delete``, and write zeros in the place of the rows."""
        self.connection.execute("PRAGMA secure_delete = ON")
        self.delete(keys, metadata)

    def delete(self, keys: pa.Table, metadata: CommitMetadata) -> None:
        """Delete the rows of the keys, and note how many."""
        gone = self._delete(keys)
        note = (self.seq, metadata.to_json(), 0, 0, gone, time.time_ns() // 1_000_000)
        self.connection.execute(f"INSERT INTO {self.table.kept} VALUES (?, ?, ?, ?, ?, ?)", note)
        self.connection.execute("COMMIT")

    def close(self) -> None:
        """Roll back what is not committed."""
        self.connection.close()

    def _delete(self, keys: pa.Table) -> int:
        found = f"SELECT t.rowid FROM {self.table.rows} t JOIN wanted k ON {self._wanted(keys)}"
        return self.connection.execute(
            f"DELETE FROM {self.table.rows} WHERE rowid IN ({found})"
        ).rowcount

    def _wanted(self, keys: pa.Table) -> str:
        """Fill a table of the keys; tell, in SQL, which rows have them."""
        names = keys.column_names
        shown = ", ".join(map(identifier, names))
        schema = self.table.schema()
        self.connection.execute("DROP TABLE IF EXISTS temp.wanted")
        self.connection.execute(f"CREATE TEMP TABLE wanted ({shown})")
        stored = keys.cast(pa.schema([schema.field(name) for name in names]))
        marks = ", ".join("?" * len(names))
        self.connection.executemany(f"INSERT INTO wanted VALUES ({marks})", to_rows(stored))
        return equal(names, "t", "k")


def to_rows(rows: pa.Table) -> Iterator[tuple[Any, ...]]:
    """Return rows as SQLite keeps them."""
    return zip(*(_to_sqlite(rows.column(n)) for n in range(rows.num_columns)), strict=True)


def from_rows(rows: list[tuple[Any, ...]], schema: pa.Schema) -> pa.Table:
    """Return rows as they were."""
    columns = zip(*rows, strict=True) if rows else ([] for _ in schema)
    arrays = [_from_sqlite(list(c), f.type) for c, f in zip(columns, schema, strict=True)]
    return pa.Table.from_arrays(arrays, schema=schema)


def _to_sqlite(column: pa.ChunkedArray) -> list[Any]:
    type_ = column.type
    if pa.types.is_timestamp(type_):
        column = column.cast(pa.timestamp("us", type_.tz)).cast(pa.int64())
    elif pa.types.is_date(type_):
        column = column.cast(pa.int32())
    values = column.to_pylist()
    if pa.types.is_floating(type_):
        # A NaN would be a null.
        return [None if value is None else struct.pack("<d", value) for value in values]
    return [
        str(value) if pa.types.is_decimal(type_) and value is not None else value
        for value in values
    ]


def _from_sqlite(values: list[Any], type_: pa.DataType) -> pa.Array:
    if pa.types.is_floating(type_):
        values = [None if value is None else struct.unpack("<d", value)[0] for value in values]
    elif pa.types.is_boolean(type_):
        values = [None if value is None else bool(value) for value in values]
    elif pa.types.is_timestamp(type_):
        return pa.array(values, pa.int64()).cast(pa.timestamp("us", type_.tz))
    elif pa.types.is_date(type_):
        return pa.array(values, pa.int32()).cast(type_)
    elif pa.types.is_decimal(type_):
        return pa.array(values, pa.string()).cast(type_)
    return pa.array(values, type_)
