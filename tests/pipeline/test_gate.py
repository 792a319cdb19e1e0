"""What is judged of a batch before its commit: rules, guard, books, and what waits at the gate."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from oncelake.ingestion.errors import BatchHeldError
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
