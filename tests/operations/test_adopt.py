"""A table that another loader has filled becomes a stream's, with its rows, from offsets on."""

from __future__ import annotations

import datetime as dt
import json
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import psycopg
import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
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
    StreamLockedError,
    TableBusyError,
    TableReplacedError,
)
from oncelake.ingestion.lake.lock import held
from oncelake.ingestion.operations.alter import alter
from oncelake.ingestion.operations.audit.adopt import Adoption, adopt_table, plan_adoption
from oncelake.ingestion.operations.decisions import accept, adopt_topic
from oncelake.ingestion.operations.erase.erase import erase
from oncelake.ingestion.operations.history.rewind import rewind
from oncelake.ingestion.storage import failpoints
from oncelake.ingestion.storage.failpoints import Failpoint
from tests.audit.pipelines import catalog_of_others
from tests.support.long import twins
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


def in_partitions(world: World, rows: list[dict[str, Any]]) -> None:
    """As kafka-delta-ingest with a column that partitions the table, and marks of its offsets."""
    table, path = pa.Table.from_pylist(rows, SCHEMA), str(world.paths.data)
    marks = [Transaction(f"loader-{partition}", offset) for partition, offset in ((0, 11), (1, 9))]
    properties = CommitProperties(app_transactions=marks)
    write_deltalake(path, table, partition_by=["at"], commit_properties=properties)


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
    "partitions": in_partitions,
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


def adopted(
    world: World, starting: Any = None, *, place: Sequence[str] | None = None, **declared: Any
) -> Adoption:
    """Adopt the table."""
    world.declare(**declared)
    text = starting if isinstance(starting, str) else json.dumps(starting or STARTING)
    more: dict[str, Any] = {"starting": text, "reason": "a test", "run_id": "adopt"}
    return adopt_table(world.spec, world.settings, place=place, **more)


def plan_of(world: World, starting: Any = None, place: Sequence[str] | None = None) -> Adoption:
    """Plan to adopt the table."""
    text = json.dumps(starting or STARTING)
    return plan_adoption(world.spec, world.settings, starting=text, place=place)


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


@pytest.mark.parametrize("loader", ["connect", "pyiceberg", "copy"])
def test_an_appended_table_gets_each_later_record_once(world: World, loader: str) -> None:
    """Rows of no record are compared as a whole, by their digest, and stay."""
    world.declare(mode="append", keys=[])
    LOADERS[loader](world, ROWS)
    adopted(world, SHOWN.get(loader))
    world.send(row(1, "again", 1), row(40, "new", 1))

    report = world.run()

    again = 2 if loader in SHOWN else 0
    assert (report.total("read"), report.total("inserted")) == (2 + again, 2 + again // 2)
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


def test_the_older_row_of_a_key_stays_where_an_order_is_declared(world: World) -> None:
    """In `insert_only` an adopted row without an order is the oldest."""
    delta_rs(world, [*ROWS[:19], {**ROWS[19], "at": None}])
    adopted(world, mode="insert_only", sequence_by=["at"])
    world.send(row(1, "older", 9), row(2, "newer", 11), row(3, "same", 10), row(19, "any", -5))

    report = world.run()

    assert (report.total("stale"), report.total("updated")) == (3, 1)
    assert {n: values(world)[n] for n in (1, 2, 3, 19)} == {1: "older", 2: "n2", 3: "n3", 19: "n19"}
    assert find_problems(world) == ()


def test_a_declared_order_decides_where_a_row_has_its_columns(world: World) -> None:
    """A record that is older by it loses against the adopted row; a null there loses always."""
    delta_rs(world, [*ROWS[:19], {**ROWS[19], "at": None}])
    adopted(world, sequence_by=["at"])
    world.send(row(1, "older", 9), row(2, "newer", 11), row(3, "same", 10), row(19, "any", -5))

    report = world.run()

    assert (report.total("stale"), report.total("updated")) == (1, 3)
    assert {n: values(world)[n] for n in (1, 2, 3, 19)} == {
        1: "n1",
        2: "newer",
        3: "same",
        19: "any",
    }
    assert find_problems(world) == ()


def test_columns_of_a_loader_that_are_called_as_ours_place_no_row(world: World) -> None:
    """They lie in its columns `_topic`, `_partition` and `_offset`, and decide between no rows."""
    table = placed(ROWS, "_").append_column("_topic", pa.array(["zz"] * 20))
    write_deltalake(str(world.paths.data), table)
    world.declare(sequence_by=["at"])
    assert "offset 9 of zz-1, which does not exist" in str(plan_of(world).problems)
    adopted(world, place=())
    world.send(row(0, "same", 10), row(2, "same", 10))

    report = world.run()

    assert report.total("updated") == 2
    assert prove(world).differences == ()


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


def of_an_epoch(world: World) -> None:
    """Fill a table whose rows say an epoch, and no batch."""
    table = pa.Table.from_pylist(ROWS, SCHEMA).append_column("_epoch", pa.array([1] * 20))
    table = table.set_column(3, "_epoch", table["_epoch"].cast(pa.int32()))
    nulls = pa.nulls(20, pa.int64())
    write_deltalake(str(world.paths.data), table.append_column("_seq", nulls))


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
    "doubles": (twice, {}, STARTING, r"2 keys have several rows, 5 in all: \(id=3\), \(id=4\)"),
    "no key": (twice, {}, STARTING, "1 row lacks the key"),
    "another stream's": (of_a_stream, {}, STARTING, "_seq has values"),
    "of an epoch": (of_an_epoch, {}, STARTING, "_epoch has values"),
    "undeclared": (plain, {"schema": "id INT, name STRING"}, STARTING, "at INT is in the table"),
    "another type": (plain, {"schema": f"{BASE[:-3]}DATE"}, STARTING, "at is INT in the table"),
    "not null": (plain, {"schema": f"{BASE}, n INT NOT NULL"}, STARTING, "n INT is new, and NOT"),
    "a partition lacks": (plain, {}, {"0": 12}, "names no offset for"),
    "no partition": (plain, {}, {**STARTING, "7": 0}, "-7 does not exist"),
    "beyond the end": (plain, {}, {"0": 13, "1": 10}, "13 lies outside of what Kafka holds, 0 to"),
    "before the start": (expired, {}, STARTING, "12 lies outside of what Kafka holds, 20 to"),
    "loaded": (places, {}, {"0": 9, "1": 10}, "rows reach offset 9, so 9 was loaded: begin"),
    "skipped": (places, {}, {"0": 12, "1": 10}, "the record at 10 would be lost: begin at 10"),
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


def test_columns_that_are_no_places_of_this_topic_decide_nothing(world: World) -> None:
    """Which columns show partition and offset can be said, and that none does."""
    connect(world, ROWS)
    assert "so 9 was loaded" in str(plan_of(world, {"0": 9, "1": 10}).problems)
    assert plan_of(world, {"0": 9, "1": 10}, place=()).problems == ()
    named = plan_of(world, {"0": 9, "1": 10}, place=("at", "__offset"))
    assert f"rows show offset 9 of {world.topic}-10, which does not exist" in str(named.problems)
    with pytest.raises(InvalidSpecError, match="name,at: not two columns of whole numbers"):
        plan_of(world, place=("name", "at"))

    done = adopted(world, {"0": 9, "1": 10}, place=())

    assert [*done.starting.values()] == [9, 10]


def test_what_expired_behind_the_rows_is_kept_in_the_note(world: World) -> None:
    """Records between the rows and what Kafka holds were perhaps never loaded; the note says so."""
    connect(world, ROWS)
    world.send(*ROWS)
    world.forget_before(0, 20)

    done = adopted(world, {"0": 20, "1": 10})

    assert "no longer holds [10, 20)" in str(done.notices)
    assert "no longer holds [10, 20)" in str(world.ledger[0].adopted)
    assert adopted(world, {"0": 20, "1": 10}).notices == done.notices


def test_files_without_a_log_are_nothing_to_adopt(world: World) -> None:
    """Run and adoption say what helps, and neither sends to the other."""
    plain(world)
    (world.paths.data / "_delta_log").delete_all()

    for act in (world.run, lambda: adopted(world)):
        with pytest.raises(ForeignTableError, match=r"restore it from a backup, or make one") as no:
            act()
        assert "reset" not in str(no.value)


def test_a_table_in_the_place_of_ours_is_not_given_up_by_its_remedy(world: World) -> None:
    """To reset a stream moves the table that is there away, so that comes first, by hand."""
    world.run()
    world.paths.data.delete_all()
    plain(world)

    with pytest.raises(TableReplacedError, match="move what is in its place away, and oncelake"):
        adopted(world)


LATER: dict[str, dict[str, Any]] = {
    "soft": {"deletes": "soft"},
    "partial": {"ignore_null_updates": True},
    "debezium": {"format": "debezium"},
    "groups": {"mode": "aggregate", "aggregates": {"n": "count(*)"}},
}


@pytest.mark.parametrize("declared", LATER)
def test_what_adopted_rows_cannot_be_is_refused_later_too(world: World, declared: str) -> None:
    """A declaration that needs older records is refused by a run, and the way out works."""
    plain(world)
    adopted(world)
    changed(world)
    world.declare(**LATER[declared])

    with pytest.raises(RefusedError, match=f"oncelake rebuild {world.topic}"):
        world.run()
    world.rebuild(without_lost=True)

    assert world.run().is_balanced


def test_a_moment_stands_for_the_first_offsets_since(world: World) -> None:
    """Each partition begins with its first record of that time, or at its end."""
    plain(world)
    time.sleep(0.05)
    moment = dt.datetime.now(dt.UTC).isoformat()
    time.sleep(0.05)
    world.send(row(2, "n2b", 11))

    done = adopted(world, moment)

    assert [*done.starting.values()] == [12, 10]
    assert world.run().total("updated") == 1


WRONG_STARTS = ["[1, 2]", "yesterday", '{"0": "12", "1": 10}', "2026-11-22T10:00", "12"]


@pytest.mark.parametrize("text", WRONG_STARTS)
def test_a_start_that_is_neither_offsets_nor_a_moment_is_refused(world: World, text: str) -> None:
    """A moment needs its zone, an offset is a whole number."""
    plain(world)

    with pytest.raises(InvalidSpecError, match="is neither offsets nor a moment"):
        plan_adoption(world.spec, world.settings, starting=text)


def test_what_is_not_there_is_not_adopted(world: World) -> None:
    """No table, one without rows, one that the stream has made, and one without a reason."""
    with pytest.raises(InvalidSpecError, match="there is no table yet"):
        adopted(world)
    delta_rs(world, [])
    with pytest.raises(InvalidSpecError, match="has no row, so there is nothing to adopt"):
        adopted(world)
    world.declare(schema_change="evolve")
    world.run()
    with pytest.raises(InvalidSpecError, match="is this stream's already, and was not adopted"):
        adopted(world)
    with pytest.raises(InvalidSpecError, match="say why, in --reason"):
        adopt_table(world.spec, world.settings, starting="{}", reason=" ", run_id="adopt")


def test_without_an_adoption_a_run_is_refused_and_names_the_command(world: World) -> None:
    """Rows of others are never taken by themselves."""
    plain(world)

    with pytest.raises(ForeignTableError, match=f"oncelake adopt-table {world.topic}"):
        world.run()


def test_the_same_command_again_says_what_was_done(world: World) -> None:
    """Once adopted, neither plan nor `--apply` does anything, whatever the offsets are by then."""
    plain(world)
    first = adopted(world)
    changed(world)
    before = states(world)

    again = adopted(world, {"0": 0, "1": 0})

    assert again.row is not None
    assert first.row is not None
    assert (again.row.run_id, again.found) == (first.row.run_id, first.found)
    assert plan_adoption(world.spec, world.settings, starting="{}").starting == first.starting
    assert states(world) == before


@contextmanager
def acting_at(place: Failpoint, act: Callable[[], object]) -> Iterator[None]:
    """Let somebody else act when this process gets to a place."""

    def hook(at: Failpoint) -> None:
        if at == place:
            act()

    with patch.object(failpoints, "_hook", lambda: hook):
        yield


ANOTHER_ROW = "DELETE FROM {0} WHERE id = 3; INSERT INTO {0} (at) VALUES (1)"


@pytest.mark.parametrize("loader", ["copy"])
@pytest.mark.parametrize("change", ["UPDATE {0} SET name = 'x' WHERE id = 3", ANOTHER_ROW])
def test_a_row_that_is_changed_meanwhile_is_not_adopted_unseen(
    world: World, loader: str, change: str
) -> None:
    """In PostgreSQL, which keeps no versions, the rows are compared again under the lock."""
    LOADERS[loader](world, ROWS)

    def write() -> None:
        assert world.settings.postgres is not None
        with psycopg.connect(world.settings.postgres.get_secret_value()) as connection:
            connection.execute(change.format(world.topic))

    with acting_at(Failpoint.TABLE_CREATED, write), pytest.raises(TableBusyError):
        adopted(world)


@pytest.mark.parametrize("loader", ["delta-rs", "pyiceberg", "copy"])
def test_what_somebody_writes_meanwhile_is_not_adopted_unseen(world: World, loader: str) -> None:
    """The rows of the plan are those of the note, or nothing is committed."""
    LOADERS[loader](world, ROWS)
    extra = row(50, "meanwhile", 1)

    def write() -> None:
        if loader == "copy":
            assert world.settings.postgres is not None
            with psycopg.connect(world.settings.postgres.get_secret_value()) as connection:
                connection.execute(f"INSERT INTO {world.topic} VALUES (50, 'meanwhile', 1)")
        elif loader == "delta-rs":
            table = pa.Table.from_pylist([extra], SCHEMA)
            write_deltalake(str(world.paths.data), table, mode="append")
        else:
            found = Config().get_catalog_config("default") or {}
            with closing(load_catalog("default", **found)) as catalog:
                table = catalog.load_table(f"shop.{world.topic}")
                table.append(pa.Table.from_pylist([extra], SCHEMA))

    with acting_at(Failpoint.TABLE_CREATED, write), pytest.raises(TableBusyError):
        adopted(world)

    assert adopted(world).found["rows"] == 21
    assert prove(world).differences == ()


def test_a_stream_that_somebody_holds_is_not_adopted(world: World) -> None:
    """Two at once would both open the table; the plan needs no lock."""
    plain(world)
    with held(world.paths, "another"):
        assert plan_adoption(world.spec, world.settings, starting=json.dumps(STARTING)).found
        with pytest.raises(StreamLockedError):
            adopted(world)

    assert adopted(world).row is not None


PLACES = [Failpoint.TABLE_CREATED, Failpoint.ALTERED, Failpoint.DECIDED]


@pytest.mark.parametrize("loader", ["delta-rs", "pyiceberg", "copy"])
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("next_", ["again", "run"])
def test_an_adoption_that_died_goes_on_or_is_done(
    world: World, loader: str, place: Failpoint, next_: str
) -> None:
    """Before its commit nothing has happened; behind it, whoever comes next ends it."""
    LOADERS[loader](world, ROWS)
    with crashing_at(place), pytest.raises(PlannedError):
        adopted(world)

    if next_ == "run" and place == Failpoint.TABLE_CREATED:
        with pytest.raises(ForeignTableError):
            world.run()
    elif next_ == "run":
        world.run()

    lives_on(world, adopted(world))


def test_the_first_note_survives_its_ledger(world: World) -> None:
    """A ledger that is lost is made again, with what was found when the table was adopted."""
    plain(world)
    first = adopted(world)
    changed(world)
    world.paths.ledger.delete_all()

    world.run()

    assert world.ledger[0].adopted == first.found
    assert prove(world).differences == ()


def test_the_proof_notices_that_an_adopted_row_was_changed(world: World) -> None:
    """By whoever has put others in their place, or taken some away, and had it accepted."""
    plain(world)
    adopted(world)
    changed(world)
    table = DeltaTable(str(world.paths.data))
    table.update({"name": "'forged'"}, predicate="id = 12")
    table.delete("id = 13")

    differences = [str(each) for each in prove(world).differences]

    assert any("id=12" in each and "column name differs" in each for each in differences)
    assert any("id=13" in each and "is missing from the table" in each for each in differences)


def test_rows_whose_version_is_gone_are_compared_by_their_digest_or_counted(world: World) -> None:
    """Where none has changed, the digest proves them; else only their number, and it says so."""
    plain(world)
    adopted(world)
    world.send(row(70, "new", 1))
    world.run()
    vacuumed(world)
    assert prove(world).limits == ()
    world.send(row(1, "n1b", 11))
    world.run()
    vacuumed(world)

    verdict = prove(world)

    assert verdict.differences == ()
    assert ["19 of 20 adopted rows are left" in each for each in verdict.limits] == [True]


def test_a_forged_row_is_noticed_by_the_digest(world: World) -> None:
    """Where the version of the adoption is gone, that something differs is all that is known."""
    plain(world)
    adopted(world)
    DeltaTable(str(world.paths.data)).update({"name": "'forged'"}, predicate="id = 12")
    vacuumed(world)

    [difference] = prove(world).differences

    assert "are not those that were adopted, by their digest" in str(difference)


@pytest.mark.parametrize("loader", ["copy"])
def test_an_update_that_an_adopted_row_did_not_get_is_noticed(world: World, loader: str) -> None:
    """A row of no record, though a record of its key was read, is wrong whatever it says."""
    LOADERS[loader](world, ROWS)
    adopted(world)
    changed(world)
    assert world.settings.postgres is not None
    with psycopg.connect(world.settings.postgres.get_secret_value()) as connection:
        connection.execute(
            f"UPDATE {world.topic} SET name = 'n2', _topic = NULL, _partition = NULL, "
            "_offset = NULL, _timestamp = NULL, _epoch = NULL, _seq = NULL WHERE id = 2"
        )

    differences = [str(each) for each in prove(world).differences]

    assert any("id=2" in each and "is not the row of its newest" in each for each in differences)


def vacuumed(world: World) -> None:
    """Remove what no version but the newest holds, as others do it."""
    table = DeltaTable(str(world.paths.data))
    table.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)


@pytest.mark.parametrize("loader", ["delta-rs", "copy"])
def test_what_kafka_no_longer_holds_is_no_fault_of_an_adopted_table(
    world: World, loader: str
) -> None:
    """A delete that is gone explains why an adopted row is, and later records are not miscounted.

    Where no delete was stored, an adopted row that is gone is missed all the same.
    """
    LOADERS[loader](world, ROWS)
    adopted(world)
    changed(world)
    world.forget_before(0, 17)
    assert prove(world).differences == ()
    world.send(row(6, "n6b", 11), row(2, "n2d", 13))
    report = world.run()
    assert (report.total("inserted"), report.total("updated")) == (1, 1)

    verdict = prove(world)

    assert verdict.differences == ()
    assert any("proven from offset 17 on" in each for each in verdict.limits)
    if loader != "copy":
        DeltaTable(str(world.paths.data)).delete("id = 13")
        [missing] = (each for each in prove(world).differences if each.part == "rows")
        assert "id=13" in str(missing)


def test_a_topic_that_is_made_again_is_no_fault_of_an_adopted_table(world: World) -> None:
    """Deletes of the topic before cannot be read again, and its rows lose against any record."""
    plain(world)
    adopted(world)
    changed(world)
    world.delete_topic()
    world.create_topic()
    world.wait_for_end(0)
    world.send(row(6, "n6b", 11), row(8, "n8b", 11))
    adopt_topic(world.spec, world.settings, run_id="adopt")

    report = world.run()

    assert (report.total("inserted"), report.total("updated")) == (1, 1)
    assert prove(world).differences == ()


# The records of each batch, by partition; the adopted rows have 10 as their order.
Sent = list[tuple[int, dict[str, Any] | None]]
CONTESTED: dict[str, tuple[dict[str, Any], list[Sent], str | None]] = {
    "stale twice": (
        {"sequence_by": ["at"]},
        [[(0, row(1, "a", 8))], [(0, row(1, "b", 9))]],
        "n1",
    ),
    "a stale delete": (
        {"sequence_by": ["at"], "apply_as_deletes": "name = 'gone'"},
        [[(0, row(1, "gone", 8))], [(0, row(1, "b", 9))]],
        "n1",
    ),
    "the oldest by order": (
        {"mode": "insert_only", "sequence_by": ["at"]},
        [[(0, row(1, "a", 12))], [(0, row(1, "b", 11))]],
        "n1",
    ),
    "the first of two partitions": (
        {"mode": "insert_only"},
        [[(0, row(1, "a", 12))], [(1, row(1, "b", 11))]],
        "n1",
    ),
}


@pytest.mark.parametrize("loader", ["delta-rs", "vacuumed", "copy"])
@pytest.mark.parametrize("which", CONTESTED)
def test_a_row_that_nobody_can_read_any_more_may_have_won(
    world: World, loader: str, which: str
) -> None:
    """Where the adopted rows are not known, what a record lost against is not held against it."""
    declared, batches, name = CONTESTED[which]
    {**LOADERS, "vacuumed": delta_rs}[loader](world, ROWS)
    adopted(world, **declared)
    for batch in [*batches, [(0, row(2, "n2b", 9 if "mode" in declared else 11))]]:
        for partition, record in batch:
            world.send(record, partition=partition)
        world.run()
    if loader == "vacuumed":
        vacuumed(world)

    verdict = prove(world)

    assert values(world)[1] == name
    assert verdict.differences == ()


@pytest.mark.parametrize("is_known", [True, False])
@pytest.mark.parametrize("change", ["delete", "update", "insert"])
@pytest.mark.parametrize("mode", ["upsert", "append"])
def test_what_somebody_accepted_of_adopted_rows_is_not_judged(
    world: World, change: str, mode: str, *, is_known: bool
) -> None:
    """A person took them as they were, and later records are proven again."""
    if mode == "append":
        world.declare(mode="append", keys=[])
    plain(world)
    adopted(world)
    table = DeltaTable(str(world.paths.data))
    if change == "delete":
        table.delete("id in (12, 14)")
    elif change == "update":
        table.update({"name": "'x'"}, predicate="id > 11")
    else:
        rows = [{**row(50, "x", 1), "_seq": None}]
        columns = pa.schema(table.schema().to_arrow())
        write_deltalake(table, pa.Table.from_pylist(rows, columns), mode="append")
    accept(world.spec, world.settings, reason="it was meant", run_id="me")
    if not is_known:
        vacuumed(world)
    world.send(row(12, "n12b", 11), row(13, "n13b", 11))
    world.run()

    assert prove(world).differences == ()


@pytest.mark.parametrize("loader", ["delta-rs", "pyiceberg", "copy"])
def test_an_adopted_row_is_erased_as_any_other(world: World, loader: str) -> None:
    """It has no record, and its key is found all the same."""
    LOADERS[loader](world, ROWS)
    adopted(world)
    changed(world)

    erase(world.spec, world.settings, key='{"id": 11}', reason="a test", run_id="erase")

    assert 11 not in values(world)
    assert prove(world).differences == ()
    world.send(row(1, "n1b", 20))
    assert world.run().total("updated") == 1
    assert prove(world).differences == ()


@pytest.mark.parametrize("loader", ["delta-rs", "pyiceberg"])
def test_a_rewind_goes_back_to_the_rows_that_were_adopted(world: World, loader: str) -> None:
    """And the records behind the stated offsets are read again."""
    LOADERS[loader](world, ROWS)
    adopted(world)
    changed(world)

    rewind(world.spec, world.settings, to="seq:0", reason="a test", run_id="rewind")

    assert values(world) == {n: f"n{n}" for n in range(20)}
    assert prove(world).differences == ()
    world.run()
    assert values(world) == AFTER
    assert find_problems(world) == ()


def test_an_adopted_table_is_altered_as_any_other(world: World) -> None:
    """Values of no record get the new name, too; then their digest is of other columns."""
    plain(world)
    adopted(world)
    changed(world)
    world.declare(schema="id INT NOT NULL, title STRING, at INT", renamed_from={"title": "name"})

    alter(world.spec, world.settings, drops=(), run_id="alter")

    assert {each["id"]: each["title"] for each in world.rows()} == AFTER
    verdict = prove(world)
    assert verdict.differences == ()
    assert "no longer provable" in str(verdict.limits)


def test_a_rebuild_would_lose_what_was_adopted(world: World) -> None:
    """The topic does not tell of it: refused, unless it is said that it may be left out."""
    plain(world)
    adopted(world)
    changed(world)

    with pytest.raises(OffsetsExpiredError, match="20 rows were adopted with the table"):
        world.rebuild()
    world.rebuild(without_lost=True)

    assert {*values(world)} == {2, 3, 4, 30}


def test_records_that_wait_are_redriven_into_an_adopted_table(world: World) -> None:
    """A record that was put aside wins over the row of its key when it is sent in again."""
    plain(world)
    adopted(world)
    world.send({"id": 5, "name": "n5b", "at": 2**40})
    world.run()
    world.declare(schema=f"{BASE[:-3]}BIGINT", schema_change="evolve")

    assert world.redrive().redriven == 1

    assert values(world)[5] == "n5b"
    assert prove(world).differences == ()


def test_the_command_shows_a_plan_and_applies_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without `--apply` nothing is written; what is refused exits with 3."""
    connect(world, ROWS)
    world.write_declaration()
    world.set_environment(monkeypatch)
    before, shell = states(world), CliRunner()
    command = ["adopt-table", world.topic, "--starting"]

    wrong = shell.invoke(app, [*command, json.dumps(STARTING)])
    plan = shell.invoke(app, [*command, json.dumps(ENDING)])

    assert (wrong.exit_code, plan.exit_code) == (3, 0)
    columns = ("__partition,__offset", "none")
    said = [
        shell.invoke(app, [*command, json.dumps(STARTING), "--offset-columns", c]) for c in columns
    ]
    assert [each.exit_code for each in said] == [3, 0]
    assert "cannot be adopted so" in wrong.output
    assert "+ _seq: BIGINT is new" in plan.output
    assert "Next: the same command with --apply" in plan.output
    assert states(world) == before
    apply = [*command, json.dumps(ENDING), "--apply", "--reason", "a test"]
    done = shell.invoke(app, apply)
    document = json.loads(shell.invoke(app, [*apply, "--json"]).stdout)
    assert done.exit_code == 0, done.output
    assert "was adopted (Delta version" in done.output
    assert (document["found"]["rows"], document["kind"], document["seq"]) == (20, "adopt", 0)
    assert shell.invoke(app, ["run", world.topic]).exit_code == 0
    proven = shell.invoke(app, ["verify", world.topic])
    assert "20 of which are left" in proven.output
    assert "adopt" in shell.invoke(app, ["history", world.topic]).output
    assert "adopt" in shell.invoke(app, ["ledger", world.topic]).output
