"""A row whose key an update changes stands under the new key alone, and the books say so."""

from __future__ import annotations

import json
from typing import Any, Final

import pytest
from deltalake import DeltaTable

from oncelake.ingestion.operations.erase.erase import erase
from tests.support.debezium import MISSING
from tests.support.long import twins
from tests.support.proof import find_problems, prove
from tests.support.world import World

COLUMNS: Final = "id INT NOT NULL, name STRING, text STRING, lsn BIGINT NOT NULL"
FORMAT: Final = {"type": "debezium", "columns": {"lsn": "source.lsn"}}
ORDERED: Final = {"sequence_by": ["lsn"]}
RENAMED: Final = {
    "value_schema": COLUMNS,
    "schema": COLUMNS.replace("id INT", "customer INT"),
    "keys": ["customer"],
    "select": {"customer": "id"},
}
Row = dict[str, Any]


def row(id: int, name: str, text: str | None = "t") -> Row:
    """A row of the database."""
    return {"id": id, "name": name, "text": text}


def event(op: str, lsn: int, before: Row | None, after: Row | None) -> Row:
    """One change of the database's log."""
    return {"op": op, "before": before, "after": after, "source": {"lsn": lsn}}


def run(world: World, *events: Row) -> dict[str, int]:
    """Send events to one partition, and read them; return what was counted."""
    for each in events:
        world.producer.produce(world.topic, json.dumps(each), partition=0)
    assert world.producer.flush(30) == 0
    world.run()
    counts = world.ledger[-1].counts
    return {name: counts[name] for name in ("read", "exploded") if counts.get(name)}


def there(world: World) -> list[tuple[Any, ...]]:
    """The rows that are not deleted: key, name and text."""
    rows = DeltaTable(world.paths.data.path).to_pyarrow_table().to_pylist()
    key = world.spec.keys[0]
    is_gone = {"_deleted": True, "current": False}
    return sorted(
        (each[key], each["name"], each["text"])
        for each in rows
        if not any(each.get(name) is value for name, value in is_gone.items())
    )


@pytest.mark.spark
@pytest.mark.parametrize(
    ("declared", "engine"),
    [
        ({}, "local"),
        ({"mode": "scd2", **ORDERED}, "local"),
        (RENAMED, "local"),
        *twins(
            ({"deletes": "soft", **ORDERED}, "spark"),
            ({}, "spark"),
            (ORDERED, "local"),
            (ORDERED, "spark"),
            ({"deletes": "soft"}, "local"),
            ({"mode": "scd2", **ORDERED}, "spark"),
            ({"ignore_null_updates": True}, "local"),
            ({"ignore_null_updates": True}, "spark"),
            ({"where": "name <> 'x'"}, "local"),
            ({"apply_as_deletes": "name = 'x'", **ORDERED}, "local"),
            ({"transform": "tests.support.transforms.unchanged"}, "spark"),
            ({**RENAMED, **ORDERED}, "spark"),
        ),
    ],
    ids=str,
)
def test_a_row_leaves_its_old_key(world: World, declared: Row, engine: str) -> None:
    """Moved once, moved twice in a batch, swapped by way of a third key, and sent again."""
    world.settings = world.settings.model_copy(update={"merge_engine": engine})
    world.declare(**{"schema": COLUMNS, "format": FORMAT, **declared})
    run(world, *(event("c", id, None, row(id, str(id))) for id in (1, 2, 3, 4)))
    moves = [
        event("u", 11, row(1, "1"), row(5, "one")),
        event("u", 12, {"id": 2}, row(6, "two")),
        event("u", 13, row(6, "two"), row(7, "two")),
        event("u", 14, row(3, "3"), row(9, "three")),
        event("u", 15, row(4, "4"), row(3, "four")),
        event("u", 16, row(9, "three"), row(4, "three")),
    ]

    first = run(world, *moves)
    assert first == {"read": 6, "exploded": 6}
    due = [(3, "four", "t"), (4, "three", "t"), (5, "one", "t"), (7, "two", "t")]
    assert there(world) == due
    run(world, *moves[:2], *moves)

    assert there(world) == due
    verdict = prove(world)
    assert list(map(str, verdict.differences)) == []
    assert verdict.holds


@pytest.mark.parametrize("engine", ["local", *twins("spark")])
def test_a_row_that_an_update_moves_takes_its_columns_along(world: World, engine: str) -> None:
    """What the update leaves out is of the old key's row; without one, the whole record waits."""
    world.settings = world.settings.model_copy(update={"merge_engine": engine})
    world.declare(schema=COLUMNS, format=FORMAT, **ORDERED)
    run(world, event("c", 1, None, row(1, "a", "first")), event("c", 2, None, row(2, "b", "other")))
    run(
        world,
        event("u", 11, row(1, "a"), row(3, "c", MISSING)),
        event("u", 12, row(3, "c"), row(4, "d", MISSING)),
        # The row of key 8 was never sent; key 2's stays, as does all else of the record.
        event("u", 13, row(8, "x"), row(2, "y", MISSING)),
    )
    assert there(world) == [(2, "b", "other"), (4, "d", "first")]
    assert [each["reason"] for each in world.quarantined()] == ["nothing_to_keep"]
    assert find_problems(world) == ()

    run(world, event("c", 3, None, row(8, "x", "late")))
    redriven = world.redrive()

    assert redriven.is_balanced
    assert there(world) == [(2, "y", "late"), (4, "d", "first")]
    assert find_problems(world) == ()


@pytest.mark.parametrize("engine", ["local", *twins("spark")])
@pytest.mark.parametrize(("text", "score"), [(MISSING, 1.5), ("t", "NaN")], ids=["left out", "NaN"])
def test_a_move_that_comes_again_is_the_same_move(
    world: World, engine: str, text: str, score: Any
) -> None:
    """Though the row has what its record leaves out, or a value that equals no other."""
    world.settings = world.settings.model_copy(update={"merge_engine": engine})
    world.declare(schema=f"{COLUMNS}, score DOUBLE", format=FORMAT, **ORDERED)
    move = event("u", 2, {"id": 1}, {**row(2, "a", text), "score": score})
    run(world, event("c", 1, None, {**row(1, "a"), "score": score}), move)
    run(world, move)
    assert there(world) == [(2, "a", "t")]
    run(world, event("d", 3, {"id": 2}, None))

    assert there(world) == []
    assert find_problems(world) == ()


def test_an_update_that_tells_half_of_an_old_key_waits(world: World) -> None:
    """Neither of its rows is written, and the reason names what is missing."""
    world.declare(schema=COLUMNS, format=FORMAT, keys=["id", "name"])
    run(world, event("c", 1, None, row(1, "a")))
    run(world, event("u", 2, {"id": 1}, row(2, "b")))
    (waits,) = world.quarantined()
    assert (waits["reason"], waits["detail"]) == ("moved_key", "not told of the row before: name")
    assert there(world) == [(1, "a", "t")]
    assert find_problems(world) == ()


@pytest.mark.parametrize("key", [1, 2], ids=["the old key", "the new key"])
def test_a_moved_row_is_erased_by_either_key(world: World, key: int) -> None:
    """The erase removes what its key has; the other key's rows, and the proof, stay as they are."""
    world.declare(schema=COLUMNS, format=FORMAT, **ORDERED)
    moved = event("u", 3, row(1, "a"), row(2, "b"))
    run(world, event("c", 1, None, row(1, "a")), moved)
    erase(world.spec, world.settings, key=json.dumps({"id": key}), reason="asked", run_id="r")
    run(world, event("c", 9, None, row(7, "z")))
    # What was read before is read again.
    world.rebuild()

    assert there(world) == [each for each in [(2, "b", "t"), (7, "z", "t")] if each[0] != key]
    assert find_problems(world) == ()
