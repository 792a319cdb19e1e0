"""A stream keeps its promises in any catalog: from the topic to the proof."""

from __future__ import annotations

import io

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


@only_catalogs
def test_a_rebuild_takes_the_place_of_the_table(world: World, catalog: TriedCatalog) -> None:
    """The old one has another name, and its rows."""
    fill(world)
    world.declare(schema="id INT NOT NULL, name STRING, at INT, city STRING")

    done = world.rebuild()

    assert [each["id"] for each in world.rows()] == [1, 3, 4]
    assert find_problems(world) == ()
    assert done.old.renamed is not None
    ending = done.old.renamed.removeprefix(f"{catalog.namespace}.{world.topic}")
    assert table_of(world, catalog, ending).scan().count() == 3


@only_catalogs
def test_a_rebuild_that_dies_between_its_two_renames_is_finished(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Readers find no table until the next run has given the new one its name."""
    fill(world)
    world.declare(schema="id INT NOT NULL, name STRING, at INT, city STRING")
    rename, renamed = CatalogEntry.rename, list[str]()

    def rename_once(entry: CatalogEntry, to: CatalogEntry) -> None:
        if renamed:
            raise PlannedError
        rename(entry, to)
        renamed.append(to.name)

    with monkeypatch.context() as patch:
        patch.setattr(CatalogEntry, "rename", rename_once)
        with pytest.raises(PlannedError):
            world.rebuild()
    assert not world.paths.table.log().exists

    world.run()

    assert [each["id"] for each in world.rows()] == [1, 3, 4]
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
