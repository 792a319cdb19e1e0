"""A row that is a table's no longer leaves it, and a moved row takes no other, by every engine."""

from __future__ import annotations

from typing import Any, Final

import pytest

from tests.operations.test_routes import Shop
from tests.support.long import twins
from tests.support.proof import find_problems
from tests.support.world import World

REAL: Final = [pytest.mark.spark, pytest.mark.kafka]
ENGINES: Final = [
    pytest.param("local", id="in memory"),
    *twins(*(pytest.param(engine, id=engine, marks=REAL) for engine in ("spark", "local"))),
]
HARD: Final[dict[str, Any]] = {}
ORDERED: Final = {"sequence_by": ["at"]}
BY_LSN: Final[dict[str, Any]] = {"sequence_by": ["lsn"]}
SOFT: Final = {"deletes": "soft"}
HISTORY: Final = {"mode": "scd2", **ORDERED}
CHANGES: Final = {
    "schema": "id INT NOT NULL, name STRING, lsn BIGINT NOT NULL",
    "format": {"type": "debezium", "columns": {"lsn": "source.lsn"}},
}
Row = dict[str, Any]
engines = pytest.mark.parametrize("engine", ENGINES)


def by(engine: str, world: World) -> World:
    """Let an engine write the table."""
    world.settings = world.settings.model_copy(update={"merge_engine": engine})
    return world


def told(world: World) -> dict[str, int]:
    """What the newest batch counted of records that are left out."""
    names = ("read", "exploded", "filtered", "deleted", "left_absent", "rows_left", "superseded")
    return {name: n for name in names if (n := world.ledger[-1].counts.get(name))}


def there(world: World, *names: str) -> list[tuple[Any, ...]]:
    """Read columns of the rows that are there now."""
    columns = {column.name for column in world.paths.table.columns()}
    of_state = [name for name in ("current", "_deleted") if name in columns]
    rows = [r for each in world.paths.table.scan([*names, *of_state]) for r in each.to_pylist()]
    is_there = {"current": True, "_deleted": False}
    return sorted(
        tuple(row[name] for name in names)
        for row in rows
        if all(row[name] is is_there[name] for name in of_state)
    )


def row(id: int, name: str, **more: Any) -> Row:
    """A row of the database."""
    return {"id": id, "name": name, **more}


def event(op: str, lsn: int, before: Row | None, after: Row | None) -> Row:
    """One change of the database's log."""
    return {"op": op, "before": before, "after": after, "source": {"lsn": lsn}}


# Spark alone can say what a condition means.
@pytest.mark.spark
@pytest.mark.parametrize(
    ("declared", "engine"),
    [
        *((HARD, "local"), (HISTORY, "local"), (SOFT, "local")),
        *twins((HARD, "spark"), (HISTORY, "spark"), (SOFT, "spark")),
        *twins((ORDERED, "spark"), (ORDERED, "local"), ({**SOFT, **ORDERED}, "spark")),
    ],
    ids=str,
)
def test_a_row_that_where_leaves_out_is_gone(world: World, declared: Row, engine: str) -> None:
    """Within its batch, in the next one, and where it never was; it may come back."""
    by(engine, world).declare(where="name <> 'shut'", **declared)
    world.send(row(1, "a", at=1), row(2, "b", at=1), row(3, "c", at=1), row(3, "shut", at=2))
    world.run()
    assert there(world, "id", "name") == [(1, "a"), (2, "b")]

    # Without a key nothing leaves, and a name that is null is not known to pass.
    no_key = {"name": "shut", "at": 3}
    world.send(row(1, "shut", at=3), {"id": 2, "at": 3}, row(9, "shut", at=3), no_key)
    world.run()
    removed = {"rows_left": 2} if "deletes" in declared else {}
    due = {"read": 4, "exploded": 2, "filtered": 4, "deleted": 2, "left_absent": 1, **removed}
    assert told(world) == due
    assert there(world, "id") == []

    world.send(row(1, "again", at=4))
    world.run()
    assert there(world, "id", "name") == [(1, "again")]
    assert find_problems(world) == ()


@pytest.mark.spark
@pytest.mark.parametrize("engine", ["local", *twins("spark")])
def test_a_partial_update_that_does_not_say_leaves_the_row(world: World, engine: str) -> None:
    """Only an answer of false lets it leave."""
    by(engine, world).declare(where="name <> 'shut'", ignore_null_updates=True)
    world.send(row(1, "a", at=1), row(2, "b", at=1))
    world.run()
    world.send({"id": 1, "at": 2}, row(2, "shut", at=2))
    world.run()

    assert there(world, "id", "at") == [(1, 1)]
    assert find_problems(world) == ()


@pytest.mark.parametrize(
    ("engine", "declared", "cut"),
    [
        *(("local", declared, cut) for declared in ({}, BY_LSN) for cut in (3, 4)),
        *twins(*(pytest.param(engine, {}, 3, marks=REAL) for engine in ("spark", "local"))),
        *twins(pytest.param("spark", BY_LSN, 4, marks=REAL)),
    ],
)
def test_keys_that_rows_take_from_each_other(
    world: World, declared: Row, cut: int, engine: str
) -> None:
    """In a chain to a free key, and in a swap: a delete takes the row that it tells of."""
    by(engine, world).declare(**CHANGES, **declared)
    rows = {id: row(id, f"of {id}") for id in (1, 2, 3, 7, 8)}
    world.send(*(event("c", id, None, each) for id, each in rows.items()))
    world.run()
    moves = [(1, 2), (7, 8), (2, 3), (8, 7), (3, 4)]
    changes = [
        event("u", 10 + at, rows[old], {**rows[old], "id": new})
        for at, (old, new) in enumerate(moves)
    ]
    first, second = (changes, []) if cut == 3 else (changes[:2], changes[2:])
    world.send(*first)
    world.run()
    world.send(*second)
    world.run()

    assert there(world, "id", "name") == [
        (2, "of 1"), (3, "of 2"), (4, "of 3"), (7, "of 8"), (8, "of 7")
    ]  # fmt: skip
    assert find_problems(world) == ()


@engines
def test_a_move_that_tells_only_keys_waits(world: World, engine: str) -> None:
    """Which of two rows leaves the key is not known, so the record is in quarantine."""
    by(engine, world).declare(**CHANGES, sequence_by=["lsn"])
    world.send(*(event("c", id, None, row(id, f"of {id}")) for id in (1, 2)))
    world.send(event("u", 11, {"id": 1}, row(2, "of 1")), event("u", 12, {"id": 2}, row(3, "of 2")))
    world.run()

    assert [each["reason"] for each in world.quarantined()] == ["moved_key"]
    assert there(world, "id", "name") == [(2, "of 1")]
    assert find_problems(world) == ()


@engines
def test_a_row_whose_route_changes_leaves_its_table(world: World, engine: str) -> None:
    """The table of its old route loses it; each counts the change once."""
    columns = {"schema": "id INT NOT NULL, kind STRING", "keys": ["id"]}
    tables = {"open": columns, "shut": {**columns, "deletes": "soft"}}
    shop = Shop(
        by(engine, world), route_by="kind", tables=tables, format="debezium", otherwise="ignore"
    )
    rows = [{"id": id, "kind": kind} for id, kind in ((1, "open"), (2, "open"), (3, "shut"))]
    world.send(*(event("c", at, None, each) for at, each in enumerate(rows)))
    for stream in shop.streams.values():
        stream.run()
    world.send(event("u", 11, rows[0], {"id": 1, "kind": "shut"}))
    world.send(event("u", 12, rows[2], {"id": 3, "kind": None}))
    for stream in shop.streams.values():
        stream.run()

    assert there(shop.streams["open"], "id") == [(2,)]
    assert there(shop.streams["shut"], "id") == [(1,)]
    assert shop.problems() == []
