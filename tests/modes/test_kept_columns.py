"""What a database left out of an update because it had not changed is what the row held."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator
from typing import Any, Final

import pytest
from deltalake import DeltaTable

from oncelake.ingestion.errors import NotReplayableError
from oncelake.ingestion.operations.erase.erase import erase
from tests.support.debezium import MISSING
from tests.support.long import twins
from tests.support.proof import find_problems, prove
from tests.support.world import World

COLUMNS: Final = (
    "id INT NOT NULL, name STRING, text STRING NOT NULL, tags ARRAY<STRING>, lsn BIGINT NOT NULL"
)
FORMAT: Final = {"type": "debezium", "columns": {"lsn": "source.lsn"}}
KEPT: Final = ("text", "tags")
HEADERS: Final = ("__debezium.oldkey", "__debezium.newkey")
OLD_KEY, NEW_KEY = HEADERS
Row = dict[str, Any]


def event(op: str, lsn: int, row: Row) -> Row:
    """One change of the log."""
    before, after = (row, None) if op == "d" else (None, row)
    return {"op": op, "before": before, "after": after, "source": {"lsn": lsn}}


def log_of(seed: int, events: int = 120) -> list[Row]:
    """A log of a table of few rows; some of its updates are of rows that it never had.

    A row gets another key now and then: that is a delete and a create, at one place of the log, or
    an update that tells the old key.
    """
    chance, there, log = random.Random(seed), set[int](), list[Row]()
    for lsn in range(100, 100 + events):
        key = chance.randrange(8)
        free = [new for new in range(8) if new not in there]
        op = chance.choice("uuuudm" if free else "uuuud") if key in there else chance.choice("ccu")
        # What looks like the placeholder in a row that is new is what the row says.
        text = MISSING if op == "c" and chance.random() < 0.2 else f"text {lsn}"
        row: Row = {"id": key, "name": f"name {lsn}", "text": text, "tags": [str(lsn), None]}
        if op in "um":
            row |= {name: MISSING for name in ("text",) if chance.random() < 0.6}
            row |= {name: [MISSING] for name in ("tags",) if chance.random() < 0.6}
        # A row that was never sent has its key all the same.
        there = there - {key} if op in "dm" else there | {key}
        if op != "m":
            log.append(event(op, lsn, {"id": key} if op == "d" else row))
            continue
        row["id"] = chance.choice(free)
        there.add(row["id"])
        if chance.random() < 0.5:
            log.append({**event("u", lsn, row), "before": {"id": key}})
            continue
        log.append({**event("d", lsn, {"id": key}), NEW_KEY: {"id": row["id"]}})
        log.append({**event("c", lsn, row), OLD_KEY: {"id": key}})
    return log


def left_out(change: Row) -> set[str]:
    """Name what a change leaves out."""
    row = change["after"] if change["op"] == "u" or OLD_KEY in change else {}
    return {name for name in KEPT if row.get(name) in (MISSING, [MISSING])}


def versions(log: list[Row]) -> Iterator[tuple[Row, Row | None]]:
    """Yield each change that can be applied, with the row that it makes of its key."""
    rows: dict[int, Row] = {}
    gone: dict[int, Row | None] = {}
    for change in log:
        if change["op"] == "d":
            gone[change["before"]["id"]] = rows.pop(change["before"]["id"], None)
            yield change, None
            continue
        row, lacks = change["after"], left_out(change)
        old = (change["before"] or row)["id"]
        before = gone[change[OLD_KEY]["id"]] if OLD_KEY in change else rows.get(old)
        if lacks and before is None:
            continue
        if old != row["id"]:
            rows.pop(old, None)
            yield event("d", 0, {"id": old}), None
        rows[row["id"]] = row | {name: (before or {})[name] for name in lacks}
        yield change, rows[row["id"]] | {"lsn": change["source"]["lsn"]}


def newest(log: list[Row]) -> list[Row]:
    """Return the rows that the log leaves, by key."""
    rows: dict[int, Row | None] = {}
    for change, row in versions(log):
        rows[(change["after"] or change["before"])["id"]] = row
    return [row for _, row in sorted(rows.items()) if row is not None]


def deliver(world: World, log: list[Row], batches: int) -> None:
    """Send a log in pieces, each key to its partition, and run after each."""
    size = -(-len(log) // batches)
    for start in range(0, len(log), size):
        for change in log[start : start + size]:
            key = (change["after"] or change["before"])["id"]
            value = {name: part for name, part in change.items() if name not in HEADERS}
            world.producer.produce(
                world.topic,
                json.dumps(value),
                json.dumps({"id": key}),
                # Where nothing else orders a delete and its create, one partition does.
                partition=key % 2 if world.spec.sequence_by else 0,
                headers=[(name, json.dumps(change[name])) for name in HEADERS if name in change],
            )
        assert world.producer.flush(30) == 0
        world.run()


def all_rows(world: World) -> list[Row]:
    """Read all columns of the table."""
    found: list[Row] = DeltaTable(world.paths.data.path).to_pyarrow_table().to_pylist()
    return found


def counted(world: World, name: str) -> int:
    """Add up a count of all batches."""
    return sum(row.counts.get(name, 0) for row in world.ledger)


@pytest.mark.parametrize(
    ("declared", "batches", "times", "engine"),
    [
        ({}, 4, 2, "local"),
        ({"sequence_by": ["lsn"]}, 3, 2, "local"),
        *twins(
            ({"sequence_by": ["lsn"]}, 1, 2, "spark"),
            ({"sequence_by": ["lsn"], "deletes": "soft"}, 4, 1, "local"),
            ({}, 1, 1, "local"),
            ({}, 7, 2, "spark"),
            ({"sequence_by": ["lsn"]}, 5, 2, "spark"),
            ({"sequence_by": ["lsn"], "deletes": "soft"}, 4, 1, "spark"),
        ),
    ],
)
def test_a_row_keeps_what_its_updates_left_out(
    world: World, declared: dict[str, Any], batches: int, times: int, engine: str
) -> None:
    """However the log is cut into batches, and however often it is sent; others are put aside."""
    world.settings = world.settings.model_copy(update={"merge_engine": engine})
    world.declare(schema=COLUMNS, format=FORMAT, **declared)
    log = log_of(seed=batches)
    repeated = log * times
    deliver(world, repeated, batches)

    is_ordered = "sequence_by" in declared
    found = world.rows()
    if declared.get("deletes") == "soft":
        dead = {row["id"] for row in all_rows(world) if row["_deleted"]}
        found = [row for row in found if row["id"] not in dead]
    assert found == newest(log if is_ordered else repeated)
    assert counted(world, "columns_kept") > 0
    # A move that is sent again may look late: two partitions have the records of its row.
    reasons = {each["reason"] for each in world.quarantined()}
    assert reasons - {"moved_key"} == {"nothing_to_keep"}
    assert find_problems(world) == ()


@pytest.mark.parametrize("engine", ["local", *twins("spark")])
def test_a_version_takes_over_what_it_leaves_out(world: World, engine: str) -> None:
    """In history each version is whole, and one with nothing before it is put aside."""
    world.settings = world.settings.model_copy(update={"merge_engine": engine})
    world.declare(schema=COLUMNS, format=FORMAT, mode="scd2", sequence_by=["lsn"])
    log = log_of(seed=3)
    deliver(world, log, 4)

    found = sorted(world.rows(), key=lambda row: row["lsn"])
    assert found == [row for _, row in versions(log) if row is not None]
    assert {each["reason"] for each in world.quarantined()} == {"nothing_to_keep"}
    assert find_problems(world) == ()


@pytest.mark.parametrize("mode", ["append", "insert_only"])
def test_where_no_row_is_changed_it_is_null_and_counted(world: World, mode: str) -> None:
    """A mode in which a record never changes a row has nothing to keep."""
    nullable = COLUMNS.replace("text STRING NOT NULL", "text STRING")
    keys = {"keys": []} if mode == "append" else {}
    world.declare(schema=nullable, format=FORMAT, mode=mode, **keys)
    log = [change for change in log_of(seed=4) if change["op"] != "d"]
    deliver(world, log, 2)

    rows = sorted(all_rows(world), key=lambda row: row["lsn"])
    by_lsn = {change["source"]["lsn"]: change for change in log}
    assert {row["lsn"]: {n for n in KEPT if row[n] is None} for row in rows} == {
        row["lsn"]: left_out(by_lsn[row["lsn"]]) for row in rows
    }
    assert counted(world, "columns_unavailable") == sum(len(left_out(change)) for change in log)
    assert find_problems(world) == ()


@pytest.mark.parametrize(
    ("engine", "deletes"),
    [
        ("local", "hard"),
        *twins(("local", "soft"), ("spark", "hard"), ("spark", "soft")),
    ],
)
def test_a_row_that_moves_takes_its_columns_along(world: World, engine: str, deletes: str) -> None:
    """Its delete and its new row may come in two batches; the new row waits for its delete."""
    world.settings = world.settings.model_copy(update={"merge_engine": engine})
    world.declare(schema=COLUMNS, format=FORMAT, sequence_by=["lsn"], deletes=deletes)
    row = {"id": 1, "name": "a", "text": "first", "tags": ["t"]}
    lacking = {**row, "name": "b", "text": MISSING, "tags": [MISSING]}
    there = event("c", 1, row)
    changed = event("u", 2, {**row, "text": "second", "tags": [MISSING]})
    ended = {**event("d", 3, {"id": 1, "name": ""}), NEW_KEY: {"id": 2}}
    moved = {**event("c", 3, {**lacking, "id": 2}), OLD_KEY: {"id": 1}}
    again = [
        {**event("d", 4, {"id": 2}), NEW_KEY: {"id": 3}},
        {**event("c", 4, {**lacking, "id": 3}), OLD_KEY: {"id": 2}},
    ]
    deliver(world, [there], 1)
    deliver(world, [changed, ended], 1)
    deliver(world, [moved, *again], 1)
    # The other partition was read sooner: what came before the delete is not known by then.
    deliver(world, [{**event("c", 6, {**lacking, "id": 4}), OLD_KEY: {"id": 3}}], 1)
    deliver(world, [{**event("d", 6, {"id": 3}), NEW_KEY: {"id": 4}}], 1)
    assert counted(world, "quarantined") == 1
    world.redrive()

    found = [row for row in all_rows(world) if not row.get("_deleted")]
    assert [(row["id"], row["name"], row["text"], row["tags"]) for row in found] == [
        (4, "b", "second", ["t"])
    ]
    assert find_problems(world) == ()


@pytest.mark.spark
def test_what_decides_about_a_record_cannot_be_left_out(world: World) -> None:
    """A column that `where` reads is of the record, not of the row; others are kept."""
    world.declare(schema=COLUMNS, format=FORMAT, where="text <> 'x'")
    log = log_of(seed=5)
    deliver(world, log, 2)

    whole = [change for change in log if "text" not in left_out(change)]
    reasons = Counter(each["reason"] for each in world.quarantined())
    assert reasons["unavailable_value"] == len(log) - len(whole)
    assert world.rows() == newest(whole)
    assert counted(world, "columns_kept") > 0
    assert find_problems(world) == ()


def test_a_replay_is_refused(world: World) -> None:
    """What an update has kept then cannot be told from the rows of now."""
    world.declare(schema=COLUMNS, format=FORMAT)

    with pytest.raises(NotReplayableError, match="leaves out from the row before it"):
        world.replay()


def test_an_update_put_aside_is_sent_in_again(world: World) -> None:
    """Once the row is there that it lacked, it is too late for it; before, it waits."""
    world.declare(schema=COLUMNS, format=FORMAT, sequence_by=["lsn"])
    row = {"id": 1, "name": "a", "text": "t", "tags": None}
    deliver(world, [event("u", 200, {**row, "text": MISSING})], 1)
    assert world.redrive().still_bad == {"nothing_to_keep": 1}

    deliver(world, [event("c", 100, row)], 1)
    world.redrive()

    (found,) = world.rows()
    assert (found["lsn"], found["text"]) == (200, "t")
    assert world.quarantined()[0]["redriven_seq"] is not None
    assert find_problems(world) == ()


def test_no_redrive_is_proposed_for_an_update_that_still_has_no_row(world: World) -> None:
    """Another column makes it another declaration, and gives it no value."""
    world.declare(schema=COLUMNS, format=FORMAT, schema_change="evolve")
    world.declare(quarantine_rate={"stop_above": 1})
    row = {"id": 1, "name": "a", "text": MISSING, "tags": None}
    deliver(world, [event("u", 1, row), event("c", 2, {**row, "id": 2, "text": "t"})], 1)
    world.declare(schema=f"{COLUMNS}, more STRING")

    assert find_problems(world) == ()
    assert world.redrive().still_bad == {"nothing_to_keep": 1}


def test_an_update_of_an_erased_key_does_not_come_back_into_quarantine(world: World) -> None:
    """It waited for a value that no row has; a new table leaves it out when it is read again."""
    world.declare(schema=COLUMNS, format=FORMAT, quarantine_rate={"stop_above": 1})
    row = {"id": 1, "name": "a", "text": MISSING, "tags": None}
    deliver(world, [event("u", 1, row), event("c", 2, {**row, "id": 2, "text": "t"})], 1)
    erase(world.spec, world.settings, key='{"id": 1}', reason="a request", run_id="e")

    world.rebuild()

    assert [each["id"] for each in world.rows()] == [2]
    assert sum(each.counts.get("quarantined", 0) for each in world.ledger) == 0
    assert find_problems(world) == ()


def test_what_kafka_has_forgotten_is_not_proven(world: World) -> None:
    """A column that only a record had which is gone is named, and the others are compared."""
    world.declare(schema=COLUMNS, format=FORMAT)
    row = {"id": 2, "name": "a", "text": "t", "tags": None}
    deliver(world, [event("c", 1, row), event("u", 2, {**row, "name": "b", "text": MISSING})], 1)
    world.forget_before(0, 1)

    verdict = prove(world)

    assert (verdict.holds, verdict.rows) == (True, 1)
    assert any("1 row keeps columns" in limit for limit in verdict.limits)
