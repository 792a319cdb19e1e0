"""A stream keeps its promises in any catalog: from the topic to the proof."""

from __future__ import annotations

import io
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import fastavro
import pyarrow.parquet as pq
import pytest
from pyiceberg.table import Table

from oncelake.ingestion.errors import TableAlteredError
from oncelake.ingestion.operations.alter import alter
from oncelake.ingestion.operations.decisions import reset
from oncelake.ingestion.operations.erase.erase import erase
from oncelake.ingestion.operations.history.rewind import rewind
from oncelake.ingestion.operations.upkeep.maintain import maintain
from oncelake.ingestion.sinks.iceberg.catalog import CatalogEntry
from oncelake.ingestion.sinks.iceberg.files import files_in_folder
from oncelake.ingestion.storage.failpoints import Failpoint
from tests.support.catalogs import TriedCatalog, only_catalogs
from tests.support.gate import publish, withheld_by
from tests.support.proof import find_problems
from tests.support.world import World, row
from tests.trials.failpoints import PlannedError, crashing_at

PERSON = "Ada Lovelace"


def fill(world: World) -> None:
    """Insert, change and delete rows, by two runs."""
    world.send(row(1, "a"), row(2, "b"), b"not JSON")
    world.send(row(3, "c"), partition=1)
    world.run()
    world.send(row(1, "A"), None, id=2)
    world.send(row(4, PERSON), partition=1)
    world.run()


FILLED = [row(1, "A"), row(3, "c"), row(4, PERSON)]


def table_of(world: World, catalog: TriedCatalog, ending: str = "") -> Table:
    """Load the table as somebody else does, who reads it."""
    with catalog.table(f"{world.topic}{ending}") as table:
        return table


def test_a_stream_is_written_and_proven(world: World, catalog: TriedCatalog) -> None:
    """Rows are added, changed and deleted by several runs, and somebody else reads them."""
    fill(world)

    assert world.rows() == FILLED
    assert find_problems(world) == ()
    names = table_of(world, catalog).scan().to_arrow().sort_by("id")["name"]
    assert names.to_pylist() == ["A", "c", PERSON]


@only_catalogs
@pytest.mark.parametrize("place", [Failpoint.PREPARED, Failpoint.COMMITTED])
def test_a_run_that_ends_around_its_commit_is_finished_by_the_next(
    world: World, place: Failpoint
) -> None:
    """What it committed counts, and what it did not is read again."""
    fill(world)
    world.send(row(5, "e"), b"not JSON")
    with crashing_at(place), pytest.raises(PlannedError):
        world.run()

    world.run()

    assert world.rows() == [*FILLED, row(5, "e")]
    assert find_problems(world) == ()


def test_a_rebuild_takes_the_place_of_the_table(world: World, catalog: TriedCatalog) -> None:
    """Readers find the old rows, and then the new ones; a run goes on meanwhile."""
    fill_with_cities(world)
    before, runs = replace(world, declared={**world.declared}), [with_city(7, "m")]
    declare_another(world)

    def run_once(*_: object) -> None:
        if runs:
            world.send(runs.pop())
            before.run()

    with reading_on_and_on(world, catalog) as found:
        done = world.rebuild(on_batch=run_once)

    old = {"A", "c", PERSON}
    assert [*dict.fromkeys(found)] == [frozenset(old), frozenset({*old, "m"}), NEW | {"m!"}]
    assert [each["id"] for each in world.rows()] == [1, 3, 4, 7]
    assert find_problems(world) == ()
    table = table_of(world, catalog)
    assert [field.name for field in table.spec().fields] == ["city_trunc_1"]
    assert table.schema().find_field("at").field_id > len(world.spec.columns)
    tag = str(done.old.renamed).partition(".tag_")[2]
    assert {*table.metadata.refs} == {"main", tag}
    kept = table.scan(snapshot_id=table.metadata.refs[tag].snapshot_id).to_arrow()
    assert {*kept["name"].to_pylist()} == {*old, "m"}


NEW = frozenset({"A!", "c!", f"{PERSON}!"})


def with_city(id_: int, name: str) -> dict[str, Any]:
    """Return a record with a field that is not declared at first."""
    return {**row(id_, name), "city": f"{name}!"}


def fill_with_cities(world: World) -> None:
    """Insert, change and delete rows, by two runs."""
    world.send(with_city(1, "a"), with_city(2, "b"), b"not JSON", with_city(3, "c"))
    world.run()
    world.send(with_city(1, "A"), None, id=2)
    world.send(with_city(4, PERSON), partition=1)
    world.run()


def declare_another(world: World) -> None:
    """Declare another type, a column that was left out, partitions and an order."""
    world.declare(
        schema="id INT NOT NULL, name STRING, at BIGINT, city STRING",
        partition_by=["truncate(1, city)"],
        sort_by=["at"],
    )


def texts_of(table: Table) -> frozenset[str]:
    """Return the new column's values, or, where there is none, the old one's."""
    rows = table.scan().to_arrow()
    return frozenset(rows["city" if "city" in rows.column_names else "name"].to_pylist())


@contextmanager
def reading_on_and_on(world: World, catalog: TriedCatalog) -> Iterator[list[frozenset[str]]]:
    """Let somebody else read the table without a pause; collect what they find."""
    found, is_done = list[frozenset[str]](), threading.Event()

    def read() -> None:
        is_last = False
        while not is_last:
            is_last = is_done.is_set()
            found.append(texts_of(table_of(world, catalog)))

    with ThreadPoolExecutor() as threads:
        reader = threads.submit(read)
        try:
            yield found
        finally:
            is_done.set()
        reader.result()


@only_catalogs
@pytest.mark.parametrize("is_committed", [False, True], ids=["before", "behind"])
def test_a_rebuild_that_dies_at_its_swap_is_finished(
    world: World, catalog: TriedCatalog, monkeypatch: pytest.MonkeyPatch, is_committed: bool
) -> None:
    """By the next run; until then readers find the old rows, or the new ones."""
    fill_with_cities(world)
    declare_another(world)
    commit = CatalogEntry.commit

    def die_at_swap(entry: CatalogEntry, table: Any, updates: Any, *given: Any) -> None:
        is_swap = any(getattr(each, "type", "") == "tag" for each in updates)
        if is_committed or not is_swap:
            commit(entry, table, updates, *given)
        if is_swap:
            raise PlannedError

    with monkeypatch.context() as patch:
        patch.setattr(CatalogEntry, "commit", die_at_swap)
        with pytest.raises(PlannedError):
            world.rebuild()
    shown = texts_of(table_of(world, catalog))
    assert shown == (NEW if is_committed else {"A", "c", PERSON})

    world.run()

    assert {each["city"] for each in world.rows()} == NEW
    assert find_problems(world) == ()


@only_catalogs
def test_a_stream_that_is_reset_begins_anew(world: World) -> None:
    """Its table has another name, and all is read again."""
    fill(world)
    before = world.paths.table.log().table_id()
    reset(world.name, world.settings, reason="a test", run_id="r")

    world.run()

    assert world.rows() == FILLED
    assert world.paths.table.log().table_id() != before
    assert find_problems(world) == ()


@only_catalogs
def test_a_stream_is_rewound_and_goes_on(world: World) -> None:
    """To the rows of an earlier batch; what came behind it is read again."""
    fill(world)
    rewind(world.spec, world.settings, to="seq:1", reason="a test", run_id="r")
    assert world.rows() == [row(1, "a"), row(2, "b"), row(3, "c")]

    world.run()

    assert world.rows() == FILLED
    assert find_problems(world) == ()


@only_catalogs
def test_what_is_erased_is_in_no_file(world: World, catalog: TriedCatalog) -> None:
    """Neither in data files nor in manifests, also of older snapshots."""
    fill(world)
    assert traces(table_of(world, catalog))

    erase(world.spec, world.settings, key='{"id": 4}', reason="asked", run_id="e")

    assert traces(table_of(world, catalog)) == []
    assert world.rows() == FILLED[:2]


def traces(table: Table) -> list[str]:
    """Name the files in the table's folder that have the person in them."""
    found = []
    for path, _ in files_in_folder(table):
        with table.io.new_input(path).open() as file:
            content = file.read()
        if path.endswith(".parquet"):
            content = repr(pq.read_table(io.BytesIO(content)).to_pylist()).encode()
        elif path.endswith(".avro"):
            content = repr([*fastavro.reader(io.BytesIO(content))]).encode()
        if PERSON.encode() in content:
            found.append(path)
    return found


@only_catalogs
def test_upkeep_changes_no_row(world: World, catalog: TriedCatalog) -> None:
    """Small files are put together; a table that was set aside keeps its own."""
    fill(world)
    reset(world.name, world.settings, reason="a test", run_id="r")
    fill(world)
    world.send(row(5, "e"))
    world.run()

    done = maintain(world.spec, world.settings, run_id="m")

    assert done is not None
    assert len(table_of(world, catalog).inspect.files()) == 1
    assert [each["id"] for each in world.rows()] == [1, 3, 4, 5]
    with catalog.opened() as other:
        [aside] = [
            each for each in other.list_tables(catalog.namespace) if f"{world.topic}__" in each[1]
        ]
        assert other.load_table(aside).scan().to_arrow().num_rows == 3
    assert find_problems(world) == ()


@only_catalogs
def test_a_branch_shows_what_is_withheld(world: World, catalog: TriedCatalog) -> None:
    """It is made, and removed when the batch is published."""
    rule = {"rule": "name IS NOT NULL", "on_miss": "refuse"}
    world.declare(publish={"branch": "audit"}, expect={"named": rule})
    world.send(row(1, "a"))
    world.run()
    world.send(row(2, None))

    assert withheld_by(world) == ["expect.named"]

    table = table_of(world, catalog)
    shown = table.scan(snapshot_id=table.metadata.refs["audit"].snapshot_id).to_arrow()
    assert (shown.num_rows, table.scan().to_arrow().num_rows) == (2, 1)
    publish(world)
    assert "audit" not in table_of(world, catalog).metadata.refs
    assert world.rows() == [row(1, "a"), row(2, None)]


@only_catalogs
def test_columns_follow_the_schema(world: World, catalog: TriedCatalog) -> None:
    """A column is added, and another gets a wider type."""
    fill(world)
    world.declare(
        schema="id INT NOT NULL, name STRING, at BIGINT, city STRING", schema_change="evolve"
    )
    world.send({**row(5, "e", 2**40), "city": "Rome"})

    world.run()

    types = {
        field.name: str(field.field_type) for field in table_of(world, catalog).schema().fields
    }
    assert (types["at"], types["city"]) == ("long", "string")
    assert world.rows()[-1] == {"id": 5, "name": "e", "at": 2**40, "city": "Rome"}


@only_catalogs
def test_a_sorted_table_gets_another_order(world: World, catalog: TriedCatalog) -> None:
    """The catalog keeps both orders, and files name the one that they are in."""
    world.declare(sort_by=["name"])
    fill(world)
    world.declare(sort_by=["at", "id"])
    alter(world.spec, world.settings, drops=(), run_id="a")
    world.send(row(5, "e"), row(6, None))
    world.run()

    table = table_of(world, catalog)
    named = {task.file.sort_order_id for task in table.scan().plan_files()}
    orders = {each.order_id: len(each.fields) for each in table.metadata.sort_orders}
    assert named == {id_ for id_, fields in orders.items() if fields}
    assert len(named) == 2
    assert orders[table.metadata.default_sort_order_id] == 2
    assert world.rows() == [*FILLED, row(5, "e"), row(6, None)]
    assert find_problems(world) == ()


@only_catalogs
def test_rows_that_somebody_else_appends_are_told(world: World, catalog: TriedCatalog) -> None:
    """They stay until a person decides."""
    fill(world)
    with catalog.table(world.topic) as table:
        table.append(table.scan().to_arrow().slice(0, 1))
    world.send(row(9, "i"))

    with pytest.raises(TableAlteredError, match="somebody else changed the table's rows"):
        world.run()

    assert table_of(world, catalog).scan().count() == 4
