"""A redrive as Dagster runs it: a job of its own, whose failure says what a person must do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

import assets.jobs
from assets.jobs import redrive_job
from ingestion.errors import DependencyError, IngestionError, TableRestoredError
from ingestion.operations.redrive import Redrive, RedriveReport
from resources.kafka import KafkaResource
from resources.lake import LakeResource
from resources.spark import SparkResource
from tests.assets.conftest import batch, declared
from tests.assets.shell import failure_of

pytestmark = pytest.mark.filterwarnings("ignore:InitResourceContext.dagster_run:DeprecationWarning")


def run_job(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    execute: Callable[[Redrive], RedriveReport],
    reason: str | None = None,
) -> dg.ExecuteInProcessResult:
    """Run the job of a stream with an engine of the test's own."""
    monkeypatch.setattr(assets.jobs.Redrive, "execute", execute)
    spec, lake = declared(folder).spec, LakeResource()
    assert spec is not None
    config: dict[str, Any] = {"config": {"reason": reason}} if reason else {}
    return redrive_job(spec).execute_in_process(
        run_config={"ops": {"redrive_orders": config}},
        resources={"kafka": KafkaResource(), "lake": lake, "spark": SparkResource(lake=lake)},
        raise_on_error=False,
    )


def test_the_job_redrives_and_says_what_became_of_the_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reason that was asked for gets through, and the numbers come back."""
    asked: list[str | None] = []

    def execute(redrive: Redrive) -> RedriveReport:
        asked.append(redrive.reason)
        return RedriveReport(
            stream="orders", run_id="r", waiting=12, still_bad={"x": 2}, batches=(batch(3, 0, 10),)
        )

    result = run_job(tmp_path, monkeypatch, execute, reason="missing_key")

    assert (result.success, asked) == (True, ["missing_key"])


@pytest.mark.parametrize(
    "error",
    [
        pytest.param(TableRestoredError("orders", "was restored.", remedy="accept"), id="refused"),
        pytest.param(DependencyError("orders: Kafka does not answer"), id="unreachable"),
    ],
)
def test_a_redrive_that_cannot_be_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: IngestionError
) -> None:
    """What a person must decide, and what does not answer, is the failure's text."""

    def execute(_: Redrive) -> RedriveReport:
        raise error

    result = run_job(tmp_path, monkeypatch, execute)

    assert (result.success, failure_of(result)) == (False, str(error))


def test_red_books_fail_the_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A redrive whose books do not balance is never green."""

    def execute(_: Redrive) -> RedriveReport:
        red = batch(3, 0, 1, balanced=False)
        return RedriveReport(stream="orders", run_id="r", waiting=1, still_bad={}, batches=(red,))

    assert "do not balance" in failure_of(run_job(tmp_path, monkeypatch, execute))
