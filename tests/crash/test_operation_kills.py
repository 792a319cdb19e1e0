"""The operations of day two: killed by SIGKILL between their steps, and typed again.

In ``make test`` they die in process, in random lives and in the tests of each operation.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from oncelake.ingestion.operations.history import archive
from oncelake.ingestion.storage.failpoints import Failpoint
from tests.support.long import only_long
from tests.support.proof import find_problems, prove
from tests.support.world import World, row
from tests.trials.failpoints import PlannedCrash
from tests.trials.kills import run_to_its_end

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.slow, only_long]

ERASED = 3
OPERATIONS = {
    "rewind": ["--to", "seq:1", "--reason", "a test", "--yes"],
    "replay": ["--from", "earliest"],
    "maintain": [],
    "erase": ["--key", json.dumps({"id": ERASED}), "--reason", "a test", "--yes"],
    "rebuild": ["--reason", "a test"],
    "archive restore": ["--yes"],
}
PLACES = {
    "rewind": (Failpoint.LEDGER_HEALED, Failpoint.DECIDED, Failpoint.SIDES_CLEARED),
    "replay": (Failpoint.PREPARED, Failpoint.COMMITTED, Failpoint.AUDITED),
    "maintain": (Failpoint.RETIRED, Failpoint.COMPACTED, Failpoint.VACUUMED),
    "erase": (Failpoint.DECIDED, Failpoint.SIDES_CLEARED, Failpoint.VACUUMED),
    "rebuild": (Failpoint.COMMITTED, Failpoint.SWAP_BEGUN, Failpoint.SWAP_CLEARED),
    "archive restore": (Failpoint.SWAP_BEGUN, Failpoint.SWAP_CLEARED),
}
TRIED = [
    pytest.param(name, place, id=f"{name}-{place}")
    for name, places in PLACES.items()
    for place in places
]


@pytest.fixture(scope="module")
def ingested(module_world: World) -> World:
    """Three batches with rows, deletes and bad records."""
    made = module_world
    made.declare(sequence_by=["at"], apply_as_deletes="name = 'gone'")
    for at in range(3):
        made.send(row(1, f"v{at}", at=at), row(10 + at, "new", at=at), b"garbage")
        made.send(row(2, "gone" if at % 2 else "back", at=at), row(ERASED, "gone", at=at))
        made.run()
    made.write_declaration()
    return made


@pytest.mark.parametrize(("name", "place"), TRIED)
def test_an_operation_that_is_killed_is_done_again(
    ingested: World, tmp_path: Path, name: str, place: Failpoint
) -> None:
    """Killed for real between two steps; then a run, and the same command once more."""
    world = ingested.copied_to(tmp_path / "lake", state=tmp_path / "state")
    world.operation = (name, *OPERATIONS[name])
    world.settings.state.mkdir()
    if name == "archive restore":
        world.rebuild()
        [entry] = archive.list_archive(world.topic, world.settings)
        world.operation = (name, entry.entry, *OPERATIONS[name])
    before = world.rows()
    crash = PlannedCrash(place=place, nth=1, way="kill_group", visits=str(tmp_path / "visits"))

    how, problems = run_to_its_end(world, crash)
    world.run()
    whole = replace(crash, place="never")
    ended, more = run_to_its_end(world, replace(whole, way="exception"))
    world.run()

    assert (how, problems, ended, more) == ("killed", (), "exit 0", ())
    assert world.rows() == before
    assert prove(world).differences == ()
    if name != "erase":
        assert find_problems(world) == ()


@pytest.mark.parametrize("place", PLACES["rebuild"])
def test_a_rebuild_in_a_branch_that_is_killed_goes_on(world: World, place: Failpoint) -> None:
    """A reader finds the old rows, or the new ones, before it is typed again, too."""
    world.declare(sink="iceberg", sequence_by=["at"], apply_as_deletes="name = 'gone'")
    for at in range(3):
        world.send(row(1, f"v{at}", at=at), row(10 + at, "new", at=at), b"garbage")
        world.run()
    world.write_declaration()
    world.operation = ("rebuild", *OPERATIONS["rebuild"])
    before = world.rows()
    visits = str(world.settings.state / "visits")
    crash = PlannedCrash(place=place, nth=1, way="kill_group", visits=visits)

    how, problems = run_to_its_end(world, crash)
    between = world.rows()
    whole = replace(crash, place="never", way="exception")
    ended, more = run_to_its_end(world, whole)

    assert (how, problems, ended, more) == ("killed", (), "exit 0", ())
    assert (between, world.rows()) == (before, before)
    assert find_problems(world) == ()
