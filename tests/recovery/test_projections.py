"""No reader meets what was not committed, at any moment; and none misses what was, for long."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import pytest

from oncelake.ingestion.declaration.files.loader import DeclaredStream
from oncelake.ingestion.operations.history.rewind import rewind
from oncelake.ingestion.operations.quarantine.inspect import inspect
from oncelake.ingestion.operations.status.status import StatusReader
from oncelake.ingestion.operations.upkeep.maintain import maintain
from oncelake.ingestion.settings import Settings
from oncelake.ingestion.storage import failpoints
from oncelake.ingestion.storage.failpoints import Failpoint
from tests.support.long import twins
from tests.support.places import spark_for
from tests.support.proof import find_problems, prove, rows_of_no_commit
from tests.support.world import World, row
from tests.trials.failpoints import PlannedError, crashing_at

GONE = "gone"
# Of a batch, in their order: between its files and its row in the ledger.
PLACES = (
    Failpoint.QUARANTINED,
    Failpoint.PREPARED,
    Failpoint.COMMITTED,
    Failpoint.READ_BACK,
    Failpoint.PROJECTED,
    Failpoint.AUDITED,
    Failpoint.LEDGER_WRITTEN,
)


REAL = [pytest.mark.spark, pytest.mark.kafka]


@pytest.fixture(params=["local", *twins(pytest.param("spark", marks=REAL))])
def world(request: pytest.FixtureRequest, settings: Settings) -> Iterator[World]:
    """A stream whose batches have bad records and deletes."""
    chosen = settings.model_copy(update={"merge_engine": request.param})
    with World.made(chosen, spark_for(request)) as made:
        made.declare(
            tombstones="quarantine", sequence_by=["at"], apply_as_deletes=f"name = '{GONE}'"
        )
        made.send(row(1, "a", at=1), row(2, GONE, at=1), b"garbage")
        made.send(None, id=3)
        made.run()
        yield made


@contextmanager
def watched(world: World) -> Iterator[dict[Failpoint, tuple[str, ...]]]:
    """Read every table at every place, as any reader of Delta does; collects what is wrong."""
    found: dict[Failpoint, tuple[str, ...]] = {}

    def look(place: Failpoint) -> None:
        found[place] = (*found.get(place, ()), *rows_of_no_commit(world))

    with patch.object(failpoints, "_hook", lambda: look):
        yield found


def waiting(world: World) -> tuple[int | None, int]:
    """Return what status and inspection count in quarantine; neither has a problem."""
    declared = DeclaredStream(name=world.topic, path=Path("x"), spec=world.spec, error=None)
    status = StatusReader(world.settings).read_status(declared)
    assert status.problems == ()
    return status.waiting, inspect(world.topic, world.paths).waiting


def test_no_reader_meets_what_no_commit_names(world: World) -> None:
    """Not at any place of a batch, a redrive, a replay, a rewind, or a maintenance."""
    with watched(world) as found:
        world.send(row(1, GONE, at=2), row(4, "d", at=2), b"more garbage")
        world.run()
        world.redrive()
        world.replay()
        rewind(world.spec, world.settings, to="seq:1", reason="a test", run_id="me")
        maintain(world.spec, world.settings, run_id="me")
        world.run()

    assert {*PLACES, Failpoint.SIDES_CLEARED} <= found.keys()
    assert [problem for place in found for problem in found[place]] == []
    assert find_problems(world) == ()


@pytest.mark.parametrize("place", PLACES, ids=str)
def test_a_batch_that_dies_is_told_of_as_it_was_committed(world: World, place: Failpoint) -> None:
    """Before the commit nobody counts its records, and behind it everybody does, projected or not.

    The next run makes it whole, and so does one that finds no ledger.
    """
    world.send(row(1, GONE, at=2), b"more garbage", b"and more")
    with crashing_at(place), pytest.raises(PlannedError):
        world.run()
    is_committed = place not in {Failpoint.QUARANTINED, Failpoint.PREPARED}

    assert rows_of_no_commit(world) == ()
    assert waiting(world) == (4, 4) if is_committed else (2, 2)
    lost = "is not in the ledger"
    assert not [each for each in prove(world).differences if lost not in str(each)]
    if place is Failpoint.READ_BACK:
        shutil.rmtree(world.paths.ledger)
    world.run()
    assert waiting(world) == (4, 4)
    shutil.rmtree(world.paths.ledger)
    world.run()
    assert waiting(world) == (4, 4)
    assert find_problems(world) == ()


@pytest.mark.parametrize("place", [Failpoint.DECIDED, Failpoint.SIDES_CLEARED], ids=str)
def test_a_rewind_that_dies_has_happened_to_every_reader(world: World, place: Failpoint) -> None:
    """What it has undone is counted by nobody, whether it is in the table or not."""
    world.send(b"more garbage")
    world.run()
    with crashing_at(place), pytest.raises(PlannedError):
        rewind(world.spec, world.settings, to="seq:1", reason="a test", run_id="me")

    assert waiting(world) == (2, 2)
    world.run()
    assert waiting(world) == (3, 3)
    assert find_problems(world) == ()
