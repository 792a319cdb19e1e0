"""The entry of a Delta table in a Hive metastore, by which Spark finds the table."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from oncelake.ingestion.declaration.files.loader import load_streams
from oncelake.ingestion.operations.alter import alter
from oncelake.ingestion.operations.doctor.examine import examine
from tests.support.catalogs import TriedCatalog, only_catalogs
from tests.support.long import only_long
from tests.support.world import ROOT, World, row

pytestmark = only_catalogs
# What a person's Spark does with a metastore: statements, and the rows that the last one gives.
_SPARK = """
import json, sys
from oncelake.ingestion.pipeline.spark.session import start_session
from oncelake.ingestion.settings import load_settings
spark = start_session(load_settings(), {
    "spark.sql.catalogImplementation": "hive",
    "spark.hadoop.hive.metastore.uris": sys.argv[1],
})
for statement in sys.argv[2:]:
    rows = spark.sql(statement).collect()
print(json.dumps([row.asDict() for row in rows], default=str))
"""


@pytest.fixture
def registered(world: World, catalog: TriedCatalog) -> Iterator[World]:
    """A stream with a batch, and its entry in a database that somebody made."""
    if catalog.kind != "hive":
        pytest.skip("it is of Hive's metastore alone")
    from hive_metastore.ttypes import Database

    with asked(catalog) as client:
        client.create_database(Database(name=catalog.namespace))
    update = {"hive_metastore": catalog.properties["uri"]}
    world.settings = world.settings.model_copy(update=update)
    name = f"{catalog.namespace}.orders"
    world.declare(
        schema="id INT NOT NULL COMMENT 'the key', name STRING, at TIMESTAMP_NTZ, any VARIANT",
        description="Orders",
        sink={"delta": {"catalog": {"hive": {"table": name}}}},
    )
    world.send(row(1, "a"), row(2, "b"))
    assert world.run().notices == ()
    yield world
    with asked(catalog) as client:
        client.drop_table(catalog.namespace, "orders", False)
        client.drop_database(catalog.namespace, False, False)


@contextmanager
def asked(catalog: TriedCatalog) -> Iterator[Any]:
    """Speak to the metastore as another client does."""
    with catalog.opened() as other, vars(other)["_client"] as client:
        yield client


def entry_of(catalog: TriedCatalog) -> Any:
    """Return the entry as anybody reads it."""
    with asked(catalog) as client:
        return client.get_table(catalog.namespace, "orders")


def by_spark(world: World, catalog: TriedCatalog, *statements: str) -> list[dict[str, Any]]:
    """Let a Spark of its own, with the metastore, execute statements."""
    done = subprocess.run(
        [sys.executable, "-c", _SPARK, catalog.properties["uri"], *statements],
        env=world.environment(),
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_the_entry_is_as_spark_writes_one(registered: World, catalog: TriedCatalog) -> None:
    """An external table of Delta's, with its place and its columns; nothing is asked twice."""
    entry = entry_of(catalog)
    columns = [(each.name, each.type, each.comment) for each in entry.sd.cols]

    assert columns[:4] == [
        ("id", "int", "the key"),
        ("name", "string", None),
        ("at", "timestamp", None),
        ("any", "string", None),
    ]
    assert (entry.tableType, entry.partitionKeys) == ("EXTERNAL_TABLE", [])
    assert entry.parameters["spark.sql.sources.provider"] == "delta"
    assert entry.parameters["comment"] == "Orders"
    assert "numFiles" not in entry.parameters
    assert entry.sd.serdeInfo.parameters["path"] == registered.paths.table.uri
    with catalog.watched() as calls:
        registered.send(row(3, "c"))
        registered.run()
        registered.paths.registration.delete()
        registered.run()
    assert [each.target for each in calls] == ["get_table_req"]


def test_what_others_have_written_stays(registered: World, catalog: TriedCatalog) -> None:
    """Their parameters, owner and comments, while the columns follow the table's."""
    entry = entry_of(catalog)
    entry.owner, entry.parameters["quality"] = "sales", "gold"
    entry.parameters["external.table.purge"] = "TRUE"
    entry.sd.cols[1].comment = "of a person"
    with asked(catalog) as client:
        client.alter_table(catalog.namespace, "orders", entry)
    registered.declare(schema=f"{registered.declared['schema']}, note STRING")

    assert alter(registered.spec, registered.settings, drops=(), run_id="alter").notices == ()

    entry = entry_of(catalog)
    assert (entry.owner, entry.parameters["quality"]) == ("sales", "gold")
    assert "external.table.purge" not in entry.parameters
    assert (entry.sd.cols[1].comment, entry.sd.cols[4].name) == ("of a person", "note")


def test_a_metastore_that_is_away_is_a_notice(
    registered: World, catalog: TriedCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that never answers holds no run for long; the next run writes the entry."""
    monkeypatch.setattr("oncelake.ingestion.sinks.delta.catalogs.hive.SECONDS", 0.5)
    monkeypatch.setattr("oncelake.ingestion.sinks.delta.catalogs.register._PAUSE_SECONDS", 0)
    registered.declare(schema=f"{registered.declared['schema']}, note STRING")
    registered.declare(schema_change="evolve")
    begin = time.monotonic()
    with catalog.fault("stall", of="", times=None):
        *_, notice = registered.run().notices
    assert time.monotonic() - begin < 10
    assert "timed out" in notice or "timeout" in notice
    with catalog.away():
        *_, notice = registered.run().notices
    assert notice.startswith("the entry Hive")

    assert registered.run().notices == ()

    assert "note" in [each.name for each in entry_of(catalog).sd.cols]


def test_an_entry_that_is_gone_is_told_by_a_doctor(
    registered: World, catalog: TriedCatalog
) -> None:
    """And one of another table is left as it is."""
    with asked(catalog) as client:
        client.drop_table(catalog.namespace, "orders", False)

    assert findings_of(registered) == [f"the entry Hive {catalog.namespace}.orders is not there"]

    assert alter(registered.spec, registered.settings, drops=(), run_id="alter").notices == ()
    entry = entry_of(catalog)
    entry.sd.serdeInfo.parameters["path"] = "file:/elsewhere"
    with asked(catalog) as client:
        client.alter_table(catalog.namespace, "orders", entry)
    (notice,) = alter(registered.spec, registered.settings, drops=(), run_id="alter").notices
    assert "that is another table, at file:/elsewhere" in notice
    assert entry_of(catalog).sd.serdeInfo.parameters["path"] == "file:/elsewhere"


def findings_of(world: World) -> list[str]:
    """Return what a doctor finds about the stream's entry."""
    world.write_declaration()
    streams = load_streams(world.settings.streams)
    found = examine(world.settings, streams, are_all=False, tell=lambda text: None)
    return [each.what for each in found if "the entry" in each.what]


@only_long
def test_spark_finds_the_table_by_its_name(registered: World, catalog: TriedCatalog) -> None:
    """By our entry, and by one of its own, which is known again and kept up to date."""
    name, place = f"{catalog.namespace}.orders", registered.paths.table.uri
    read = f"SELECT id, name FROM {name} ORDER BY id"
    rows = [{"id": 1, "name": "a"}, {"id": 2, "name": "b"}]

    assert by_spark(registered, catalog, read) == rows

    made = f"CREATE TABLE {name} USING delta LOCATION '{place}'"
    assert by_spark(registered, catalog, f"DROP TABLE {name}", made, read) == rows
    assert alter(registered.spec, registered.settings, drops=(), run_id="alter").notices == ()
    assert entry_of(catalog).sd.cols[0].name == "id"
    described = by_spark(registered, catalog, f"DESCRIBE TABLE {name}")
    assert described[0]["comment"] == "the key"
    assert by_spark(registered, catalog, read) == rows
