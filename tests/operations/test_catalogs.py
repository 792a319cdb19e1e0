"""The entry of a Delta table in its catalog: behind commits, and never a part of the promise."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from typing import Any, NoReturn

import pytest
from pydantic import SecretStr, ValidationError

from oncelake.ingestion.declaration.files.loader import load_streams
from oncelake.ingestion.declaration.spec import StreamSpec
from oncelake.ingestion.errors import UNREACHABLE, WRONG
from oncelake.ingestion.operations.alter import alter
from oncelake.ingestion.operations.decisions import reset
from oncelake.ingestion.operations.doctor.examine import examine
from oncelake.ingestion.operations.history.rewind import rewind
from oncelake.ingestion.operations.status.status import StatusReader
from oncelake.ingestion.settings import Settings
from oncelake.ingestion.sinks.delta.catalogs.entry import _IN_HIVE, _hive_type, shortened, sql_type
from tests.support.unity import TOKEN, SmallUnity, small_unity
from tests.support.world import COLUMNS, World, row

NAME = "main.sales.orders"
CATALOGS = "oncelake.ingestion.sinks.delta.catalogs"


@pytest.fixture
def unity() -> Iterator[SmallUnity]:
    """An empty catalog."""
    with small_unity() as unity:
        yield unity


@pytest.fixture
def registered(world: World, unity: SmallUnity) -> World:
    """A stream with a batch, and its entry."""
    more = {"unity": unity.address, "unity_token": SecretStr(TOKEN)}
    world.settings = world.settings.model_copy(update=more)
    world.declare(sink={"delta": {"catalog": {"unity": {"table": NAME}}}})
    world.send(row(1, "a"))
    assert world.run().notices == ()
    return world


def add_column(world: World) -> None:
    """Declare another column."""
    world.declare(schema=f"{COLUMNS}, note STRING", schema_change="evolve")


def findings_of(world: World) -> list[tuple[str, int]]:
    """Return what a doctor finds about the stream's entry."""
    world.write_declaration()
    streams = load_streams(world.settings.streams)
    found = examine(world.settings, streams, are_all=False, tell=lambda text: None)
    return [(each.what, each.exit_code) for each in found if "the entry" in each.what]


def test_a_first_run_makes_the_entry(registered: World, unity: SmallUnity) -> None:
    """With the table's columns, its types, its place and its properties."""
    table = unity.tables[NAME]

    assert unity.requests == [f"GET /tables/{NAME}", "POST /tables"]
    assert table["storage_location"] == registered.paths.table.uri
    assert list(unity.columns(NAME).items())[:3] == [
        ("id", "int"),
        ("name", "string"),
        ("at", "int"),
    ]
    assert "_offset" in unity.columns(NAME)
    assert table["columns"][0]["nullable"] is False
    assert table["properties"]["delta.checkpointInterval"] == "10"


def test_the_entry_is_written_behind_the_commit(world: World, unity: SmallUnity) -> None:
    """Whoever finds a table by its entry finds what the run has committed."""
    seen: list[int] = []
    unity.on_request = lambda: seen.append(len(world.rows()))
    more = {"unity": unity.address, "unity_token": SecretStr(TOKEN)}
    world.settings = world.settings.model_copy(update=more)
    world.declare(sink={"delta": {"catalog": {"unity": {"table": NAME}}}})
    world.send(row(1, "a"), row(2, "b"))

    world.run()

    assert seen == [2, 2]


def test_nothing_is_asked_where_nothing_has_changed(registered: World, unity: SmallUnity) -> None:
    """Not by a run that finds nothing, nor by one that adds rows."""
    unity.requests.clear()

    registered.run()
    registered.send(row(2, "b"))
    registered.run()

    assert unity.requests == []


def test_a_table_that_is_there_gets_an_entry(world: World, unity: SmallUnity) -> None:
    """By the next run, which need not find a record; and another server gets one, too."""
    world.send(row(1, "a"))
    world.run()
    world.declare(sink={"delta": {"catalog": {"unity": {"table": NAME}}}})
    with small_unity() as other:
        for each in (unity, other):
            more = {"unity": each.address, "unity_token": SecretStr(TOKEN)}
            world.settings = world.settings.model_copy(update=more)

            assert world.run().notices == ()

            assert list(each.tables) == [NAME]


def test_an_entry_that_spark_made_gets_columns(registered: World, unity: SmallUnity) -> None:
    """Spark makes one without any, and is not told that it is another table's."""
    unity.tables[NAME]["columns"] = []
    registered.paths.registration.delete()

    assert registered.run().notices == ()

    assert unity.columns(NAME)["name"] == "string"


def test_a_lost_memory_costs_one_request(
    registered: World, unity: SmallUnity, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The entry says already what it should; without TLS it is asked by no proxy."""
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    registered.paths.registration.delete()
    unity.requests.clear()

    assert registered.run().notices == ()

    assert unity.requests == [f"GET /tables/{NAME}"]


def test_a_death_behind_the_entry_leaves_no_memory_of_the_one_before(
    registered: World, unity: SmallUnity, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a rewind the table is what it was, and the entry is not."""
    registered.declare(schema="id INT NOT NULL, title STRING, at INT")
    registered.declare(renamed_from={"title": "name"})

    def die(*_: object, **__: object) -> NoReturn:
        raise KeyboardInterrupt

    with monkeypatch.context() as dying:
        dying.setattr(f"{CATALOGS}.register._remember", die)
        with pytest.raises(KeyboardInterrupt):
            alter(registered.spec, registered.settings, drops=(), run_id="alter")
    assert list(unity.columns(NAME))[:2] == ["id", "title"]

    rewind(registered.spec, registered.settings, to="seq:1", reason="test", run_id="rewind")

    assert list(unity.columns(NAME))[:2] == ["id", "name"]


def test_what_a_person_writes_into_the_entry_stays(registered: World, unity: SmallUnity) -> None:
    """Comments where the table has none, and properties; those of Delta are the table's."""
    table = unity.tables[NAME]
    table["columns"][1]["comment"] = "of a person"
    table["properties"] |= {"quality": "gold", "delta.appendOnly": "true"}
    table["properties"] |= {"delta.lastUpdateVersion": "7"}
    registered.declare(
        schema="id INT NOT NULL COMMENT 'the key', name STRING, at INT, tags ARRAY<STRING>, "
        "sums MAP<STRING, STRUCT<a: ARRAY<INT>>>",
        description="Orders",
    )

    assert alter(registered.spec, registered.settings, drops=(), run_id="alter").notices == ()

    assert findings_of(registered) == []
    comments = {column["name"]: column["comment"] for column in table["columns"]}
    assert (comments["id"], comments["name"]) == ("the key", "of a person")
    assert "delta.appendOnly" not in table["properties"]
    assert {"quality", "delta.lastUpdateVersion"} <= table["properties"].keys()
    assert '"elementType": "string"' in unity_type(unity, "tags")


def unity_type(unity: SmallUnity, column: str) -> str:
    """Return the type of a column as the API of tables shows it."""
    columns = unity.tables[NAME]["columns"]
    return next(str(it["type_json"]) for it in columns if it["name"] == column)


def test_a_new_column_is_followed(registered: World, unity: SmallUnity) -> None:
    """By the run that adds it to the table, with its comment."""
    registered.declare(schema=f"{COLUMNS}, note STRING COMMENT 'by hand'", schema_change="evolve")
    registered.send({**row(2, "b"), "note": "n"})
    before = unity.tables[NAME]["table_id"]

    registered.run()

    assert unity.columns(NAME)["note"] == "string"
    note = next(each for each in unity.tables[NAME]["columns"] if each["name"] == "note")
    assert (note["comment"], unity.tables[NAME]["table_id"]) == ("by hand", before)
    unity.requests.clear()
    registered.run()
    assert unity.requests == []


def test_declared_properties_are_followed(registered: World, unity: SmallUnity) -> None:
    """One's own and Delta's, and none by which Oncelake knows something."""
    catalog = {"unity": {"table": NAME}}
    properties = {"team": "sales", "delta.checkpointInterval": "20"}
    registered.declare(sink={"delta": {"catalog": catalog, "properties": properties}})
    registered.send(row(9, "b"))
    registered.run()

    assert properties.items() <= unity.tables[NAME]["properties"].items()
    assert not [name for name in unity.tables[NAME]["properties"] if name.startswith("oncelake.")]
    unity.requests.clear()
    registered.run()
    assert unity.requests == []


def test_alter_and_rewind_are_followed(registered: World, unity: SmallUnity) -> None:
    """At once, and not by the next run."""
    registered.declare(
        schema="id INT NOT NULL, title STRING, at INT", renamed_from={"title": "name"}
    )

    done = alter(registered.spec, registered.settings, drops=(), run_id="alter")

    assert (done.notices, list(unity.columns(NAME))[:3]) == ((), ["id", "title", "at"])
    rewind(registered.spec, registered.settings, to="seq:1", reason="test", run_id="rewind")
    assert list(unity.columns(NAME))[:3] == ["id", "name", "at"]


def test_a_rebuild_is_followed_when_the_tables_have_changed_places(
    registered: World, unity: SmallUnity
) -> None:
    """The table that is made beside it has no entry."""
    registered.declare(schema="id INT NOT NULL, name STRING, at BIGINT")
    unity.requests.clear()

    rebuilt = registered.rebuild()

    assert rebuilt.report.notices == ()
    assert unity.columns(NAME)["at"] == "long"
    assert unity.tables[NAME]["storage_location"] == registered.paths.table.uri
    assert [each.partition(" ")[0] for each in unity.requests] == ["GET", "POST"]


def test_a_catalog_that_fails_is_a_notice(registered: World, unity: SmallUnity) -> None:
    """The run commits and ends well, status shows it, and a run mends it, after a pause."""
    add_column(registered)
    registered.send(row(2, "b"))
    unity.fails = 503

    report = registered.run()

    assert (report.is_balanced, len(registered.rows())) == (True, 2)
    *_, notice = report.notices
    assert notice.startswith(f"the entry Unity Catalog {NAME} is not up to date: HTTP 503")
    assert "refused Bearer ***" in notice
    assert TOKEN not in registered.paths.registration.read().decode()
    assert notice in status_of(registered)
    assert findings_of(registered)[0][1] == UNREACHABLE
    unity.fails = 0
    unity.requests.clear()
    assert (registered.run().notices, unity.requests) == ((notice,), [])
    end_pause(registered)
    assert registered.run().notices == ()
    assert unity.columns(NAME)["note"] == "string"
    assert (notice in status_of(registered), findings_of(registered)) == (False, [])


def end_pause(world: World) -> None:
    """Let the pause behind a failure be over."""
    known = json.loads(world.paths.registration.read())
    known["until"] -= 60
    world.paths.registration.put(json.dumps(known).encode())


def status_of(world: World) -> tuple[str, ...]:
    """Return the notices of the stream's status."""
    world.write_declaration()
    (declared,) = load_streams(world.settings.streams)
    return StatusReader(world.settings).read_status(declared).notices


@pytest.mark.parametrize("limit", ["unity.SECONDS", "register._MOST_SECONDS"])
def test_a_catalog_that_never_answers_holds_no_run_for_long(
    registered: World, unity: SmallUnity, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    """As long as the time-out of a read or of the whole, of which one is shorter here."""
    monkeypatch.setattr(f"{CATALOGS}.{limit}", 0.5)
    add_column(registered)
    unity.on_request = lambda: time.sleep(3)
    begin = time.monotonic()

    *_, notice = registered.run().notices

    assert "timed out" in notice
    assert time.monotonic() - begin < 3


def test_a_run_that_is_to_end_asks_nobody(registered: World, unity: SmallUnity) -> None:
    """Whoever ends a run waits for no catalog; the next run writes the entry."""
    registered.paths.registration.delete()
    unity.requests.clear()
    stop = threading.Event()
    stop.set()

    registered.run(stop=stop)

    assert unity.requests == []


def test_the_table_of_another_is_left_alone(registered: World, unity: SmallUnity) -> None:
    """One of the same name at another place, or of another format, is not overwritten."""
    for changed in ({"storage_location": "s3://elsewhere/orders"}, {"data_source_format": "CSV"}):
        before = {**unity.tables[NAME], **changed}
        unity.tables[NAME] = dict(before)
        registered.paths.registration.delete()

        (notice,) = registered.run().notices

        assert "another table" in notice
        assert unity.tables[NAME] == before


def test_an_entry_that_somebody_dropped_is_told_by_a_doctor(
    registered: World, unity: SmallUnity
) -> None:
    """Runs do not ask for it; alter writes it again, and so does the first run behind a reset."""
    del unity.tables[NAME]

    assert registered.run().notices == ()

    assert findings_of(registered) == [(f"the entry Unity Catalog {NAME} is not there", WRONG)]
    alter(registered.spec, registered.settings, drops=(), run_id="alter")
    assert findings_of(registered) == []
    reset(registered.name, registered.settings, run_id="reset")
    del unity.tables[NAME]
    registered.run()
    assert findings_of(registered) == []


def test_a_server_that_changes_no_columns_is_told_of(registered: World, unity: SmallUnity) -> None:
    """The entry, and the grants on it, stay; readers of Delta see the columns all the same."""
    unity.changes_columns = False
    before = dict(unity.tables[NAME])
    add_column(registered)

    *_, notice = registered.run().notices

    assert "it shows the columns of before" in notice
    assert unity.tables[NAME] == before
    unity.on_request = lambda: setattr(
        unity, "fails", 503 if unity.requests[-1].startswith("POST") else 0
    )
    (notice,) = alter(registered.spec, registered.settings, drops=(), run_id="alter").notices
    assert "is not up to date: HTTP 503 to POST" in notice


def test_a_schema_that_is_not_there_is_a_notice(world: World, unity: SmallUnity) -> None:
    """Nobody makes one by declaring a stream."""
    more = {"unity": unity.address, "unity_token": SecretStr(TOKEN)}
    world.settings = world.settings.model_copy(update=more)
    world.declare(sink={"delta": {"catalog": {"unity": {"table": "main.other.orders"}}}})
    world.send(row(1, "a"))

    (notice,) = world.run().notices

    assert "Schema not found: main.other" in notice


@pytest.mark.parametrize(
    ("catalog", "variable"),
    [
        ({"unity": {"table": NAME}}, "ONCELAKE_UNITY is not set"),
        ({"hive": {"table": "sales.orders"}}, "ONCELAKE_HIVE_METASTORE is not set"),
        ({"glue": {"database": "sales"}}, "Glue is for tables in S3"),
    ],
    ids=["unity", "hive", "glue"],
)
def test_what_is_missing_is_a_notice(world: World, catalog: Any, variable: str) -> None:
    """It names the variable, or says that a folder is no place for Glue."""
    world.declare(sink={"delta": {"catalog": catalog}})
    world.send(row(1, "a"))

    (notice,) = world.run().notices

    assert variable in notice


@pytest.mark.parametrize(
    "catalog",
    [
        {},
        {"glue": None},
        {"glue": {"database": "sales"}, "unity": {"table": NAME}},
        {"glue": {"database": "Sales"}},
        {"unity": {"table": "sales.orders"}},
        {"hive": {"table": "orders"}},
    ],
    ids=["none", "empty", "two", "capitals", "no catalog", "no database"],
)
def test_a_declaration_names_one_entry(catalog: Any) -> None:
    """By a name that the catalog takes."""
    given = {"name": "t", "topic": "t", "schema": COLUMNS, "keys": ["id"]}
    with pytest.raises(ValidationError):
        StreamSpec.model_validate({**given, "sink": {"delta": {"catalog": catalog}}})


def test_a_token_is_sent_where_nobody_else_reads_it() -> None:
    """Not by HTTP to another machine, and not without an address."""
    for address in ("http://unity.example", None):
        with pytest.raises(ValidationError, match="is sent to ONCELAKE_UNITY"):
            Settings(unity=address, unity_token=SecretStr(TOKEN))
    address = "https://unity.example"
    known = Settings(unity=address, unity_token=SecretStr(f"{TOKEN}\n")).unity_token
    assert known is not None
    assert known.get_secret_value() == TOKEN
    with pytest.raises(ValidationError, match="ASCII") as refused:
        Settings(unity=address, unity_token=SecretStr(f"{TOKEN}\n{TOKEN}"))
    assert TOKEN not in str(refused.value)


def test_types_are_named_as_the_catalog_does() -> None:
    """Also those within others; of those that Hive has not, the nearest."""
    struct = {"type": "struct", "fields": [{"name": "A", "type": "timestamp_ntz"}]}
    of = {"type": "map", "keyType": "long", "valueType": {"type": "array", "elementType": struct}}
    plain = ("decimal(10,2)", "byte", "variant", "date")

    assert sql_type(of) == "map<bigint,array<struct<A:timestamp_ntz>>>"
    assert sql_type(of, _IN_HIVE) == "map<bigint,array<struct<A:timestamp>>>"
    assert [sql_type(each) for each in plain] == ["decimal(10,2)", "tinyint", "variant", "date"]
    assert sql_type("variant", _IN_HIVE) == "string"
    struct["fields"][0]["name"] = "a b"
    assert _hive_type(of) == "string"
    assert shortened(f"one\r\ntwo {'ä' * 200}", 255).startswith("one two ä")
    assert len(shortened("ä" * 200, 255).encode()) == 254


def test_columns_are_as_unity_takes_them(world: World, unity: SmallUnity) -> None:
    """With digits, and which of them the table is partitioned by, computed ones as well."""
    more = {"unity": unity.address, "unity_token": SecretStr(TOKEN)}
    world.settings = world.settings.model_copy(update=more)
    world.declare(
        schema="id INT NOT NULL, price DECIMAL(12, 2), any VARIANT, at TIMESTAMP_NTZ",
        partition_by=["id", "day(at)"],
        sink={"delta": {"catalog": {"unity": {"table": NAME}}}},
    )
    world.send(row(1, "a"))

    assert world.run().notices == ()

    columns = {each["name"]: each for each in unity.tables[NAME]["columns"]}
    named = ("type_name", "type_precision", "type_scale", "partition_index")
    assert [
        [columns[name].get(each) for each in named] for name in ("id", "price", "any", "at")
    ] == [
        ["INT", None, None, 0],
        ["DECIMAL", 12, 2, None],
        ["VARIANT", None, None, None],
        ["TIMESTAMP_NTZ", None, None, None],
    ]
    assert [each["partition_index"] for each in columns.values() if "partition_index" in each] == [
        *(0, 1)
    ]
