"""A stream into a partitioned Delta table is proven, however its rows move, and read by others."""

from __future__ import annotations

import datetime as dt
import random
from operator import itemgetter
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, QueryBuilder

from oncelake.ingestion.declaration.partitions import DeclaredPartition
from oncelake.ingestion.delta.partitions import NoPartitionError, stored, texts_of
from oncelake.ingestion.errors import RefusedError, SchemaChangedError, TableSettingsError
from oncelake.ingestion.operations.alter import alter
from oncelake.ingestion.operations.erase.erase import erase
from oncelake.ingestion.operations.history.rewind import rewind
from oncelake.ingestion.operations.upkeep.maintain import maintain
from tests.support.long import IS_LONG, twins
from tests.support.proof import find_problems
from tests.support.world import World
from tests.tables import test_partitions
from tests.tables.test_partitions import COLUMNS, MODES, pairs_of, play, record
from tests.tables.test_tables_of_others import ENGINES, OUR_COLUMNS, ask_for, make_table

LAYOUTS: Final = {
    "day": ["day(moment)"],
    "identity": ["region"],
    "key": ["id"],
    "two fields": ["month(moment)", "region"],
    "ours": ["_partition", "year(moment)"],
}


@pytest.fixture
def sink() -> str:
    """The one whose partitions are columns."""
    return "delta"


def named(id: int, at: int, dice: random.Random) -> dict[str, Any]:
    """Make a record of any partition that Delta can name: no region is an empty text."""
    made = record(id, at, dice)
    return {**made, "region": made["region"] or None}


def send(world: World, dice: random.Random, count: int, *, deletes: bool = True) -> None:
    """Send such records, and null values of some."""
    test_partitions.send(world, dice, count, deletes=deletes, make=named)


def columns_of(world: World) -> list[str]:
    """Return by which columns the table is partitioned."""
    return DeltaTable(str(world.paths.data)).metadata().partition_columns


@pytest.mark.parametrize("vectors", [True, *twins(False)])
@pytest.mark.parametrize(("layout", "mode"), pairs_of(LAYOUTS))
@pytest.mark.parametrize("seed", range(4 if IS_LONG else 1))
def test_every_layout_holds_in_every_mode(
    world: World, layout: str, mode: str, seed: int, vectors: bool
) -> None:
    """Updates, moves, deletes, upkeep, and records that are read again end as the proof folds."""
    world.declare(schema=COLUMNS, partition_by=LAYOUTS[layout], **MODES[mode])
    if vectors:
        world.declare(deletion_vectors=True)

    play(world, random.Random(f"{layout} {mode} {seed}"), mode, named)

    assert [*map(str, world.paths.table.partitions())] == LAYOUTS[layout]


def test_what_a_rewritten_file_keeps_stays_in_its_partition(world: World) -> None:
    """Of each partition one row is updated, and all others are copied."""
    world.declare(schema=COLUMNS, partition_by=["region"])
    world.send(*({"id": id, "at": 1, "region": "abcd"[id % 4]} for id in range(40)))
    world.run()
    world.send(*({"id": id, "at": 2, "region": "abcd"[id % 4]} for id in range(4)))
    world.run()

    assert {row["id"]: row["region"] for row in world.rows()} == {
        id: "abcd"[id % 4] for id in range(40)
    }
    assert find_problems(world) == ()


@pytest.mark.parametrize(
    ("type_", "values"),
    [
        ("BOOLEAN", [True, False]),
        ("TINYINT", [-128, 0, 127]),
        ("BIGINT", [-(2**63), -1, 2**63 - 1]),
        ("STRING", ["a", " a", "A", "__HIVE_DEFAULT_PARTITION__", "null", "%41", "\u0000"]),
        ("VARCHAR(3)", ["a", "é😀"]),
        ("DATE", ["0001-01-01", "1969-12-31", "1970-01-01", "9999-12-31"]),
    ],
)
def test_a_key_of_any_type_may_be_a_partition(world: World, type_: str, values: list[Any]) -> None:
    """Its rows are found in theirs, and in no other."""
    schema = f"k {type_} NOT NULL, id INT NOT NULL, at INT"
    world.declare(schema=schema, keys=["k", "id"], partition_by=["k"], sequence_by=["at"])
    for at in range(3):
        world.send(*({"k": k, "id": id, "at": at} for k in values for id in range(at, at + 3)))
        world.run()

    rows = world.rows()
    assert len(rows) == 5 * len(values)
    assert {(row["id"], row["at"]) for row in rows} == {(0, 0), (1, 1), (2, 2), (3, 2), (4, 2)}
    assert find_problems(world) == ()


@pytest.mark.parametrize("vectors", [False, True])
def test_files_in_folders_of_others_are_found(world: World, vectors: bool) -> None:
    """delta-rs puts files together into folders that are named by the values, quoted twice."""
    dice = random.Random(5)
    world.declare(schema=COLUMNS, partition_by=["region"], deletion_vectors=vectors)
    for nth in range(4):
        world.send(*(named(id, 0, dice) for id in range(30 * nth, 30 * nth + 30)))
        world.run()
    DeltaTable(str(world.paths.data)).optimize.compact()
    folders = {path.parent for path in world.paths.data.path.rglob("*.parquet")}
    assert len(folders) > 2

    send(world, dice, 25)
    world.run()
    assert find_problems(world) == ()
    maintain(world.spec, world.settings, run_id="m", window=dt.timedelta(0))
    assert find_problems(world) == ()


def test_other_partitions_are_an_alter_that_writes_all_anew(world: World) -> None:
    """Before, nothing is read; a rewind goes back to the partitions that were."""
    dice = random.Random(2)
    world.declare(schema=COLUMNS, partition_by=["region"])
    send(world, dice, 30)
    world.run()
    world.declare(partition_by=["day(moment)", "id"])
    send(world, dice, 30)

    with pytest.raises(SchemaChangedError) as refused:
        world.run()

    says = "partition_by is [day(moment), id], and the table's is [region]"
    alter_it = f"`oncelake alter {world.name} --yes` writes all files anew by it, in one commit"
    assert says in str(refused.value)
    assert f"Next: partition_by: {alter_it}" in str(refused.value)
    done = alter(world.spec, world.settings, drops=(), run_id="a")
    assert [change.field for change in done.changes] == ["partition_by"]
    assert columns_of(world) == ["moment_day", "id"]
    world.run()
    assert find_problems(world) == ()
    rewind(world.spec, world.settings, to="seq:0", reason="a test", run_id="r")
    assert columns_of(world) == ["region"]
    world.declare(partition_by=["region"])
    world.run()
    assert find_problems(world) == ()


@pytest.mark.parametrize("vectors", [False, True])
def test_rows_come_back_and_are_erased(world: World, vectors: bool) -> None:
    """A stream that says nothing takes the table's partitions, and keeps them."""
    dice = random.Random(1)
    world.declare(schema=COLUMNS, partition_by=["region", "day(moment)"])
    world.declare(deletion_vectors=vectors)
    send(world, dice, 30, deletes=False)
    world.run()
    world.declare(partition_by=[])
    send(world, dice, 30)
    world.run()
    rewind(world.spec, world.settings, to="seq:0", reason="a test", run_id="r")
    world.run()
    assert find_problems(world) == ()
    erase(world.spec, world.settings, key='{"id": 3}', reason="asked", run_id="e")

    assert find_problems(world) == ()
    assert columns_of(world) == ["region", "moment_day"]


@pytest.mark.parametrize("engine", ENGINES)
def test_a_value_that_no_partition_has_is_refused(world: World, engine: str) -> None:
    """Nothing is lost: a rule of the declaration sets such records aside."""
    ask_for(world, engine)
    world.declare(schema=COLUMNS, partition_by=["region", "day(moment)"])
    world.send({"id": 1, "at": 1, "region": "eu"})
    world.send({"id": 2, "at": 1, "region": ""})

    with pytest.raises(RefusedError, match=r"region, by which .* is an empty text"):
        world.run()
    assert world.ledger == ()
    rule = "region IS NULL OR region <> ''"
    world.declare(expect={"named": {"rule": rule, "on_miss": "quarantine"}})
    world.run()

    assert [each["id"] for each in world.rows()] == [1]
    assert len(world.quarantined()) == 1


@pytest.mark.spark
@pytest.mark.parametrize("vectors", [False, True])
@pytest.mark.parametrize("engine", ENGINES)
def test_every_reader_sees_the_rows(world: World, engine: str, vectors: bool) -> None:
    """Values of any character, NULL, and days before 1970, by delta-rs, DuckDB and Spark."""
    ask_for(world, engine)
    world.declare(schema=COLUMNS, partition_by=["day(moment)", "region"], deletion_vectors=vectors)
    dice = random.Random(engine)
    for _ in range(2):
        send(world, dice, 40)
        world.run()
    assert find_problems(world) == ()

    mine = sorted(world.rows(), key=itemgetter("id"))
    path = str(world.paths.data)
    read = world.spark.read.format("delta").load(path)
    theirs = read.select(*mine[0]).toArrow().to_pylist()
    assert sorted(theirs, key=itemgetter("id")) == mine
    assert read.where("NOT moment_day <=> CAST(moment AS DATE)").count() == 0
    query = QueryBuilder().register("t", DeltaTable(path))
    found = pa.table(query.execute("SELECT id, region FROM t ORDER BY id"))
    assert found["region"].to_pylist() == [row["region"] for row in mine]


@pytest.mark.spark
def test_a_table_that_spark_made_is_taken(world: World) -> None:
    """Its own day of a moment means one of UTC; what is not computed here is refused by name."""
    columns = f"{COLUMNS}, {OUR_COLUMNS}, d DATE GENERATED ALWAYS AS (CAST(moment AS DATE))"
    make_table(world, columns, "PARTITIONED BY (d, region)")
    world.declare(schema=COLUMNS)
    dice = random.Random(4)
    for _ in range(2):
        send(world, dice, 30)
        world.run()

    assert find_problems(world) == ()
    assert [*map(str, world.paths.table.partitions())] == ["day(moment)", "region"]
    wrong = world.spark.read.format("delta").load(str(world.paths.data))
    assert wrong.where("NOT d <=> CAST(moment AS DATE)").count() == 0


@pytest.mark.spark
def test_a_table_by_what_is_not_computed_is_refused(world: World) -> None:
    """Before anything is read."""
    columns = f"{COLUMNS}, {OUR_COLUMNS}, d STRING GENERATED ALWAYS AS (substring(name, 1, 1))"
    make_table(world, columns, "PARTITIONED BY (d)")
    world.declare(schema=COLUMNS)
    world.send({"id": 1, "at": 1})

    with pytest.raises(TableSettingsError, match="partitioned by d, of which no values"):
        world.run()


def test_days_that_delta_has_no_text_for_are_refused() -> None:
    """A year of five digits would be another to some readers."""
    by = stored(DeclaredPartition(transform="day", column="at"))
    moments = pa.array([0, 253402300800 * 10**6], pa.timestamp("us", "UTC"))

    with pytest.raises(NoPartitionError, match=r"at_day, .* beyond the years 1 to 9999"):
        texts_of([by], pa.table({"at": moments}))


@pytest.mark.spark
def test_a_day_of_a_moment_is_the_same_in_every_session(world: World) -> None:
    """One in New York finds the rows of the evening, and computes the day of UTC."""
    world.declare(schema=COLUMNS, partition_by=["day(moment)"])
    world.send({"id": 1, "at": 1, "moment": "2026-11-30T01:30:00Z"})
    world.run()
    theirs = world.spark.newSession()
    theirs.conf.set("spark.sql.session.timeZone", "America/New_York")
    table = f"delta.`{world.paths.data}`"

    read = theirs.sql(f"SELECT id FROM {table} WHERE moment < '2026-11-29 22:00:00'")
    assert read.count() == 1
    theirs.sql(f"UPDATE {table} SET moment = moment + INTERVAL 1 HOUR")

    (row,) = theirs.sql(f"SELECT CAST(moment_day AS STRING) AS day FROM {table}").collect()
    assert row["day"] == "2026-11-30"


def test_an_alter_into_many_partitions_loses_no_row(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More of them than files may be open, so that one is written to again: into another file."""
    monkeypatch.setattr("oncelake.ingestion.sinks.files._OPEN_FILES", 1)
    monkeypatch.setattr("oncelake.ingestion.sinks.files._ROWS_IN_GROUP", 5)
    world.declare(schema=COLUMNS, keys=["id"])
    world.send(*({"id": id, "at": 1, "region": "abcd"[id % 4]} for id in range(40)))
    world.run()
    world.declare(partition_by=["region"])

    alter(world.spec, world.settings, drops=(), run_id="a")

    assert len(world.rows()) == 40
    assert find_problems(world) == ()


def test_an_alter_by_an_empty_text_is_refused(world: World) -> None:
    """Such a row is in the table already, and no rule sets it aside."""
    world.declare(schema=COLUMNS)
    world.send({"id": 1, "at": 1, "region": ""}, {"id": 2, "at": 1, "region": "eu"})
    world.run()
    world.declare(partition_by=["region"])

    with pytest.raises(RefusedError, match="an empty text") as refused:
        alter(world.spec, world.settings, drops=(), run_id="a")

    assert "name another column in `partition_by`" in refused.value.remedy
    assert len(world.rows()) == 2


@pytest.mark.parametrize("vectors", [False, True])
def test_an_erase_leaves_no_value_of_a_partition(world: World, vectors: bool) -> None:
    """Neither in the commit that takes the file away, nor in the checkpoint behind it."""
    world.declare(schema=COLUMNS, partition_by=["region"], deletion_vectors=vectors)
    for id in range(3):
        world.send({"id": id, "at": 1, "region": "alice" if id == 1 else "eu"})
        world.run()
    erase(world.spec, world.settings, key='{"id": 1}', reason="asked", run_id="e")

    assert [row["id"] for row in world.rows()] == [0, 2]
    assert find_problems(world) == ()
    for file in filter(Path.is_file, world.paths.data.path.rglob("*")):
        is_parquet = file.suffix == ".parquet"
        content = str(pq.read_table(file).to_pylist()) if is_parquet else file.read_text("latin-1")
        assert "alice" not in content, file


@pytest.mark.parametrize("engine", twins("spark"))
def test_spark_takes_no_name_of_a_folder_for_null(world: World, engine: str) -> None:
    """What it would say nothing of; deletes say nothing of their row."""
    ask_for(world, engine)
    world.declare(schema=COLUMNS, partition_by=["region"], apply_as_deletes="name = 'gone'")
    world.send({"id": 1, "at": 1, "region": "eu"})
    world.run()
    world.send({"id": 1, "at": 2, "region": "", "name": "gone"})
    world.run()
    assert world.rows() == []
    world.send({"id": 2, "at": 1, "region": "__HIVE_DEFAULT_PARTITION__"})

    with pytest.raises(RefusedError, match="__HIVE_DEFAULT_PARTITION__, which Delta takes"):
        world.run()
