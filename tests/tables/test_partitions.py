"""A stream into a partitioned table is proven, however its rows move between partitions."""

from __future__ import annotations

import datetime as dt
import random
from itertools import product
from typing import Any, Final

import pytest

from oncelake.ingestion.errors import SchemaChangedError
from oncelake.ingestion.operations.erase.erase import erase
from oncelake.ingestion.operations.history.rewind import rewind
from oncelake.ingestion.operations.upkeep.maintain import maintain
from tests.support.long import IS_LONG, only_long
from tests.support.proof import find_problems
from tests.support.world import World

LAYOUTS: Final = {
    "bucket of the key": ["bucket(4, id)"],
    "day": ["day(moment)"],
    "identity": ["region"],
    "truncate": ["truncate(2, name)"],
    "two fields": ["day(moment)", "bucket(3, id)"],
}
MODES: Final[dict[str, dict[str, Any]]] = {
    "upsert": {},
    "soft": {"deletes": "soft"},
    "partial": {"ignore_null_updates": True},
    "append": {"mode": "append", "keys": [], "tombstones": "ignore"},
    "scd2": {"mode": "scd2", "sequence_by": ["at"], "tombstones": "ignore"},
}
# Each layout, and each mode with another of them; what is left takes long.
PLAYED: Final = {*product(LAYOUTS, ["upsert"]), *zip(LAYOUTS, reversed(MODES), strict=True)}
PAIRS: Final = [
    pytest.param(*pair, id=" ".join(pair), marks=() if pair in PLAYED else only_long)
    for pair in product(LAYOUTS, MODES)
]
COLUMNS: Final = "id INT NOT NULL, at INT NOT NULL, moment TIMESTAMP, region STRING, name STRING"
MOMENTS: Final = [
    *("1969-12-31T23:59:59.999999Z", "1970-01-01T00:30:00+01:00", "1970-01-01T00:00:00Z"),
    *("2024-02-29T23:59:59-05:00", "0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z", None),
]
REGIONS: Final = ["eu", "us", "a/b=c d", "", "..", "é😀", None]
NAMES: Final = ["", None, "é😀x", "é😀y", "é", "aa", "aab", "gone"]


@pytest.fixture
def sink() -> str:
    """The one that has partitions."""
    return "iceberg"


def record(id: int, at: int, dice: random.Random) -> dict[str, Any]:
    """Make a record of any partition."""
    drawn = {"moment": MOMENTS, "region": REGIONS, "name": NAMES}
    return {"id": id, "at": at, **{name: dice.choice(of) for name, of in drawn.items()}}


def send(world: World, dice: random.Random, count: int, *, deletes: bool) -> None:
    """Send records of few keys, and null values of some."""
    for _ in range(count):
        id = dice.randrange(12)
        if deletes and dice.random() < 0.2:
            world.send(None, id=id)
        else:
            world.send(record(id, dice.randrange(50), dice))


@pytest.mark.parametrize(("layout", "mode"), PAIRS)
@pytest.mark.parametrize("seed", range(4 if IS_LONG else 1))
def test_every_layout_holds_in_every_mode(world: World, layout: str, mode: str, seed: int) -> None:
    """Updates, moves, deletes, upkeep, and records that are read again end as the proof folds."""
    dice, deletes = random.Random(f"{layout} {mode} {seed}"), mode in ("upsert", "soft", "partial")
    world.declare(schema=COLUMNS, partition_by=LAYOUTS[layout], **MODES[mode])

    for _ in range(3):
        send(world, dice, 25, deletes=deletes)
        assert world.run().is_balanced
    maintain(world.spec, world.settings, run_id="m", window=dt.timedelta(0))
    if mode != "partial":
        world.replay()
    send(world, dice, 25, deletes=deletes)
    world.run()

    assert find_problems(world) == ()
    assert [*map(str, world.paths.table.partitions())] == LAYOUTS[layout]


def test_other_partitions_than_the_tables_are_refused(world: World) -> None:
    """Before anything is read; a rebuild makes a table as it is declared now."""
    dice = random.Random(0)
    world.declare(schema=COLUMNS, partition_by=["region"])
    send(world, dice, 20, deletes=True)
    world.run()
    world.declare(schema=COLUMNS, partition_by=["bucket(4, id)", "day(moment)"])
    send(world, dice, 20, deletes=True)

    with pytest.raises(SchemaChangedError) as refused:
        world.run()

    says = "partition_by is [bucket(4, id), day(moment)], and the table's is [region]"
    assert says in str(refused.value)
    assert "write `partition_by: [region]`, as the table has it; or oncelake rebuild" in str(
        refused.value
    )
    assert len(world.ledger) == 1
    world.rebuild()
    assert [*map(str, world.paths.table.partitions())] == ["bucket(4, id)", "day(moment)"]
    assert find_problems(world) == ()


def test_a_stream_that_says_nothing_takes_the_tables_partitions(world: World) -> None:
    """And keeps them when its rows come back as they were, or are erased."""
    dice = random.Random(1)
    world.declare(schema=COLUMNS, partition_by=["truncate(1, name)"])
    send(world, dice, 30, deletes=False)
    world.run()
    world.declare(partition_by=[])
    send(world, dice, 30, deletes=True)
    world.run()
    rewind(world.spec, world.settings, to="seq:1", reason="a test", run_id="r")
    world.run()
    assert find_problems(world) == ()
    erase(world.spec, world.settings, key='{"id": 3}', reason="asked", run_id="e")

    assert find_problems(world) == ()
    assert [*map(str, world.paths.table.partitions())] == ["truncate(1, name)"]
