"""A table that another loader has filled becomes a stream's, with its rows, from offsets on."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pydantic import SecretStr
from pyiceberg.catalog import load_catalog
from pyiceberg.utils.config import Config
from typer.testing import CliRunner

from oncelake.ingestion.cli.app import app
from oncelake.ingestion.errors import (
    ForeignTableError,
    InvalidSpecError,
    OffsetsExpiredError,
    RefusedError,
    TableBusyError,
)
from oncelake.ingestion.operations.alter import alter
from oncelake.ingestion.operations.audit.adopt import Adoption, adopt_table, plan_adoption
from oncelake.ingestion.operations.erase.erase import erase
from oncelake.ingestion.operations.history.rewind import rewind
from oncelake.ingestion.storage import failpoints
from oncelake.ingestion.storage.failpoints import Failpoint
from tests.audit.pipelines import catalog_of_others
from tests.support.long import only_long, twins
from tests.support.places import spark_for
from tests.support.proof import find_problems, prove
from tests.support.world import World, row
from tests.trials.failpoints import PlannedError, crashing_at

SCHEMA = pa.schema([("id", pa.int32()), ("name", pa.string()), ("at", pa.int32())])
ROWS = [row(n, f"n{n}", 10) for n in range(20)]
# What the loader has read: its rows in two partitions, and a delete of a key that is gone.
LOADED = {0: [*ROWS[0::2], row(98, "gone", 1)], 1: ROWS[1::2]}
STARTING = {"0": 12, "1": 10}
# Where the rows themselves end: a delete behind them is read once more.
ENDING = {"0": 10, "1": 10}


def loaded(world: World) -> None:
    """Send what the loader has read, its deletes included."""
    for partition, records in LOADED.items():
        world.send(*records, partition=partition)
    world.send(None, partition=0, id=98)


def placed(rows: list[dict[str, Any]], prefix: str) -> pa.Table:
    """Return rows with where their records are, by a loader's names of columns."""
    at = {r["id"]: (p, o) for p, sent in LOADED.items() for o, r in enumerate(sent)}
    table = pa.Table.from_pylist(rows, SCHEMA)
    for name, which, type_ in (("partition", 0, pa.int32()), ("offset", 1, pa.int64())):
        values = [at[r["id"]][which] for r in rows]
        table = table.append_column(f"{prefix}{name}", pa.array(values, type_))
    return table


def delta_rs(world: World, rows: list[dict[str, Any]]) -> None:
    """As kafka-delta-ingest, or a script by delta-rs: files that are appended."""
    for part in (rows[:12], rows[12:]):
        table = pa.Table.from_pylist(part, SCHEMA)
        write_deltalake(str(world.paths.data), table, mode="append")


def connect(world: World, rows: list[dict[str, Any]]) -> None:
    """As a sink of Kafka Connect with the place of each record."""
    world.declare(schema=f"{BASE}, __partition INT, __offset BIGINT")
    write_deltalake(str(world.paths.data), placed(rows, "__"))


def hudi(world: World, rows: list[dict[str, Any]]) -> None:
    """With the columns that Hudi and its streamer put to each row, as rows were merged."""
    own = ["_hoodie_commit_time", "_hoodie_record_key", "_hoodie_file_name"]
    columns = ", ".join(f"{name} STRING" for name in own)
    places = "_hoodie_kafka_source_partition INT, _hoodie_kafka_source_offset BIGINT"
    world.declare(schema=f"{BASE}, {columns}, {places}")
    table = placed(rows, "_hoodie_kafka_source_")
    for name in own:
        table = table.append_column(name, pa.array(["x"] * len(rows)))
    write_deltalake(str(world.paths.data), table.slice(0, 5))
    merger = DeltaTable(str(world.paths.data)).merge(table, "t.id = s.id", "s", "t")
    merger.when_matched_update_all().when_not_matched_insert_all().execute()


def pyiceberg(world: World, rows: list[dict[str, Any]]) -> None:
    """An Iceberg table of a catalog, by pyiceberg's own appends."""
    world.declare(sink={"iceberg": {"table": f"shop.{world.topic}"}})
    found = Config().get_catalog_config("default") or {}
    with closing(load_catalog("default", **found)) as catalog:
        catalog.create_namespace_if_not_exists("shop")
        table = catalog.create_table(f"shop.{world.topic}", SCHEMA)
        for part in (rows[:12], rows[12:]):
            table.append(pa.Table.from_pylist(part, SCHEMA))


def by_copy(world: World, rows: list[dict[str, Any]]) -> None:
    """A table of PostgreSQL, filled by COPY."""
    world.declare(sink={"postgres": {"table": f"public.{world.topic}"}})
    assert world.settings.postgres is not None
    with psycopg.connect(world.settings.postgres.get_secret_value()) as connection:
        connection.execute(f"CREATE TABLE {world.topic} (id int, name text, at int)")
        with connection.cursor().copy(f"COPY {world.topic} FROM STDIN") as copy:
            for each in rows:
                copy.write_row(list(each.values()))


def with_vectors(world: World, rows: list[dict[str, Any]]) -> None:
    """By Spark, which has marked a row as gone that it wrote before."""
    frame = world.spark.createDataFrame([*rows, row(98, "gone", 1)], f"{BASE_NULLABLE}")
    path = str(world.paths.data)
    frame.coalesce(1).write.format("delta").option("delta.enableDeletionVectors", "true").save(path)
    world.spark.sql(f"DELETE FROM delta.`{path}` WHERE id = 98")


BASE = "id INT NOT NULL, name STRING, at INT"
BASE_NULLABLE = "id INT, name STRING, at INT"
LOADERS: dict[str, Callable[[World, list[dict[str, Any]]], None]] = {
    "delta-rs": delta_rs,
    "connect": connect,
    "hudi": hudi,
    "pyiceberg": pyiceberg,
    "copy": by_copy,
}
SHOWN = {"connect": ENDING, "hudi": ENDING}


@pytest.fixture
def world(
    request: pytest.FixtureRequest, world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> World:
    """A topic of which a loader has read all but what a test sends."""
    names = str(getattr(request.node, "callspec", None) and request.node.callspec.params)
    if "copy" in names:
        address = SecretStr(request.getfixturevalue("postgres_address"))
        world.settings = world.settings.model_copy(update={"postgres": address})
    for name, value in catalog_of_others(tmp_path / "others").items():
        monkeypatch.setenv(name, value)
    loaded(world)
    return world


def adopted(world: World, starting: Any = None, **declared: Any) -> Adoption:
    """Adopt the table."""
    world.declare(**declared)
    text = starting if isinstance(starting, str) else json.dumps(starting or STARTING)
    return adopt_table(world.spec, world.settings, starting=text, reason="a test", run_id="adopt")


def values(world: World) -> dict[int, str | None]:
    """Return the names in the table, by key."""
    return {each["id"]: each["name"] for each in world.rows()}


def changed(world: World) -> dict[str, int]:
    """Send records of each kind, run, and return how many rows that changed."""
    world.send(row(2, "n2b", 11), row(4, "n4b", 11), row(4, "n4c", 12), row(30, "new", 1))
    world.send(row(3, "n3b", 11), partition=1)
    world.send(None, partition=0, id=6)
    world.send(None, partition=1, id=7)
    world.send(None, partition=1, id=99)
    report = world.run()
    names = ("read", "inserted", "updated", "deleted", "deleted_absent", "superseded", "stale")
    return {name: report.total(name) for name in names}


AFTER = {**{n: f"n{n}" for n in range(20) if n not in (6, 7)}, 2: "n2b", 4: "n4c", 3: "n3b"}
AFTER |= {30: "new"}
COUNTS = {"read": 8, "inserted": 1, "updated": 3, "deleted": 2, "deleted_absent": 1}
COUNTS |= {"superseded": 1, "stale": 0}


def lives_on(world: World, done: Adoption, *, again: bool = False) -> None:
    """Judge that a table was adopted, that a run counts right on it, and that all is proven.

    Args:
        again: Whether it reads two records that the loader had read, of which there is no row.
    """
    assert done.found["rows"] == 20
    assert done.row is not None
    assert (done.row.kind, done.row.seq, done.row.accepted) == ("adopt", 0, "a test")
    assert values(world) == {n: f"n{n}" for n in range(20)}
    first = prove(world)
    assert (first.differences, first.limits, first.rows) == ((), (), 20)

    more = {"read": 2, "superseded": 1, "deleted_absent": 1} if again else {}
    assert Counter(changed(world)) == Counter(COUNTS) + Counter(more)
    assert values(world) == AFTER
    verdict = prove(world)
    assert (verdict.differences, verdict.obstacles) == ((), ())
    assert "20 rows" in str(verdict.adopted)
    assert "15 of which are left" in str(verdict.adopted)
    assert f"{world.topic}-0 offset {10 if again else 12}" in str(verdict.adopted)


@pytest.mark.parametrize("loader", LOADERS)
def test_an_adopted_table_goes_on_where_its_loader_stopped(world: World, loader: str) -> None:
    """Rows stay, records from the offsets on win over them, and books and proof count them."""
    LOADERS[loader](world, ROWS)

    lives_on(world, adopted(world, SHOWN.get(loader)), again=loader in SHOWN)

    if loader == "copy":
        assert "no longer provable" in str(prove(world).limits)
    else:
        assert find_problems(world) == ()


@pytest.mark.kafka
@pytest.mark.spark
@pytest.mark.parametrize("loader", [*twins("delta-rs", "vectors"), "hudi"])
def test_spark_merges_into_an_adopted_table(world: World, loader: str) -> None:
    """The other engine decides the same about rows of no record, marked files included."""
    world.settings = world.settings.model_copy(update={"merge_engine": "spark"})
    {**LOADERS, "vectors": with_vectors}[loader](world, ROWS)

    lives_on(world, adopted(world, SHOWN.get(loader)), again=loader in SHOWN)

    assert find_problems(world) == ()


def test_an_appended_table_gets_each_later_record_once(world: World) -> None:
    """Rows of no record are compared as a whole, by their digest, and stay."""
    world.declare(mode="append", keys=[])
    loaders = {**LOADERS}
    loaders["connect"](world, ROWS)
    adopted(world, ENDING)
    world.send(row(1, "again", 1), row(40, "new", 1))

    report = world.run()

    assert (report.total("read"), report.total("inserted")) == (4, 3)
    assert Counter(each["id"] for each in world.rows())[1] == 2
    assert world.replay().total("inserted") == 0
    assert find_problems(world) == ()


def test_the_first_row_of_a_key_stays_where_none_is_replaced(world: World) -> None:
    """In `insert_only`, a row that was adopted came before every record."""
    delta_rs(world, ROWS)
    adopted(world, mode="insert_only")
    world.send(row(1, "later", 99), row(40, "new", 1))

    report = world.run()

    assert (report.total("stale"), report.total("inserted")) == (1, 1)
    assert values(world) == {**{n: f"n{n}" for n in range(20)}, 40: "new"}
    assert find_problems(world) == ()


def test_a_declared_order_decides_where_a_row_has_its_columns(world: World) -> None:
    """A record that is older by it loses against the adopted row; a null there loses always."""
    delta_rs(world, [*ROWS[:19], {**ROWS[19], "at": None}])
    adopted(world, sequence_by=["at"])
    world.send(row(1, "older", 9), row(2, "newer", 11), row(3, "same", 10), row(19, "any", -5))

    report = world.run()

    assert (report.total("stale"), report.total("updated")) == (1, 3)
    assert {n: values(world)[n] for n in (1, 2, 3, 19)} == {
        **{1: "n1", 2: "newer", 3: "same", 19: "any"}
    }
    assert find_problems(world) == ()


def states(world: World) -> tuple[Any, ...]:
    """Return what an adoption might change: files and bytes of a lake."""
    lake = Path(world.settings.lake)
    files = [each for each in lake.rglob("*") if each.is_file() and ".locks" not in each.parts]
    return tuple((str(each), each.stat().st_mtime_ns) for each in sorted(files))


def twice(world: World) -> None:
    """Fill a table with two rows of some keys, and one without any."""
    rows = [*ROWS, ROWS[3], ROWS[3], ROWS[4], row(None, "none", 1)]  # type: ignore[arg-type]
    delta_rs(world, rows)


def of_a_stream(world: World) -> None:
    """Fill a table as a stream of another name has."""
    table = pa.Table.from_pylist(ROWS, SCHEMA).append_column("_seq", pa.array([1] * 20, pa.int64()))
    write_deltalake(str(world.paths.data), table)


def plain(world: World) -> None:
    """Fill a table in which nothing is wrong."""
    delta_rs(world, ROWS)


def places(world: World) -> None:
    """Fill a table that shows offsets."""
    connect(world, ROWS)


def expired(world: World) -> None:
    """Let Kafka delete what was loaded, and some that was not."""
    plain(world)
    world.send(*ROWS)
    world.forget_before(0, 20)


Made = Callable[[World], None]
REFUSED: dict[str, tuple[Made, dict[str, Any], Any, str]] = {
    "doubles": (twice, {}, STARTING, r"2 keys have 5 rows together: \(id=3\), \(id=4\)"),
    "no key": (twice, {}, STARTING, "1 row lacks the key"),
    "another stream's": (of_a_stream, {}, STARTING, "_seq have values"),
    "undeclared": (plain, {"schema": "id INT, name STRING"}, STARTING, "at INT is in the table"),
    "another type": (plain, {"schema": f"{BASE[:-3]}DATE"}, STARTING, "at is INT in the table"),
    "not null": (plain, {"schema": f"{BASE}, n INT NOT NULL"}, STARTING, "n INT is new, and NOT"),
    "a partition lacks": (plain, {}, {"0": 12}, "names no offset for"),
    "no partition": (plain, {}, {**STARTING, "7": 0}, "-7 does not exist"),
    "beyond the end": (plain, {}, {"0": 13, "1": 10}, "13 lies outside of what Kafka holds, 0 to"),
    "before the start": (expired, {}, STARTING, "12 lies outside of what Kafka holds, 20 to"),
    "loaded": (places, {}, {"0": 9, "1": 10}, "9 was loaded, as __offset of partition 0 reaches 9"),
    "skipped": (places, {}, {"0": 12, "1": 10}, "the record at 10 would be lost; begin at 10"),
    "history": (plain, {"mode": "scd2", "sequence_by": ["at"]}, STARTING, "`mode: scd2`"),
    "groups": (plain, {"mode": "aggregate", "aggregates": {"n": "count(*)"}}, STARTING, "aggreg"),
    "soft": (plain, {"deletes": "soft"}, STARTING, "`deletes: soft` marks each row"),
    "partial": (plain, {"ignore_null_updates": True}, STARTING, "take what older records have"),
}


@pytest.mark.parametrize("why", REFUSED)
def test_what_would_be_wrong_is_shown_and_refused(world: World, why: str) -> None:
    """The plan names it, `--apply` does nothing, and the table stays as it was."""
    fill, declared, starting, problem = REFUSED[why]
    fill(world)
    world.declare(**declared)
    before = states(world)

    plan = plan_adoption(world.spec, world.settings, starting=json.dumps(starting))

    assert any(map(re.compile(problem).search, plan.problems)), plan.problems
    with pytest.raises(ForeignTableError, match=problem):
        adopted(world, starting)
    assert states(world) == before
