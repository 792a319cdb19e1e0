"""The table of PostgreSQL that keeps a stream's rows: rows and note are one transaction of it.

Two small tables lie in the same schema, so that one commit, and one dump, takes all of it::

    oncelake_tables   a row a table: seq and rows as of its last commit; who locks it may commit
    oncelake_notes    a row a commit: its note, and how many rows it concerned

A table is known by an id in its comment, which a dump keeps and which is gone when the table is.
"""

from __future__ import annotations

import datetime as dt
import math
import re
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, LiteralString

import pyarrow as pa
from pydantic import SecretStr

from ingestion.declaration.ddl import DeclaredColumn
from ingestion.declaration.sinks import PostgresSink
from ingestion.declaration.types import SqlType
from ingestion.errors import (
    CommitConflictError,
    DamagedTableError,
    DependencyError,
    IngestionError,
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

    from ingestion.lake.tables import postgres_copy as rows_by_copy
    from ingestion.lake.tables.postgres_copy import Connection, columns_of
    from ingestion.lake.tables.postgres_copy import names as listed
except ImportError as error:
    raise SetupError(
        "a stream has `sink: postgres`, and its client is not installed. "
        "Next: pip install 'oncelake[postgres]'"
    ) from error

_EXAMPLE: Final = "postgresql://user:password@host:5432/database"
# extract(epoch …) counts microseconds exactly from here on.
_OLDEST_SERVER: Final = 14
# PostgreSQL cuts a longer name short, and says nothing.
_LONGEST_NAME: Final = 63
_ID: Final = re.compile(r"oncelake:([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})\b")
# Somebody else holds a lock, or has changed the same rows.
_BUSY: Final = {"55P03", "40001", "40P01", "23505"}
# A limit of the program, or a state that it cannot leave by itself: the client calls both down.
_LIMITS: Final = {"54", "55"}
_IDLE_TOO_LONG: Final = "25P03"
_NOTES_AT_ONCE: Final = 16
_AGAIN: Final = "run the same command again"
_PAST: Final = "PostgreSQL keeps no earlier state of a table"

# Of each transaction, whatever the server, the database or the role has set.
_SESSION: Final = """
    SET LOCAL TimeZone = 'UTC';
    SET LOCAL DateStyle = 'ISO, YMD';
    SET LOCAL extra_float_digits = 1;
    SET LOCAL lock_timeout = '30s';
    SET LOCAL statement_timeout = 0;
    SELECT set_config(name, '0', true) FROM pg_settings WHERE name = 'transaction_timeout';
    -- Longer than any merge between look-up and commit; a frozen run has its locks no longer.
    SET LOCAL idle_in_transaction_session_timeout = '10min';
    -- So that the server gives up a client whose machine is gone.
    SET LOCAL tcp_keepalives_idle = 30;
    SET LOCAL tcp_keepalives_interval = 10;
    SET LOCAL tcp_keepalives_count = 3;
    -- Rows are found by an index: by the default, a batch reads all of a table of a million rows.
    SET LOCAL random_page_cost = 1.1;
    -- Off, a commit is confirmed and may be gone after a crash.
    SELECT set_config(name, 'on', true) FROM pg_settings
    WHERE name = 'synchronous_commit' AND setting = 'off'
"""
_BESIDE: Final = """
    CREATE TABLE IF NOT EXISTS {heads} (
        table_id text PRIMARY KEY, stream text NOT NULL,
        seq bigint NOT NULL DEFAULT -1, rows bigint NOT NULL DEFAULT 0
    );
    CREATE TABLE IF NOT EXISTS {notes} (
        table_id text, seq bigint, note text NOT NULL,
        inserted bigint NOT NULL, updated bigint NOT NULL, deleted bigint NOT NULL,
        committed_at timestamptz NOT NULL DEFAULT clock_timestamp(), PRIMARY KEY (table_id, seq)
    )
"""
_TABLE: Final = "SELECT t::oid, obj_description(t, 'pg_class') FROM to_regclass(%s) t"
# Whether a unique index is over exactly these columns, in any order.
_HAS_UNIQUE: Final = """
    SELECT EXISTS (
        SELECT FROM pg_index
        WHERE indrelid = to_regclass(%s) AND indisunique AND indisvalid AND indimmediate
          AND indpred IS NULL AND indexprs IS NULL
          AND %s::text[] = (
              SELECT array_agg(attname::text ORDER BY attname)
              FROM unnest((indkey::int2[])[0:indnkeyatts - 1]) AS part (number)
              JOIN pg_attribute ON attrelid = indrelid AND attnum = part.number
          )
    )
"""
# Who has written to the table, or locked it, and not ended yet.
_HOLDERS: Final = """
    SELECT string_agg(DISTINCT format('%%s (process %%s)', application_name, pid), ', ')
    FROM pg_locks JOIN pg_stat_activity USING (pid)
    WHERE relation = to_regclass(%s) AND granted AND mode <> 'AccessShareLock'
      AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""
_LOOK_UP: Final = "FROM {table} t WHERE ({of_table}) IN (SELECT {keys} FROM {sent}) FOR UPDATE OF t"
_UPDATE: Final = "UPDATE {table} t SET {new} FROM {sent} n WHERE ({of_table}) = ({of_sent})"
_DELETE: Final = "DELETE FROM {table} t USING {sent} n WHERE ({of_table}) = ({of_sent})"
_NOTE: Final = """
    WITH head AS (
        UPDATE {heads} SET seq = %(seq)s, rows = rows + %(inserted)s - %(deleted)s
        WHERE table_id = %(table_id)s AND seq = %(seq)s - 1
        RETURNING table_id
    )
    INSERT INTO {notes} (table_id, seq, note, inserted, updated, deleted)
    SELECT table_id, %(seq)s, %(note)s, %(inserted)s, %(updated)s, %(deleted)s FROM head
"""
_NEWEST_NOTES: Final = """
    SELECT seq, note, inserted, updated, deleted,
           (extract(epoch FROM committed_at) * 1000)::bigint
    FROM {notes} WHERE table_id = %s AND seq <= %s ORDER BY seq DESC LIMIT %s
"""
_DELETE_OLD_NOTES: Final = """
    DELETE FROM {notes}
    WHERE table_id = %s AND seq < %s AND committed_at < clock_timestamp() - %s
"""


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
    _refuse_long(stream, schema, name)
    server, timeout_seconds = _server(stream, settings.postgres), settings.kafka_timeout_seconds
    return PostgresTable(
        _Place(stream, settings.postgres, server, schema, name, timeout_seconds=timeout_seconds)
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


def _refuse_long(stream: str, *declared: str) -> None:
    for name in declared:
        if len(name.encode()) > _LONGEST_NAME:
            raise InvalidSpecError(
                f"{stream}: PostgreSQL takes names of at most {_LONGEST_NAME} bytes, unlike "
                f"{name}. Next: declare a shorter one"
            )


@dataclass
class _Place:
    """Where a table is, and how the server is spoken to.

    Attributes:
        is_unsettled: Whether a commit got no answer, and no log has been read since.
        table_id: Of the table that a log has read last, or that was made.
    """

    stream: str
    url: SecretStr = field(repr=False)
    server: str
    schema: str
    name: str
    timeout_seconds: float
    is_unsettled: bool = False
    table_id: str | None = None

    @property
    def where(self) -> str:
        return f"{self.schema}.{self.name} (PostgreSQL at {self.server})"

    @property
    def table(self) -> Identifier:
        return Identifier(self.schema, self.name)

    @property
    def heads(self) -> Identifier:
        return Identifier(self.schema, "oncelake_tables")

    def sql(self, text: LiteralString, *given: Composable, **parts: Composable) -> Composed:
        """Fill in the names of the three tables, and parts."""
        notes = Identifier(self.schema, "oncelake_notes")
        tables = {"table": self.table, "heads": self.heads, "notes": notes}
        return SQL(text).format(*given, **tables, **parts)

    @contextmanager
    def session(self, *, is_one_look: bool = False) -> Iterator[Connection]:
        """Connect for one transaction, which is rolled back unless the caller commits it.

        With ``is_one_look`` it only reads, and all its statements see the same.
        """
        level = psycopg.IsolationLevel
        with self.translated(), closing(self._connect()) as connection:
            connection.read_only = is_one_look
            connection.isolation_level = (
                level.REPEATABLE_READ if is_one_look else level.READ_COMMITTED
            )
            connection.execute(_SESSION)
            with self.translated(connection):
                yield connection

    def _connect(self) -> Connection:
        connection = psycopg.connect(
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
        if (version := connection.info.server_version // 10_000) < _OLDEST_SERVER:
            connection.close()
            raise RefusedError(
                self.stream,
                f"PostgreSQL at {self.server} is of version {version}, whose times are not exact.",
                remedy=f"use one of version {_OLDEST_SERVER} or newer",
            )
        return connection

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
                f"{self.stream}: {self.where}: no answer came to a commit ({self._reason(error)}). "
                f"Next: {_AGAIN}, which looks first whether it was made"
            ) from error
        # A transaction that failed is answered thus, and nothing is raised.
        if answer != "COMMIT":
            raise DependencyError(
                f"{self.stream}: {self.where}: the server answered a commit with {answer}. Nothing "
                f"was changed. Next: {_AGAIN}"
            )

    @contextmanager
    def translated(self, connection: Connection | None = None) -> Iterator[None]:
        """Translate what is raised before a commit, when nothing is visible yet.

        Raises:
            TableBusyError: somebody else was at the same rows, or holds a lock; says who.
            DependencyError: the server does not answer, or has no room.
            RefusedError: the server does not take the rows, or the statement.
        """
        try:
            yield
        except psycopg.errors.LockNotAvailable as error:
            raise self.busy(f"{self._holders(connection)} holds a lock on it") from error
        except psycopg.Error as error:
            raise self._translation(error) from error

    def _translation(self, error: psycopg.Error) -> IngestionError:
        reason, state = self._reason(error), error.sqlstate or ""
        if state in _BUSY:
            return self.busy(f"others have changed the same rows ({reason}). Nothing was changed")
        is_down = isinstance(error, psycopg.OperationalError) and state[:2] not in _LIMITS
        if is_down or state == _IDLE_TOO_LONG:
            return DependencyError(
                f"{self.stream}: {self.where} does not answer as it should: {reason}. Next: check "
                "that the server is up, and that ONCELAKE_POSTGRES leads to it"
            )
        return RefusedError(
            self.stream,
            f"{self.where} was refused by the server: {reason}. Nothing was changed.",
            remedy="let the table, or the role, take this, or change the declaration; then run "
            "again",
        )

    def _holders(self, connection: Connection | None) -> str:
        assert connection is not None, "to connect waits for no lock"
        connection.rollback()
        return _value(connection, _HOLDERS, (self.table.as_string(),)) or "somebody else"

    def busy(self, why: str) -> TableBusyError:
        """Return the error of what somebody else's work stands in the way of."""
        return TableBusyError(f"{self.stream}: {self.where}: {why}. Next: {_AGAIN}")

    def damaged(self, why: str) -> DamagedTableError:
        """Return the error of a note that is not as it was written."""
        return DamagedTableError(
            self.stream,
            f"{self.where} is damaged: {why}.",
            remedy="restore oncelake_notes from a backup; if there is none, oncelake reset "
            f"{self.stream} --yes, to ingest the topic again",
        )

    def _reason(self, error: psycopg.Error) -> str:
        """Say what a server or its client complains of; without its details, which quote rows."""
        text = error.diag.message_primary or first_line(error)
        password = conninfo_to_dict(self.url.get_secret_value()).get("password")
        text = text.replace(str(password), "***") if password else text
        return text.strip().rstrip(".")


@dataclass(frozen=True, kw_only=True, slots=True)
class _State:
    """Where a table stands.

    Attributes:
        oid: The server's own number of it, if it is there.
        id: What its comment calls it, if it is ours.
        stream: Whose commits it takes.
        seq: Of its last commit; -1 before the first.
        rows: How many there are, by what was committed.
    """

    oid: int | None
    id: str | None = None
    stream: str = ""
    seq: int = -1
    rows: int = 0


def _look(place: _Place, connection: Connection, *, lock: LiteralString = "") -> _State:
    """Read what a table is, and where it stands; ``lock`` is put to the query of its head."""
    [(oid, comment)] = connection.execute(_TABLE, (place.table.as_string(),))
    [(heads, _)] = connection.execute(_TABLE, (place.heads.as_string(),))
    match = _ID.match(comment or "") if heads else None
    if match is None:
        return _State(oid=oid)
    query = place.sql("SELECT stream, seq, rows FROM {heads} WHERE table_id = %s {}", SQL(lock))
    stream, seq, rows = connection.execute(query, (match[1],)).fetchone() or ("", -1, 0)
    return _State(oid=oid, id=match[1], stream=stream, seq=seq, rows=rows)


def _value(connection: Connection, query: Any, values: Any = ()) -> Any:
    row = connection.execute(query, values).fetchone()
    return row[0] if row else None


class PostgresTable(DataTable):
    """A stream's table of PostgreSQL; see ``DataTable``."""

    cannot: ClassVar[Mapping[Ability, str]] = {
        "rewind": _PAST,
        "time travel": _PAST,
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
        """
        _refuse_long(self.stream, *(column.name for column in columns))
        place = self._place
        with place.session() as connection:
            self._make_beside(connection)
            state = _look(place, connection)
            if state.oid is None:
                self._make(connection, columns, keys)
            elif state.id is None and not self._adopt(connection, keys):
                return
            if (id_ := state.id) is None:
                id_ = str(uuid.uuid4())
                text = Literal(f"oncelake:{id_} {description}".strip())
                connection.execute(place.sql("COMMENT ON TABLE {table} IS {}", text))
            query = place.sql("INSERT INTO {heads} VALUES (%s, %s) ON CONFLICT DO NOTHING")
            connection.execute(query, (id_, self.stream))
            place.commit(connection)
        place.table_id = id_

    def _make_beside(self, connection: Connection) -> None:
        """Make the schema and the tables beside, while nobody else does."""
        schema = self._place.schema
        lock = "SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))"
        connection.execute(lock, (f"oncelake {schema}",))
        # IF NOT EXISTS would need a right to the database even where the schema is there.
        if _value(connection, "SELECT to_regnamespace(%s) IS NULL", (schema,)):
            connection.execute(SQL("CREATE SCHEMA {}").format(Identifier(schema)))
        connection.execute(self._place.sql(_BESIDE))

    def _make(
        self, connection: Connection, columns: Sequence[DeclaredColumn], keys: Sequence[str]
    ) -> None:
        # A primary key would make its columns NOT NULL, unlike what was declared.
        is_required = not any(column.nullable for column in columns if column.name in keys)
        unique = SQL("PRIMARY KEY ({})" if is_required else "UNIQUE ({})").format(listed(keys))
        parts = [self._definition(column, nullable=column.nullable) for column in columns]
        whole = SQL(", ").join([*parts, unique])
        connection.execute(self._place.sql("CREATE TABLE {table} ({})", whole))
        for column in columns:
            self._comment(connection, column)
        connection.execute(self._place.sql("CREATE INDEX ON {table} (_seq)"))

    def _adopt(self, connection: Connection, keys: Sequence[str]) -> bool:
        """Put to an empty table what it lacks; tell whether it is one."""
        place, there = self._place, self._place.table.as_string()
        connection.execute(place.sql("LOCK TABLE {table} IN SHARE ROW EXCLUSIVE MODE"))
        if _value(connection, place.sql("SELECT EXISTS (SELECT FROM {table})")):
            return False
        if not _value(connection, _HAS_UNIQUE, (there, sorted(keys))):
            connection.execute(place.sql("CREATE UNIQUE INDEX ON {table} ({})", listed(keys)))
        connection.execute(place.sql("CREATE INDEX ON {table} (_seq)"))
        return True

    def _definition(self, column: DeclaredColumn, *, nullable: bool) -> Composed:
        type_ = SQL(rows_by_copy.server_type(self.stored_type(column.type)))
        required = SQL("" if nullable else " NOT NULL")
        return SQL("{} {}{}").format(Identifier(column.name), type_, required)

    def _comment(self, connection: Connection, column: DeclaredColumn) -> None:
        if column.comment:
            at = Identifier(self._place.schema, self._place.name, column.name)
            statement = SQL("COMMENT ON COLUMN {} IS {}").format(at, Literal(column.comment))
            connection.execute(statement)

    def columns(self) -> tuple[DeclaredColumn, ...]:
        """Return the columns by the server's catalog."""
        with self._place.session() as connection:
            return columns_of(connection, self._place.table)

    def stored_type(self, declared: SqlType) -> SqlType:
        """Return the type; PostgreSQL has no integer of one byte."""
        is_tiny = declared.word == "TINYINT"
        return SqlType(word="SMALLINT") if is_tiny else declared.without_required()

    def alteration(self, column: DeclaredColumn, *, is_new: bool) -> str:
        """Write the statement."""
        return self._alteration(column, is_new=is_new).as_string()

    def _alteration(self, column: DeclaredColumn, *, is_new: bool) -> Composed:
        if is_new:
            definition = self._definition(column, nullable=True)
            return self._place.sql("ALTER TABLE {table} ADD COLUMN IF NOT EXISTS {}", definition)
        name = Identifier(column.name)
        return self._place.sql("ALTER TABLE {table} ALTER COLUMN {} DROP NOT NULL", name)

    def alter(self, column: DeclaredColumn, *, is_new: bool, spark: Any) -> None:
        """Execute the statement; it waits until nobody reads or writes the table."""
        del spark
        _refuse_long(self.stream, column.name)
        with self._place.session() as connection:
            connection.execute(self._alteration(column, is_new=is_new))
            if is_new:
                self._comment(connection, column)
            self._place.commit(connection)

    def set_aside(self, entry: str) -> str | None:
        """Rename the table; its id goes with it, and so do its notes."""
        place, name = self._place, f"{self._place.name[:40]}__{entry.lower()}"
        with place.session() as connection:
            if _look(place, connection).oid is None:
                return None
            connection.execute(place.sql("ALTER TABLE {table} RENAME TO {}", Identifier(name)))
            place.commit(connection)
        return f"{place.schema}.{name}"

    def begin(self, seq: int) -> PostgresTransaction:
        """Lock the table's head, when it stands at the seq before."""
        return PostgresTransaction(self._place, seq)

    def scan(
        self, names: Sequence[str], version: int | None = None, *, since_seq: int | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Yield rows by COPY; version and rows are of one look.

        Raises:
            TableBusyError: the table has gone on from that version.
        """
        place = self._place
        with place.session(is_one_look=True) as connection:
            newest = _look(place, connection).seq
            if version not in (None, newest):
                raise place.busy(
                    f"seq {version} was to be read, and the table is at seq {newest}: it was "
                    f"committed to meanwhile, and {_PAST}. If it happens again, pause the stream"
                )
            by_name = {column.name: column for column in columns_of(connection, place.table)}
            source = place.sql("FROM {table} t")
            if since_seq is not None:
                source = place.sql("FROM {table} t WHERE _seq >= {}", Literal(since_seq))
            yield from rows_by_copy.read_rows(connection, [by_name[n] for n in names], source)

    def rows_of_seq(self, seq: int, *, commit: Commit) -> int | None:
        """Count them by the index over ``_seq``, while the commit is the newest."""
        with self._place.session(is_one_look=True) as connection:
            if _look(self._place, connection).seq != commit.version:
                return None
            query = self._place.sql("SELECT count(*) FROM {table} WHERE _seq = %s")
            return int(_value(connection, query, (seq,)))

    def notes(self, through: int) -> Iterator[tuple[int, int | None, str | None]]:
        """Read the notes, few at once."""
        query = "SELECT seq, seq, note FROM {notes} WHERE table_id = %s AND seq <= %s ORDER BY seq"
        with self._place.session(is_one_look=True) as connection:
            state = _look(self._place, connection)
            if state.id is not None:
                with connection.cursor(name="oncelake_notes") as cursor:
                    cursor.itersize = _NOTES_AT_ONCE
                    yield from cursor.execute(self._place.sql(query), (state.id, through))

    def settings_error(self) -> TableSettingsError | None:
        """Look for a table that the server empties after a crash, while its notes stay."""
        there = self._place.table.as_string()
        query = "SELECT relpersistence = 'u' FROM pg_class WHERE oid = to_regclass(%s)"
        with self._place.session() as connection:
            if not _value(connection, query, (there,)):
                return None
        return TableSettingsError(
            self.stream,
            f"{self.where} is UNLOGGED: the server empties it after a crash.",
            remedy=f"ALTER TABLE {there} SET LOGGED",
        )

    def maintain(self, window: dt.timedelta, target_bytes: int) -> Mapping[str, int]:
        """Delete the notes that are older than the window, though never the newest."""
        del target_bytes
        place = self._place
        with place.session() as connection:
            state = _look(place, connection)
            if state.seq < 0:
                return {}
            values = (state.id, state.seq, window)
            deleted = connection.execute(place.sql(_DELETE_OLD_NOTES), values).rowcount
            place.commit(connection)
        return {"notes deleted": deleted}


class PostgresTransaction(Transaction):
    """One transaction of the server, which has locked the table's head."""

    def __init__(self, place: _Place, seq: int) -> None:
        """Lock the head, and compare it with the seq before.

        Raises:
            CommitConflictError: the table does not stand there, or is another than was read.
        """
        self._place, self._seq = place, seq
        with ExitStack() as stack:
            self._connection = stack.enter_context(place.session())
            # Nobody can put another table in the place of this one now.
            self._connection.execute(place.sql("LOCK TABLE {table} IN ROW EXCLUSIVE MODE"))
            self._state = _look(place, self._connection, lock="FOR UPDATE")
            self._refuse_elsewhere(self._state)
            self._columns = columns_of(self._connection, place.table)
            self._stack = stack.pop_all()

    def _refuse_elsewhere(self, state: _State) -> None:
        place = self._place
        if place.table_id not in (None, state.id):
            holds = "is not the table that was read: another was made under its name"
        elif state.stream == place.stream and self._seq == state.seq + 1:
            return
        elif state.stream == place.stream and state.seq >= 0:
            holds = f"holds seq {state.seq} as its last"
        else:
            holds = "holds no commit of this stream"
        raise CommitConflictError(
            place.stream,
            f"{place.where} {holds}, so that seq {self._seq} is not the next here.",
            remedy=f"oncelake status {place.stream}, then run again from the table's offsets",
        )

    def rows_of(self, keys: pa.Table) -> pa.Table:
        """Find the rows by a temporary table of the keys, and lock them."""
        with self._place.translated(self._connection):
            sent = self._send_beside("oncelake_keys", self._as_stored(keys))
            keys_of = listed(keys.column_names), listed(keys.column_names, of="t")
            source = self._place.sql(_LOOK_UP, sent=sent, keys=keys_of[0], of_table=keys_of[1])
            rows = list(rows_by_copy.read_rows(self._connection, self._columns, source))
            self._connection.execute(SQL("DROP TABLE {}").format(sent))
        return pa.Table.from_batches(rows)

    def commit(self, change: Change | None, metadata: CommitMetadata) -> None:
        """Change the rows, note it, and commit; whatever happens, the connection is closed."""
        if metadata.seq != self._seq:
            raise ValueError(f"seq {self._seq} was begun, and not {metadata.seq}")
        with closing(self), self._place.translated(self._connection):
            counts = dict.fromkeys((INSERTED, UPDATED, DELETED), 0)
            if change is not None:
                counts = self._change_rows(change)
                if counts != change.counts:
                    raise self._place.busy(
                        f"others have changed the same rows: {_in_words(counts)} by the server, "
                        f"{_in_words(change.counts)} by the batch. Nothing was changed"
                    )
            self._note(counts, metadata)
            self._place.commit(self._connection)

    def close(self) -> None:
        """Close the connection; the server rolls back what is not committed."""
        self._stack.close()

    def _change_rows(self, change: Change) -> dict[str, int]:
        # Refused before anything is sent.
        of_kinds = (change.deleted, change.updated, change.inserted)
        deleted, updated, inserted = map(self._as_stored, of_kinds)
        keys = change.deleted.column_names
        others = [name for name in updated.column_names if name not in keys]
        new = SQL(", ").join(SQL("{0} = n.{0}").format(Identifier(name)) for name in others)
        return {
            DELETED: self._match(_DELETE, deleted, keys),
            UPDATED: self._match(_UPDATE, updated, keys, new=new),
            INSERTED: rows_by_copy.send_rows(self._connection, self._place.table, inserted),
        }

    def _match(
        self, statement: LiteralString, rows: pa.Table, keys: Sequence[str], **parts: Composable
    ) -> int:
        """Execute a statement on the table's rows that have the keys of others; count them."""
        if not rows.num_rows:
            return 0
        sent = self._send_beside(f"oncelake_{statement[:6].lower()}", rows)
        parts |= {"of_table": listed(keys, of="t"), "of_sent": listed(keys, of="n")}
        return self._connection.execute(self._place.sql(statement, sent=sent, **parts)).rowcount

    def _send_beside(self, name: str, rows: pa.Table) -> Identifier:
        """Send rows into a temporary table, with the table's types, so that its indexes serve."""
        sent = Identifier("pg_temp", name)
        make = "CREATE TEMPORARY TABLE {} ON COMMIT DROP AS SELECT {} FROM {table} LIMIT 0"
        self._connection.execute(self._place.sql(make, sent, listed(rows.column_names)))
        rows_by_copy.send_rows(self._connection, sent, rows)
        # Otherwise the planner guesses how many there are.
        self._connection.execute(SQL("ANALYZE {}").format(sent))
        return sent

    def _as_stored(self, rows: pa.Table) -> pa.Table:
        return rows_by_copy.as_stored(self._place.stream, rows, self._columns)

    def _note(self, counts: Mapping[str, int], metadata: CommitMetadata) -> None:
        values = {
            "table_id": self._state.id,
            "seq": self._seq,
            "note": metadata.to_json(),
            "inserted": counts[INSERTED],
            "updated": counts[UPDATED],
            "deleted": counts[DELETED],
        }
        if self._connection.execute(self._place.sql(_NOTE), values).rowcount != 1:
            raise self._place.busy(
                "its row of oncelake_tables was not changed, by a trigger or rule"
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
                self._read(connection, state)
            self._state, self._place.table_id = state, state.id
        return self._state

    def _settle(self) -> None:
        """After a commit without an answer, wait for the session that may still be making it."""
        if self._place.is_unsettled:
            with self._place.session() as connection:
                _look(self._place, connection, lock="FOR UPDATE")
            self._place.is_unsettled = False

    def _read(self, connection: Connection, state: _State) -> None:
        self._is_empty = state.rows == 0
        # Before our first commit, rows are somebody else's.
        if state.oid is not None and state.seq < 0:
            query = self._place.sql("SELECT NOT EXISTS (SELECT FROM {table})")
            self._is_empty = _value(connection, query)
        if state.id is not None:
            query = self._place.sql("SELECT seq FROM {notes} WHERE table_id = %s ORDER BY 1 DESC")
            self._versions = [seq for (seq,) in connection.execute(query, (state.id,))]
            self._read_down_from(connection, state, max(self._versions, default=-1))

    def _read_down_from(self, connection: Connection, state: _State, version: int) -> None:
        values = (state.id, version, _NOTES_AT_ONCE)
        for row in connection.execute(self._place.sql(_NEWEST_NOTES), values):
            self._commits[row[0]] = self._commit(state, *row)

    def _commit(self, state: _State, seq: int, note: str, *counts_and_time: int) -> Commit:
        inserted, updated, deleted, timestamp_ms = counts_and_time
        try:
            metadata = CommitMetadata.from_json(note)
        except DamagedMetadataError as error:
            raise self._place.damaged(f"the note of seq {seq}: {error}") from error
        return Commit(
            version=seq,
            timestamp_ms=timestamp_ms,
            operation="MERGE" if updated or deleted else "APPEND" if inserted else "WRITE",
            metrics={INSERTED: inserted, UPDATED: updated, DELETED: deleted},
            txns={app_id(state.stream): seq},
            changes_rows=bool(inserted or updated or deleted),
            metadata=metadata,
        )

    @property
    def exists(self) -> bool:
        """Tell whether the table is there."""
        return self._looked().oid is not None

    @property
    def is_empty(self) -> bool:
        """Tell it by our commits, and of a table without one by its rows."""
        self._looked()
        return self._is_empty

    def table_id(self) -> str:
        """Return the id in the table's comment, or the server's own of a table that has none."""
        state = self._looked()
        if state.oid is None:
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
        return state.seq if state.stream == stream and state.seq >= 0 else None

    def row_count(self) -> int:
        """Return what our commits come to; the proof counts the rows themselves."""
        return self._looked().rows

    def highest_epoch(self) -> int:
        """Read it from the rows: it is wanted where no note is left to tell it."""
        query = self._place.sql("SELECT coalesce(max(_epoch), 0) FROM {table}")
        with self._place.session() as connection:
            return int(_value(connection, query))

    def refuse_torn(self, stream: str, commit: Commit) -> None:
        """Compare the seq of a note with that of its row."""
        seq = commit.metadata.seq if commit.metadata else None
        if seq != commit.txns[app_id(stream)]:
            raise self._place.damaged(f"the note of seq {commit.version} says {seq}")


def _in_words(counts: Mapping[str, int]) -> str:
    return f"{counts[INSERTED]} inserted, {counts[UPDATED]} updated and {counts[DELETED]} deleted"
