"""A stream whose table marks rows as gone, from its first batch to the erasure of a key."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import pytest
from deltalake import DeltaTable

from oncelake.ingestion.declaration.files.loader import DeclaredStream
from oncelake.ingestion.delta.files import read_delta
from oncelake.ingestion.delta.vectors import vectors_of
from oncelake.ingestion.operations.erase.erase import erase
from oncelake.ingestion.operations.history.rewind import rewind
from oncelake.ingestion.operations.status.status import StatusReader
from oncelake.ingestion.operations.upkeep.maintain import maintain
from oncelake.ingestion.sinks.iceberg.table import IcebergTable
from tests.support.long import twins
from tests.support.proof import find_problems
from tests.support.world import World, row


def marked(world: World) -> int:
    """Count the rows that are marked as gone."""
    table = world.paths.table
    if isinstance(table, IcebergTable):
        last = table.log().last_seq(world.name)
        assert last is not None
        with closing(table.begin(last + 1)) as begun:
            return sum(begun.measure(each)[0] - begun.count(each) for each in begun.files)
    path = world.paths.data
    return sum(each.rows for each in vectors_of(path, read_delta(path)).values())


@pytest.mark.parametrize(
    ("sink", "engine"), [("delta", "local"), ("iceberg", "local"), *twins(("delta", "spark"))]
)
def test_a_table_that_marks_rows_is_proven_like_any(world: World, sink: str, engine: Any) -> None:
    """Made, merged into, rewound, maintained, erased, switched off and on, and proven each time."""
    world.settings = world.settings.model_copy(update={"merge_engine": engine})
    world.declare(deletion_vectors=True, sink=sink)
    world.send(*(row(n, "a") for n in range(50)))
    world.run()
    world.send(*(row(n, "b") for n in range(5)))
    world.send(None, id=9)
    world.run()
    assert (marked(world), len(world.rows())) == (6, 49)
    assert find_problems(world) == ()

    world.send(*(row(n, "c") for n in range(3, 8)))
    world.run()
    rewind(world.spec, world.settings, to="seq:2", reason="a test", run_id="me")
    assert marked(world) == 6
    world.run()
    assert {each["name"] for each in world.rows() if each["id"] in range(3, 8)} == {"c"}
    assert find_problems(world) == ()

    maintain(world.spec, world.settings, run_id="me")
    assert marked(world) == 0
    assert find_problems(world) == ()
    world.send(row(20, "d"))
    world.run()
    erase(world.spec, world.settings, key='{"id": 21}', reason="a test", run_id="me")
    assert 21 not in {each["id"] for each in world.rows()}
    assert find_problems(world) == ()

    world.declare(deletion_vectors=False)
    world.send(row(22, "e"))
    world.run()
    maintain(world.spec, world.settings, run_id="me")
    assert marked(world) == 0
    world.declare(deletion_vectors=True)
    world.send(row(23, "f"))
    world.run()
    assert marked(world) == 1
    assert find_problems(world) == ()


def test_merges_that_copy_much_are_told_of(world: World) -> None:
    """Status says what would spare them, until it is declared."""
    world.send(*(row(n, "a") for n in range(100)))
    world.run()
    world.send(row(1, "b"))
    world.run()
    declared = DeclaredStream(
        name=world.name, path=world.settings.streams, spec=world.spec, error=None
    )

    (notice,) = StatusReader(world.settings).read_status(declared).notices

    assert "copied 99 rows to change 1" in notice
    assert "`deletion_vectors: true` in its file" in notice
    world.declare(deletion_vectors=True)
    world.send(row(2, "b"))
    world.run()
    assert StatusReader(world.settings).read_status(declared).notices == ()
    assert "deletionVectors" in (DeltaTable(world.paths.data.path).protocol().reader_features or ())
