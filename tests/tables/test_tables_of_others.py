"""A table that somebody made beforehand is filled and proven like one of ours."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from deltalake import DeltaTable

from oncelake.ingestion.declaration.modes import OUR_COLUMNS
from oncelake.ingestion.errors import (
    RefusedError,
    SchemaChangedError,
    SourceTruncatedError,
    TableSettingsError,
)
from oncelake.ingestion.operations.decisions import accept, reset
from oncelake.ingestion.operations.erase.erase import erase
from oncelake.ingestion.operations.history.rewind import rewind
from oncelake.ingestion.operations.upkeep.maintain import maintain
from oncelake.ingestion.sinks.iceberg.catalog import CatalogEntry
from oncelake.ingestion.verify.fold.transform import NOT_INDEPENDENT
from tests.support.long import only_long, twins
from tests.support.proof import find_problems, prove
from tests.support.world import COLUMNS, World, row

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

ALL = f"{COLUMNS}, {OUR_COLUMNS}"
DEFAULTS = ALL.replace("name STRING", "name STRING DEFAULT 'x'")
WITH_DEFAULTS = {"delta.feature.allowColumnDefaults": "supported"}
FEATURES = {
    "delta.enableRowTracking": "true",
    "delta.enableInCommitTimestamps": "true",
    "delta.enableChangeDataFeed": "true",
}
COMES = ("insert", "update_postimage")
ENGINES = ["local", *twins("spark")]
UNMET = "violates_constraint"


def make_table(world: World, columns: str = ALL, more: str = "", **properties: str) -> None:
    """Let Spark make the stream's Delta table."""
    listed = ", ".join(f"'{name}' = '{value}'" for name, value in properties.items())
    of_table = f"TBLPROPERTIES ({listed})" if listed else ""
    made = f"CREATE TABLE delta.`{world.paths.data}` ({columns}) USING delta {more} {of_table}"
    world.spark.sql(made)


def alter(world: World, change: str) -> None:
    """Alter the stream's Delta table."""
    world.spark.sql(f"ALTER TABLE delta.`{world.paths.data}` {change}")


def ask_for(world: World, engine: str) -> None:
    """Ask for an engine."""
    world.settings = world.settings.model_copy(update={"merge_engine": engine})


@pytest.mark.parametrize("sink", ["delta"])
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("columns", "more", "properties"),
    [
        pytest.param(ALL, "CLUSTER BY (id)", {}, id="clustering"),
        *twins(
            pytest.param(DEFAULTS, "CLUSTER BY (id)", {**FEATURES, **WITH_DEFAULTS}, id="all"),
            pytest.param(DEFAULTS, "", WITH_DEFAULTS, id="defaults"),
            *(pytest.param(ALL, "", {n: v}, id=n.rpartition(".")[2]) for n, v in FEATURES.items()),
        ),
    ],
)
def test_a_table_with_newer_features_is_filled_and_decided_about(
    world: World, engine: str, columns: str, more: str, properties: dict[str, str]
) -> None:
    """The first run opens it, batches are merged, and a person's decision is noted in it."""
    ask_for(world, engine)
    make_table(world, columns, more, **properties)
    world.send(row(1, "a"), row(2, None))
    world.send(row(3, "c"), partition=1)
    first = world.run()
    world.send(row(1, "b"), None, id=2)
    world.run()
    world.declare(schema=f"{COLUMNS}, city STRING", schema_change="evolve")
    world.run()
    assert [each["name"] for each in world.rows()] == ["b", "c"]
    assert find_problems(world) == ()
    world.spark.sql(f"DELETE FROM delta.`{world.paths.data}` WHERE id = 3")
    accept(world.spec, world.settings, reason="it was meant", run_id="me")
    world.send(row(4, "d"))

    last = world.run()

    assert (first.is_balanced, last.is_balanced) == (True, True)
    assert [each["name"] for each in world.rows()] == ["b", "d"]


@pytest.mark.parametrize("sink", ["delta"])
def test_no_rows_are_taken_out_of_a_table_that_only_spark_writes(world: World) -> None:
    """Its batches are merged; a truncate of the source, or an erase, says what else to do."""
    make_table(world, **{"delta.feature.checkpointProtection": "supported"})
    world.declare(format={"type": "debezium", "on_truncate": "apply"})
    world.send({"op": "c", "before": None, "after": row(1, "a")})
    world.run()
    world.send({"op": "t", "before": None, "after": None})
    why = "only Spark writes its table, for its features checkpointProtection"

    with pytest.raises(SourceTruncatedError, match=f"offset 1, and {why}.* oncelake rebuild"):
        world.run()
    with pytest.raises(RefusedError, match=f"{why}. Next: leave the key out by `where`"):
        erase(world.spec, world.settings, key='{"id": 1}', reason="asked", run_id="e")

    assert [each["id"] for each in world.rows()] == [1]


@only_long
@pytest.mark.parametrize("sink", ["delta"])
@pytest.mark.parametrize("marks", [False, True], ids=["files", "vectors"])
@pytest.mark.parametrize(
    ("more", "properties"),
    [
        pytest.param("CLUSTER BY (name)", {}, id="clustering"),
        pytest.param("", {"delta.enableRowTracking": "true"}, id="row tracking"),
        pytest.param("", {"delta.enableInCommitTimestamps": "true"}, id="timestamps"),
        pytest.param("", WITH_DEFAULTS, id="defaults"),
        pytest.param("", {"delta.feature.vacuumProtocolCheck": "supported"}, id="vacuum"),
    ],
)
def test_spark_reads_and_goes_on_with_what_is_written_without_it(
    world: World, more: str, properties: dict[str, str], *, marks: bool
) -> None:
    """Batches, upkeep and a rewind without Spark; then Spark reads, deletes and optimizes."""
    ask_for(world, "local")
    world.declare(deletion_vectors=marks)
    make_table(world, DEFAULTS if properties == WITH_DEFAULTS else ALL, more, **properties)
    for number in range(12):
        world.send(row(number, "n"), row(number // 2, "again"), None, id=100)
        world.run()
    maintain(world.spec, world.settings, run_id="me")
    rewind(world.spec, world.settings, to="seq:9", reason="why not", run_id="me")
    world.run()
    assert find_problems(world) == ()

    table = f"delta.`{world.paths.data}`"
    read = world.spark.sql(f"SELECT id, name, at FROM {table} ORDER BY id").toArrow().to_pylist()
    assert read == sorted(world.rows(), key=lambda each: each["id"])
    if "delta.enableRowTracking" in properties:
        ids = world.spark.sql(f"SELECT _metadata.row_id FROM {table}").toArrow()
        assert len(set(ids["row_id"].to_pylist())) == len(read)
    world.spark.sql(f"DELETE FROM {table} WHERE id = 3")
    world.spark.sql(f"OPTIMIZE {table}")
    accept(world.spec, world.settings, reason="it was meant", run_id="me")
    world.send(row(50, "after"))

    assert world.run().is_balanced
    assert {each["id"] for each in world.rows()} == {*range(12), 50} - {3}


@only_long
@pytest.mark.parametrize("sink", ["delta"])
@pytest.mark.parametrize("engine", ["local", "spark"])
@pytest.mark.parametrize(
    "declared",
    [{}, {"deletion_vectors": True}, {"deletes": "soft"}, {"partition_by": ["name"]}],
    ids=str,
)
def test_spark_reads_the_change_data_feed_of_every_batch(
    world: World, engine: str, declared: dict[str, Any]
) -> None:
    """What was inserted, updated and deleted since the table was made adds up to its rows."""
    ask_for(world, engine)
    world.declare(sink={"delta": {"change_data_feed": True}}, **declared)
    for number in range(6):
        world.send(row(number, "n"), row(number // 2, f"again {number}"), None, id=number - 2)
        assert world.run().is_balanced
    maintain(world.spec, world.settings, run_id="me")

    read = world.spark.read.format("delta").option("readChangeFeed", "true")
    read = read.option("startingVersion", 0).load(str(world.paths.data))
    found = read.select("id", "name", "_change_type").toArrow().to_pylist()
    added = Counter((e["id"], e["name"]) for e in found if e["_change_type"] in COMES)
    gone = Counter((e["id"], e["name"]) for e in found if e["_change_type"] not in COMES)
    assert gone <= added
    assert sorted((added - gone).elements()) == sorted((e["id"], e["name"]) for e in world.rows())
    assert {e["_change_type"] for e in found} >= {"insert", "update_preimage"}
    assert find_problems(world) == ()


@only_long
@pytest.mark.parametrize("sink", ["delta"])
@pytest.mark.parametrize(
    "properties",
    [
        {"delta.checkpointPolicy": "v2", "delta.enableDeletionVectors": "true"},
        *twins(
            {"delta.columnMapping.mode": "name"},
            {"delta.enableTypeWidening": "true"},
        ),
    ],
    ids=lambda properties: "".join(properties),
)
def test_a_feature_that_the_audit_cannot_read_is_dropped_as_the_refusal_says(
    world: World, properties: dict[str, str]
) -> None:
    """One statement after the other, until the first run makes the table its own."""
    make_table(world, ALL, **properties)
    world.send(row(1, "a"))
    for _ in properties:
        with pytest.raises(TableSettingsError, match="somebody enabled") as refused:
            world.run()
        world.spark.sql(refused.value.remedy.partition(", or oncelake")[0])

    world.run()
    world.send(row(2, "b"))

    assert world.run().is_balanced
    assert find_problems(world) == ()


@only_long
@pytest.mark.parametrize("sink", ["delta"])
def test_what_delta_rs_cannot_write_is_not_called_busy(world: World) -> None:
    """Where a command needs delta-rs, it says so, and names a way that works."""
    make_table(world, ALL, "CLUSTER BY (id)", **{"delta.enableChangeDataFeed": "true"})
    for each in (row(1, "a"), row(2, "b")):
        world.send(each)
        world.run()

    with pytest.raises(RefusedError, match="cannot write it: Unsupported") as upkeep:
        maintain(world.spec, world.settings, run_id="me")
    with pytest.raises(RefusedError, match="cannot set the table back: Unsupported") as back:
        rewind(world.spec, world.settings, to="seq:1", reason="why not", run_id="me")
    for statement in upkeep.value.remedy.partition(": ")[2].split("; "):
        world.spark.sql(statement)
    world.rebuild()

    assert "oncelake rebuild" in back.value.remedy
    assert [each["name"] for each in world.rows()] == ["a", "b"]
    assert find_problems(world) == ()


@pytest.mark.parametrize("sink", ["delta"])
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    "declared",
    [
        {},
        *twins(
            {"mode": "append", "keys": []},
            {"mode": "scd2", "sequence_by": ["at"]},
            {"mode": "insert_only"},
            {"deletes": "soft"},
        ),
    ],
    ids=str,
)
def test_a_row_that_a_table_of_others_would_not_take_is_quarantined(
    world: World, engine: str, declared: dict[str, Any]
) -> None:
    """Under the constraint's name, and it is sent in again once somebody has dropped that."""
    ask_for(world, engine)
    world.declare(**declared)
    if world.spec.mode == "scd2":
        make_table(
            world, f"{COLUMNS}, valid_from INT, valid_to INT, current BOOLEAN, {OUR_COLUMNS}"
        )
    else:
        deleted = "_deleted BOOLEAN, " if world.spec.deletes == "soft" else ""
        make_table(world, f"{COLUMNS}, {deleted}{OUR_COLUMNS}")
    alter(world, "ADD CONSTRAINT Positive CHECK (at > 0)")
    alter(world, "ADD CONSTRAINT short CHECK (`name` IS NULL OR length(name) < 4)")
    world.send(row(1, "a", 1), row(2, "b", 0), row(3, None, 3), row(4, "long", 4), row(5, "e", -5))

    first = world.run()

    assert first.is_balanced
    assert sorted(each["id"] for each in world.rows()) == [1, 3]
    assert [(bad["reason"], bad["detail"]) for bad in world.quarantined()] == [
        (UNMET, "positive: at > 0"),
        (UNMET, "short: `name` IS NULL OR length ( name ) < 4"),
        (UNMET, "positive: at > 0"),
    ]
    assert find_problems(world) == ()
    alter(world, "DROP CONSTRAINT short")
    sent_in = world.redrive()
    assert sent_in.is_balanced
    assert sorted(each["id"] for each in world.rows()) == [1, 3, 4]
    assert find_problems(world) == ()


@only_long
@pytest.mark.parametrize("sink", ["delta"])
@pytest.mark.parametrize("engine", ENGINES)
def test_a_constraint_holds_from_the_run_on_that_finds_it(world: World, engine: str) -> None:
    """Batches before it stand as they are, in the table and in the proof."""
    ask_for(world, engine)
    world.send(row(1, "a", -1), row(2, "b", 2))
    world.run()
    world.send(row(1, "a", 3))
    world.run()
    alter(world, "ADD CONSTRAINT lower CHECK (name RLIKE '^[a-z]')")
    alter(world, "ADD CONSTRAINT positive CHECK (at > 0)")
    world.send(row(3, "c", 0), row(4, "D", 4), row(6, "f", 6), row(2, "b", 5))

    last = world.run()

    assert (last.is_balanced, last.total("quarantined")) == (True, 2)
    assert [each["at"] for each in world.rows()] == [3, 5, 6]
    # DuckDB may understand RLIKE otherwise, so that Spark is asked again.
    assert (prove(world).holds, prove(world).limits) == (True, (NOT_INDEPENDENT,))
    alter(world, "DROP CONSTRAINT lower")
    world.send(row(7, "G", 7), row(8, "h", 0))
    world.run()
    assert [each["at"] for each in world.rows()] == [3, 5, 6, 7]
    assert (prove(world).holds, prove(world).limits) == (True, (NOT_INDEPENDENT,))


@pytest.mark.parametrize("sink", ["delta"])
@pytest.mark.parametrize("engine", ENGINES)
def test_a_generated_column_is_declared_as_the_table_computes_it(world: World, engine: str) -> None:
    """The advice is followed: then rows are written, and one that differs is quarantined."""
    ask_for(world, engine)
    generated = "name STRING, at INT, later BIGINT GENERATED ALWAYS AS (CAST(at AS BIGINT) + 1)"
    make_table(world, f"id INT NOT NULL, {generated}, {OUR_COLUMNS}")
    world.send(row(1, "a", 1), row(2, None))
    with pytest.raises(SchemaChangedError) as refused:
        world.run()
    assert 'select: {later: "CAST(at AS BIGINT) + 1"}' in refused.value.remedy

    world.declare(schema=f"{COLUMNS}, later BIGINT", value_schema=COLUMNS)
    world.declare(select={"later": "CAST(at AS BIGINT) + 1"})
    world.run()
    assert [each["later"] for each in world.rows()] == [2, None]
    assert (prove(world).holds, prove(world).limits) == (True, (NOT_INDEPENDENT,))
    world.declare(select={"later": "CAST(id AS BIGINT)"})
    world.send(row(3, "c", 5), row(4, "d", 3))
    world.run()

    assert [each["id"] for each in world.rows()] == [1, 2, 4]
    (bad,) = world.quarantined()
    assert bad["detail"] == "generated later: `later` <=> (CAST(at AS BIGINT) + 1)"


@pytest.mark.parametrize("sink", ["delta"])
def test_a_condition_that_spark_does_not_read_is_refused_before_anything_is_read(
    world: World,
) -> None:
    """Another tool may have written what only it understands; a reset is the way out."""
    make_table(world)
    of_datafusion = "arrow_typeof(name) = 'Utf8'"
    DeltaTable(world.paths.data.path).alter.add_constraint({"theirs": of_datafusion})
    world.send(row(1, "a", 1))

    with pytest.raises(TableSettingsError, match="theirs") as refused:
        world.run()
    assert f"oncelake reset {world.name} --yes" in refused.value.remedy
    reset(world.name, world.settings, run_id="me", sink=world.spec.sink)
    world.run()

    assert world.rows() == [row(1, "a", 1)]


@only_long
@pytest.mark.parametrize("sink", ["delta"])
def test_a_constraint_that_fails_on_a_record_is_named_with_what_to_set_instead(
    world: World,
) -> None:
    """It neither holds nor does not hold of that row, and nobody could write it."""
    make_table(world)
    alter(world, "ADD CONSTRAINT share CHECK (100 / at > 1)")
    world.send(row(1, "a", 2), row(2, "b", 0))
    with pytest.raises(TableSettingsError, match="constraint share of the table fails") as refused:
        world.run()
    assert "try_divide" in refused.value.remedy

    alter(world, "DROP CONSTRAINT share")
    alter(world, "ADD CONSTRAINT share CHECK (try_divide(100, at) > 1)")
    world.run()

    assert [each["id"] for each in world.rows()] == [1]
    assert [bad["reason"] for bad in world.quarantined()] == [UNMET]


def make_bare_table(world: World, sink: str, postgres: str) -> None:
    """Make an empty table that has the user's columns alone, by another client of the sink."""
    if sink == "delta":
        make_table(world, COLUMNS)
    elif sink == "postgres":
        import psycopg

        with psycopg.connect(postgres, autocommit=True) as server:
            server.execute("CREATE SCHEMA IF NOT EXISTS oncelake")
            named = world.paths.table.uri.rpartition("/")[2]
            schema, name = named.split(".")
            server.execute(f'CREATE SCHEMA IF NOT EXISTS "{schema}"')
            columns = "name text, id integer NOT NULL, at integer"
            server.execute(f'CREATE TABLE "{schema}"."{name}" ({columns})')
    else:
        from pyiceberg.schema import Schema
        from pyiceberg.types import IntegerType, NestedField, StringType

        entry: CatalogEntry = world.paths.table._entry  # type: ignore[attr-defined]
        fields = (
            NestedField(1, "name", StringType()),
            NestedField(2, "id", IntegerType(), required=True),
            NestedField(3, "at", IntegerType()),
        )
        with entry.session() as catalog:
            catalog.create_namespace_if_not_exists(entry.identifier[:-1])
            catalog.create_table(
                entry.identifier, schema=Schema(*fields), location=entry.new_location()
            )


@pytest.mark.parametrize("sink", ["delta", *twins("iceberg", "postgres")])
@pytest.mark.parametrize("declared", [{}, *twins({"mode": "append", "keys": []})], ids=str)
def test_an_empty_table_with_the_users_columns_alone_gets_ours(
    request: pytest.FixtureRequest, world: World, sink: str, declared: dict[str, Any]
) -> None:
    """Where the declaration lets us, and else before anything is read it says what it needs."""
    is_there = sink == "postgres"
    make_bare_table(world, sink, request.getfixturevalue("postgres_address") if is_there else "")
    world.declare(**declared)
    world.send(row(1, "a"), row(2, "b"))
    with pytest.raises(SchemaChangedError, match="`schema_change: evolve` in"):
        world.run()

    world.declare(schema_change="evolve")
    first = world.run()
    world.send(row(1, "c"))
    second = world.run()

    assert (first.is_balanced, second.is_balanced) == (True, True)
    assert {"b", "c"} <= {each["name"] for each in world.rows()}
    assert find_problems(world) == ()
