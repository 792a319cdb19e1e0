"""Quarantined records, sent in again once the declaration is mended: each once, and proven."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from ingestion.operations.redrive import RedriveReport
from tests.oracle import evidence_against
from tests.world import World, row, settings_in

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

STRICT = "id INT NOT NULL, name STRING NOT NULL, at INT"
LENIENT = "id INT NOT NULL, name STRING, at INT"
COLUMNS = ("_topic", "_partition", "_offset", "_timestamp", "_epoch", "_seq")


def story(world: World) -> RedriveReport:
    """Quarantine records under a strict declaration, let newer ones come, mend it, redrive."""
    world.declare(sequence_by=["at"], apply_as_deletes="at = 7", tombstones="quarantine")
    world.send(row(5, "e", at=1))
    world.run()
    world.declare(schema=STRICT)
    world.send({"id": 1, "at": 1}, {"id": 2, "at": 1}, row(3, "c", at=5), b"garbage")
    world.send({"id": 4, "at": 1}, {"id": 4, "at": 2}, {"id": 4, "at": 2}, partition=1)
    world.send({"id": 9, "name": "i", "at": 6}, {"id": 9, "at": 5})
    world.send(None, id=3)
    world.run()
    world.send(row(2, "newer", at=2), {"id": 3, "name": None, "at": 6}, row(9, "gone", at=7))
    world.run()
    world.declare(schema=LENIENT, tombstones="ignore")
    return world.redrive()


@pytest.fixture(scope="module")
def told(
    tmp_path_factory: pytest.TempPathFactory, kafka_address: str, spark: SparkSession
) -> Iterator[World]:
    """A stream whose quarantine was redriven, ingested once for all tests of this module."""
    home = tmp_path_factory.mktemp("redrive")
    with World.made(settings_in(home, kafka_address), spark) as world:
        world.report = story(world)  # type: ignore[attr-defined]
        yield world
    shutil.rmtree(home, ignore_errors=True)


@pytest.fixture
def damaged(told: World, tmp_path: Path) -> World:
    """A copy of that stream's tables, to be damaged."""
    shutil.copytree(told.settings.lake, tmp_path / "lake")
    settings = told.settings.model_copy(update={"lake": tmp_path / "lake"})
    return replace(told, settings=settings, declared=dict(told.declared))


def test_a_redrive_applies_what_is_good_now_and_never_over_what_came_later(told: World) -> None:
    """Absent rows come, older records lose to newer rows and deletes, the rest stays, all once."""
    report: RedriveReport = told.report  # type: ignore[attr-defined]
    (batch,) = report.batches

    assert told.rows() == [
        row(1, None, at=1), row(2, "newer", at=2), row(3, None, at=6), row(4, None, at=2),
        row(5, "e", at=1),
    ]  # fmt: skip
    assert (report.waiting, report.redriven, report.still_bad) == (9, 8, {"malformed_json": 1})
    assert (batch.kind, batch.seq, batch.ranges, batch.is_red) == ("redrive", 4, (), False)
    assert {name: n for name, n in batch.counts.items() if n} == {
        "read": 8, "inserted": 2, "updated": 1, "superseded": 2, "stale": 2, "ignored": 1
    }  # fmt: skip
    assert [each["redriven_seq"] for each in told.quarantined()].count(4) == 8
    assert evidence_against(told) == ()
