"""A proof that is killed where it writes what it remembers: the next one says what it says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from oncelake.ingestion.operations.erase.erase import erase
from oncelake.ingestion.storage.failpoints import Failpoint
from oncelake.ingestion.verify.verify import verify
from tests.support.long import only_long, twins
from tests.support.world import World, row
from tests.trials.failpoints import PlannedCrash
from tests.trials.kills import run_to_its_end

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

SINKS = ("delta", *twins("iceberg", "postgres"))
ERASE = ("erase", "--key", json.dumps({"id": 2}), "--reason", "a test", "--yes")
# Each writes a file of events, and then what names it.
WRITES = (1, 2)


@pytest.fixture
def loaded(world: World) -> World:
    """Two batches with rows and bad records."""
    world.declare(sequence_by=["at"])
    world.write_declaration()
    world.settings.state.mkdir(exist_ok=True)
    world.send(row(1, "a", at=1), row(2, "b", at=1), b"garbage", row(3, "c", at=1))
    world.send(None, id=3)
    world.run()
    world.send(row(1, "A", at=2), row(4, "d", at=1))
    world.run()
    return world


def kill(world: World, nth: int, tmp_path: Path) -> None:
    """Run the world's operation until it is killed at a write of what a proof remembers."""
    visits = str(tmp_path / f"visits-{world.operation[0]}-{nth}")
    crash = PlannedCrash(place=Failpoint.PROOF_WRITTEN, nth=nth, way="kill_group", visits=visits)
    assert run_to_its_end(world, crash) == ("killed", ())


def files(world: World) -> set[str]:
    """Name what a proof has left."""
    return {*world.paths.proof.files()}


def goes_on(world: World) -> None:
    """Prove another batch, and that nothing is left over of the proofs before."""
    world.send(row(5, "e", at=1))
    world.run()
    assert verify(world.spec, world.settings).holds
    assert len(files(world)) == 2


@pytest.mark.parametrize("sink", SINKS)
@pytest.mark.parametrize("nth", WRITES)
def test_the_first_proof_is_killed(loaded: World, nth: int, tmp_path: Path) -> None:
    """What it has left is whole, or there is nothing to go on from; nothing is left over."""
    loaded.operation = ("verify",)
    kill(loaded, nth, tmp_path)
    assert ("proof.json" in files(loaded)) == (nth == 2)

    verdict = verify(loaded.spec, loaded.settings)

    assert (verdict.holds, verdict.record_by_record) == (True, None)
    assert (verdict.memory is not None) == (nth == 2)
    goes_on(loaded)


@pytest.mark.parametrize("sink", SINKS)
@pytest.mark.parametrize("nth", WRITES)
@pytest.mark.parametrize("options", [(), ("--whole",)], ids=["going on", "whole"])
def test_a_later_proof_is_killed(
    loaded: World, nth: int, options: tuple[str, ...], tmp_path: Path
) -> None:
    """The next goes on from it, or from the one before it, and finds a row that changes."""
    assert verify(loaded.spec, loaded.settings).holds
    loaded.send(row(1, "newer", at=3), row(2, "newer", at=3))
    loaded.run()
    loaded.operation = ("verify", *options)
    kill(loaded, nth, tmp_path)

    verdict = verify(loaded.spec, loaded.settings)

    assert verdict.holds
    through = 3 if nth == 2 else 2
    assert verdict.memory is not None
    assert f"through batch {through}" in verdict.memory
    goes_on(loaded)


@pytest.mark.parametrize("sink", SINKS)
@pytest.mark.parametrize("nth", WRITES)
@only_long
def test_an_erase_is_killed(loaded: World, nth: int, tmp_path: Path) -> None:
    """Where it takes the key out of what is remembered; typed again, it ends."""
    assert verify(loaded.spec, loaded.settings).holds
    loaded.operation = ERASE
    kill(loaded, nth, tmp_path)

    erase(loaded.spec, loaded.settings, key='{"id": 2}', reason="again", run_id="e")

    goes_on(loaded)
    assert [each["id"] for each in loaded.rows()] == [1, 3, 4, 5]
