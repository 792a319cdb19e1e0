"""A stream keeps its promises in any catalog: from the topic to the proof."""

from __future__ import annotations

import pytest

from oncelake.ingestion.operations.decisions import reset
from oncelake.ingestion.operations.erase.erase import erase
from oncelake.ingestion.operations.history.rewind import rewind
from oncelake.ingestion.operations.upkeep.maintain import maintain
from tests.support.catalogs import TriedCatalog, only_catalogs
from tests.support.proof import find_problems
from tests.support.world import World, row


def fill(world: World) -> None:
    """Insert, change and delete rows, by two runs."""
    world.send(row(1, "a"), row(2, "b"), b"not JSON")
    world.send(row(3, "c"), partition=1)
    world.run()
    world.send(row(1, "A"), None, id=2)
    world.send(row(4, "d"), partition=1)
    world.run()


def test_a_stream_is_written_and_proven(world: World, catalog: TriedCatalog) -> None:
    """Rows are added, changed and deleted by several runs, and somebody else reads them."""
    fill(world)

    assert world.rows() == [row(1, "A"), row(3, "c"), row(4, "d")]
    assert find_problems(world) == ()
    with catalog.opened() as other:
        table = other.load_table(f"{catalog.namespace}.{world.topic}")
        assert sorted(table.scan().to_arrow()["id"].to_pylist()) == [1, 3, 4]
