"""A stream into a partitioned Delta table is proven, however its rows move, and read by others."""

from __future__ import annotations

import datetime as dt
import random
from itertools import product
from typing import Any, Final

import pytest
from deltalake import DeltaTable

from oncelake.ingestion.errors import RefusedError, SchemaChangedError
from oncelake.ingestion.operations.alter import alter
from oncelake.ingestion.operations.erase.erase import erase
from oncelake.ingestion.operations.history.rewind import rewind
from oncelake.ingestion.operations.upkeep.maintain import maintain
from tests.support.long import IS_LONG, only_long
from tests.support.proof import find_problems
from tests.support.world import World
from tests.tables.test_partitions import COLUMNS, MODES, record

LAYOUTS: Final = {
    "day": ["day(moment)"],
    "identity": ["region"],
    "key": ["id"],
    "two fields": ["month(moment)", "region"],
    "ours": ["_partition", "year(moment)"],
}
# Each layout, and each mode with another of them; what is left takes long.
PLAYED: Final = {*product(LAYOUTS, ["upsert"]), *zip(LAYOUTS, reversed(MODES), strict=True)}
PAIRS: Final = [
    pytest.param(*pair, id=" ".join(pair), marks=() if pair in PLAYED else only_long)
    for pair in product(LAYOUTS, MODES)
]


@pytest.fixture
def sink() -> str:
    """The one whose partitions are columns."""
    return "delta"


def send(world: World, dice: random.Random, count: int, *, deletes: bool) -> None:
    """Send records of few keys, and null values of some; no region is an empty text."""
    for _ in range(count):
        id = dice.randrange(12)
        if deletes and dice.random() < 0.2:
            world.send(None, id=id)
        else:
            made = record(id, dice.randrange(50), dice)
            world.send({**made, "region": made["region"] or None})


def columns_of(world: World) -> list[str]:
    """Return by which columns the table is partitioned."""
    return DeltaTable(str(world.paths.data)).metadata().partition_columns


@pytest.mark.parametrize("vectors", [False, True])
@pytest.mark.parametrize(("layout", "mode"), PAIRS)
@pytest.mark.parametrize("seed", range(4 if IS_LONG else 1))
def test_every_layout_holds_in_every_mode(
    world: World, layout: str, mode: str, seed: int, vectors: bool
) -> None:
    """Updates, moves, deletes, upkeep, and records that are read again end as the proof folds."""
    dice, deletes = random.Random(f"{layout} {mode} {seed}"), mode in ("upsert", "soft", "partial")
    world.declare(schema=COLUMNS, partition_by=LAYOUTS[layout], **MODES[mode])
    if vectors:
        world.declare(deletion_vectors=True)

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
