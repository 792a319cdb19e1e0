"""The table of PostgreSQL that keeps a stream's rows: rows and note are one transaction of it.

Two small tables lie in the same schema, so that one commit, and one dump, takes all of it::

    oncelake_tables   a row a table: seq and rows as of its last commit; who locks it may commit
    oncelake_notes    a row a commit: its note, and how many rows it concerned

A table is known by an id in its comment, which a dump keeps and which is gone when the table is.
"""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from typing import Any, Final

import pyarrow as pa

from oncelake.ingestion.declaration.ddl import DeclaredColumn, parse_columns
from oncelake.ingestion.declaration.sinks import BESIDE, SINKS, PostgresSink
from oncelake.ingestion.errors import (
    DamagedTableError,
    InvalidSpecError,
    RefusedError,
    TableBusyError,
    TableSettingsError,
    first_line,
    not_installed,
)
from oncelake.ingestion.settings import Settings
from oncelake.ingestion.storage.failpoints import Failpoint, hit
from oncelake.ingestion.storage.location import Location
from oncelake.ingestion.tables.commit_log import (
    DELETED,
    INSERTED,
    ROW_COUNTS,
    UPDATED,
    Commit,
    CommitLog,
    operation_of,
)
from oncelake.ingestion.tables.commit_metadata import CommitMetadata, DamagedMetadataError, app_id
from oncelake.ingestion.tables.table import (
    REPLACED,
    Change,
    ErasableTable,
    Layout,
    NamedTable,
    TableDefinition,
    Transaction,
    counts_of,
    seq_conflict,
)

try:
    from psycopg import DataError, NotSupportedError
    from psycopg.sql import SQL, Composed, Identifier, Literal

    from oncelake.ingestion.sinks.postgres.copy import (
        Connection,
        column_list,
        columns_of,
        read_rows,
        server_type,
    )
    from oncelake.ingestion.sinks.postgres.rows import BatchRows
    from oncelake.ingestion.sinks.postgres.server import (
        EXAMPLE,
        PostgresPlace,
        PostgresState,
        server_name,
        value_of,
    )
except ImportError as error:
    raise not_installed("postgres") from error

_NOTES_AT_ONCE: Final = 16
_KIND: Final = SINKS["postgres"]

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
            f"{stream}: `sink: postgres` needs a server. Next: set ONCELAKE_POSTGRES={EXAMPLE}"
        )
    schema, _, name = sink.table_of(stream).partition(".")
    place = PostgresPlace(
        stream=stream,
        url=settings.postgres,
        server=server_name(stream, settings.postgres),
        schema=schema,
        name=name,
        timeout_seconds=settings.kafka_timeout_seconds,
    )
    return PostgresTable(place)


class PostgresTable(NamedTable, ErasableTable):
    """A stream's table of PostgreSQL; see ``SinkTable``."""

    def __init__(self, place: PostgresPlace) -> None:
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

    def create(self, wanted: TableDefinition) -> None:
        """Make the table, or take an empty one that somebody made beforehand.

        One that has rows, and is not ours, stays as it is, unless they are adopted. Two may do this
        at once.
        """
        place, keys = self._place, wanted.keys
        with place.session() as connection:
            self._make_beside(connection)
            state = place.look(connection)
            if state.oid is None:
                self._make(connection, wanted.columns, keys)
            elif state.id is None and not self._adopt(connection, wanted):
                return
            if (id_ := state.id) is None:
                id_ = str(uuid.uuid4())
                text = Literal(f"oncelake:{id_} {wanted.description}".strip())
                connection.execute(place.sql("COMMENT ON TABLE {table} IS {}", text))
            query = place.sql("INSERT INTO {heads} VALUES (%s, %s) ON CONFLICT DO NOTHING")
            connection.execute(query, (id_, self.stream))
            place.commit(connection)
        place.table_id, place.keeps_rows = id_, wanted.keeps_rows

    def _make_beside(self, connection: Connection) -> None:
        """Make the schema and the tables beside, while nobody else does."""
        schema = self._place.schema
        lock = "SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))"
        connection.execute(lock, (f"oncelake {schema}",))
        # IF NOT EXISTS would need a right to the database even where the schema is there.
        if value_of(connection, "SELECT to_regnamespace(%s) IS NULL", (schema,)):
            connection.execute(SQL("CREATE SCHEMA {}").format(Identifier(schema)))
        connection.execute(self._place.sql(_BESIDE))

    def _make(
        self, connection: Connection, columns: Sequence[DeclaredColumn], keys: Sequence[str]
    ) -> None:
        # A primary key would make its columns NOT NULL, unlike what was declared.
        is_required = not any(column.nullable for column in columns if column.name in keys)
        unique = SQL("PRIMARY KEY ({})" if is_required else "UNIQUE ({})").format(column_list(keys))
        parts = map(self._definition, columns)
        whole = SQL(", ").join([*parts, unique])
        connection.execute(self._place.sql("CREATE TABLE {table} ({})", whole))
        for column in columns:
            if column.comment:
                _comment(self._place, connection, column)
        connection.execute(self._place.sql("CREATE INDEX ON {table} (_seq)"))

    def _adopt(self, connection: Connection, wanted: TableDefinition) -> bool:
        """Put to an empty table, or one to be adopted, what it lacks; tell whether it is one."""
        place, keys, there = self._place, wanted.keys, self._place.table.as_string()
        connection.execute(place.sql("LOCK TABLE {table} IN SHARE ROW EXCLUSIVE MODE"))
        has_rows = value_of(connection, place.sql("SELECT EXISTS (SELECT FROM {table})"))
        if has_rows and not wanted.keeps_rows:
            return False
        names = {column.name for column in columns_of(connection, place.table)}
        for column in wanted.columns:
            if column.name not in names:
                connection.execute(_statement(place, _KIND.statements.add, column))
        if not value_of(connection, _HAS_UNIQUE, (there, sorted(keys))):
            connection.execute(place.sql("CREATE UNIQUE INDEX ON {table} ({})", column_list(keys)))
        connection.execute(place.sql("CREATE INDEX ON {table} (_seq)"))
        return True

    def _definition(self, column: DeclaredColumn) -> Composed:
        type_ = SQL(server_type(_KIND.stored_type(column.type)))
        required = SQL("" if column.nullable else " NOT NULL")
        return SQL("{} {}{}").format(Identifier(column.name), type_, required)

    def columns(self) -> tuple[DeclaredColumn, ...]:
        """Return the columns by the server's catalog."""
        with self._place.session() as connection:
            return columns_of(connection, self._place.table)

    def set_aside(self, entry: str, *, is_replaced: bool = False) -> str | None:
        """Rename both in one transaction; with each go its id, and so its notes."""
        own = self._place
        aside = replace(own, name=f"{own.name[:39]}__{entry.lower()}")
        beside = replace(own, name=f"{own.name}{BESIDE}")
        with own.session() as connection:
            state = own.look(connection)
            is_aside, is_beside = (
                place.look(connection).oid is not None for place in (aside, beside)
            )
            is_done = is_replaced and not is_beside
            is_taken = state.stream == self.stream or (is_replaced and state.oid is not None)
            if is_taken and not is_aside and not is_done:
                own.rename(connection, aside)
                is_aside = True
            if is_replaced and not is_done:
                beside.rename(connection, own)
            own.commit(connection)
        return f"{own.schema}.{aside.name}" if is_aside else None

    def drop(self) -> None:
        """Drop the table, its head and its notes."""
        place = self._place
        with place.session() as connection:
            state = place.look(connection)
            if state.stream == self.stream:
                connection.execute(place.sql("DROP TABLE {table}"))
                for table in (place.heads, place.notes):
                    query = place.sql("DELETE FROM {} WHERE table_id = %s", table)
                    connection.execute(query, (state.id,))
                place.commit(connection)

    def begin(self, seq: int) -> PostgresTransaction:
        """Lock the table's head, when it stands at the seq before."""
        return PostgresTransaction(self._place, seq)

    def scan(
        self, names: Sequence[str], version: int | None = None, *, since_seq: int | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Yield rows by COPY; version and rows are of one look.

        Raises:
            TableBusyError: the table has gone on from that version.
            DamagedTableError: somebody has put a value there that a column here cannot have.
        """
        place = self._place
        with place.session(is_one_look=True) as connection:
            newest = place.look(connection).seq
            if version not in (None, newest):
                why = _KIND.cannot["time travel"]
                raise place.busy(
                    f"seq {version} was to be read, and the table is at seq {newest}: it was "
                    f"committed to meanwhile, and {why}. If it happens again, pause the stream"
                )
            by_name = {column.name: column for column in columns_of(connection, place.table)}
            source = place.sql("FROM {table} t")
            if since_seq is not None:
                source = place.sql("FROM {table} t WHERE _seq >= {}", Literal(since_seq))
            try:
                yield from read_rows(connection, [by_name[n] for n in names], source)
            except (pa.ArrowInvalid, DataError, NotSupportedError) as error:
                raise DamagedTableError(
                    self.stream,
                    f"{self.where} holds a value that no batch writes ({first_line(error)}).",
                    remedy=f"correct it, or oncelake rebuild {self.stream}",
                ) from error

    def rows_of_seq(self, seq: int, *, commit: Commit) -> int | None:
        """Count them by the index over ``_seq``, while the commit is the newest."""
        with self._place.session(is_one_look=True) as connection:
            if self._place.look(connection).seq != commit.version:
                return None
            query = self._place.sql("SELECT count(*) FROM {table} WHERE _seq = %s")
            return int(value_of(connection, query, (seq,)))

    def notes(self, through: int) -> Iterator[tuple[int, int | None, str | None]]:
        """Read the notes, few at once."""
        query = "SELECT seq, seq, note FROM {notes} WHERE table_id = %s AND seq <= %s ORDER BY seq"
        with self._place.session(is_one_look=True) as connection:
            state = self._place.look(connection)
            if state.id is not None:
                with connection.cursor(name="oncelake_notes") as cursor:
                    cursor.itersize = _NOTES_AT_ONCE
                    yield from cursor.execute(self._place.sql(query), (state.id, through))

    def check(self, log: CommitLog) -> TableSettingsError | None:
        """Find settings that empty the table after a crash, or hide rows."""
        del log
        name = self._place.table.as_string()
        query = """
            SELECT relpersistence = 'u', row_security_active(oid), current_user FROM pg_class
            WHERE oid = to_regclass(%s)
        """
        with self._place.session() as connection:
            found = connection.execute(query, (name,)).fetchone() or (False, False, "")
        is_unlogged, is_hidden, user = found
        problem, remedy = "", ""
        if is_unlogged:
            problem = "is UNLOGGED: the server empties it after a crash"
            remedy = f"ALTER TABLE {name} SET LOGGED"
        elif is_hidden:
            problem = f"has row level security: what it hides from {user} would be taken for absent"
            remedy = f"ALTER TABLE {name} DISABLE ROW LEVEL SECURITY, or let {user} bypass it: "
            remedy += f"ALTER ROLE {Identifier(user).as_string()} BYPASSRLS"
        if not problem:
            return None
        return TableSettingsError(self.stream, f"{self.where} {problem}.", remedy=remedy)

    def remove_older_versions(self, written: Collection[str]) -> int:
        """Let the server remove the rows that were deleted; their files stay."""
        del written
        self._place.vacuum()
        hit(Failpoint.VACUUMED)
        return 0

    def maintain(
        self, window: dt.timedelta, target_bytes: int, *, is_clustered: bool = False
    ) -> Mapping[str, int]:
        """Delete the notes that are older than the window, though never the newest."""
        del target_bytes, is_clustered
        place = self._place
        with place.session() as connection:
            state = place.look(connection)
            if state.seq < 0:
                return {}
            values = (state.id, state.seq, window)
            deleted = connection.execute(place.sql(_DELETE_OLD_NOTES), values).rowcount
            place.commit(connection)
        return {"notes deleted": deleted}


def _reshape(place: PostgresPlace, connection: Connection, layout: Layout) -> Mapping[str, int]:
    """Execute what gives a table other columns; no row counts as changed."""
    now, texts = {old: new for new, old in layout.renamed.items()}, _KIND.statements
    found = {now.get(each.name, each.name): each for each in columns_of(connection, place.table)}
    for name in found.keys() - {each.name for each in layout.columns}:
        connection.execute(place.sql("ALTER TABLE {table} DROP COLUMN {}", Identifier(name)))
    for new, old in layout.renamed.items():
        names = Identifier(old), Identifier(new)
        connection.execute(place.sql("ALTER TABLE {table} RENAME COLUMN {} TO {}", *names))
    for column in layout.columns:
        known = found.get(column.name)
        if known is None:
            connection.execute(_statement(place, texts.add, column))
        elif known.type != column.type:
            connection.execute(_statement(place, texts.widen, column))
        if known and column.nullable and not known.nullable:
            connection.execute(_statement(place, texts.take_nulls, column))
        if column.comment != (known.comment if known else ""):
            _comment(place, connection, column)
    return counts_of(None)


def _statement(place: PostgresPlace, text: str, column: DeclaredColumn) -> SQL:
    return SQL(_KIND.statement(text, column, table=f"{place.schema}.{place.name}"))


def _comment(place: PostgresPlace, connection: Connection, column: DeclaredColumn) -> None:
    at = Identifier(place.schema, place.name, column.name)
    text = Literal(column.comment)
    connection.execute(SQL("COMMENT ON COLUMN {} IS {}").format(at, text))


class PostgresTransaction(Transaction):
    """One transaction of the server, which has locked the table's head."""

    def __init__(self, place: PostgresPlace, seq: int) -> None:
        """Lock the head, and compare it with the seq before.

        Raises:
            CommitConflictError: the table does not stand there, or is another than was read.
        """
        self._place, self._seq = place, seq
        with ExitStack() as stack:
            self._connection = stack.enter_context(place.session())
            # Nobody can put another table in the place of this one now.
            self._connection.execute(place.sql("LOCK TABLE {table} IN ROW EXCLUSIVE MODE"))
            self._state = place.look(self._connection, lock="FOR UPDATE")
            is_another = place.table_id not in (None, self._state.id)
            is_ours = self._state.stream == place.stream
            if is_another or not is_ours or seq != self._state.seq + 1:
                last = self._state.seq if is_ours and self._state.seq >= 0 else None
                but = REPLACED if is_another else ""
                raise seq_conflict(place.stream, place.where, seq, last=last, but=but)
            columns = columns_of(self._connection, place.table)
            self._rows = BatchRows(place, self._connection, columns)
            self._stack = stack.pop_all()

    def rows_of(self, keys: pa.Table, columns: Sequence[str] | None = None) -> pa.Table:
        """Find the rows, and lock them."""
        del columns
        with self._place.translated(self._connection):
            return self._rows.look_up(keys)

    def commit(self, change: Change | None, metadata: CommitMetadata) -> None:
        """Change the rows, note it, and commit; whatever happens, the connection is closed."""
        self._commit(metadata, lambda: self._rows.change(change) if change else counts_of(None))

    def delete(self, keys: pa.Table, metadata: CommitMetadata) -> None:
        """Let the server delete the rows, and commit as ``commit`` does."""
        self._commit(metadata, lambda: {**counts_of(None), DELETED: self._rows.delete(keys)})

    erase = delete

    def reshape(self, layout: Layout, metadata: CommitMetadata) -> None:
        """Execute the statements, and note them; the server may write the table anew."""
        self._commit(metadata, lambda: _reshape(self._place, self._connection, layout))

    def _commit(
        self, metadata: CommitMetadata, change_rows: Callable[[], Mapping[str, int]]
    ) -> None:
        if metadata.seq != self._seq:
            raise ValueError(f"seq {self._seq} was begun, and not {metadata.seq}")
        with closing(self), self._place.translated(self._connection):
            if metadata.adopted:
                self._take_rows(metadata.adopted)
            self._note(change_rows(), metadata)
            self._place.commit(self._connection)

    def _take_rows(self, found: Mapping[str, Any]) -> None:
        """Make sure that a table to be adopted has the rows that were found, and note how many."""
        place, run = self._place, self._connection.execute
        run(place.sql("LOCK TABLE {table} IN SHARE MODE"))
        columns = parse_columns(", ".join(found["columns"]))
        rows = read_rows(self._connection, columns, place.sql("FROM {table} t"))
        if place.keeps_rows is None or not place.keeps_rows(rows):
            raise TableBusyError.meanwhile(place.stream)
        query = place.sql("UPDATE {heads} SET rows = %s WHERE table_id = %s")
        run(query, (found["rows"], self._state.id))

    def close(self) -> None:
        """Close the connection; the server rolls back what is not committed."""
        self._stack.close()

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
            raise RefusedError(
                self._place.stream,
                "a trigger or a rule keeps oncelake_tables as it was. Nothing was changed.",
                remedy="drop it; then run the same command again",
            )


class PostgresLog(CommitLog):
    """The log of a table: its head and its notes, all as of one moment."""

    def __init__(self, place: PostgresPlace) -> None:
        self._place = place
        self.look_again()

    def look_again(self) -> None:
        """Forget what was read."""
        self._state: PostgresState | None = None
        self._is_empty = True
        self._versions: list[int] = []
        self._commits: dict[int, Commit] = {}

    def _looked(self) -> PostgresState:
        """Read where the table stands, once."""
        place, state = self._place, self._state
        if state is not None:
            return state
        if place.is_unsettled:
            # After a commit without an answer, the session that may still be making it holds this.
            with place.session() as connection:
                place.look(connection, lock="FOR UPDATE")
            place.is_unsettled = False
        with place.session(is_one_look=True) as connection:
            state = place.look(connection)
            self._is_empty = state.rows == 0
            # Before our first commit, rows are somebody else's.
            if state.oid is not None and state.seq < 0:
                query = place.sql("SELECT NOT EXISTS (SELECT FROM {table})")
                self._is_empty = value_of(connection, query)
            if state.id is not None:
                query = place.sql("SELECT seq FROM {notes} WHERE table_id = %s ORDER BY 1 DESC")
                self._versions = [seq for (seq,) in connection.execute(query, (state.id,))]
                self._read_down_from(connection, state, max(self._versions, default=-1))
        self._state, place.table_id = state, state.id
        return state

    def _read_down_from(self, connection: Connection, state: PostgresState, version: int) -> None:
        values = (state.id, version, _NOTES_AT_ONCE)
        for row in connection.execute(self._place.sql(_NEWEST_NOTES), values):
            self._commits[row[0]] = self._commit(state, *row)

    def _commit(self, state: PostgresState, seq: int, note: str, *counts_and_time: int) -> Commit:
        *counts, timestamp_ms = counts_and_time
        metrics = dict(zip(ROW_COUNTS, counts, strict=True))
        try:
            metadata = CommitMetadata.from_json(note, self._place.stream, self._place.where)
        except DamagedMetadataError as error:
            raise self._place.damaged(f"the note of seq {seq}: {error}") from error
        return Commit(
            version=seq,
            timestamp_ms=timestamp_ms,
            operation=operation_of(metrics),
            metrics=metrics,
            txns={app_id(state.stream): seq},
            changes_rows=any(counts),
            metadata=metadata,
        )

    @property
    def exists(self) -> bool:
        """Tell whether the table is there."""
        return self._looked().oid is not None

    @property
    def is_empty(self) -> bool:
        """Decide by our commits or, for a table without one, by its rows."""
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
        """Return the sum over our commits; the proof counts the rows themselves."""
        return self._looked().rows

    def highest_epoch(self) -> int:
        """Read it from the rows: it is wanted where no note is left to tell it."""
        query = self._place.sql("SELECT coalesce(max(_epoch), 0) FROM {table}")
        with self._place.session() as connection:
            return int(value_of(connection, query))

    def refuse_torn(self, stream: str, commit: Commit) -> None:
        """Compare the seq of a note with that of its row."""
        if commit.is_torn(stream):
            raise self._place.damaged(f"the note of seq {commit.version} says another")
