"""Faults of a run in Dagster, with the real engine: nothing twice, nothing unreported."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from oncelake.ingestion.lake.lock import Holder, held_by_jvm
from oncelake.ingestion.modes.upsert import UpsertMode
from tests.assets.shell import failure_of, materialize, reported_in
from tests.support.faulty_sink import WITHOUT_ID_2, merging
from tests.support.world import World, row

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.spark,
    # Dagster's own, wherever one resource holds another.
    pytest.mark.filterwarnings("ignore:InitResourceContext.dagster_run:DeprecationWarning"),
]


def reported_seqs(world: World, instance: dg.DagsterInstance) -> list[int]:
    """Return the seqs that Dagster's materializations speak of, each as often as it is reported."""
    return [seq for _, seqs in reported_in(instance, world.topic) for seq in seqs]


def test_a_run_that_is_canceled_in_a_merge_costs_nothing(
    world: World, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Canceled while Spark merges, a run ends at once; the next ends with each record once."""
    world.declare(max_offsets_per_trigger=2, sequence_by=["at"])
    world.send(*(row(n % 4, f"v{n}", at=n) for n in range(8)))
    honest = UpsertMode.commit

    def canceled(sink: UpsertMode, *given: Any, **named: Any) -> Any:
        if world.log.last_seq(world.topic) == 1:
            threading.Thread(target=_cancel_in_a_job, args=(world, instance)).start()
        return honest(sink, *given, **named)

    with monkeypatch.context() as patched:
        patched.setattr(UpsertMode, "commit", canceled)
        first = materialize(world, instance)
    second = materialize(world, instance)

    ended = instance.get_run_by_id(first.run_id)
    assert ended is not None
    assert ended.status is dg.DagsterRunStatus.CANCELED
    assert second.success
    assert world.rows() == [row(n, f"v{n + 4}", at=n + 4) for n in range(4)]
    assert all(each.balanced for each in world.ledger)
    assert reported_seqs(world, instance) == [each.seq for each in world.ledger]


def _cancel_in_a_job(world: World, instance: dg.DagsterInstance) -> None:
    """Cancel the run as the UI does, as soon as a Spark job of the merge is under way."""
    jobs = world.spark.sparkContext.statusTracker()
    deadline = time.monotonic() + 30
    while not jobs.getActiveJobsIds() and time.monotonic() < deadline:
        time.sleep(0.005)
    (run,) = instance.get_runs(dg.RunsFilter(statuses=[dg.DagsterRunStatus.STARTED]))
    instance.report_run_canceling(run)
    os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Great Expectations' own.
def test_expectations_cover_what_was_unreported(world: World, instance: dg.DagsterInstance) -> None:
    """An idle run looks at the rows that a run wrote of which Dagster never heard."""
    world.declare(expectations=[{"type": "expect_column_values_to_not_be_null", "column": "name"}])
    world.send(row(1, "a"))
    materialize(world, instance)
    world.send(row(2, None))
    world.run(run_id="lost")

    result = materialize(world, instance)

    (found,) = [
        it for it in result.get_asset_check_evaluations() if it.check_name == "expectations"
    ]
    assert not found.passed
    assert "1 unexpected" in str(found.description)
    assert reported_seqs(world, instance) == [1, 2]


def test_a_second_run_is_refused_by_the_first_ones_name(
    world: World, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where no pool keeps two runs apart the lock does: exit code 4, and not one commit."""
    monkeypatch.setattr("oncelake.assets.assets.RETRY_AFTER_SECONDS", (0,))
    world.send(row(1, "a"))

    with held_by_jvm(world.spark, world.paths, Holder.me("first")):
        result = materialize(world, instance)

    failed = [event for event in result.all_events if event.is_step_failure]
    said = str(failed[0].step_failure_data)
    assert not result.success
    assert "run first" in said
    assert "StreamLockedError" in said
    assert not Path(world.paths.data).exists()


def test_a_red_batch_fails_and_is_refused_until_it_is_accepted(
    world: World, instance: dg.DagsterInstance
) -> None:
    """A sink that drops a record fails a blocking check, and the next run is refused."""
    world.send(row(1, "a"), row(2, "dropped"))
    with merging(WITHOUT_ID_2):
        red = materialize(world, instance)

    refused = materialize(world, instance)

    assert not red.success
    failed = [it for it in red.get_asset_check_evaluations() if it.blocking and not it.passed]
    said = "2 rows should be inserted, the commit counts 1"
    assert any(said in str(it.description) for it in failed)
    assert [batch.balanced for batch in world.ledger] == [False]
    assert not refused.success
    assert f"oncelake accept {world.topic}" in failure_of(refused)
