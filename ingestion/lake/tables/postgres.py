"""The table of PostgreSQL that keeps a stream's rows: rows and note are one transaction of it.

Two small tables lie in the same schema, so that one commit, and one dump, takes all of it::

    oncelake_tables   a row a table: the seq of its last commit; whoever locks it may commit next
    oncelake_notes    a row a commit: its note, and how many rows it concerned

A table is known by an id in its comment, which a dump keeps and which is gone when the table is.
Rows travel as CSV, by COPY: what comes back is, to the bit, what was sent, or it was refused.
"""

from __future__ import annotations

import datetime as dt
import math
import re
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, ClassVar, Final

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv
from pydantic import SecretStr

from ingestion.declaration.ddl import DeclaredColumn
from ingestion.declaration.sinks import PostgresSink
from ingestion.declaration.types import SqlType
from ingestion.errors import (
    CommitConflictError,
    DamagedTableError,
    DependencyError,
    InvalidSpecError,
    RefusedError,
    SetupError,
    TableBusyError,
    TableSettingsError,
    first_line,
)
from ingestion.lake.commit_log import (
    DELETED,
    INSERTED,
    UPDATED,
    Commit,
    CommitLog,
    UnknownOutcomeError,
)
from ingestion.lake.commit_metadata import CommitMetadata, DamagedMetadataError, app_id
from ingestion.lake.data_table import Ability, Change, DataTable, Transaction
from ingestion.lake.location import Location
from ingestion.settings import Settings

try:
    import psycopg
    from psycopg.conninfo import conninfo_to_dict
    from psycopg.sql import SQL, Composable, Composed, Identifier, Literal
except ImportError as error:
    raise SetupError(
        "a stream has `sink: postgres`, and its client is not installed. "
        "Next: pip install 'oncelake[postgres]'"
    ) from error

Connection = psycopg.Connection[tuple[Any, ...]]

_EXAMPLE: Final = "postgresql://user:password@host:5432/database"
# extract(epoch …) counts microseconds exactly from here on.
_OLDEST_SERVER: Final = 140000
# PostgreSQL cuts a longer name short, and says nothing.
_LONGEST_NAME: Final = 63
_ID: Final = re.compile(r"oncelake:([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})\b")
# Of each transaction, whatever the server, the database or the role has set.
_SESSION: Final = {
    "TimeZone": "UTC",
    "DateStyle": "ISO, YMD",
    "bytea_output": "hex",
    "extra_float_digits": "1",
    "lock_timeout": "30s",
    "statement_timeout": "0",
    "transaction_timeout": "0",
    "idle_in_transaction_session_timeout": "1h",
    # So that the server gives up a client whose machine is gone, and what it has locked.
    "tcp_keepalives_idle": "30",
    "tcp_keepalives_interval": "10",
    "tcp_keepalives_count": "3",
    # Rows are found by an index: by the default, a batch reads all of a table of a million rows.
    "random_page_cost": "1.1",
    # Off, a commit is confirmed and may be gone after a crash.
    "synchronous_commit": "on",
}
# Somebody else holds a lock, or has changed the same rows.
_BUSY: Final = {"55P03", "40001", "40P01", "23505"}
# A limit of the program, or a state that it cannot leave by itself: the client calls both down.
_LIMITS: Final = {"54", "55"}
_IDLE_TOO_LONG: Final = "25P03"
_NOTES_AT_ONCE: Final = 16
_BYTES_READ_AT_ONCE: Final = 8 << 20
_ROWS_READ_AT_ONCE: Final = 256
_ROWS_SENT_AT_ONCE: Final = 8_192
_MOST_DIGITS: Final = 38
_AGAIN: Final = "run the same command again"
_PAST: Final = "PostgreSQL keeps no earlier state of a table"

# Each type of a column: PostgreSQL's name of it, and Arrow's.
_TYPES: Final[dict[str, tuple[str, pa.DataType]]] = {
    "BOOLEAN": ("boolean", pa.bool_()),
    "SMALLINT": ("smallint", pa.int16()),
    "INT": ("integer", pa.int32()),
    "BIGINT": ("bigint", pa.int64()),
    "FLOAT": ("real", pa.float32()),
    "DOUBLE": ("double precision", pa.float64()),
    "STRING": ("text", pa.string()),
    "BINARY": ("bytea", pa.binary()),
    "DATE": ("date", pa.date32()),
    "TIMESTAMP": ("timestamp with time zone", pa.timestamp("us", "UTC")),
    "TIMESTAMP_NTZ": ("timestamp without time zone", pa.timestamp("us")),
}
_WORDS: Final = {name: word for word, (name, _) in _TYPES.items()}
_NUMERIC: Final = re.compile(r"numeric\((\d+),(\d+)\)")
_VARCHAR: Final = re.compile(r"character varying\((\d+)\)")


def open_table(
    stream: str, sink: PostgresSink, settings: Settings, lake: Location
) -> PostgresTable:
    """Open a stream's table; it need not be there.

    Raises:
        InvalidSpecError: no setting says where the server is, or it is no URL.
    """
    del lake
    if settings.postgres is None:
        raise InvalidSpecError(
            f"{stream}: `sink: postgres` needs a server. Next: set ONCELAKE_POSTGRES={_EXAMPLE}"
        )
    schema, _, name = (sink.table or f"public.{stream}").partition(".")
    for part in (schema, name):
        if len(part.encode()) > _LONGEST_NAME:
            raise InvalidSpecError(
                f"{stream}: PostgreSQL takes names of at most {_LONGEST_NAME} bytes, unlike "
                f"{part}. Next: write a shorter one as `sink: {{postgres: {{table: …}}}}`"
            )
    return PostgresTable(
        _Place(
            stream=stream,
            url=settings.postgres,
            server=_server(stream, settings.postgres),
            schema=schema,
            name=name,
            timeout_seconds=settings.kafka_timeout_seconds,
        )
    )


def _server(stream: str, url: SecretStr) -> str:
    """Name a server for people; what is wrong with a URL may have its password in it."""
    try:
        parts = conninfo_to_dict(url.get_secret_value())
    except psycopg.Error:
        parts = {"host": "@"}
    host, port, database = (str(parts.get(part) or "") for part in ("host", "port", "dbname"))
    # A password with an @ or a / in it reaches into what comes after it.
    if "@" in host + database or port.strip("0123456789,"):
        raise InvalidSpecError(
            f"{stream}: ONCELAKE_POSTGRES is no URL of PostgreSQL. Next: write it as {_EXAMPLE}, "
            "with %40 for an @ in the password, and %2F for a /"
        )
    return f"{host or 'localhost'}:{port or 5432}/{database}"


@dataclass(kw_only=True)
class _Place:
    """Where a table is, and how the server is spoken to.

    Attributes:
        is_unsettled: Whether a commit got no answer, and no log has been read since.
    """

    stream: str
    url: SecretStr = field(repr=False)
    server: str
    schema: str
    name: str
    timeout_seconds: float
    is_unsettled: bool = False

    @property
    def where(self) -> str:
        return f"{self.schema}.{self.name} (PostgreSQL at {self.server})"

    @property
    def table(self) -> Identifier:
        return Identifier(self.schema, self.name)

    @property
    def heads(self) -> Identifier:
        return Identifier(self.schema, "oncelake_tables")

    @property
    def notes(self) -> Identifier:
        return Identifier(self.schema, "oncelake_notes")

    @contextmanager
    def session(self, *, is_one_look: bool = False) -> Iterator[Connection]:
        """Connect for one transaction, which is rolled back unless the caller commits it."""
        with self.translated(), closing(self.connect(is_one_look=is_one_look)) as connection:
            yield connection

    def connect(self, *, is_one_look: bool = False) -> Connection:
        """Begin a transaction on a new connection; of one look, all statements see the same."""
        level = psycopg.IsolationLevel
        connection: Connection = psycopg.connect(
            self.url.get_secret_value(),
            connect_timeout=math.ceil(self.timeout_seconds),
            application_name=f"oncelake {self.stream}",
            client_encoding="UTF8",
            keepalives_idle=30,
            keepalives_interval=10,
            keepalives_count=3,
            tcp_user_timeout=60_000,
            prepare_threshold=None,
        )
        try:
            connection.isolation_level = (
                level.REPEATABLE_READ if is_one_look else level.READ_COMMITTED
            )
            connection.read_only = is_one_look
            self._refuse_old(connection.info.server_version)
            connection.execute(
                """
                SELECT set_config(there.name, ours.value, true)
                FROM pg_settings there
                JOIN unnest(%s::text[], %s::text[]) ours (name, value) USING (name)
                WHERE there.name <> 'synchronous_commit' OR there.setting = 'off'
                """,
                (list(_SESSION), list(_SESSION.values())),
            )
        except BaseException:
            connection.close()
            raise
        return connection

    def _refuse_old(self, version: int) -> None:
        if version < _OLDEST_SERVER:
            raise RefusedError(
                self.stream,
                f"PostgreSQL at {self.server} is of version {version // 10000}, whose times are "
                "not exact.",
                remedy=f"use one of version {_OLDEST_SERVER // 10000} or newer",
            )

    def commit(self, connection: Connection) -> None:
        """Commit, and make sure of the answer.

        Raises:
            UnknownOutcomeError: none came.
        """
        try:
            answer = connection.execute("COMMIT").statusmessage
        except psycopg.Error as error:
            # The server says ERROR once it has rolled back; FATAL may come after it has committed.
            if error.diag.severity_nonlocalized == "ERROR":
                raise
            self.is_unsettled = True
            raise UnknownOutcomeError(
                f"{self.where}: no answer came to a commit ({self.reason(error)}). "
                f"Next: {_AGAIN}, which looks first whether it was made"
            ) from error
        # A transaction that failed is answered thus, and nothing is raised.
        if answer != "COMMIT":
            raise DependencyError(
                f"{self.where}: the server answered a commit with {answer}. Nothing was changed. "
                f"Next: {_AGAIN}"
            )

    @contextmanager
    def translated(self) -> Iterator[None]:
        """Translate what the client raises before a commit, when nothing is visible yet.

        Raises:
            TableBusyError: somebody else was at the same rows.
            DependencyError: the server does not answer, or has no room.
            RefusedError: the server does not take the rows, or the statement.
        """
        try:
            yield
        except psycopg.Error as error:
            reason = self.reason(error)
            if error.sqlstate in _BUSY:
                raise TableBusyError(
                    f"{self.where}: somebody else is changing the table, or has changed the same "
                    f"rows ({reason}). Nothing was changed. Next: {_AGAIN}"
                ) from error
            is_limit = (error.sqlstate or "")[:2] in _LIMITS
            is_down = isinstance(error, psycopg.OperationalError) and not is_limit
            if is_down or error.sqlstate == _IDLE_TOO_LONG:
                raise DependencyError(
                    f"{self.where} does not answer as it should: {reason}. Next: check that the "
                    "server is up, and that ONCELAKE_POSTGRES leads to it"
                ) from error
            raise RefusedError(
                self.stream,
                f"{self.where} was refused by the server: {reason}. Nothing was changed.",
                remedy="let the table, or the role, take this, or change the declaration; then "
                "run again",
            ) from error

    def reason(self, error: psycopg.Error) -> str:
        """Say what a server or its client complains of; without its details, which quote rows."""
        text = error.diag.message_primary or first_line(error)
        password = conninfo_to_dict(self.url.get_secret_value()).get("password")
        text = text.replace(str(password), "***") if password else text
        return text.strip().rstrip(".")


class PostgresTable(DataTable):
    """A stream's table of PostgreSQL; see ``DataTable``."""

    cannot: ClassVar[Mapping[Ability, str]] = {
        "rewind": _PAST,
        "rebuild": "a table of PostgreSQL that is made beside another cannot take its place yet; "
        "reset the stream instead, and the next run reads the topic into a new table",
        "erase": "the way to erase a key from PostgreSQL is its own DELETE and VACUUM, and the "
        "proof would miss the row",
        "see foreign changes": "PostgreSQL keeps no log of a table's changes that a client can "
        "read",
    }

    def __init__(self, place: _Place) -> None:
        self._place, self.stream = place, place.stream

    @property
    def where(self) -> str:
        """Name the table, and the server without its password."""
        return self._place.where

    @property
    def uri(self) -> str:
        """Name server, database, schema and table."""
        return f"postgresql://{self._place.server}/{self._place.schema}.{self._place.name}"

    def log(self) -> PostgresLog:
        """Open the log; after a commit without an answer, it waits until the server has decided."""
        return PostgresLog(self._place)

    def create(
        self, columns: Sequence[DeclaredColumn], *, keys: Sequence[str], description: str
    ) -> None:
        """Make the table, or take an empty one that somebody made beforehand.

        One that has rows, and is not ours, stays as it is. Two may do this at once.

        Raises:
            RefusedError: a name is too long, or an empty table cannot have a unique index.
        """
        self._refuse_long(columns)
        place = self._place
        with place.session() as connection:
            connection.execute(
                "SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))",
                (f"oncelake {place.schema}",),
            )
            _make_beside(place, connection)
            state = _look(place, connection)
            if not state.exists:
                self._make(connection, columns, keys)
            elif state.id is None and not self._adopt(connection, keys):
                return
            if (id_ := state.id) is None:
                id_ = str(uuid.uuid4())
                text = f"oncelake:{id_} {description}".strip()
                connection.execute(
                    SQL("COMMENT ON TABLE {} IS {}").format(place.table, Literal(text))
                )
            connection.execute(
                SQL("INSERT INTO {} VALUES (%s, %s, -1, %s) ON CONFLICT DO NOTHING").format(
                    place.heads
                ),
                (id_, self.stream, [*keys]),
            )
            place.commit(connection)

    def _refuse_long(self, columns: Sequence[DeclaredColumn]) -> None:
        for column in columns:
            if len(column.name.encode()) > _LONGEST_NAME:
                raise RefusedError(
                    self.stream,
                    f"PostgreSQL takes names of at most {_LONGEST_NAME} bytes, unlike that of "
                    f"column {column.name}.",
                    remedy="declare a shorter name",
                )

    def _make(
        self, connection: Connection, columns: Sequence[DeclaredColumn], keys: Sequence[str]
    ) -> None:
        table = self._place.table
        parts = [self._definition(column, nullable=column.nullable) for column in columns]
        # A primary key would make its columns NOT NULL, unlike what was declared.
        is_required = not any(each.nullable for each in columns if each.name in keys)
        unique = SQL("PRIMARY KEY ({})" if is_required else "UNIQUE ({})").format(_names(keys))
        connection.execute(
            SQL("CREATE TABLE {} ({})").format(table, SQL(", ").join([*parts, unique]))
        )
        for column in columns:
            self._comment(connection, column)
        connection.execute(SQL("CREATE INDEX ON {} (_seq)").format(table))

    def _definition(self, column: DeclaredColumn, *, nullable: bool) -> Composed:
        type_ = SQL(_server_type(self.stored_type(column.type)))
        required = SQL("" if nullable else " NOT NULL")
        return SQL("{} {}{}").format(Identifier(column.name), type_, required)

    def _comment(self, connection: Connection, column: DeclaredColumn) -> None:
        if column.comment:
            at = Identifier(self._place.schema, self._place.name, column.name)
            connection.execute(
                SQL("COMMENT ON COLUMN {} IS {}").format(at, Literal(column.comment))
            )

    def _adopt(self, connection: Connection, keys: Sequence[str]) -> bool:
        """Put to an empty table what it lacks; tell whether it is one."""
        place = self._place
        connection.execute(SQL("LOCK TABLE {} IN SHARE ROW EXCLUSIVE MODE").format(place.table))
        if _value(connection, SQL("SELECT EXISTS (SELECT FROM {})").format(place.table)):
            return False
        try:
            if not _value(
                connection, _HAS_UNIQUE, {"table": place.table.as_string(), "keys": [*keys]}
            ):
                connection.execute(
                    SQL("CREATE UNIQUE INDEX ON {} ({})").format(place.table, _names(keys))
                )
            connection.execute(SQL("CREATE INDEX ON {} (_seq)").format(place.table))
        except (psycopg.ProgrammingError, psycopg.NotSupportedError) as error:
            raise RefusedError(
                self.stream,
                f"{self.where} was made beforehand, and the indexes that it needs cannot be put "
                f"to it ({place.reason(error)}).",
                remedy=f"make a unique index over {', '.join(keys)} and one over _seq, or drop "
                "the empty table",
            ) from error
        return True

    def columns(self) -> tuple[DeclaredColumn, ...]:
        """Return the columns by the server's catalog."""
        with self._place.session() as connection:
            return _columns(self._place, connection)

    def stored_type(self, declared: SqlType) -> SqlType:
        """Return the type; PostgreSQL has no integer of one byte."""
        is_tiny = declared.word == "TINYINT"
        return SqlType(word="SMALLINT") if is_tiny else declared.without_required()

    def alteration(self, column: DeclaredColumn, *, is_new: bool) -> str:
        """Write the statement."""
        return self._alteration(column, is_new=is_new).as_string()

    def _alteration(self, column: DeclaredColumn, *, is_new: bool) -> Composed:
        table = self._place.table
        if not is_new:
            return SQL("ALTER TABLE {} ALTER COLUMN {} DROP NOT NULL").format(
                table, Identifier(column.name)
            )
        definition = self._definition(column, nullable=True)
        return SQL("ALTER TABLE {} ADD COLUMN IF NOT EXISTS {}").format(table, definition)

    def alter(self, column: DeclaredColumn, *, is_new: bool, spark: Any) -> None:
        """Execute the statement; it waits until nobody reads or writes the table."""
        del spark
        self._refuse_long([column])
        with self._place.session() as connection:
            connection.execute(self._alteration(column, is_new=is_new))
            if is_new:
                self._comment(connection, column)
            self._place.commit(connection)

    def set_aside(self, entry: str) -> str | None:
        """Rename the table; its id goes with it, and so do its notes."""
        place, name = self._place, f"{self._place.name[:40]}__{entry.lower()}"
        with place.session() as connection:
            if not _look(place, connection).exists:
                return None
            connection.execute(
                SQL("ALTER TABLE {} RENAME TO {}").format(place.table, Identifier(name))
            )
            place.commit(connection)
        return f"{place.schema}.{name}"

    def begin(self, seq: int) -> PostgresTransaction:
        """Lock the table's head, when it stands at the seq before."""
        with self._place.translated():
            connection = self._place.connect()
            try:
                return PostgresTransaction(self._place, connection, seq)
            except BaseException:
                connection.close()
                raise

    def scan(self, names: Sequence[str], version: int | None = None) -> Iterator[pa.RecordBatch]:
        """Yield rows by COPY, some megabytes at once.

        Raises:
            RefusedError: the table has gone on from that version.
        """
        place = self._place
        with place.session(is_one_look=True) as connection:
            newest = _look(place, connection).seq
            if version is not None and version != newest:
                raise RefusedError(
                    self.stream,
                    f"{self.where} is at version {newest}, and version {version} was to be read: "
                    f"{_PAST}.",
                    remedy=_AGAIN,
                )
            by_name = {column.name: column for column in _columns(place, connection)}
            columns = [by_name[name] for name in names]
            yield from _read(connection, columns, SQL("FROM {} AS t").format(place.table))

    def rows_of_seq(self, seq: int, *, commit: Commit) -> int | None:
        """Count them by the index over ``_seq``, while the commit is the newest."""
        with self._place.session(is_one_look=True) as connection:
            if _look(self._place, connection).seq != commit.version:
                return None
            query = SQL("SELECT count(*) FROM {} WHERE _seq = %s").format(self._place.table)
            return int(_value(connection, query, (seq,)))

    def notes(self, through: int) -> Iterator[tuple[int, int | None, str | None]]:
        """Read the notes, few at once."""
        place = self._place
        with place.session(is_one_look=True) as connection:
            state = _look(place, connection)
            if not state.has_notes:
                return
            query = SQL(
                "SELECT seq, seq, note FROM {} WHERE table_id = %s AND seq <= %s ORDER BY seq"
            ).format(place.notes)
            with connection.cursor(name="oncelake_notes") as cursor:
                cursor.itersize = _NOTES_AT_ONCE
                yield from cursor.execute(query, (state.id, through))

    def settings_error(self, log: CommitLog) -> TableSettingsError | None:
        """Look for a table that the server empties after a crash, while its notes stay."""
        del log
        with self._place.session() as connection:
            query = "SELECT relpersistence = 'u' FROM pg_class WHERE oid = to_regclass(%s)"
            if not _value(connection, query, (self._place.table.as_string(),)):
                return None
        return TableSettingsError(
            self.stream,
            f"{self.where} is UNLOGGED: the server empties it after a crash.",
            remedy=f"ALTER TABLE {self._place.table.as_string()} SET LOGGED",
        )

    def maintain(self, window: dt.timedelta, target_bytes: int) -> Mapping[str, int]:
        """Delete the notes that are older than the window, though never the newest."""
        del target_bytes
        place = self._place
        with place.session() as connection:
            state = _look(place, connection)
            if not state.has_notes or state.seq is None:
                return {}
            query = SQL(
                "DELETE FROM {} WHERE table_id = %s AND seq < %s "
                "AND committed_at < clock_timestamp() - %s"
            ).format(place.notes)
            deleted = connection.execute(query, (state.id, state.seq, window)).rowcount
            place.commit(connection)
        return {"notes deleted": deleted}


class PostgresTransaction(Transaction):
    """One transaction of the server, which has locked the table's head."""

    def __init__(self, place: _Place, connection: Connection, seq: int) -> None:
        """Lock the head, and compare it with the seq before.

        Raises:
            CommitConflictError: the table does not stand there.
        """
        self._place, self._connection, self._seq = place, connection, seq
        # The lock keeps everybody from putting another table in the place of this one.
        connection.execute(SQL("LOCK TABLE {} IN ROW EXCLUSIVE MODE").format(place.table))
        self._state = _look(place, connection, lock="FOR UPDATE")
        last = self._state.seq
        if not self._state.has_head or seq != (-1 if last is None else last) + 1:
            holds = "no commit of this stream" if last is None else f"seq {last} as its last"
            raise CommitConflictError(
                place.stream,
                f"{place.where} holds {holds}, so that seq {seq} is another writer's, or another "
                "table's.",
                remedy=f"oncelake status {place.stream}, then run again from the table's offsets",
            )
        self._columns = _columns(place, connection)

    def rows_of(self, keys: pa.Table) -> pa.Table:
        """Find the rows by a temporary table of the keys, and lock them."""
        schema = _arrow_schema(self._columns)
        with self._place.translated():
            temporary = self._send_beside("oncelake_keys", self._as_stored(keys))
            query = SQL("FROM {} AS t WHERE ({}) IN (SELECT {} FROM {}) FOR UPDATE OF t").format(
                self._place.table,
                _names(keys.column_names, of="t"),
                _names(keys.column_names),
                temporary,
            )
            found = pa.Table.from_batches(
                _read(self._connection, self._columns, query), schema=schema
            )
            self._connection.execute(SQL("DROP TABLE {}").format(temporary))
        return found

    def commit(self, change: Change | None, metadata: CommitMetadata) -> None:
        """Change the rows, note it, and commit; whatever happens, the connection is closed."""
        if metadata.seq != self._seq:
            raise ValueError(f"seq {self._seq} was begun, and not {metadata.seq}")
        with closing(self), self._place.translated():
            counts = dict.fromkeys((INSERTED, UPDATED, DELETED), 0)
            if change is not None:
                of_kinds = (change.inserted, change.updated, change.deleted)
                # Refused before anything is sent.
                inserted, updated, deleted = map(self._as_stored, of_kinds)
                counts = {
                    DELETED: self._delete(deleted),
                    UPDATED: self._update(updated),
                    INSERTED: _send(self._connection, self._place.table, inserted),
                }
                self._compare(counts, change.counts)
            self._note(counts, metadata)
            self._place.commit(self._connection)

    def close(self) -> None:
        """Close the connection; the server rolls back what is not committed."""
        self._connection.close()

    def _update(self, rows: pa.Table) -> int:
        if not rows.num_rows:
            return 0
        keys = self._state.keys
        temporary = self._send_beside("oncelake_rows", rows)
        others = [name for name in rows.column_names if name not in keys]
        assignments = [SQL("{0} = n.{0}").format(Identifier(name)) for name in others]
        query = SQL("UPDATE {} AS t SET {} FROM {} AS n WHERE ({}) = ({})").format(
            self._place.table,
            SQL(", ").join(assignments),
            temporary,
            _names(keys, of="t"),
            _names(keys, of="n"),
        )
        return self._connection.execute(query).rowcount

    def _delete(self, keys: pa.Table) -> int:
        if not keys.num_rows:
            return 0
        temporary = self._send_beside("oncelake_deleted", keys)
        query = SQL("DELETE FROM {} AS t USING {} AS n WHERE ({}) = ({})").format(
            self._place.table,
            temporary,
            _names(keys.column_names, of="t"),
            _names(keys.column_names, of="n"),
        )
        return self._connection.execute(query).rowcount

    def _send_beside(self, name: str, rows: pa.Table) -> Identifier:
        """Send rows into a temporary table, with the table's types, so that its indexes serve."""
        temporary = Identifier("pg_temp", name)
        self._connection.execute(
            SQL("CREATE TEMPORARY TABLE {} ON COMMIT DROP AS SELECT {} FROM {} LIMIT 0").format(
                Identifier(name), _names(rows.column_names), self._place.table
            )
        )
        _send(self._connection, temporary, rows)
        # Otherwise the planner guesses how many there are.
        self._connection.execute(SQL("ANALYZE {}").format(temporary))
        return temporary

    def _as_stored(self, rows: pa.Table) -> pa.Table:
        """Return rows, or keys, with the table's types.

        Raises:
            RefusedError: the server would refuse a text late, or cut it short, as it does with
                blanks beyond a VARCHAR's length.
        """
        by_name = {column.name: column for column in self._columns}
        columns = [by_name[name] for name in rows.column_names]
        stored = rows.cast(_arrow_schema(columns))
        for column in columns:
            if column.type.word in ("STRING", "VARCHAR"):
                self._refuse_unstorable(column, stored.column(column.name))
        return stored

    def _refuse_unstorable(self, column: DeclaredColumn, texts: pa.ChunkedArray) -> None:
        name, stream = column.name, self._place.stream
        if pc.any(pc.match_substring(texts, "\0")).as_py():
            raise RefusedError(
                stream,
                f"a text of column {name} has the character NUL in it, which PostgreSQL cannot "
                "keep. Nothing was changed.",
                remedy=f"declare `select: {{{name}: replace({name}, chr(0), '')}}`, or a `where` "
                "that leaves such records out",
            )
        longest = pc.max(pc.utf8_length(texts)).as_py() or 0
        if column.type.word == "VARCHAR" and longest > column.type.precision:
            raise RefusedError(
                stream,
                f"a text of column {name} has {longest} characters, and its type is "
                f"{column.type}. Nothing was changed.",
                remedy="declare the column as STRING, or as a longer VARCHAR",
            )

    def _compare(self, counts: Mapping[str, int], expected: Mapping[str, int]) -> None:
        if counts != expected:
            raise TableBusyError(
                f"{self._place.where}: somebody else has changed the same rows: the server counts "
                f"{_in_words(counts)}, where the batch has {_in_words(expected)}. Nothing was "
                f"changed. Next: {_AGAIN}"
            )

    def _note(self, counts: Mapping[str, int], metadata: CommitMetadata) -> None:
        place, id_ = self._place, self._state.id
        moved = self._connection.execute(
            SQL("UPDATE {} SET seq = %s WHERE table_id = %s AND seq = %s").format(place.heads),
            (self._seq, id_, self._seq - 1),
        ).rowcount
        if moved != 1:
            raise TableBusyError(
                f"{place.where}: the table's head is not as it was locked; a trigger or a rule is "
                f"on {place.schema}.oncelake_tables. Nothing was changed. Next: drop it"
            )
        self._connection.execute(
            SQL(
                "INSERT INTO {} (table_id, seq, note, inserted, updated, deleted) "
                "VALUES (%s, %s, %s, %s, %s, %s)"
            ).format(place.notes),
            (
                *(id_, self._seq, metadata.to_json()),
                *(counts[INSERTED], counts[UPDATED], counts[DELETED]),
            ),
        )


class PostgresLog(CommitLog):
    """The log of a table: its head and its notes, all as of one moment."""

    def __init__(self, place: _Place) -> None:
        self._place = place
        self.look_again()

    def look_again(self) -> None:
        """Forget what was read."""
        self._state: _State | None = None
        self._is_empty = True
        self._versions: list[int] = []
        self._commits: dict[int, Commit] = {}

    def _looked(self) -> _State:
        if self._state is None:
            self._settle()
            with self._place.session(is_one_look=True) as connection:
                state = _look(self._place, connection)
                if state.exists:
                    query = SQL("SELECT NOT EXISTS (SELECT FROM {})").format(self._place.table)
                    self._is_empty = _value(connection, query)
                if state.has_notes:
                    query = SQL("SELECT seq FROM {} WHERE table_id = %s ORDER BY seq DESC").format(
                        self._place.notes
                    )
                    self._versions = [seq for (seq,) in connection.execute(query, (state.id,))]
                    self._read_down_from(connection, state, max(self._versions, default=-1))
            self._state = state
        return self._state

    def _settle(self) -> None:
        """After a commit without an answer, wait for the session that may still be making it."""
        if not self._place.is_unsettled:
            return
        try:
            with self._place.session() as connection:
                _look(self._place, connection, lock="FOR UPDATE")
        except TableBusyError as error:
            raise DependencyError(
                f"{self._place.where}: the server is still deciding about a commit that got no "
                f"answer. Next: {_AGAIN}"
            ) from error
        self._place.is_unsettled = False

    def _read_down_from(self, connection: Connection, state: _State, version: int) -> None:
        query = SQL(
            "SELECT seq, note, inserted, updated, deleted, "
            "(extract(epoch FROM committed_at) * 1000)::bigint FROM {} "
            "WHERE table_id = %s AND seq <= %s ORDER BY seq DESC LIMIT %s"
        ).format(self._place.notes)
        for row in connection.execute(query, (state.id, version, _NOTES_AT_ONCE)):
            self._commits[row[0]] = self._commit(state, *row)

    def _commit(self, state: _State, seq: int, note: str, *counts_and_time: int) -> Commit:
        *counts, timestamp_ms = counts_and_time
        inserted, updated, deleted = counts
        try:
            metadata = CommitMetadata.from_json(note)
        except DamagedMetadataError as error:
            raise DamagedTableError(
                self._place.stream,
                f"{self._place.where} is damaged: the note of seq {seq}: {error}.",
                remedy="restore oncelake_notes from a backup; if there is none, oncelake reset "
                f"{self._place.stream} --yes, to ingest the topic again",
            ) from error
        changes_rows = bool(inserted or updated or deleted)
        merges = updated or deleted
        return Commit(
            version=seq,
            timestamp_ms=timestamp_ms,
            operation="MERGE" if merges else "APPEND" if inserted else "WRITE",
            metrics={INSERTED: inserted, UPDATED: updated, DELETED: deleted},
            txns={app_id(state.stream): seq},
            changes_rows=changes_rows,
            metadata=metadata,
        )

    @property
    def exists(self) -> bool:
        """Tell whether the table is there."""
        return self._looked().exists

    @property
    def is_empty(self) -> bool:
        """Tell whether the table has no row."""
        self._looked()
        return self._is_empty

    def table_id(self) -> str:
        """Return the id in the table's comment, or the server's own of a table that has none."""
        state = self._looked()
        if not state.exists:
            raise FileNotFoundError(f"{self._place.where} is not there")
        return f"postgres:{state.id or state.oid}"

    def versions(self) -> list[int]:
        """List the seqs of the notes, newest first."""
        self._looked()
        return list(self._versions)

    def read(self, version: int) -> Commit:
        """Read one commit, and the next older ones with it."""
        state = self._looked()
        if version in self._versions and version not in self._commits:
            with self._place.session(is_one_look=True) as connection:
                self._read_down_from(connection, state, version)
        if version not in self._commits:
            raise FileNotFoundError(f"{self._place.where} has no note of version {version}")
        return self._commits[version]

    def last_seq(self, stream: str) -> int | None:
        """Return the seq of the table's head."""
        state = self._looked()
        return state.seq if state.stream == stream else None

    def row_count(self) -> int:
        """Count the rows, all of them."""
        return self._of_rows("count(*)")

    def highest_epoch(self) -> int:
        """Ask for the newest epoch of any row."""
        return self._of_rows("coalesce(max(_epoch), 0)")

    def _of_rows(self, aggregate: str) -> int:
        with self._place.session() as connection:
            query = SQL("SELECT {} FROM {}").format(SQL(aggregate), self._place.table)
            return int(_value(connection, query))

    def refuse_torn(self, stream: str, commit: Commit) -> None:
        """Compare the seq of a note with that of its row."""
        seq = commit.metadata.seq if commit.metadata else None
        if seq != commit.txns[app_id(stream)]:
            raise DamagedTableError(
                stream,
                f"{self._place.where} is damaged: the note of seq {commit.version} says {seq}.",
                remedy="restore oncelake_notes from a backup; if there is none, oncelake reset "
                f"{stream} --yes, to ingest the topic again",
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class _State:
    """What the server knows of a table.

    Attributes:
        oid: The server's own number of it, if it is there.
        id: What its comment calls it, if it is ours.
        has_notes: Whether there is where notes are kept, and an id to keep them by.
        has_head: Whether it has a head, of this stream.
        seq: Of its last commit.
        stream: Whose head it has.
        keys: The columns that identify a row.
    """

    oid: int | None
    id: str | None
    has_notes: bool
    has_head: bool = False
    seq: int | None = None
    stream: str = ""
    keys: tuple[str, ...] = ()

    @property
    def exists(self) -> bool:
        return self.oid is not None


def _look(place: _Place, connection: Connection, *, lock: str = "") -> _State:
    """Read what a table is, and where it stands; ``lock`` is put to the query of its head."""
    names = [name.as_string() for name in (place.heads, place.notes, place.table)]
    [(oid, comment, has_heads, has_notes)] = connection.execute(_WHAT_IS_THERE, names)
    match = _ID.match(comment or "")
    id_ = match[1] if match else None
    head = None
    if id_ and has_heads:
        query = SQL("SELECT stream, seq, keys FROM {} WHERE table_id = %s {}")
        head = connection.execute(query.format(place.heads, SQL(lock)), (id_,)).fetchone()
    stream, seq, keys = head or ("", -1, ())
    return _State(
        oid=oid,
        id=id_,
        has_notes=bool(id_ and has_notes),
        has_head=stream == place.stream,
        seq=seq if seq >= 0 else None,
        stream=stream,
        keys=tuple(keys),
    )


def _make_beside(place: _Place, connection: Connection) -> None:
    """Make the schema and the two tables of ours; to ask *if not exists* takes more rights."""
    schema = Identifier(place.schema)
    if _value(connection, "SELECT to_regnamespace(%s) IS NULL", (schema.as_string(),)):
        connection.execute(SQL("CREATE SCHEMA {}").format(schema))
    for name, columns in (
        (
            place.heads,
            SQL(
                "table_id text PRIMARY KEY, stream text NOT NULL, seq bigint NOT NULL, "
                "keys text[] NOT NULL"
            ),
        ),
        (
            place.notes,
            SQL(
                "table_id text, seq bigint, note text NOT NULL, inserted bigint, updated bigint, "
                "deleted bigint, committed_at timestamptz NOT NULL DEFAULT clock_timestamp(), "
                "PRIMARY KEY (table_id, seq)"
            ),
        ),
    ):
        if _value(connection, "SELECT to_regclass(%s) IS NULL", (name.as_string(),)):
            connection.execute(SQL("CREATE TABLE {} ({})").format(name, columns))


_WHAT_IS_THERE: Final = """
    SELECT t::oid, obj_description(t, 'pg_class'),
           to_regclass(%s) IS NOT NULL, to_regclass(%s) IS NOT NULL
    FROM to_regclass(%s) t
"""
# Whether a unique index is over exactly these columns, in any order.
_HAS_UNIQUE: Final = """
    SELECT EXISTS (
        SELECT FROM pg_index i
        CROSS JOIN LATERAL (
            SELECT array_agg(a.attname::text) AS names
            FROM unnest(i.indkey::int2[]) WITH ORDINALITY AS part (attnum, place)
            JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = part.attnum
            WHERE part.place <= i.indnkeyatts
        ) AS columns
        WHERE i.indrelid = to_regclass(%(table)s) AND i.indisunique AND i.indisvalid
          AND i.indimmediate AND i.indpred IS NULL AND i.indexprs IS NULL
          AND columns.names @> %(keys)s AND columns.names <@ %(keys)s
    )
"""
_COLUMNS: Final = """
    SELECT attname, format_type(atttypid, atttypmod), NOT attnotnull,
           coalesce(col_description(attrelid, attnum), '')
    FROM pg_attribute
    WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped
    ORDER BY attnum
"""


def _columns(place: _Place, connection: Connection) -> tuple[DeclaredColumn, ...]:
    rows = connection.execute(_COLUMNS, (place.table.as_string(),))
    return tuple(
        DeclaredColumn(name=name, type=_sql_type(type_), nullable=nullable, comment=comment)
        for name, type_, nullable, comment in rows
    )


def _server_type(type_: SqlType) -> str:
    if type_.word == "DECIMAL":
        return f"numeric({type_.precision},{type_.scale})"
    if type_.word == "VARCHAR":
        return f"character varying({type_.precision})"
    return _TYPES[type_.word][0]


def _sql_type(name: str) -> SqlType:
    """Read PostgreSQL's name of a type; one that no declaration has is a word of its own."""
    if name in _WORDS:
        return SqlType(word=_WORDS[name])
    if match := _VARCHAR.fullmatch(name):
        return SqlType(word="VARCHAR", precision=int(match[1]))
    if match := _NUMERIC.fullmatch(name):
        precision, scale = map(int, match.groups())
        if scale <= precision <= _MOST_DIGITS:
            return SqlType(word="DECIMAL", precision=precision, scale=scale)
    return SqlType(word=name.upper())


def _arrow_type(column: DeclaredColumn) -> pa.DataType:
    type_ = column.type
    if type_.word == "DECIMAL":
        return pa.decimal128(type_.precision, type_.scale)
    return _TYPES["STRING" if type_.word == "VARCHAR" else type_.word][1]


def _names(names: Sequence[str], *, of: str = "") -> Composed:
    prefix = (of,) if of else ()
    return SQL(", ").join(Identifier(*prefix, name) for name in names)


def _value(connection: Connection, query: Any, values: Any = ()) -> Any:
    row = connection.execute(query, values).fetchone()
    return row[0] if row else None


def _send(connection: Connection, target: Identifier, rows: pa.Table) -> int:
    """Copy rows to a table; return how many the server has taken."""
    if not rows.num_rows:
        return 0
    statement = SQL("COPY {} ({}) FROM STDIN (FORMAT csv)").format(
        target, _names(rows.column_names)
    )
    with connection.cursor() as cursor:
        with cursor.copy(statement) as copy, closing(duckdb.connect()) as engine:
            batches = engine.from_arrow(_without_zone(rows)).project(_as_text(rows.schema))
            for batch in batches.to_arrow_reader(_ROWS_SENT_AT_ONCE):
                text = pa.BufferOutputStream()
                csv.write_csv(batch, text, _WRITTEN)
                copy.write(text.getvalue())
        return cursor.rowcount


def _without_zone(rows: pa.Table) -> pa.Table:
    """Return moments as those of the session's zone, UTC, so that their text has none."""
    naive = pa.timestamp("us")
    fields = (
        each.with_type(naive) if pa.types.is_timestamp(each.type) else each for each in rows.schema
    )
    return rows.cast(pa.schema(fields))


def _as_text(schema: pa.Schema) -> str:
    """Write, for DuckDB, as text what Arrow's CSV would not write as PostgreSQL reads it."""

    def expression(column: pa.Field) -> str:
        name = Identifier(column.name).as_string()
        if pa.types.is_binary(column.type):
            return f"'\\x' || hex({name}) AS {name}"
        # Years before 1 and beyond 9999 included.
        if pa.types.is_temporal(column.type):
            return f"CAST({name} AS VARCHAR) AS {name}"
        return name

    return ", ".join(map(expression, schema))


def _read(
    connection: Connection, columns: Sequence[DeclaredColumn], source: Composable
) -> Iterator[pa.RecordBatch]:
    """Copy columns of the table ``t`` from the server, some megabytes at once."""
    query = SQL("COPY (SELECT {} {}) TO STDOUT (FORMAT csv, FORCE_QUOTE *)").format(
        SQL(", ").join(map(_as_number, columns)), source
    )
    with connection.cursor() as cursor, cursor.copy(query) as copy:
        lines = iter(copy)
        while part := _some_megabytes(lines):
            yield from _parsed(part, columns).to_batches()


def _some_megabytes(lines: Iterator[Any]) -> bytes:
    parts, size = [], 0
    while size < _BYTES_READ_AT_ONCE and (part := b"".join(islice(lines, _ROWS_READ_AT_ONCE))):
        parts.append(part)
        size += len(part)
    return b"".join(parts)


def _as_number(column: DeclaredColumn) -> Composed:
    """Write a column so that its CSV is exact: days and microseconds since 1970."""
    name = Identifier("t", column.name)
    if column.type.word == "DATE":
        return SQL("{} - date '1970-01-01'").format(name)
    if column.type.word in ("TIMESTAMP", "TIMESTAMP_NTZ"):
        return SQL("(extract(epoch FROM {}) * 1000000)::bigint").format(name)
    if column.type.word == "BINARY":
        return SQL("encode({}, 'hex')").format(name)
    return SQL("{}").format(name)


def _parsed(text: bytes, columns: Sequence[DeclaredColumn]) -> pa.Table:
    schema = _arrow_schema(columns)
    # One block: a value may be larger than any size that is chosen.
    read = csv.ReadOptions(column_names=schema.names, block_size=len(text) + 1)
    rows = csv.read_csv(
        pa.py_buffer(text),
        read,
        _PARSED,
        _converted({each.name: _sent_type(each.type) for each in schema}),
    )
    binary = [each.name for each in schema if pa.types.is_binary(each.type)]
    if binary:
        with closing(duckdb.connect()) as engine:
            names = (Identifier(name).as_string() for name in binary)
            decoded = ", ".join(f"unhex({name}) AS {name}" for name in names)
            rows = engine.from_arrow(rows).project(f"* REPLACE ({decoded})").to_arrow_table()
    return rows.cast(schema)


def _sent_type(type_: pa.DataType) -> pa.DataType:
    """Return the type that a column's CSV is of."""
    if pa.types.is_date(type_):
        return pa.int32()
    if pa.types.is_timestamp(type_):
        return pa.int64()
    return pa.string() if pa.types.is_binary(type_) else type_


# A null is nothing, and an empty text is two quotes: in both directions.
_WRITTEN: Final = csv.WriteOptions(include_header=False)
_PARSED: Final = csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=False)


def _converted(types: Mapping[str, pa.DataType]) -> csv.ConvertOptions:
    return csv.ConvertOptions(
        column_types=types,
        null_values=[""],
        true_values=["t"],
        false_values=["f"],
        strings_can_be_null=True,
        quoted_strings_can_be_null=False,
    )


def _arrow_schema(columns: Sequence[DeclaredColumn]) -> pa.Schema:
    return pa.schema([(column.name, _arrow_type(column)) for column in columns])


def _in_words(counts: Mapping[str, int]) -> str:
    return f"{counts[INSERTED]} inserted, {counts[UPDATED]} updated and {counts[DELETED]} deleted"
