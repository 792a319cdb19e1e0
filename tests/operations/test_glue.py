"""The entry of a Delta table in AWS Glue's data catalog, which is moto's here."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
from botocore.session import get_session

from oncelake.ingestion.declaration.files.loader import load_streams
from oncelake.ingestion.errors import WRONG
from oncelake.ingestion.operations.alter import alter
from oncelake.ingestion.operations.doctor.examine import examine
from oncelake.ingestion.sinks.delta.catalogs import glue as module
from oncelake.ingestion.sinks.delta.catalogs import register
from tests.support.store_proxy import StoreProxy
from tests.support.world import COLUMNS, World, row

DATABASE = "sales"


@pytest.fixture
def glue(bucket: str) -> Iterator[Any]:
    """Speak to Glue as its owner does, who has made a database."""
    del bucket
    glue = get_session().create_client("glue", region_name=os.environ["AWS_REGION"])
    glue.create_database(DatabaseInput={"Name": DATABASE})
    yield glue
    glue.delete_database(Name=DATABASE)
    glue.close()


@pytest.fixture
def registered(world: World, bucket: str, glue: Any) -> World:
    """A stream in the store, with a batch and its entry."""
    del glue
    world.settings = world.settings.model_copy(update={"lake": bucket})
    world.declare(
        schema="id INT NOT NULL COMMENT 'the key', name STRING, at TIMESTAMP_NTZ, price "
        "DECIMAL(12, 2), tags MAP<STRING, ARRAY<BIGINT>>, of STRUCT<A: SMALLINT>, any VARIANT",
        description="Orders of the shop",
        partition_by=["name"],
        sink={"delta": {"catalog": {"glue": {"database": DATABASE}}}},
    )
    world.send(row(1, "a"))
    assert world.run().notices == ()
    return world


def entry_of(glue: Any, world: World) -> dict[str, Any]:
    """Return the entry as anybody reads it."""
    found: dict[str, Any] = glue.get_table(DatabaseName=DATABASE, Name=world.name)["Table"]
    return found


def input_of(entry: dict[str, Any]) -> dict[str, Any]:
    """Return what of an entry somebody may write."""
    written = ("Name", "Owner", "Description", "TableType", "Parameters", "StorageDescriptor")
    return {name: entry[name] for name in written if name in entry}


def columns_of(entry: dict[str, Any]) -> dict[str, str]:
    """Return the types of the columns."""
    return {each["Name"]: each["Type"] for each in entry["StorageDescriptor"]["Columns"]}


def test_the_entry_is_as_athena_wants_it(registered: World, glue: Any) -> None:
    """An external table, its place, its format, and columns by their names in Hive."""
    entry = entry_of(glue, registered)
    storage, serde = entry["StorageDescriptor"], entry["StorageDescriptor"]["SerdeInfo"]

    assert (entry["TableType"], entry["PartitionKeys"]) == ("EXTERNAL_TABLE", [])
    assert entry["Description"] == "Orders of the shop"
    assert entry["Parameters"]["spark.sql.sources.provider"] == "delta"
    assert entry["Parameters"]["delta.checkpointInterval"] == "10"
    assert storage["Location"] == serde["Parameters"]["path"] == registered.paths.table.uri
    assert storage["Columns"][0] == {"Name": "id", "Type": "int", "Comment": "the key"}
    assert list(columns_of(entry).items())[1:7] == [
        ("name", "string"),
        ("at", "timestamp"),
        ("price", "decimal(12,2)"),
        ("tags", "map<string,array<bigint>>"),
        ("of", "struct<a:smallint>"),
        ("any", "string"),
    ]
    assert columns_of(entry)["_timestamp"] == "timestamp"


def test_what_others_have_written_stays(registered: World, glue: Any) -> None:
    """Their parameters, comments and owner, while the columns follow the table's."""
    theirs = input_of(entry_of(glue, registered))
    theirs["Owner"] = "sales"
    theirs["Parameters"] |= {"quality": "gold", "delta.appendOnly": "true"}
    theirs["Parameters"]["external.table.purge"] = "TRUE"
    spelled = registered.paths.table.uri.replace("s3://", "s3a://")
    theirs["StorageDescriptor"]["SerdeInfo"]["Parameters"]["path"] = spelled
    theirs["StorageDescriptor"]["Columns"][1]["Comment"] = "of a person"
    glue.update_table(DatabaseName=DATABASE, TableInput=theirs)
    registered.declare(schema=f"{registered.declared['schema']}, note STRING")
    registered.declare(schema_change="evolve")
    registered.send({**row(2, "b"), "note": "n"})

    registered.run()

    entry = entry_of(glue, registered)
    assert (entry["Owner"], entry["Parameters"]["quality"]) == ("sales", "gold")
    assert not {"delta.appendOnly", "external.table.purge"} & entry["Parameters"].keys()
    assert entry["StorageDescriptor"]["SerdeInfo"]["Parameters"]["path"] == spelled
    assert entry["StorageDescriptor"]["Columns"][1]["Comment"] == "of a person"
    assert columns_of(entry)["note"] == "string"


def test_nothing_is_asked_where_nothing_has_changed(
    registered: World, glue: Any, store_proxy: StoreProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And a lost memory costs one request, which writes nothing."""
    monkeypatch.setenv("AWS_ENDPOINT_URL_GLUE", store_proxy.address)
    registered.run()
    before = entry_of(glue, registered)["VersionId"]
    with store_proxy.counted() as requests:
        registered.send(row(2, "b"))
        registered.run()
        registered.paths.registration.delete()
        registered.run()
        asked = [each.target for each in requests if "AWSGlue" in each.target]

    assert [each.rpartition(".")[2] for each in asked] == ["GetTable"]
    assert entry_of(glue, registered)["VersionId"] == before


def test_another_table_of_the_name_is_left_alone(registered: World, glue: Any) -> None:
    """A run says so, and a doctor as well."""
    theirs = input_of(entry_of(glue, registered))
    theirs["Parameters"] = {"classification": "parquet"}
    glue.update_table(DatabaseName=DATABASE, TableInput=theirs)

    (notice,) = alter(registered.spec, registered.settings, drops=(), run_id="alter").notices

    assert "that is another table" in notice
    assert entry_of(glue, registered)["Parameters"] == theirs["Parameters"]
    registered.write_declaration()
    streams = load_streams(registered.settings.streams)
    found = examine(registered.settings, streams, are_all=False, tell=lambda text: None)
    assert [(each.exit_code, "another table" in each.evidence) for each in found].count(
        (WRONG, True)
    ) == 1


def test_a_change_that_comes_in_between_is_not_lost(
    registered: World, glue: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Glue refuses ours, which a later run writes on top of it."""
    described = module._described

    def change_first(*given: Any) -> dict[str, Any]:
        theirs = input_of(entry_of(glue, registered))
        theirs["Parameters"]["quality"] = "gold"
        glue.update_table(DatabaseName=DATABASE, TableInput=theirs)
        return described(*given)

    registered.declare(schema=f"{registered.declared['schema']}, note STRING")
    registered.declare(schema_change="evolve")
    monkeypatch.setattr(register, "_PAUSE_SECONDS", 0)
    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(module, "_described", change_first)
        *_, notice = registered.run().notices

    assert "ConcurrentModificationException" in notice
    assert registered.run().notices == ()
    entry = entry_of(glue, registered)
    assert (entry["Parameters"]["quality"], columns_of(entry)["note"]) == ("gold", "string")


def test_a_database_that_is_not_there_is_a_notice(world: World, bucket: str, glue: Any) -> None:
    """Nobody makes one by declaring a stream."""
    world.settings = world.settings.model_copy(update={"lake": bucket})
    world.declare(schema=COLUMNS, sink={"delta": {"catalog": {"glue": {"database": "nobodys"}}}})
    world.send(row(1, "a"))

    (notice,) = world.run().notices

    assert "EntityNotFoundException" in notice
    assert [each["Name"] for each in glue.get_databases()["DatabaseList"]] == [DATABASE]
