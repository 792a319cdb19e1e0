"""Keys that a row takes over while another still has them, by updates that change the key."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

import pytest

from oncelake.ingestion.operations.audit.audit import audit
from oncelake.ingestion.operations.audit.declare import AuditRequest
from oncelake.ingestion.operations.erase.erase import erase
from tests.support.proof import find_problems, prove
from tests.support.world import World

Row = dict[str, Any]
FORMAT: Final = {"type": "debezium", "columns": {"lsn": "source.lsn", "at": "source.ts_ms"}}
DDL: Final = "id BIGINT NOT NULL, v STRING, lsn BIGINT, at BIGINT"


def row(id: int, v: str) -> Row:
    """A row of the source."""
    return {"id": id, "v": v}


def change(op: str, before: Row | None, after: Row | None, lsn: int) -> Row:
    """A change; all of them are of one moment."""
    return {"op": op, "before": before, "after": after, "source": {"lsn": lsn, "ts_ms": 1}}


def chain(first: str, second: str) -> list[Row]:
    """Two rows, each of which gets the next key."""
    return [
        change("c", None, row(1, first), 1),
        change("c", None, row(2, second), 2),
        change("u", row(1, first), row(2, first), 3),
        change("u", row(2, second), row(3, second), 4),
    ]


CHAIN: Final = chain("a", "b")
CASES: Final[Mapping[str, tuple[str, list[Row], dict[int, str]]]] = {
    "a chain of rows that are alike": ("lsn", chain("a", "a"), {2: "a", 3: "a"}),
    "a chain in the order of Kafka's times": ("_timestamp", CHAIN, {2: "a", 3: "b"}),
    "a chain that is repeated": ("lsn", [*CHAIN, *CHAIN[2:]], {2: "a", 3: "b"}),
    "the end of a chain that is repeated": ("lsn", [*CHAIN, CHAIN[3]], {2: "a", 3: "b"}),
    "a delete at the position of a chain": (
        "at",
        [*CHAIN, change("d", row(2, "a"), None, 5)],
        {3: "b"},
    ),
}


@pytest.mark.parametrize("are_together", [True, False], ids=["one batch", "many"])
@pytest.mark.parametrize(("order", "changes", "expected"), CASES.values(), ids=CASES)
def test_each_row_ends_under_its_own_key(
    world: World, order: str, changes: list[Row], expected: dict[int, str], are_together: bool
) -> None:
    """However the changes are cut into batches."""
    world.declare(schema=DDL, keys=["id"], format=FORMAT, sequence_by=[order])

    for cut in [changes] if are_together else [[each] for each in changes]:
        world.send(*cut)
        assert world.run().is_balanced

    assert {each["id"]: each["v"] for each in world.rows()} == expected
    assert find_problems(world) == ()


@pytest.mark.parametrize(
    "declared", [{}, {"deletes": "soft"}, {"mode": "scd2"}], ids=["hard", "soft", "history"]
)
def test_a_row_that_was_deleted_before_has_no_key(
    world: World, declared: Mapping[str, str]
) -> None:
    """A record of it that is sent again, between its delete and a move, makes no second row."""
    world.declare(schema=DDL, keys=["id"], format=FORMAT, sequence_by=["lsn"], **declared)
    there = change("c", None, row(1, "a"), 1)
    world.send(there, change("d", row(1, "a"), None, 2), change("c", None, row(5, "b"), 3))
    assert world.run().is_balanced
    world.send(there, change("u", row(5, "b"), row(1, "b"), 4), change("d", {"id": 1}, None, 5))
    assert world.run().is_balanced

    assert not world.ledger[-1].counts.get("quarantined")
    assert find_problems(world) == ()


@pytest.mark.parametrize(
    "declared", [{}, {"deletes": "soft"}, {"mode": "scd2"}], ids=["hard", "soft", "history"]
)
def test_an_erase_forgets_who_has_had_the_key(world: World, declared: Mapping[str, str]) -> None:
    """In the table and in the proof: the row that was moved upon leaves a key that has no row."""
    world.declare(schema=DDL, keys=["id"], format=FORMAT, sequence_by=["lsn"], **declared)
    world.send(*CHAIN[:3])
    assert world.run().is_balanced
    erase(world.spec, world.settings, key='{"id": 2}', reason="a test", run_id="e")
    world.send(CHAIN[3])
    assert world.run().is_balanced

    assert world.ledger[-1].counts["deleted_absent"] == 1
    assert {"id": 3, "v": "b"}.items() <= world.rows()[-1].items()
    assert find_problems(world) == ()


def test_a_run_goes_on_where_an_erase_has_left_contests(world: World) -> None:
    """They lie beside a delete, in a file that delta-rs has rewritten."""
    world.declare(schema=DDL, keys=["id"], format=FORMAT, sequence_by=["lsn"])
    world.send(change("d", row(9, "z"), None, 1), *CHAIN[:3])
    assert world.run().is_balanced
    erase(world.spec, world.settings, key='{"id": 1}', reason="a test", run_id="e")
    world.send(CHAIN[3])
    assert world.run().is_balanced

    assert [each["id"] for each in world.rows()] == [2, 3]
    assert find_problems(world) == ()


@pytest.mark.parametrize("before", [row(2, "b"), {"id": 2}], ids=["told", "not told"])
def test_who_had_a_key_is_not_proven_once_kafka_has_forgotten_it(world: World, before: Row) -> None:
    """Neither that a spared row was deleted, nor that a record does not wait."""
    world.declare(schema=DDL, keys=["id"], format=FORMAT, sequence_by=["lsn"])
    world.send(*CHAIN[:2])
    assert world.run().is_balanced
    world.forget_before(0, 2)
    world.send(CHAIN[2], change("u", before, row(3, "b"), 4))
    assert world.run().is_balanced

    verdict = prove(world)

    assert (verdict.holds, verdict.differences) == (False, ())
    assert "only while Kafka holds all records of both" in verdict.obstacles[0]


@pytest.mark.parametrize("keys", [["id"], ["id", "part"]])
def test_an_audit_does_not_judge_a_key_that_was_taken_over(world: World, keys: list[str]) -> None:
    """Its newest record is the delete of a row that has had it before."""
    schema = f"{DDL}, part INT NOT NULL"
    world.declare(schema=schema, keys=keys, format=FORMAT, sequence_by=["lsn"])
    world.send(*json.loads(json.dumps(CHAIN).replace('"v":', '"part": 1, "v":')))
    assert world.run().is_balanced
    request = AuditRequest(
        table=str(world.paths.data),
        topic=world.topic,
        keys=keys,
        mode="upsert",
        schema=schema,
        format=json.dumps(FORMAT),
    )

    report = audit(request, world.settings)

    assert (report.exit_code, report.proven, report.unproven) == (0, 1, 1)
    assert "1 key was taken over by a row while another one had it" in report.limits[-1]
