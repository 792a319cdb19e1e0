"""What is judged of a batch before its commit: rules, guard, books, and what waits at the gate."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from oncelake.ingestion.errors import BadFieldError, BatchHeldError, InvalidSpecError
from oncelake.ingestion.lake.held import ROWS, read_held
from oncelake.ingestion.operations.publish import Publish, waiting_batch
from tests.support.proof import find_problems
from tests.support.world import World, changed, row

CHECKED = {"publish": "checked"}
NAMED = {"named": {"rule": "name IS NOT NULL", "on_miss": "refuse"}}


@pytest.fixture(params=["local", pytest.param("spark", marks=pytest.mark.spark)])
def judged(world: World, request: pytest.FixtureRequest) -> World:
    """A stream whose batches are decided by either engine."""
    world.settings = changed(world.settings, merge_engine=request.param)
    return world


def held_at(world: World) -> list[str]:
    """Run into the gate, and return the names of what the batch is held back for."""
    before = (world.rows(), len(world.ledger)) if world.ledger else None
    with pytest.raises(BatchHeldError) as refused:
        world.run()
    assert refused.value.exit_code == 1
    assert "no offset moved" in str(refused.value)
    assert before is None or before == (world.rows(), len(world.ledger))
    held = waiting_batch(world.spec, world.paths)
    assert held is not None
    return [each.name for each in held.misses]


def publish(world: World, reason: str = "looked at") -> Any:
    """Accept what waits."""
    return Publish(**world._parts(reason=reason)).execute()


def test_a_batch_that_misses_a_rule_is_not_there_and_waits(judged: World) -> None:
    """No row, no offset: until the producer is right, or a person accepts exactly that batch."""
    judged.declare(**CHECKED, expect=NAMED)
    judged.send(row(1, "a"))
    judged.run()
    judged.send(row(1, None), row(2, "b"), row(3, None))

    assert held_at(judged) == ["expect.named"]
    judged.send(row(4, None))
    assert held_at(judged) == ["expect.named"]
    held = read_held(judged.paths)
    assert held is not None
    (miss,) = held.misses
    assert (miss.rows, miss.what) == (2, "2 rows do not meet name IS NOT NULL")
    assert {each["id"] for each in miss.examples} == {1, 3}
    assert [len(each) for each in held.ranges if len(each)] == [3], "what came later is not in it"
    rows = pq.read_table(Path(str(judged.paths.gate / ROWS)))
    assert sorted(rows["id"].to_pylist()) == [1, 2, 3]

    accepted = publish(judged)

    assert (accepted.accepted, accepted.balanced, accepted.kind) == ("looked at", True, "ingest")
    assert judged.rows() == [row(1, None), row(2, "b"), row(3, None)]
    assert read_held(judged.paths) is None
    assert held_at(judged) == ["expect.named"], "the next batch is judged for itself"
    judged.declare(**CHECKED, expect={})
    judged.run()
    assert len(judged.rows()) == 4
    assert not find_problems(judged)


def test_what_misses_a_rule_goes_to_quarantine_and_is_sent_in_when_it_changes(
    judged: World,
) -> None:
    """Under the rule's name, with its bytes; the proof and the redrive judge by the same rule."""
    rule = {"rule": "length(name) < 3", "on_miss": "quarantine"}
    judged.declare(expect={"short": rule})
    judged.send(row(1, "a"), row(2, "long"), row(3, None), row(4, "b"))

    judged.run()

    assert judged.rows() == [row(1, "a"), row(4, "b")]
    assert [(bad["reason"], bad["detail"]) for bad in judged.quarantined()] == 2 * [
        ("violates_constraint", "expect short: length(name) < 3")
    ]
    assert not find_problems(judged)
    judged.declare(expect={"short": {**rule, "rule": "length(name) < 5"}})
    judged.redrive()
    assert judged.rows() == [row(1, "a"), row(2, "long"), row(4, "b")]
    judged.send(row(5, "much longer"))
    judged.run()
    assert len(judged.quarantined()) == 3
    assert not find_problems(judged)


def test_a_rule_that_warns_is_counted_and_keeps_nothing_back(judged: World) -> None:
    """The row is there, and the note of its batch says how many missed."""
    judged.declare(expect={"named": "name IS NOT NULL", "late": "at > 5"})
    judged.send(row(1, None, 6), row(2, "b", 7), row(3, None, 1))

    judged.run()

    (batch,) = judged.ledger
    assert {n: c for n, c in batch.counts.items() if n.startswith("expect.")} == {
        "expect.named": 2,
        "expect.late": 1,
    }
    assert len(judged.rows()) == 3


GUARDED = {
    "rows_between": ({"rows_between": [2, 3]}, "it changes 4 rows, and 2 to 3 are meant"),
    "share_of_deletes": (
        {"share_of_deletes": 0.5},
        "it deletes 3 of the table's 4 rows, which is more than 50%",
    ),
    "new_keys": (
        {"new_keys": 0.1},
        "25% of its keys are new to the table, which is more than 10%",
    ),
    "growth": (
        {"growth": 3.5},
        "it has 4 records, more than 3.5 times the median of the last 4 batches, 1",
    ),
}


@pytest.mark.parametrize("guard", GUARDED)
def test_a_batch_that_differs_from_what_was_there_waits(world: World, guard: str) -> None:
    """An accident of the producer stops at the gate: it can be accepted, and ends right."""
    declared, what = GUARDED[guard]
    world.declare(apply_as_deletes="name = 'gone'")
    for number in (1, 2, 3):
        world.send(row(number, "a"))
        world.run()
    world.send(row(4, "a"))
    world.run()
    world.send(*(row(number, "gone") for number in (1, 2, 3)), row(5, "b"))
    world.declare(**CHECKED, guard=declared)

    assert held_at(world) == [f"guard.{guard}"]
    held = read_held(world.paths)
    assert held is not None
    assert held.misses[0].what == what
    publish(world)
    assert world.rows() == [row(4, "a"), row(5, "b")]
    assert not find_problems(world)


def test_a_small_batch_is_not_judged_by_the_usual_guard(world: World) -> None:
    """`guard: true` says nothing of fewer than 100 records."""
    world.declare(**CHECKED, guard=True, apply_as_deletes="name = 'gone'")
    world.send(row(1, "a"))
    world.run()
    world.send(row(1, "gone"))
    world.run()
    world.send(*(row(number, "a") for number in range(2, 202)))
    world.run()
    assert len(world.rows()) == 200
    world.send(*(row(number, "gone") for number in range(2, 152)))
    assert held_at(world) == ["guard.share_of_deletes"]


def test_only_the_batch_that_was_shown_is_published(world: World) -> None:
    """Where the same offsets give another batch now, the acceptance is refused."""
    world.declare(**CHECKED, expect=NAMED)
    world.send(row(1, None), row(2, "b"))
    assert held_at(world) == ["expect.named"]

    world.declare(**CHECKED, expect={**NAMED, "more": {"rule": "id > 1", "on_miss": "refuse"}})
    with pytest.raises(BatchHeldError, match="another than the one that was accepted"):
        publish(world)

    held = read_held(world.paths)
    assert held is not None
    assert [each.name for each in held.misses] == ["expect.named", "expect.more"]
    assert world.rows() == []
    publish(world)
    assert len(world.rows()) == 2
    with pytest.raises(InvalidSpecError, match="no batch waits"):
        publish(world)


def test_a_red_redrive_changes_nothing(world: World) -> None:
    """The records stay in quarantine, and nothing waits for an acceptance."""
    world.declare(
        **CHECKED, expect={"short": {"rule": "length(name) < 3", "on_miss": "quarantine"}}
    )
    world.send(row(1, "a"), row(2, "long"))
    world.run()
    world.declare(expect={"short": {"rule": "length(name) < 3", "on_miss": "refuse"}})

    with pytest.raises(BatchHeldError, match="a redrive is not published"):
        world.redrive()

    assert world.rows() == [row(1, "a")]
    assert read_held(world.paths) is None
    world.declare(expect={})
    world.redrive()
    assert world.rows() == [row(1, "a"), row(2, "long")]
    assert not find_problems(world)


@pytest.mark.spark
def test_what_spark_alone_evaluates_is_judged_by_it(world: World) -> None:
    """A condition that DuckDB may answer otherwise, by the engine of this process."""
    rules = {"soundex": "soundex(name) = 'R163'", "ids": "id < 10"}
    world.declare(
        **CHECKED, expect={name: {"rule": r, "on_miss": "refuse"} for name, r in rules.items()}
    )
    world.send(row(1, "Robert"), row(2, "Rupert"))
    world.run()
    world.send(row(3, "Anna"), row(14, "Robert"))
    assert held_at(world) == ["expect.soundex", "expect.ids"]
    world.declare(expect={"bad": "id + 'x' > 1"})
    with pytest.raises(BadFieldError, match=r"expect\.bad"):
        world.run()
