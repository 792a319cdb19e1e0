"""A record that gives several rows is still one record: applied once, whole or not at all."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from oncelake.ingestion.storage.failpoints import Failpoint
from oncelake.ingestion.verify.fold.transform import NOT_INDEPENDENT
from tests.modes.scenario import Scenario, reader_of
from tests.support.long import twins
from tests.support.proof import find_problems, prove
from tests.support.world import World, transactional
from tests.trials.failpoints import PlannedError, crashing_at

pytestmark = pytest.mark.spark

VALUE = "id INT NOT NULL, at INT, items ARRAY<STRUCT<sku: STRING, qty: INT>>"
LINES: dict[str, Any] = {
    "value_schema": VALUE,
    "schema": "id INT NOT NULL, at INT, sku STRING NOT NULL, qty INT",
    "explode": "items",
    "select": {"sku": "items.sku", "qty": "items.qty"},
    "keys": ["id", "sku"],
}
# Without a statement that only Spark can evaluate, so that everything is proven.
TAGS: dict[str, Any] = {
    "value_schema": "id INT NOT NULL, at INT, tag ARRAY<STRING>",
    "schema": "id INT NOT NULL, at INT, tag STRING NOT NULL",
    "explode": "tag",
}
MODES: dict[str, dict[str, Any]] = {
    "upsert": {"keys": ["tag"], "sequence_by": ["at"], "apply_as_deletes": "tag = 'gone'"},
    "offsets": {"keys": ["id", "tag"], "apply_as_deletes": "tag = 'gone'"},
    "soft": {"keys": ["tag"], "sequence_by": ["at"], "deletes": "soft"},
    "append": {"mode": "append", "keys": []},
    "insert_only": {"mode": "insert_only", "keys": ["tag"], "sequence_by": ["at"]},
    "scd2": {"mode": "scd2", "keys": ["tag"], "sequence_by": ["at"]},
    "aggregate": {
        "mode": "aggregate",
        "keys": ["tag"],
        "sequence_by": ["at"],
        "aggregates": {"n": "count(*)", "oldest": "first(id)", "newest": "last(id)"},
    },
}


def order(id: int, *items: tuple[str | None, int] | None, at: int = 1) -> dict[str, Any]:
    """One order and its lines."""
    lines = [each and {"sku": each[0], "qty": each[1]} for each in items]
    return {"id": id, "at": at, "items": lines}


def total_counts(world: World) -> dict[str, int]:
    """Return what the newest batch counted."""
    return {name: n for name, n in world.ledger[-1].counts.items() if n and name != "winners"}


@pytest.mark.kafka
def test_each_element_gives_a_row_and_the_books_know_how_many(world: World) -> None:
    """Of one record the last line of a key wins; a bad line sends the whole order to quarantine."""
    world.declare(**LINES, where="items.qty >= 0", apply_as_deletes="qty = 0")
    world.send(order(1, ("a", 1), ("b", 2), ("a", 3)), order(2), {"id": 3, "at": 1})
    world.send(order(4, ("a", 1), (None, 2), ("c", 3)), order(5, ("a", -1), ("b", 1)), b"{")
    world.send(order(6, None, ("x", 1)))
    world.run()
    assert total_counts(world) == {
        "offsets": 7, "read": 7, "exploded": 4, "inserted": 4, "superseded": 1, "filtered": 4,
        "quarantined": 2, "left_absent": 1,
    }  # fmt: skip
    world.send(order(1, ("b", 0), ("c", 9)))
    world.run()

    rows = DeltaTable(world.paths.data.path).to_pyarrow_table().to_pylist()
    assert sorted((row["id"], row["sku"], row["qty"], row["_index"]) for row in rows) == [
        (1, "a", 3, 2), (1, "c", 9, 1), (5, "b", 1, 1), (6, "x", 1, 1)
    ]  # fmt: skip
    assert total_counts(world)["exploded"] == 1
    bad = [(row["_offset"], row["reason"], row["detail"]) for row in world.quarantined()]
    assert bad[0] == (3, "missing_key", "element 1: null: sku")
    assert json.loads(world.quarantined()[0]["value"])["id"] == 4
    verdict = prove(world)
    assert (verdict.holds, verdict.limits) == (True, (NOT_INDEPENDENT,)), verdict.differences


@pytest.mark.parametrize("mode", ["append", *twins(*sorted(MODES.keys() - {"append"}))])
def test_the_table_does_not_depend_on_how_the_batches_were_cut(
    world: World, tmp_path: Path, mode: str
) -> None:
    """In every mode: few records a batch or all at once, and a run that dies behind its commit."""
    world.declare(**TAGS, **MODES[mode])
    dice = random.Random(7)
    for _ in range(12):
        id = dice.randrange(3)
        tags = [dice.choice(["a", "b", "c", "gone"]) for _ in range(dice.randrange(4))]
        tags = [*tags, None] if dice.random() < 0.1 else tags
        partition = id % 2
        world.send({"id": id, "at": dice.randrange(5), "tag": tags}, partition=partition)

    world.run()
    whole = table_of(world)
    assert find_problems(world) == ()

    slow = reading_slowly(world, tmp_path)
    with crashing_at(Failpoint.COMMITTED, 2), pytest.raises(PlannedError):
        slow.run()
    slow.run()
    assert table_of(slow) == whole
    assert find_problems(slow) == ()
    assert {row.kind for row in slow.ledger} == {"ingest"}


def test_gaps_and_overlap_are_counted_by_record(world: World) -> None:
    """Aborted records leave offsets empty; elements fill none of them."""
    world.declare(**TAGS, mode="append", keys=[])
    producer = transactional(world)
    for is_kept in (True, False, True):
        producer.begin_transaction()
        producer.produce(world.topic, b'{"id": 1, "at": 1, "tag": ["a", "b", "c"]}', partition=0)
        producer.flush(30)
        (producer.commit_transaction if is_kept else producer.abort_transaction)(30)
    world.wait_for_end(6)
    world.run()

    assert total_counts(world) == {"offsets": 6, "read": 2, "gaps": 4, "exploded": 4, "inserted": 6}
    assert find_problems(world) == ()


def test_a_function_may_leave_elements_out(world: World) -> None:
    """It is given one row an element, and returns those it keeps."""
    world.declare(**{**LINES, "select": {}}, transform="tests.support.transforms.lines")
    world.send(order(1, ("a", 1), ("b", -2)), order(2))
    world.run()

    counts = {"offsets": 2, "read": 2, "exploded": 1, "inserted": 1, "filtered": 2}
    assert total_counts(world) == counts
    assert prove(world).holds


def test_a_record_is_sent_in_again_as_a_whole(world: World) -> None:
    """One mark, all its rows."""
    world.declare(**TAGS, mode="append", keys=[])
    world.send({"id": 1, "at": 1, "tag": ["a", None, "b"]}, {"id": 2, "at": 1, "tag": ["c"]})
    world.run()
    world.declare(schema="id INT NOT NULL, at INT, tag STRING", schema_change="evolve")
    world.run()
    report = world.redrive()

    assert (report.waiting, report.redriven) == (1, 1)
    assert total_counts(world) == {"read": 1, "exploded": 2, "inserted": 3}
    assert find_problems(world) == ()


def test_a_tombstone_is_one_row(world: World) -> None:
    """Its key says which; a record of many rows and a null value are told apart."""
    world.declare(**TAGS, keys=["tag"])
    world.send({"id": 1, "at": 1, "tag": ["a", "b"]})
    world.send(None, tag="a")
    world.run()

    assert [row["tag"] for row in world.rows()] == ["b"]
    assert total_counts(world)["exploded"] == 1
    assert find_problems(world) == ()


def reading_slowly(world: World, folder: Path) -> World:
    """Return the same stream with a lake of its own, a few records a batch."""
    declared = {**world.declared, "max_offsets_per_trigger": 4}
    return reader_of(world, folder / "slow", Scenario(name="slow", declared=declared))


def table_of(world: World) -> list[tuple[Any, ...]]:
    """Read a table but for batch numbers."""
    names = [*(column.name for column in world.spec.table_columns), "_topic", "_partition"]
    found = (
        DeltaTable(world.paths.data.path).to_pyarrow_table(columns=[*names, "_offset"]).to_pylist()
    )
    return sorted((tuple(row.values()) for row in found), key=repr)
