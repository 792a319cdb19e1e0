"""A schema that the registry learns late: what waited for it comes into its table, once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from io import BytesIO
from typing import Any

import pytest
from fastavro import schemaless_writer

from tests.operations.test_routes import Shop, rows_of
from tests.support.long import twins
from tests.support.proof import find_problems, prove
from tests.support.registry import framed
from tests.support.small_registry import SmallRegistry, small_registry
from tests.support.world import World


def schema(name: str, *more: Mapping[str, Any]) -> dict[str, Any]:
    """Return a schema of Avro with an id, and more fields."""
    fields = [{"name": "id", "type": "long"}, *more]
    return {"type": "record", "name": name, "namespace": "shop", "fields": fields}


def written(number: int, of: dict[str, Any], **values: Any) -> bytes:
    """Write a record by a schema whose id the registry need not know."""
    payload = BytesIO()
    schemaless_writer(payload, of, values)
    return framed(number, payload.getvalue())


ORDER, CLICK = schema("Order"), schema("Click")
NOTE = {"name": "note", "type": ["null", "string"], "default": None}
ROW: dict[str, Any] = {"id": 1, "at": {"id": 2}}
COLUMNS: dict[str, Any] = {"schema": "id BIGINT NOT NULL", "keys": ["id"]}
TABLES: dict[str, Any] = {
    "orders": {"when": "shop.Order", **COLUMNS},
    "payments": {"when": "shop.Payment", **COLUMNS},
    "clicks": {"when": "shop.Click", "schema": "id BIGINT", "mode": "append", "keys": []},
}


@pytest.fixture
def registry(world: World) -> Iterator[SmallRegistry]:
    """A registry without schemas, which the world's streams ask."""
    with small_registry() as found:
        world.settings = world.settings.model_copy(update={"schema_registry": found.address})
        yield found


@pytest.fixture
def late(registry: SmallRegistry) -> int:
    """The id that a schema will get which is not registered yet."""
    registry.add(ORDER)
    return 2


def rows_in(shop: Shop) -> dict[str, list[Any]]:
    """Return the ids of each table."""
    return {table: [row["id"] for row in rows_of(each)] for table, each in shop.streams.items()}


@pytest.mark.parametrize("otherwise", ["quarantine", "clicks", *twins("ignore")])
def test_a_routed_record_waits_for_its_schema_in_each_table(
    world: World, registry: SmallRegistry, late: int, otherwise: str
) -> None:
    """It may be of any; a redrive of each puts it into its own, and leaves it to no other."""
    shop = Shop(world, route_by="_schema", format="avro", tables=TABLES, otherwise=otherwise)
    world.send(written(1, ORDER, id=1), *[written(late, CLICK, id=i) for i in (2, 3)])
    shop.run_together()
    waiting = {table: len(each.quarantined()) for table, each in shop.streams.items()}
    before = [prove(each) for each in shop.streams.values()]

    assert registry.add(CLICK) == late
    between = [prove(each) for each in shop.streams.values()]
    shop.streams["clicks"].redrive()
    alone = [prove(each) for each in shop.streams.values()]
    for each in shop.streams.values():
        each.redrive()
    replayed = shop.streams["clicks"].replay()

    assert waiting == dict.fromkeys(TABLES, 2)
    assert {verdict.total for verdict in (*before, *between, *alone)} == {0}
    assert {len(verdict.limits) for verdict in before} == {0}
    assert {len(verdict.limits) for verdict in between} == {1}
    assert {verdict.equation for verdict in before} == {
        f"routes: 3 records = {world.topic}_orders 1 + schema_unknown 2"
    }
    assert rows_in(shop) == {"orders": [1], "payments": [], "clicks": [2, 3]}
    assert [counts[0] for counts in shop.counts("schema_unknown").values()] == [2, 2, 2]
    assert replayed.total("inserted") == 0
    assert shop.problems() == []


@pytest.mark.parametrize("kind", ["Click", "Other"])
def test_a_stream_that_reads_later_may_know_the_schema(
    world: World, registry: SmallRegistry, late: int, kind: str
) -> None:
    """What its siblings have put aside it takes, or leaves out; the sums across them hold."""
    shop = Shop(world, route_by="_schema", format="avro", tables=TABLES, otherwise="ignore")
    world.send(written(1, ORDER, id=1), written(late, CLICK, id=2))
    shop.run_together("orders", "payments")
    registry.add({**CLICK, "name": kind})
    shop.streams["clicks"].run()
    between = [prove(each).total for each in shop.streams.values()]

    for table in ("orders", "payments"):
        shop.streams[table].redrive()

    assert rows_in(shop)["clicks"] == [2] * (kind == "Click")
    assert between == [0, 0, 0]
    assert shop.problems() == []


@pytest.mark.parametrize("engine", ["local", *twins("spark")])
def test_a_route_in_a_field_waits_for_the_schema_of_its_record(
    world: World, registry: SmallRegistry, late: int, engine: str
) -> None:
    """A field is read by the schema, too; deletes and null values have no part in it."""
    world.settings = world.settings.model_copy(update={"merge_engine": engine})
    kind = {"name": "kind", "type": "string"}
    tables = {table: {**fields, "when": table} for table, fields in TABLES.items()}
    shop = Shop(world, route_by="kind", format="avro", tables=tables)
    text = schema("Event", kind)
    world.send(written(late, text, id=1, kind="orders"), written(late, text, id=7, kind="views"))
    world.send(None, b"no frame", id=5)
    shop.run_together()

    assert registry.add(text) == late
    for each in shop.streams.values():
        each.redrive()

    assert rows_in(shop) == {"orders": [1], "payments": [], "clicks": []}
    (left,) = [row for row in shop.streams["orders"].quarantined() if row["_offset"] == 1]
    assert left["reason"] == "unknown_schema_id"
    assert shop.problems() == []


def test_columns_come_with_what_is_redriven(
    world: World, registry: SmallRegistry, late: int
) -> None:
    """A stream that follows its schemas gets the late one's column before its record."""
    world.declare(format="avro", schema="id BIGINT NOT NULL", keys=["id"])
    world.declare(schema_from={"kind": "registry"}, schema_change="evolve", on_new_field="evolve")
    world.send(written(1, ORDER, id=1), written(late, schema("Order", NOTE), id=2, note="late"))
    world.run()
    (waited,) = world.quarantined()
    registry.add(schema("Order", NOTE))
    between = prove(world)

    report = world.redrive()

    assert waited["reason"] == "unknown_schema_id"
    assert between.holds
    assert report.redriven == 1
    names = ["id", "note"]
    rows = [row for each in world.paths.table.scan(names) for row in each.to_pylist()]
    assert {row["id"]: row["note"] for row in rows} == {1: None, 2: "late"}
    assert find_problems(world) == ()


def test_a_record_waits_for_what_its_schema_refers_to(
    world: World, registry: SmallRegistry
) -> None:
    """The proof knows why it waits, before the reference is back and after."""
    world.declare(format="avro", schema="id BIGINT NOT NULL", keys=["id"])
    place = ("place", "place", 1)
    number = registry.add(schema("Order", {"name": "at", "type": "shop.Place"}), references=[place])
    world.send(written(number, schema("Order", {"name": "at", "type": schema("Place")}), **ROW))
    world.run()
    (waited,) = world.quarantined()
    before = prove(world)
    registry.add(schema("Place"), at=("place", 1))
    between = prove(world)

    report = world.redrive()

    assert waited["reason"] == "unknown_schema_id"
    assert (before.holds, before.limits) == (True, ())
    assert (between.holds, len(between.limits)) == (True, 1)
    assert report.redriven == 1
    assert find_problems(world) == ()


def test_a_routed_record_waits_for_what_its_schema_refers_to(
    world: World, registry: SmallRegistry
) -> None:
    """Its name is not read before the schema is whole, so each table has it until then."""
    shop = Shop(world, route_by="_schema", format="avro", tables=TABLES, otherwise="ignore")
    place = ("place", "place", 1)
    number = registry.add(schema("Click", {"name": "at", "type": "shop.Place"}), references=[place])
    world.send(written(number, schema("Click", {"name": "at", "type": schema("Place")}), **ROW))
    shop.run_together()
    before = shop.problems()
    registry.add(schema("Place"), at=("place", 1))
    between = [prove(each).total for each in shop.streams.values()]

    for each in shop.streams.values():
        each.redrive()

    assert (before, between) == ([], [0, 0, 0])
    assert rows_in(shop) == {"orders": [], "payments": [], "clicks": [1]}
    assert shop.problems() == []
