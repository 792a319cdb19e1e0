"""A batch of which too much is bad stops the run before anything of it is written."""

from __future__ import annotations

import pytest

from oncelake.ingestion.errors import TooManyBadRecordsError
from tests.support.proof import find_problems
from tests.support.world import World, row

pytestmark = pytest.mark.kafka


def test_a_batch_that_is_mostly_bad_is_not_written(world: World) -> None:
    """The run stops and says why; a word in the declaration lets the records go to quarantine."""
    world.send(row(1, "a"), b"one bad record of two is too few to say anything")
    world.run()
    world.send(*[b"\x1b[31mred"] * 60, *({"name": "no key"} for _ in range(30)))
    world.send(*(row(n, "good") for n in range(100, 120)), partition=1)

    with pytest.raises(TooManyBadRecordsError) as refused:
        world.run()

    told = str(refused.value)
    assert "90 of the 110 records of a batch cannot be applied, which is more than 50%" in told
    assert f"60 malformed_json, first at {world.topic}-0 offset 2" in told
    assert "30 missing_key" in told
    assert r"\x1b[31mred" in told
    assert (refused.value.exit_code, "stop_above: 1" in refused.value.remedy) == (3, True)
    assert (world.log.last_seq(world.topic), len(world.quarantined())) == (1, 1)

    world.declare(quarantine_rate={"stop_above": 1.0})
    world.run()

    assert len(world.quarantined()) == 91
    world.declare(quarantine_rate={"stop_above": 0.0})
    world.send(*(row(n, "good") for n in range(200, 209)), b"a single bad one", partition=1)
    with pytest.raises(TooManyBadRecordsError, match="1 of the 10 records"):
        world.run()
    world.declare(quarantine_rate={"stop_above": 0.1})
    assert world.run().total("quarantined") == 1
    assert find_problems(world) == ()
