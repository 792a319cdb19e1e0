"""The operations of day two: killed by SIGKILL between their steps, and typed again.

In ``make test`` they die in process, in random lives and in the tests of each operation.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from ingestion.operations import archive
from ingestion.storage.failpoints import Failpoint
from tests.crash.child_process import run_to_its_end
from tests.crash.failpoint_hook import PlannedCrash
from tests.support.long import only_long
from tests.support.proof import find_problems, prove
from tests.support.world import World, row

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


@dataclass(kw_only=True)
class Operated(World):
    """A stream whose other process does an operation instead of running."""

    operation: list[str] = field(default_factory=list)

    @property
    def command(self) -> list[str]:
        """What is done in another process."""
        name, *options = self.operation
        return [sys.executable, "-m", "ingestion", *name.split(), self.topic, *options]


@pytest.fixture(scope="module")
def ingested(
    tmp_path_factory: pytest.TempPathFactory, module_world: World, spark: SparkSession
) -> Operated:
    """Three batches with rows, deletes and bad records."""
    made = Operated(**{name: getattr(module_world, name) for name in World.__dataclass_fields__})
    made.declare(sequence_by=["at"], apply_as_deletes="name = 'gone'")
    for at in range(3):
        made.send(row(1, f"v{at}", at=at), row(10 + at, "new", at=at), b"garbage")
        made.send(row(2, "gone" if at % 2 else "back", at=at), row(ERASED, "gone", at=at))
        made.run()
    made.write_declaration()
    return made


@pytest.mark.parametrize(("name", "place"), TRIED)
def test_an_operation_that_is_killed_is_done_again(
    ingested: Operated, tmp_path: Path, name: str, place: Failpoint
) -> None:
    """Killed for real between two steps; then a run, and the same command once more."""
    world = replace(
        ingested.copied_to(tmp_path / "lake", state=tmp_path / "state"),
        operation=[name, *OPERATIONS[name]],
    )
    world.settings.state.mkdir()
    if name == "archive restore":
        world.rebuild()
        [entry] = archive.list_archive(world.topic, world.settings)
        world.operation.insert(1, entry.entry)
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
