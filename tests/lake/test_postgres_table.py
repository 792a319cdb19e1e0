"""A table of PostgreSQL takes rows and note as one act, and gives back what it was given."""

from __future__ import annotations

import datetime as dt
import os
import re
import signal
import socket
import socketserver
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import psycopg
import pyarrow as pa
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from oncelake.ingestion.declaration.ddl import DeclaredColumn
from oncelake.ingestion.declaration.sinks import SINKS, PostgresSink
from oncelake.ingestion.errors import (
    CommitConflictError,
    DamagedTableError,
    DependencyError,
    IngestionError,
    InvalidSpecError,
    MissingRightError,
    RefusedError,
    SinkUnavailableError,
    TableBusyError,
)
from oncelake.ingestion.settings import Settings
from oncelake.ingestion.sinks.postgres import copy as postgres_copy
from oncelake.ingestion.sinks.postgres import server as postgres_server
from oncelake.ingestion.sinks.postgres.copy import Connection
from oncelake.ingestion.sinks.postgres.server import PostgresPlace
from oncelake.ingestion.sinks.postgres.table import PostgresTable, open_table
from oncelake.ingestion.storage.location import Location
from oncelake.ingestion.tables.arrow_types import arrow_schema
from oncelake.ingestion.tables.commit_log import DELETED, UnknownOutcomeError
from oncelake.ingestion.tables.table import Change, TableDefinition
from oncelake.testing.tables import with_columns
from tests.support.orders import (
    COLUMNS,
    KEYS,
    NOTE,
    STREAM,
    change,
    column,
    commit,
    ids,
    last_seq,
    names_in,
    rows,
)
from tests.support.postgres import postgres

ROOT = Path(__file__).parents[2]
Cut = Literal["before", "after", "late"]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of one server a module."""
    with postgres(tmp_path_factory.mktemp("postgres")) as url:
        yield url


@pytest.fixture
def schema(server: str, request: pytest.FixtureRequest) -> str:
    """The name of a schema of the test's own, which is not there yet."""
    name = re.sub(r"\W", "_", request.node.name.lower())[:40].rstrip("_")
    execute(server, f"DROP SCHEMA IF EXISTS {name} CASCADE")
    return name


@pytest.fixture
def table(server: str, schema: str) -> PostgresTable:
    """A table that was created, and has its first note."""
    table = opened(server, schema)
    table.create(TableDefinition(columns=COLUMNS, keys=KEYS, description="what was ordered"))
    table.commit_note(NOTE)
    return table


def opened(url: str, schema: str) -> PostgresTable:
    """Open the table of a schema."""
    settings = Settings(postgres=url, kafka_timeout_seconds=5)
    return open_table(STREAM, PostgresSink(table=f"{schema}.orders"), settings, Location.of("/no"))


def execute(url: str, statement: str) -> list[tuple[Any, ...]]:
    """Execute a statement as somebody else does; return its rows."""
    with psycopg.connect(url, autocommit=True) as connection:
        cursor = connection.execute(statement)
        return cursor.fetchall() if cursor.description else []


def shorten(patch: pytest.MonkeyPatch, timeout: str) -> None:
    """Let a timeout of our sessions be short."""
    session = postgres_server._SESSION.replace(timeout, "100ms")
    patch.setattr(postgres_server, "_SESSION", session)


def test_what_create_makes_is_what_was_declared(server: str, schema: str) -> None:
    """Columns, keys, comments and an identity are as meant, and a second create changes nothing."""
    table = opened(server, schema)
    declared = (COLUMNS[0], replace(COLUMNS[1], comment="it's a name"), *COLUMNS[2:])

    table.create(TableDefinition(columns=tuple(declared), keys=KEYS, description="what's ordered"))
    first = table.log().table_id()
    table.create(TableDefinition(columns=tuple(declared), keys=KEYS, description="what's ordered"))

    log = table.log()
    assert (table.columns(), log.table_id()) == (declared, first)
    assert (log.exists, log.is_empty, log.last_seq(STREAM), log.versions()) == (
        *(True, True, None),
        [],
    )
    [(comment,)] = execute(server, f"SELECT obj_description('{schema}.orders'::regclass)")
    assert comment == f"oncelake:{first.removeprefix('postgres:')} what's ordered"


@pytest.mark.parametrize("index", ["", "PRIMARY KEY (_seq, id)"], ids=["bare", "with the index"])
def test_an_empty_table_that_somebody_made_is_adopted(server: str, schema: str, index: str) -> None:
    """It gets an identity, and a unique index unless it has one, and takes commits."""
    table, keys = opened(server, schema), ("id", "_seq") if index else KEYS
    execute(server, f"CREATE SCHEMA {schema}")
    columns = "id bigint NOT NULL, name text, _topic text, _partition int, _offset bigint, "
    columns += "_timestamp timestamptz, _epoch int, _seq bigint"
    more = f", {index}" if index else ""
    execute(server, f"CREATE TABLE {schema}.orders ({columns}{more})")
    assert table.log().table_id().removeprefix("postgres:").isdigit()

    table.create(TableDefinition(columns=COLUMNS, keys=tuple(keys)))
    table.commit_note(NOTE)
    commit(table, 1, change(1, inserted={1: "a"}))

    assert names_in(table) == {1: "a"}
    unique = f"SELECT count(*) FROM pg_index WHERE indrelid = '{schema}.orders'::regclass"
    assert execute(server, f"{unique} AND indisunique") == [(1,)]
    with pytest.raises(psycopg.errors.UniqueViolation):
        execute(server, f"INSERT INTO {schema}.orders (id, _seq) VALUES (1, 1)")


def test_an_empty_table_gets_the_columns_that_it_lacks(server: str, schema: str) -> None:
    """What was planned is there before the indexes over it are; the rest comes with the note."""
    table = opened(server, schema)
    execute(server, f"CREATE SCHEMA {schema}")
    execute(server, f"CREATE TABLE {schema}.orders (name text)")

    table.create(TableDefinition(columns=COLUMNS, keys=KEYS))
    commit(table, 0, change(0, inserted={1: "a"}))

    assert {each.name for each in table.columns()} == {each.name for each in COLUMNS}
    assert names_in(table) == {1: "a"}


def test_a_table_of_somebody_else_stays_as_it_is(server: str, schema: str) -> None:
    """One with rows is left, and the log shows rows, no note."""
    table = opened(server, schema)
    execute(server, f"CREATE SCHEMA {schema}")
    execute(server, f"CREATE TABLE {schema}.orders (name text)")
    execute(server, f"INSERT INTO {schema}.orders VALUES ('theirs')")
    table.create(TableDefinition(columns=COLUMNS, keys=KEYS))

    log = table.log()
    assert (log.exists, log.is_empty, log.last_seq(STREAM)) == (True, False, None)
    assert execute(server, f"SELECT obj_description('{schema}.orders'::regclass)") == [(None,)]


def test_rows_are_counted_by_what_was_committed(
    server: str, schema: str, table: PostgresTable
) -> None:
    """The count comes with each commit, and goes with one that fails; it reads no row."""
    commit(table, 1, change(1, inserted={1: "a", 2: "b", 3: "c"}))
    execute(server, f"DELETE FROM {schema}.orders WHERE id = 3")
    with pytest.raises(TableBusyError):
        commit(table, 2, change(2, inserted={4: "d", 1: "again"}))

    assert (table.log().row_count(), table.log().is_empty) == (3, False)
    commit(table, 2, change(2, deleted=[1, 2]))
    assert (table.log().row_count(), table.log().is_empty) == (1, False)


def test_old_notes_go_and_the_newest_stays(table: PostgresTable) -> None:
    """Upkeep deletes notes that are older than its window, and the fence does not move."""
    for seq in range(1, 5):
        commit(table, seq, None)

    assert table.maintain(dt.timedelta(days=1), 1) == {"notes deleted": 0}
    assert table.maintain(dt.timedelta(), 1) == {"notes deleted": 4}
    assert (table.log().versions(), last_seq(table)) == ([4], 4)
    with pytest.raises(FileNotFoundError):
        table.log().read(0)


def test_a_commit_begins_on_the_seq_before_alone(server: str, schema: str) -> None:
    """Before the first note that is none; a stream has none in the table of another."""
    table = opened(server, schema)
    table.create(TableDefinition(columns=COLUMNS, keys=KEYS))
    with pytest.raises(CommitConflictError, match="holds no commit of this stream"):
        table.begin(1)
    table.begin(0).close()
    table.commit_note(NOTE)
    other = open_table(
        *("others", PostgresSink(table=f"{schema}.orders")),
        *(Settings(postgres=server), Location.of("/no")),
    )

    for seq in (0, 2, 7):
        with pytest.raises(CommitConflictError, match="holds seq 0 as its last"):
            table.begin(seq)
    for seq in (0, 1):
        with pytest.raises(CommitConflictError, match="holds no commit of this stream"):
            other.begin(seq)

    assert (other.log().last_seq("others"), last_seq(table)) == (None, 0)


def test_who_waits_for_a_lock_is_told_whose_it_is(
    server: str, schema: str, table: PostgresTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wait for another run, or for somebody's lock, ends, and names the session."""
    shorten(monkeypatch, "30s")
    with closing(table.begin(1)), pytest.raises(TableBusyError) as by_a_run:
        opened(server, schema).begin(1)
    with psycopg.connect(server, application_name="psql") as somebody:
        somebody.execute(f"LOCK TABLE {schema}.orders IN ACCESS EXCLUSIVE MODE")
        with pytest.raises(TableBusyError) as by_somebody:
            table.begin(1)

    for name, error in (("oncelake orders", by_a_run), ("psql", by_somebody)):
        assert re.search(rf"{name} \(process \d+\) holds .*run the same command", str(error.value))


def test_a_run_that_is_frozen_loses_its_lock(
    server: str, schema: str, table: PostgresTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server ends what does nothing for too long; the next one commits, and that one cannot."""
    with monkeypatch.context() as patch:
        shorten(patch, "10min")
        frozen = table.begin(1)
    commit(opened(server, schema), 1, change(1, inserted={1: "a"}))

    with closing(frozen), pytest.raises(DependencyError, match="idle"):
        frozen.commit(change(1, inserted={1: "b"}), replace(NOTE, seq=1))

    assert names_in(table) == {1: "a"}


@pytest.mark.parametrize(
    "what",
    [
        change(2, inserted={1: "A", 3: "C"}),
        change(2, updated={1: "A", 2: "B"}),
        change(2, deleted=[1, 2]),
    ],
    ids=["insert", "update", "delete"],
)
def test_rows_that_somebody_changed_are_not_written_over(
    server: str, schema: str, table: PostgresTable, what: Change
) -> None:
    """A commit that finds other rows than it looked up fails, and nothing of it is visible."""
    commit(table, 1, change(1, inserted={1: "a", 2: "b"}))
    with closing(table.begin(2)) as transaction:
        assert transaction.rows_of(ids(3)).num_rows == 0
        execute(server, f"DELETE FROM {schema}.orders WHERE id = 2")
        execute(server, f"INSERT INTO {schema}.orders (id, name) VALUES (3, 'theirs')")

        with pytest.raises(TableBusyError, match="others have changed the same rows"):
            transaction.commit(what, replace(NOTE, seq=2))

    assert (names_in(table), last_seq(table)) == ({1: "a", 3: "theirs"}, 1)


def test_rows_that_were_looked_up_stay_as_they_are(
    server: str, schema: str, table: PostgresTable
) -> None:
    """Somebody who changes a row that was looked up waits for the commit."""
    commit(table, 1, change(1, inserted={1: "a"}))
    theirs = f"SET lock_timeout = '100ms'; UPDATE {schema}.orders SET name = 'theirs'"

    with closing(table.begin(2)) as transaction:
        transaction.rows_of(ids(1))
        with pytest.raises(psycopg.errors.LockNotAvailable):
            execute(server, theirs)
        transaction.commit(change(2, updated={1: "b"}), replace(NOTE, seq=2))

    assert names_in(table) == {1: "b"}


def test_a_column_that_somebody_requires_takes_nulls(
    server: str, schema: str, table: PostgresTable
) -> None:
    """A column is added once, however often, and each change can be typed."""
    new, kind = column("age SMALLINT"), SINKS["postgres"]
    table.reshape(with_columns(table, [new]), replace(NOTE, seq=1))
    execute(server, f"ALTER TABLE {schema}.orders ALTER COLUMN name SET NOT NULL")
    table.reshape(with_columns(table, [COLUMNS[1]]), replace(NOTE, seq=2))

    assert table.columns() == (*COLUMNS, new)
    added, freed = (
        kind.statement(text, new, table="public.orders")
        for text in (kind.statements.add, kind.statements.take_nulls)
    )
    assert added == 'ALTER TABLE "public"."orders" ADD COLUMN IF NOT EXISTS "age" smallint'
    assert freed == 'ALTER TABLE "public"."orders" ALTER COLUMN "age" DROP NOT NULL'


def test_a_column_that_is_being_added_stays(server: str, schema: str, table: PostgresTable) -> None:
    """The commit waits for its ALTER, and finds other columns than those that were read."""
    with psycopg.connect(server) as others, ThreadPoolExecutor(1) as ours:
        others.execute(f"ALTER TABLE {schema}.orders ADD COLUMN region text DEFAULT 'EU'")
        layout = with_columns(table, [column("age SMALLINT")])
        done = ours.submit(table.reshape, layout, replace(NOTE, seq=1))
        waiting = (
            f"SELECT 1 FROM pg_locks WHERE NOT granted AND relation = '{schema}.orders'::regclass"
        )
        while not (execute(server, waiting) or done.done()):
            time.sleep(0.01)
        others.commit()

        with pytest.raises(TableBusyError, match="changed the columns"):
            done.result(30)

    assert [each.name for each in table.columns()][-1] == "region"
    assert last_seq(table) == 0


def test_the_present_is_read_and_no_past(
    table: PostgresTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A scan sees one state to its end; a version that the table has gone on from is busy."""
    monkeypatch.setattr(postgres_copy, "_BYTES_READ_AT_ONCE", 1)
    monkeypatch.setattr(postgres_copy, "_ROWS_READ_AT_ONCE", 1)
    commit(table, 1, change(1, inserted={1: "a", 2: "b"}))
    scan = table.scan(["name"], 1)
    begun = [*next(scan).to_pylist(), *next(scan).to_pylist()]
    commit(table, 2, change(2, inserted={3: "c"}, updated={1: "A", 2: "B"}))

    rest = [row for batch in scan for row in batch.to_pylist()]

    assert sorted(row["name"] for row in (*begun, *rest)) == ["a", "b"]
    with pytest.raises(TableBusyError, match="seq 1 was to be read, and the table is at seq 2"):
        next(table.scan(["id"], 1))


def test_a_scan_that_is_left_early_leaves_nothing_open(
    server: str, table: PostgresTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows come few at once, and who stops reading holds no connection."""
    monkeypatch.setattr(postgres_copy, "_BYTES_READ_AT_ONCE", 1)
    monkeypatch.setattr(postgres_copy, "_ROWS_READ_AT_ONCE", 10)
    commit(table, 1, change(1, inserted=dict.fromkeys(range(1000), "x" * 1000)))

    batches = table.scan(["name"])
    assert [next(batches).num_rows for _ in range(2)] == [0, 10]
    batches.close()  # type: ignore[attr-defined]

    wait_until(lambda: not sessions(server))
    assert sum(batch.num_rows for batch in table.scan(["name"])) == 1000


_MOMENTS = [
    *(-62_135_596_800_000_000, 253_402_300_799_999_999, -1, 0, 1, -62_135_596_800_000_001),
    *(-210_866_803_200_000_000, 253_402_300_800_000_000, 9_223_372_036_854_775_000),
]
# Those of the battery, which has no days but Python's, come back, too.
EXTREMES: dict[str, list[Any]] = {
    "STRING": ["x" * 3_000_000],
    "VARCHAR(5)": ["", "abc  ", "éé\U0001f600éé", '"\n\\."'],
    "BINARY": [b"", b"\0", b"\\x00", bytes(range(256)), b"a\nb", b"\xff" * 1_000_000],
    "DATE": [-719_162, 2_932_896, -1, 0, 1, -719_163, -2_440_588, 2_932_897],
    "TIMESTAMP": _MOMENTS,
    "TIMESTAMP_NTZ": _MOMENTS,
}


@pytest.mark.parametrize(
    ("type_", "value"),
    [("DECIMAL(9,2)", "NaN"), ("TIMESTAMP", "infinity"), ("DATE", "-infinity")],
)
def test_a_value_that_no_batch_writes_is_damage(
    server: str, schema: str, type_: str, value: str
) -> None:
    """What somebody else has put there, and a column of a stream cannot have, stops a scan."""
    table = opened(server, schema)
    table.create(
        TableDefinition(columns=(COLUMNS[0], column(f"value {type_}"), *COLUMNS[2:]), keys=KEYS)
    )
    execute(server, f"INSERT INTO {schema}.orders (id, value) VALUES (1, '{value}')")

    with pytest.raises(DamagedTableError, match="holds a value that no batch writes"):
        [*table.scan(["value"])]


@pytest.mark.parametrize("type_", EXTREMES)
def test_every_value_comes_back_as_it_was_sent(server: str, schema: str, type_: str) -> None:
    """The extremes of a type, and null, survive insert, update, look-up and scan to the bit."""
    table = opened(server, schema)
    value = column(f"value {type_}")
    declared = (COLUMNS[0], value, *COLUMNS[2:])
    table.create(TableDefinition(columns=tuple(declared), keys=KEYS))
    stored = replace(value, type=SINKS["postgres"].stored_type(value.type))
    values = pa.array([*EXTREMES[type_], None], integers(stored)).cast(
        arrow_schema([stored]).field(0).type
    )
    sent = rows(dict.fromkeys(range(len(values))), seq=0).set_column(1, "value", values)
    turned = sent.set_column(1, "value", values.take(pa.array([*range(1, len(values)), 0])))
    nothing = sent.slice(0, 0)

    commit(table, 0, Change(inserted=sent, updated=nothing, deleted=ids()))
    with closing(table.begin(1)) as transaction:
        assert exact(transaction.rows_of(sent.select(["id"]))) == exact(sent)
        updated = Change(inserted=nothing, updated=turned, deleted=ids())
        transaction.commit(updated, replace(NOTE, seq=1))

    assert exact(pa.Table.from_batches(table.scan(sent.column_names))) == exact(turned)
    one = pa.chunked_array([batch.column(0) for batch in table.scan(["value"])], type=values.type)
    assert len(one) == len(values)
    assert table.columns() == (COLUMNS[0], stored, *COLUMNS[2:])


def integers(column: DeclaredColumn) -> pa.DataType | None:
    """Return the type of the numbers by which this test writes days and moments."""
    type_ = arrow_schema([column]).field(0).type
    if pa.types.is_date(type_):
        return pa.int32()
    return pa.int64() if pa.types.is_timestamp(type_) else type_


def exact(table: pa.Table) -> list[str]:
    """Write rows so that only those that are the same to the bit compare as equal."""
    value = table.column("value")
    if pa.types.is_date(value.type):
        value = value.cast(pa.int32())
    elif pa.types.is_timestamp(value.type):
        value = value.cast(pa.int64())
    return sorted(map(repr, table.set_column(1, "value", value).to_pylist()))


def test_a_stream_without_keys_is_keyed_by_its_coordinates(server: str, schema: str) -> None:
    """Rows of an appending stream cannot come twice."""
    table = opened(server, schema)
    keys = ["_epoch", "_topic", "_partition", "_offset"]
    table.create(TableDefinition(columns=COLUMNS, keys=tuple(keys)))
    commit(table, 0, change(0, inserted={1: "a"}))
    again = change(1, inserted={3: "c"})
    again = replace(again, deleted=again.updated.select(keys))

    with pytest.raises(TableBusyError, match="others have changed the same rows"):
        commit(table, 1, again)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a\0b", r"NUL.*replace\(name, chr\(0\), ''\)"),
        ("abc ", r"has 4 characters, and its type is VARCHAR\(3\)"),
    ],
    ids=["NUL", "blanks that would be cut"],
)
def test_a_text_that_would_not_come_back_is_refused(
    server: str, schema: str, text: str, problem: str
) -> None:
    """What PostgreSQL cannot keep is refused by the column's name, with what to declare."""
    table = opened(server, schema)
    declared = (COLUMNS[0], column("name VARCHAR(3)"), *COLUMNS[2:])
    table.create(TableDefinition(columns=tuple(declared), keys=KEYS))
    commit(table, 0, change(0, inserted={2: "b"}))

    for what in (change(1, inserted={1: text}), change(1, updated={2: text})):
        with pytest.raises(RefusedError, match=rf"column name .*{problem}"):
            commit(table, 1, what)
    with closing(table.begin(1)) as transaction, pytest.raises(RefusedError, match=problem):
        transaction.rows_of(pa.table({"name": [text]}))

    assert (names_in(table), last_seq(table)) == ({2: "b"}, 0)


def test_what_the_server_refuses_is_refused(server: str, schema: str, table: PostgresTable) -> None:
    """A constraint of somebody's is named, and nothing is visible."""
    execute(server, f"ALTER TABLE {schema}.orders ADD CONSTRAINT short CHECK (name <> 'secret')")

    with pytest.raises(RefusedError, match='violates check constraint "short"') as refused:
        commit(table, 1, change(1, inserted={1: "fine", 2: "secret"}))

    assert "secret" not in str(refused.value)
    assert (names_in(table), last_seq(table)) == ({}, 0)


def test_a_damaged_note_is_named(server: str, schema: str, table: PostgresTable) -> None:
    """A digit that was changed in a note is not taken for an offset."""
    execute(server, f"UPDATE {schema}.oncelake_notes SET note = replace(note, '12', '13')")

    with pytest.raises(DamagedTableError, match="note of seq 0"):
        table.log().read(0)


def test_a_table_that_a_crash_empties_is_named(
    server: str, schema: str, table: PostgresTable
) -> None:
    """UNLOGGED rows are gone after a crash of the server, and their notes are not."""
    assert table.check(table.log()) is None

    execute(server, f"ALTER TABLE {schema}.orders SET UNLOGGED")

    assert "SET LOGGED" in str(table.check(table.log()))


@pytest.mark.parametrize("way", ["ALTER TABLE", "ALTER ROLE"])
def test_rows_that_are_hidden_from_us_are_not_taken_for_absent(
    server: str, schema: str, table: PostgresTable, way: str
) -> None:
    """Row level security that applies to our role is named; each way that is named ends it."""
    commit(table, 1, change(1, inserted={1: "a"}))
    role = f"kept_by_{way[6:].lower()}"
    execute(server, f"CREATE ROLE {role} LOGIN; GRANT USAGE ON SCHEMA {schema} TO {role}")
    execute(server, f"GRANT ALL ON ALL TABLES IN SCHEMA {schema} TO {role}")
    execute(server, f"ALTER TABLE {schema}.orders ENABLE ROW LEVEL SECURITY")
    of_role = opened(server.replace("oncelake@", f"{role}@"), schema)
    error = of_role.check(of_role.log())
    assert f"row level security: what it hides from {role}" in str(error)
    assert table.check(table.log()) is None

    [statement] = re.findall(rf"{way} .*?(?:SECURITY|RLS)", error.remedy if error else "")
    execute(server, statement)

    assert of_role.check(of_role.log()) is None
    assert names_in(of_role) == {1: "a"}


def test_without_a_url_the_setting_is_named() -> None:
    """A stream of this sink says which setting it needs, with an example."""
    with pytest.raises(InvalidSpecError, match="ONCELAKE_POSTGRES=postgresql://"):
        open_table(STREAM, PostgresSink(), Settings(), Location.of("/no"))


@pytest.mark.parametrize(
    "url",
    [
        *("postgresql://me:hush@hush@host/db", "postgresql://me:1/hush@host/db"),
        *("postgresql://me:hush/hush@host", "hush"),
    ],
    ids=["an @ in the password", "a / in it", "another", "no URL"],
)
def test_a_wrong_url_is_refused_without_its_password(url: str) -> None:
    """What is wrong with a URL may be its password, so it is not shown."""
    with pytest.raises(InvalidSpecError, match="ONCELAKE_POSTGRES is no URL") as refused:
        open_table(STREAM, PostgresSink(), Settings(postgres=url), Location.of("/no"))

    assert "hush" not in str(refused.value)
    assert "hush" not in str(refused.value.__cause__)


def test_a_server_that_is_not_there_is_named(schema: str) -> None:
    """The error says which server does not answer, what to check, and no password."""
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        port = nobody.getsockname()[1]
        table = opened(f"postgresql://me:hush@127.0.0.1:{port}/db", schema)

        with pytest.raises(DependencyError, match=f"127.0.0.1:{port}/db.*check that") as refused:
            table.begin(0)
        with pytest.raises(DependencyError):
            _ = table.log().exists

    assert "hush" not in str(refused.value)
    assert "hush" not in table.where


@pytest.fixture(scope="module")
def roles(server: str) -> Iterator[str]:
    """A role with a password, one that is in no line for logins, and some that may not come in."""
    [(file,)] = execute(server, "SHOW hba_file")
    lines = Path(file).read_text()
    execute(server, "CREATE ROLE guarded LOGIN PASSWORD 'right'")
    execute(server, "CREATE ROLE unlisted LOGIN")
    execute(server, "CREATE ROLE asleep NOLOGIN")
    execute(server, "CREATE ROLE poor LOGIN")
    execute(server, "CREATE ROLE many LOGIN CONNECTION LIMIT 0")
    execute(server, "CREATE DATABASE closed")
    execute(server, "REVOKE CONNECT ON DATABASE closed FROM public")
    local = "127.0.0.1/32"
    Path(file).write_text(
        f"host all guarded {local} scram-sha-256\nhost all unlisted {local} reject\n{lines}"
    )
    execute(server, "SELECT pg_reload_conf()")
    deadline = time.monotonic() + 30
    with suppress(psycopg.OperationalError):
        while time.monotonic() < deadline:
            execute(server.replace("oncelake@", "unlisted@"), "SELECT pg_sleep(0.05)")
    yield server
    Path(file).write_text(lines)
    execute(server, "SELECT pg_reload_conf()")


@pytest.mark.parametrize(
    ("login", "database", "kind", "says"),
    [
        ("guarded:hush", "postgres", InvalidSpecError, "password authentication failed"),
        ("guarded", "postgres", InvalidSpecError, "no password supplied"),
        ("nobody", "postgres", InvalidSpecError, 'role "nobody" does not exist'),
        ("asleep", "postgres", InvalidSpecError, "not permitted to log in"),
        ("unlisted", "postgres", InvalidSpecError, "pg_hba.conf rejects"),
        ("oncelake", "nowhere", InvalidSpecError, 'database "nowhere" does not exist'),
        ("poor", "closed", MissingRightError, "refuses it to poor: .*permission denied"),
        ("many", "postgres", SinkUnavailableError, "too many connections"),
    ],
)
def test_a_login_that_the_server_does_not_take_is_of_the_settings(
    roles: str, schema: str, login: str, database: str, kind: type[IngestionError], says: str
) -> None:
    """No second try mends it, unlike a server that is full; the password is not shown."""
    url = roles.replace("oncelake@", f"{login}@").replace("/postgres", f"/{database}")

    with pytest.raises(kind, match=f"orders: {schema}.orders .*{says}") as refused:
        opened(url, schema).begin(0)

    assert refused.value.exit_code == (2 if kind is InvalidSpecError else 5)
    assert ("correct ONCELAKE_POSTGRES" in str(refused.value)) is (kind is InvalidSpecError)
    assert "hush" not in str(refused.value)


def test_a_standby_is_not_taken_for_the_server(
    server: str, schema: str, table: PostgresTable, tmp_path: Path
) -> None:
    """Of several hosts the primary is found; where there is none, the server is not there."""
    with postgres(tmp_path, is_standby=True) as standby:
        ports = ",".join(str(conninfo_to_dict(url)["port"]) for url in (standby, server))
        asked = opened(standby, schema)
        for ask in (lambda: asked.log().exists, lambda: asked.begin(0)):
            with pytest.raises(SinkUnavailableError, match="server is in hot standby mode"):
                ask()
        of_both = make_conninfo(server, host="127.0.0.1,127.0.0.1", port=ports)

        assert last_seq(opened(of_both, schema)) == last_seq(table) == 0


@pytest.mark.parametrize(
    ("moment", "names", "seq"),
    [("before", {1: "a"}, 1), ("after", {1: "A", 2: "b"}, 2)],
    ids=["after COPY and before COMMIT", "right after COMMIT"],
)
def test_a_killed_writer_leaves_nothing_or_all(
    server: str,
    schema: str,
    table: PostgresTable,
    *,
    moment: str,
    names: dict[int, str],
    seq: int,
) -> None:
    """SIGKILL in the middle of a commit leaves no row, and after it every row; both can go on."""
    commit(table, 1, change(1, inserted={1: "a"}))

    died = subprocess.run(
        [sys.executable, "-c", DYING, server, schema, moment],
        cwd=ROOT,
        check=False,
        capture_output=True,
        text=True,
    )

    assert died.returncode == -signal.SIGKILL, died.stderr
    assert (names_in(table), last_seq(table)) == (names, seq)
    commit(table, seq + 1, change(seq + 1, inserted={9: "z"}))
    assert names_in(table) == names | {9: "z"}


DYING = "import sys; from tests.lake.test_postgres_table import die; die(*sys.argv[1:])"


def die(url: str, schema: str, moment: str) -> None:
    """Commit seq 2, and be killed before or right after COMMIT."""
    commits = PostgresPlace.commit

    def commit_and_die(place: PostgresPlace, connection: Connection) -> None:
        if moment == "after":
            commits(place, connection)
        os.kill(os.getpid(), signal.SIGKILL)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PostgresPlace, "commit", commit_and_die)
        commit(opened(url, schema), 2, change(2, inserted={2: "b"}, updated={1: "A"}))


@pytest.mark.parametrize("is_late", [False, True], ids=["before", "at the commit"])
def test_a_session_that_the_server_ends_leaves_nothing(
    server: str, table: PostgresTable, monkeypatch: pytest.MonkeyPatch, *, is_late: bool
) -> None:
    """Whoever has sent COMMIT does not know it, and asks the log; the batch is written again."""
    commits = PostgresPlace.commit

    def terminated(place: PostgresPlace, connection: Connection) -> None:
        terminate(server)
        commits(place, connection)

    with monkeypatch.context() as patch, closing(table.begin(1)) as transaction:
        if is_late:
            patch.setattr(PostgresPlace, "commit", terminated)
        else:
            terminate(server)
        with pytest.raises(DependencyError) as raised:
            transaction.commit(change(1, inserted={1: "a"}), replace(NOTE, seq=1))

    assert isinstance(raised.value, UnknownOutcomeError) == is_late
    assert (names_in(table), last_seq(table)) == ({}, 0)
    commit(table, 1, change(1, inserted={1: "a"}))


def test_a_failed_transaction_is_not_taken_for_a_commit(
    table: PostgresTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server answers the COMMIT of one with ROLLBACK, and that is an error."""
    commits = PostgresPlace.commit

    def failed(place: PostgresPlace, connection: Connection) -> None:
        with pytest.raises(psycopg.errors.DivisionByZero):
            connection.execute("SELECT 1 / 0")
        commits(place, connection)

    with monkeypatch.context() as patch:
        patch.setattr(PostgresPlace, "commit", failed)
        with pytest.raises(DependencyError, match="ROLLBACK"):
            commit(table, 1, change(1, inserted={1: "a"}))

    assert (names_in(table), last_seq(table)) == ({}, 0)


@pytest.mark.parametrize(
    ("cut", "names"),
    [("before", {}), ("after", {1: "a"}), ("late", {1: "a"})],
    ids=["COMMIT is lost", "its answer is lost", "COMMIT arrives later"],
)
def test_a_connection_that_is_cut_at_the_commit_has_an_unknown_outcome(
    server: str, schema: str, table: PostgresTable, cut: Cut, names: dict[int, str]
) -> None:
    """The log tells whether it was made, and waits for a server that has not decided."""
    with cutting(server, cut) as url:
        through = opened(url, schema)
        log = through.log()

        with pytest.raises(UnknownOutcomeError, match="run the same command again"):
            commit(through, 1, change(1, inserted={1: "a"}))

        found = log.find(STREAM, 1)
        assert (found is not None) == bool(names)
        assert last_seq(through) == (1 if names else 0)
    assert names_in(table) == names


def test_a_note_whose_answer_is_lost_is_read_back(
    server: str, schema: str, table: PostgresTable
) -> None:
    """A note that was committed without an answer counts as committed."""
    note = replace(NOTE, seq=1)
    with cutting(server, "after") as url:
        assert opened(url, schema).commit_note(note).metadata == note

    with cutting(server, "before") as url, pytest.raises(UnknownOutcomeError):
        opened(url, schema).commit_note(replace(NOTE, seq=2))
    assert last_seq(table) == 1


def test_a_server_that_does_not_decide_is_waited_for_to_an_end(
    server: str, schema: str, table: PostgresTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a commit without an answer no log is read while its session may still commit."""
    shorten(monkeypatch, "30s")
    table._place.is_unsettled = True
    with (
        closing(opened(server, schema).begin(1)),
        pytest.raises(TableBusyError, match="oncelake orders"),
    ):
        _ = table.log().exists

    assert (table.log().exists, table._place.is_unsettled) == (True, False)


# A query of the protocol: its length and its text, which others have in them.
COMMIT = b"Q\x00\x00\x00\x0bCOMMIT\x00"


class Cutter(socketserver.ThreadingTCPServer):
    """Leads to a server, and once, at a COMMIT, cuts the client off."""

    def __init__(self, url: str, cut: Cut) -> None:
        super().__init__(("127.0.0.1", 0), CutConnection)
        self.upstream, self.cut, self.is_cut = url, cut, False
        self.port = int(url.rsplit(":", 1)[1].split("/")[0])


class CutConnection(socketserver.BaseRequestHandler):
    """One connection of a client, whose bytes are passed on in both directions."""

    server: Cutter
    is_muted = False

    def handle(self) -> None:
        """Ask in this thread, and answer in another."""
        address = ("127.0.0.1", self.server.port)
        with socket.create_connection(address) as self.upstream, ThreadPoolExecutor() as answers:
            answers.submit(self.answer)
            with suppress(OSError):
                self.ask()
            self.upstream.shutdown(socket.SHUT_WR)

    def ask(self) -> None:
        """Pass on what the client asks."""
        while chunk := self.request.recv(1 << 16):
            if COMMIT in chunk and not self.server.is_cut:
                self.server.is_cut = self.is_muted = True
                if self.server.cut != "after":
                    self.request.shutdown(socket.SHUT_RDWR)
                if self.server.cut == "before":
                    return
                if self.server.cut == "late":
                    wait_until(lambda: bool(waiting(self.server.upstream)))
            self.upstream.sendall(chunk)

    def answer(self) -> None:
        """Pass on what the server answers, or end the connection."""
        with suppress(OSError):
            while chunk := self.upstream.recv(1 << 16):
                if self.is_muted:
                    self.request.shutdown(socket.SHUT_RDWR)
                else:
                    self.request.sendall(chunk)


@contextmanager
def cutting(url: str, cut: Cut) -> Iterator[str]:
    """Lead to a server, and once, at a COMMIT, cut the client off.

    The server never gets the COMMIT, or answers it to nobody, or gets it only once the log waits.
    """
    with Cutter(url, cut) as proxy:
        thread = threading.Thread(target=proxy.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield url.replace(f":{proxy.port}/", f":{proxy.server_address[1]}/")
        finally:
            proxy.shutdown()
            thread.join()


SESSIONS = "SELECT pid, wait_event_type FROM pg_stat_activity WHERE application_name ~ '^oncelake'"


def sessions(url: str) -> list[tuple[Any, ...]]:
    """List the server's sessions of ours."""
    return execute(url, SESSIONS)


def waiting(url: str) -> list[tuple[Any, ...]]:
    """List those that wait for a lock."""
    return [each for each in sessions(url) if each[1] == "Lock"]


def terminate(url: str) -> None:
    """Let the server end our sessions, and wait until it has."""
    execute(url, f"SELECT pg_terminate_backend(pid, 5000) FROM ({SESSIONS}) AS ours")


def wait_until(is_so: Callable[[], bool]) -> None:
    """Wait for something, not forever."""
    deadline = time.monotonic() + 20
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.01)


PERSON = "Ada Lovelace"


def erased(table: PostgresTable, seq: int, **values: Any) -> int:
    """Erase all rows that have some values; return how many there were."""
    keys = pa.table({name: [value] for name, value in values.items()})
    said = table.erase(keys, replace(NOTE, kind="erase", seq=seq))
    assert (said.changes_rows, sum(said.metrics.values())) == (True, said.metrics[DELETED])
    table.remove_older_versions(table.written_files())
    return said.metrics[DELETED]


def test_what_is_erased_is_vacuumed(server: str, schema: str, table: PostgresTable) -> None:
    """By any column; neither dead rows nor the planner's statistics keep it."""
    commit(table, 1, change(1, inserted={1: PERSON, 2: PERSON, 3: None, 4: "d"}))
    commit(table, 2, change(2, updated={4: PERSON}, inserted={5: "e"}))
    execute(server, f"ANALYZE {schema}.orders")
    statistics = f"SELECT string_agg(s::text, '') FROM pg_stats s WHERE schemaname = '{schema}'"
    assert PERSON in execute(server, statistics)[0][0]

    assert erased(table, 3, name=PERSON) == 3

    assert (names_in(table), table.log().row_count()) == ({3: None, 5: "e"}, 2)
    counts = "SELECT n_dead_tup, n_live_tup FROM pg_stat_user_tables WHERE schemaname"
    assert (0, 2) in execute(server, f"{counts} = '{schema}'")
    assert PERSON not in execute(server, statistics)[0][0]
    assert erased(table, 4, id=3) == 1


def test_who_may_still_see_what_is_erased_is_named(
    server: str, schema: str, table: PostgresTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While an older transaction runs, VACUUM leaves dead rows: the erase is not done."""
    monkeypatch.setattr(postgres_server, "_SECONDS_OF_COUNTING", 0.1)
    commit(table, 1, change(1, inserted={1: PERSON, 2: "b"}))
    table._place.timeout_seconds = 0.2
    with psycopg.connect(server, application_name="a report") as reader:
        reader.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        reader.execute(f"SELECT count(*) FROM {schema}.orders")
        with pytest.raises(TableBusyError, match=r"1 deleted row cannot .* a report \(process"):
            erased(table, 2, id=1)

    table.remove_older_versions(table.written_files())


def test_rows_that_a_trigger_keeps_are_not_erased(
    server: str, schema: str, table: PostgresTable
) -> None:
    """The server deletes none of them, and says nothing."""
    commit(table, 1, change(1, inserted={1: PERSON}))
    body = "RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'"
    execute(server, f"CREATE FUNCTION {schema}.keep() {body}")
    on = f"BEFORE DELETE ON {schema}.orders FOR EACH ROW"
    execute(server, f"CREATE TRIGGER keep {on} EXECUTE FUNCTION {schema}.keep()")

    with pytest.raises(RefusedError, match="keeps 1 row of the key"):
        erased(table, 2, id=1)
    assert last_seq(table) == 1


def test_a_role_that_may_not_vacuum_does_not_end_an_erase(
    server: str, schema: str, table: PostgresTable
) -> None:
    """The server only warns of it."""
    commit(table, 1, change(1, inserted={1: PERSON}))
    execute(server, f"CREATE ROLE {schema} LOGIN")
    execute(server, f"GRANT USAGE ON SCHEMA {schema} TO {schema}")
    rights = "SELECT, INSERT, UPDATE, DELETE"
    execute(server, f"GRANT {rights} ON ALL TABLES IN SCHEMA {schema} TO {schema}")
    of_another = opened(server.replace("oncelake@", f"{schema}@"), schema)

    with pytest.raises(RefusedError, match=r"not vacuumed.*own the table; then"):
        erased(of_another, 2, id=1)
