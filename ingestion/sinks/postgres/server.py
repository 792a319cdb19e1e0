"""A server of PostgreSQL as a stream's table needs it: one transaction at once, and plain errors.

No error quotes rows or the password; what the server does not answer is not taken for an answer.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, LiteralString

import psycopg
from psycopg.conninfo import conninfo_to_dict
from psycopg.sql import SQL, Composable, Composed, Identifier
from pydantic import SecretStr

from oncelake.ingestion.errors import (
    AGAIN,
    DamagedTableError,
    IngestionError,
    InvalidSpecError,
    MissingRightError,
    RefusedError,
    SinkUnavailableError,
    TableBusyError,
    counted,
    first_line,
    reset,
)
from oncelake.ingestion.sinks.postgres.copy import Connection
from oncelake.ingestion.tables.commit_log import UnknownOutcomeError
from oncelake.ingestion.tables.table import KeepsRows

EXAMPLE: Final = "postgresql://user:password@host:5432/database"
# extract(epoch …) counts microseconds exactly from here on.
_OLDEST_SERVER: Final = 14
_ID: Final = re.compile(r"oncelake:([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})\b")
# Somebody else holds a lock, or has changed the same rows.
_BUSY: Final = {"55P03", "40001", "40P01"}
# A limit of the program, or a state that it cannot leave by itself: the client calls both down.
_LIMITS: Final = {"54", "55"}
_IDLE_TOO_LONG: Final = "25P03"
# What a server says to a login: the client gives it no state. In another language than English it
# is not known, and is taken for a server that is down.
_NO_SUCH_LOGIN: Final = re.compile(
    r"no password supplied|FATAL: +((password|Peer|Ident|certificate) authentication failed|"
    r'(role|database) ".*" does not exist|role ".*" is not permitted|.*pg_hba\.conf)'
)
_NO_CONNECT: Final = re.compile(r"FATAL: +permission denied for database")

# The settings of each transaction, whatever the server, the database or the role has set.
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
# Who has written to the table, or locked it, and not ended yet.
_HOLDERS: Final = """
    SELECT string_agg(DISTINCT format('%%s (process %%s)',
                      coalesce(nullif(application_name, ''), 'a session'), pid), ', ')
    FROM pg_locks JOIN pg_stat_activity USING (pid)
    WHERE relation = to_regclass(%s) AND granted AND mode <> 'AccessShareLock'
      AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""
# The rows that VACUUM had to leave, by the server's count, which it updates within a second.
_DEAD: Final = "SELECT pg_stat_get_dead_tuples(to_regclass(%s))"
_SECONDS_OF_COUNTING: Final = 1.0
# Who may still see deleted rows.
_READERS: Final = """
    SELECT string_agg(format('%%s (process %%s)',
                      coalesce(nullif(application_name, ''), 'a session'), pid), ', ')
    FROM pg_stat_activity
    WHERE backend_xmin IS NOT NULL AND datname = current_database() AND pid <> pg_backend_pid()
"""
_TABLE: Final = "SELECT t::oid, obj_description(t, 'pg_class') FROM to_regclass(%s) t"


def server_name(stream: str, url: SecretStr) -> str:
    """Name a server for people; what is wrong with a URL may have its password in it."""
    try:
        parts = conninfo_to_dict(url.get_secret_value())
    except psycopg.Error:
        parts = {"host": "@"}
    host, port, database = (str(parts.get(part) or "") for part in ("host", "port", "dbname"))
    # A password with an @ or a / in it reaches into what comes after it.
    if "@" in host + database or port.strip("0123456789,"):
        raise InvalidSpecError(
            f"{stream}: ONCELAKE_POSTGRES is no URL of PostgreSQL. Next: write it as {EXAMPLE}, "
            "with %40 for an @ in the password, and %2F for a /"
        )
    return f"{host or 'localhost'}:{port or 5432}/{database}"


@dataclass(kw_only=True)
class PostgresPlace:
    """Where a table is, and how the server is spoken to.

    Attributes:
        is_unsettled: Whether a commit got no answer, and no log has been read since.
        table_id: Of the table that a log has read last, or that was made.
        keeps_rows: See ``TableDefinition``, of the table that was made last.
    """

    stream: str
    url: SecretStr = field(repr=False)
    server: str
    schema: str
    name: str
    timeout_seconds: float
    is_unsettled: bool = False
    table_id: str | None = None
    keeps_rows: KeepsRows | None = None

    @property
    def where(self) -> str:
        """Name the table, and the server without its password."""
        return f"{self.schema}.{self.name} (PostgreSQL at {self.server})"

    @property
    def table(self) -> Identifier:
        """The table's name."""
        return Identifier(self.schema, self.name)

    @property
    def heads(self) -> Identifier:
        """The name of the table of heads."""
        return Identifier(self.schema, "oncelake_tables")

    @property
    def notes(self) -> Identifier:
        """The name of the table of notes."""
        return Identifier(self.schema, "oncelake_notes")

    def sql(self, text: LiteralString, *given: Composable, **parts: Composable) -> Composed:
        """Fill in the names of the three tables, and parts."""
        tables = {"table": self.table, "heads": self.heads, "notes": self.notes}
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
        url = self.url.get_secret_value()
        connection = psycopg.connect(
            url,
            # A standby that lags would be taken for a table that was rolled back.
            target_session_attrs=conninfo_to_dict(url).get("target_session_attrs", "primary"),
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

    def look(self, connection: Connection, *, lock: LiteralString = "") -> PostgresState:
        """Read where the table stands; ``lock`` is put to the query of its head."""
        [(oid, comment)] = connection.execute(_TABLE, (self.table.as_string(),))
        [(heads, _)] = connection.execute(_TABLE, (self.heads.as_string(),))
        match = _ID.match(comment or "") if heads else None
        if match is None:
            return PostgresState(oid=oid)
        query = self.sql("SELECT stream, seq, rows FROM {heads} WHERE table_id = %s {}", SQL(lock))
        stream, seq, rows = connection.execute(query, (match[1],)).fetchone() or ("", -1, 0)
        return PostgresState(oid=oid, id=match[1], stream=stream, seq=seq, rows=rows)

    def rename(self, connection: Connection, to: PostgresPlace) -> None:
        """Give the table the name of another place in its schema."""
        rename = "ALTER TABLE {table} RENAME TO {}"
        connection.execute(self.sql(rename, Identifier(to.name)))

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
            place = f"{self.stream}: {self.where}"
            raise UnknownOutcomeError.of(place, self.reason(error)) from error
        # A transaction that failed is answered thus, and nothing is raised.
        if answer != "COMMIT":
            raise SinkUnavailableError(
                f"{self.stream}: {self.where}: the server answered a commit with {answer}. Nothing "
                f"was changed. Next: {AGAIN}"
            )

    def vacuum(self) -> None:
        """Remove deleted rows from table, indexes and statistics, beside whoever reads the table.

        Raises:
            RefusedError: the role may not.
            TableBusyError: a transaction that may still see them does not end.
        """
        deadline = time.monotonic() + self.timeout_seconds
        with self.translated(), closing(self._connect()) as connection:
            connection.autocommit = True
            connection.execute("SET lock_timeout = '30s'; SET statement_timeout = 0")
            with self.translated(connection):
                while dead := self._vacuum(connection):
                    if time.monotonic() > deadline:
                        readers = value_of(connection, _READERS) or "a replica, or a slot of one"
                        raise self.busy(
                            f"{counted(dead, 'deleted row')} cannot be removed from its file "
                            f"before older transactions end: {readers}"
                        )

    def _vacuum(self, connection: Connection) -> int:
        """Vacuum once; count the deleted rows that are left."""
        warnings = list[str | None]()
        connection.add_notice_handler(lambda notice: warnings.append(notice.message_primary))
        connection.execute(self.sql("VACUUM (ANALYZE, INDEX_CLEANUP ON) {table}"))
        if warnings:
            raise RefusedError(
                self.stream,
                f"{self.where} was not vacuumed, and its file keeps deleted rows: {warnings[0]}.",
                remedy="let the role own the table; then run the same command again",
            )
        time.sleep(_SECONDS_OF_COUNTING)
        return int(value_of(connection, _DEAD, (self.table.as_string(),)))

    @contextmanager
    def translated(self, connection: Connection | None = None) -> Iterator[None]:
        """Translate what is raised before a commit, when nothing is visible yet.

        Raises:
            TableBusyError: somebody else was at the same rows, or holds a lock; says who.
            MissingRightError: the role lacks a right.
            InvalidSpecError: the server takes no such login.
            DependencyError: the server does not answer, or has no room.
            RefusedError: the server does not take the rows, or the statement.
        """
        try:
            yield
        except psycopg.errors.LockNotAvailable as error:
            raise self.busy(f"{self._holders(connection)} holds a lock on it") from error
        except psycopg.Error as error:
            raise self.translation(error) from error

    def translation(self, error: psycopg.Error) -> IngestionError:
        """Return the error that one of the server's, or of its client, is."""
        reason, state = self.reason(error), error.sqlstate or ""
        # Two may make the same table, or its row among ours, at once.
        is_made_twice = state == "23505" and error.diag.table_name != self.name
        if state in _BUSY or is_made_twice:
            return self.busy(f"others have changed the same rows ({reason}). Nothing was changed")
        if not state and _NO_SUCH_LOGIN.search(reason):
            return InvalidSpecError(
                f"{self.stream}: {self.where} does not take the login: {reason}. Next: correct "
                "ONCELAKE_POSTGRES, or let the server take it"
            )
        is_kept_out = not state and _NO_CONNECT.search(reason)
        if is_kept_out or isinstance(error, psycopg.errors.InsufficientPrivilege):
            user = conninfo_to_dict(self.url.get_secret_value()).get("user", "the role")
            return MissingRightError(
                f"{self.stream}: {self.where} refuses it to {user}: {reason}. Nothing was changed. "
                "Next: grant the rights of docs/rights.md, then run the same command again"
            )
        is_down = isinstance(error, psycopg.OperationalError) and state[:2] not in _LIMITS
        if is_down or state == _IDLE_TOO_LONG:
            return SinkUnavailableError(
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
        return value_of(connection, _HOLDERS, (self.table.as_string(),)) or "somebody else"

    def busy(self, why: str) -> TableBusyError:
        """Return the error of a statement that another session blocks."""
        return TableBusyError(f"{self.stream}: {self.where}: {why}. Next: {AGAIN}")

    def damaged(self, why: str) -> DamagedTableError:
        """Return the error of a note that is not as it was written."""
        remedy = f"restore oncelake_notes from a backup; if there is none, {reset(self.stream)}"
        return DamagedTableError.of(self.stream, self.where, why, remedy=remedy)

    def reason(self, error: psycopg.Error) -> str:
        """Say what a server or its client complains of; without its details, which quote rows."""
        text = error.diag.message_primary or first_line(error)
        password = conninfo_to_dict(self.url.get_secret_value()).get("password")
        text = text.replace(str(password), "***") if password else text
        return text.strip().rstrip(".")


@dataclass(frozen=True, kw_only=True, slots=True)
class PostgresState:
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


def value_of(connection: Connection, query: Any, values: Any = ()) -> Any:
    """Return the first value of a query, if it has a row."""
    row = connection.execute(query, values).fetchone()
    return row[0] if row else None
