"""What a batch asks of Spark is counted, so that a pass more does not slip in."""

from __future__ import annotations

from typing import Any

import pytest

from oncelake.ingestion.modes.engines import local as local_engine
from tests.support.long import only_long, twins
from tests.support.proof import find_problems
from tests.support.world import World, row

pytestmark = [pytest.mark.kafka, pytest.mark.spark]


def jobs_of(world: World) -> int:
    """Count the jobs that this Spark has run so far."""
    return int(world.spark.sparkContext._jsc.sc().dagScheduler().numTotalJobs())


def test_a_batch_on_one_machine_is_one_spark_job(world: World) -> None:
    """Updates, deletes, late and bad records among them, and with the audit of each."""
    world.declare(sequence_by="at", apply_as_deletes="name = 'gone'")
    world.send(*(row(key, "a", at=5) for key in range(20)))
    world.run()
    world.send(
        *(row(key, "b", at=6) for key in range(5)),
        *(row(key, "late", at=1) for key in range(5, 10)),
        *(row(key, "gone", at=7) for key in range(10, 15)),
        row(99, "gone", at=7),
        b"garbage",
        {"id": 3, "name": "c", "at": 9, "more": 1},
    )
    before = jobs_of(world)

    report = world.run()

    assert jobs_of(world) - before == 1
    counts = report.batches[0].counts
    assert report.engine == "local"
    assert (counts["updated"], counts["deleted"], counts["stale"]) == (5, 5, 5)
    assert (counts["deleted_absent"], counts["quarantined"], counts["superseded"]) == (1, 1, 1)
    assert (counts["extra_fields"], len(world.rows())) == (1, 15)


def test_a_batch_that_is_too_large_is_cut_and_kafka_is_read_once(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each part is a batch of its own, of all partitions and as large as there is room for."""
    world.declare(sequence_by="at", apply_as_deletes="name = 'gone'")
    world.send(row(1, "a", at=1))
    world.run()
    monkeypatch.setattr(local_engine, "LARGEST_BATCH_BYTES", 50_000)
    world.send(*(row(key, "x" * 2_000, at=2) for key in range(60)), b"garbage")
    world.send(*(row(key, "y" * 200, at=3) for key in range(60, 90)), partition=1)
    world.send(row(1, "gone", at=4), row(2, "late", at=1))
    before = jobs_of(world)

    report = world.run()

    assert jobs_of(world) - before == 1
    assert (report.engine, report.lag, report.is_balanced) == ("local", 0, True)
    assert 4 <= len(report.batches) <= 20
    assert sum(batch.counts["quarantined"] for batch in report.batches) == 1
    assert {each["id"] for each in world.rows()} == {0, *range(2, 90)}
    assert find_problems(world) == ()


@pytest.mark.parametrize(
    "large",
    [
        pytest.param(row(2, "b" * 100_000), id="good"),
        *twins(pytest.param(b"x" * 100_000, id="bad")),
    ],
)
def test_a_batch_that_is_too_large_for_local_is_merged_by_spark(
    world: World, monkeypatch: pytest.MonkeyPatch, large: dict[str, Any] | bytes
) -> None:
    """What was committed before it stays; the run goes on, and says so."""
    monkeypatch.setattr(local_engine, "LARGEST_BATCH_BYTES", 50_000)
    world.declare(max_offsets_per_trigger=1)
    world.send(row(1, "a"), large, row(3, "c"))

    report = world.run()

    assert [batch.seq for batch in report.batches] == [1, 2, 3]
    assert all(batch.balanced for batch in report.batches)
    assert report.engine == "spark"
    assert "Spark merged: what cannot be cut" in report.notices[0]
    assert [each["id"] for each in world.rows()] == (
        [1, 3] if isinstance(large, bytes) else [1, 2, 3]
    )
    assert find_problems(world) == ()


@only_long
def test_what_is_read_again_goes_on_with_spark_where_it_is_too_large(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A replay and a redrive change the engine as a run does, and do nothing twice."""
    world.declare(max_offsets_per_trigger=1)
    world.send(row(1, "a"), row(2, "b" * 100_000), row(3, "c"))
    world.send({"id": 4, "name": "d" * 100_000, "at": "7"})
    world.run()
    world.declare(types={"at": "lenient"})
    monkeypatch.setattr(local_engine, "LARGEST_BATCH_BYTES", 50_000)

    replayed, redriven = world.replay(), world.redrive()

    assert [batch.counts["unchanged"] for batch in replayed.batches] == [1, 1, 1, 0]
    assert (redriven.waiting, redriven.redriven, redriven.is_balanced) == (1, 1, True)
    assert [each["id"] for each in world.rows()] == [1, 2, 3, 4]
    assert find_problems(world) == ()


def test_bytes_of_good_records_are_not_written(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Large values of which few columns are declared need no room, neither on disk nor here."""
    monkeypatch.setattr(local_engine, "LARGEST_BATCH_BYTES", 50_000)
    world.send(*({"id": number, "name": "a", "at": 1, "more": "x" * 50_000} for number in range(9)))

    report = world.run()

    assert (report.engine, report.notices) == ("local", ())
    assert len(world.rows()) == 9
