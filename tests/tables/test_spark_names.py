"""Columns whose names Iceberg's library for Spark reserves are stored by names that it can read."""

from __future__ import annotations

import random
from typing import Any, Final

import pytest

from oncelake.ingestion.operations.history.rewind import rewind
from oncelake.ingestion.operations.upkeep.maintain import maintain
from tests.support.proof import find_problems
from tests.support.world import World
from tests.tables.test_partitions import COLUMNS, MODES, play, send

STORED: Final = {"_oncelake_partition", "_oncelake_deleted"}
OWN: Final = {"_partition", "_deleted"}


@pytest.fixture
def sink() -> str:
    """The one whose readers reserve names."""
    return "iceberg"


def declared(*, spark_names: bool) -> dict[str, Any]:
    """Say by which names columns are stored."""
    return {"iceberg": {"spark_names": spark_names}}


def stored_names(world: World) -> set[str]:
    """Return those of the columns, of ``STORED`` and ``OWN``, that the catalog tells everybody."""
    table: Any = world.paths.table
    return {*table._entry.loaded(as_stored=True).schema().column_names} & (STORED | OWN)


@pytest.mark.parametrize("mode", MODES)
def test_every_mode_holds_by_the_names_for_spark(world: World, mode: str) -> None:
    """Upkeep, replay and proof know columns as ever; the catalog has no reserved name."""
    sink = declared(spark_names=True)
    world.declare(schema=COLUMNS, sink=sink, partition_by=["_partition"], **MODES[mode])

    play(world, random.Random(f"names {mode}"), mode)

    assert stored_names(world) == (STORED if mode == "soft" else {"_oncelake_partition"})
    assert OWN - {"_deleted"} <= {column.name for column in world.paths.table.columns()}


def test_a_table_takes_the_names_that_are_declared(world: World) -> None:
    """One that is there is renamed by its next run, back too, and by a rewind to before."""
    dice = random.Random(0)
    world.declare(schema=COLUMNS, deletes="soft")
    send(world, dice, 20, deletes=True)
    world.run()
    assert stored_names(world) == OWN

    world.declare(sink=declared(spark_names=True))
    send(world, dice, 20, deletes=True)
    world.run()
    assert stored_names(world) == STORED
    world.declare(schema=f"{COLUMNS}, more STRING", schema_change="evolve")
    send(world, dice, 20, deletes=True)
    world.run()
    assert stored_names(world) == STORED
    rewind(world.spec, world.settings, to="seq:1", reason="a test", run_id="r")
    world.run()
    assert stored_names(world) == STORED
    maintain(world.spec, world.settings, run_id="m")
    assert find_problems(world) == ()

    world.rebuild()
    assert stored_names(world) == STORED
    assert find_problems(world) == ()

    world.declare(sink=declared(spark_names=False))
    send(world, dice, 1, deletes=False)
    world.run()

    assert stored_names(world) == OWN
    assert find_problems(world) == ()
