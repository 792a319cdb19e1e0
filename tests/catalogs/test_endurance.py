"""Many commits through a bad network, and many deaths around one: each record counts once."""

from __future__ import annotations

import random
import signal
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from oncelake.ingestion.errors import CommitConflictError, DependencyError
from oncelake.ingestion.sinks.iceberg import catalog as iceberg_catalog
from oncelake.ingestion.storage.failpoints import Failpoint
from tests.support.catalogs import TriedCatalog, only_catalogs
from tests.support.long import only_long
from tests.support.proof import find_problems
from tests.support.world import World, row
from tests.trials.failpoints import PlannedCrash

PATIENCE_SECONDS = 2.0


@pytest.mark.slow
@pytest.mark.parametrize(
    "commits", [pytest.param(12, marks=only_catalogs), pytest.param(200, marks=only_long)]
)
def test_commits_through_a_bad_network_count_once(
    world: World, catalog: TriedCatalog, monkeypatch: pytest.MonkeyPatch, commits: int
) -> None:
    """Something happens to most commits, and to requests around some; a run that fails is run."""
    if not catalog.faults:
        pytest.skip("nothing can happen on the way to it")
    monkeypatch.setattr(iceberg_catalog, "_REQUEST_SECONDS", (5.0, PATIENCE_SECONDS))
    dice, expected, failed = random.Random(commits), dict[int, str](), 0
    world.declare(max_offsets_per_trigger=1_000)
    for number in range(commits):
        expected |= {number: "new", number // 2: f"by {number}"}
        world.send(row(number, "new"), row(number // 2, f"by {number}"), b"not JSON")
        fault = dice.choice(catalog.faults)
        seconds = dice.choice((0.2, 1.5 * PATIENCE_SECONDS))
        of = dice.choice((catalog.commit, catalog.commit, ""))
        try:
            with catalog.fault(fault, of=of, first=dice.choice((1, 2)), seconds=seconds):
                world.run()
        except (DependencyError, CommitConflictError):
            failed += 1

    time.sleep(2 * PATIENCE_SECONDS)
    world.run()

    assert find_problems(world) == ()
    assert world.rows() == [row(id, name) for id, name in sorted(expected.items(), key=_text)]
    assert len(world.quarantined()) == commits
    assert catalog.retries or failed >= commits // 10


def _text(item: tuple[int, str]) -> str:
    return str(item[0])


@only_long
@only_catalogs
@pytest.mark.kafka
@pytest.mark.slow
def test_a_process_that_is_killed_around_its_commit_leaves_all_of_it_or_nothing(
    world: World, catalog: TriedCatalog, tmp_path: Path
) -> None:
    """Twenty of them: before it, while it is on its way there and back, and behind it."""
    world.send(row(0, "a"), row(1, "a"))
    world.run()
    dice, kept = random.Random(20), 0
    for number in range(1, 21):
        place = Failpoint.COMMITTED if number % 4 == 0 else Failpoint.PREPARED
        later = 0.0 if number % 4 in (0, 1) else dice.uniform(0.0, 1.2)
        world.send(row(number + 1, "a"), row(number, "b"), b"not JSON")
        world.write_declaration()
        crash = PlannedCrash(
            place=place, way="kill_python", visits=str(tmp_path / "visits"), delay_seconds=later
        )
        with ExitStack() as stack:
            if later:
                stack.enter_context(catalog.fault("delay", seconds=0.4))
            killed = world.run_elsewhere(**crash.environment())
        assert killed.returncode in (-signal.SIGKILL, 0), killed.stderr
        kept += len(world.rows()) == number + 2

        try:
            world.run()
        except CommitConflictError:
            # What was on its way has arrived in between.
            world.run()

        assert len(world.rows()) == number + 2
    assert 5 <= kept <= 17
    assert find_problems(world) == ()
