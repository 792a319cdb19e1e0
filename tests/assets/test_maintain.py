"""The job of every night: which streams it maintains, and what it says of those that it cannot."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

import oncelake.assets.jobs.maintain
from oncelake.assets.jobs.maintain import maintain_job, maintain_schedule
from oncelake.ingestion.declaration.files.loader import DeclaredStream
from oncelake.ingestion.errors import InvalidSpecError, StreamLockedError
from oncelake.ingestion.operations.upkeep.maintain import UpkeepReport
from oncelake.ingestion.sinks.delta.compaction import TableSize, TableUpkeep
from oncelake.resources.kafka import KafkaResource
from oncelake.resources.lake import LakeResource
from oncelake.resources.spark import SparkResource
from tests.assets.conftest import assert_sentence, broken, declared
from tests.assets.shell import failure_of

pytestmark = pytest.mark.filterwarnings("ignore:InitResourceContext.dagster_run:DeprecationWarning")


@pytest.fixture
def maintained(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The streams that the engine was asked to maintain; one of them is held by a run."""
    names: list[str] = []

    def maintain(spec: Any, settings: Any, **given: Any) -> UpkeepReport:
        names.append(spec.name)
        if spec.name == "held":
            raise StreamLockedError("held: run r holds it")
        before, after = (TableSize(files=n, bytes=n, bytes_on_disk=n) for n in (9, 1))
        table = TableUpkeep(name=spec.name, before=before, after=after, vacuumed=8)
        return UpkeepReport(stream=spec.name, tables=(table,), payloads_removed=0, swept=0)

    monkeypatch.setattr("oncelake.ingestion.operations.upkeep.maintain.maintain", maintain)
    monkeypatch.setattr(oncelake.assets.jobs.maintain, "RETRY_SECONDS", 0)
    return names


def named(name: str, stream: DeclaredStream) -> DeclaredStream:
    """Declare the same under another name."""
    assert stream.spec is not None
    return replace(stream, name=name, spec=stream.spec.model_copy(update={"name": name}))


def run_job(
    folder: Path, *streams: str, alone: DeclaredStream | None = None
) -> dg.ExecuteInProcessResult:
    """Run the job over one, or three streams, one of which asks for no maintenance at night."""
    base = declared(folder)
    quiet = declared(folder, maintenance={"nightly": False})
    three = [base, named("held", base), named("quiet", quiet)]
    lake = LakeResource()
    return maintain_job(three if alone is None else [alone]).execute_in_process(
        run_config={"ops": {"maintain": {"config": {"streams": list(streams)}}}},
        resources={
            "oncelake_kafka": KafkaResource(),
            "oncelake_lake": lake,
            "oncelake_spark": SparkResource(lake=lake),
        },
        raise_on_error=False,
    )


def test_all_streams_are_maintained_that_ask_for_it(tmp_path: Path, maintained: list[str]) -> None:
    """One that a run holds does not keep the others from it, and is tried again later."""
    result = run_job(tmp_path)

    assert maintained == ["orders", "held"] * 4
    assert not result.success
    assert sum(each.is_step_up_for_retry for each in result.all_events) == 3


def test_named_streams_are_maintained_alone(tmp_path: Path, maintained: list[str]) -> None:
    """Also those that are left out at night; an unknown name is an error."""
    result = run_job(tmp_path, "quiet")

    (output,) = (each for each in result.all_events if each.event_type_value == "STEP_OUTPUT")
    (table,) = output.step_output_data.metadata["tables"].records
    assert (table.data["bytes on disk"], table.data["bytes now"]) == (9, 1)
    assert maintained == ["quiet"]
    assert "there are: orders, held, quiet" in failure_of(run_job(tmp_path, "nosuch"))


def test_where_no_table_was_maintained_the_reason_is_told(
    tmp_path: Path, maintained: list[str]
) -> None:
    """That every stream is held is tried again; a file that is broken fails the night."""
    held = run_job(tmp_path, alone=named("held", declared(tmp_path)))
    wrong = run_job(tmp_path, alone=broken(tmp_path))

    assert maintained == ["held"] * 4
    assert sum(each.is_step_up_for_retry for each in held.all_events) == 3
    assert "did you mean `topic`?" in failure_of(wrong)


@pytest.mark.parametrize(
    ("end", "says"),
    [
        pytest.param(dg.DagsterExecutionInterruptedError(), "maintain: interrupted;", id="stopped"),
        pytest.param(InvalidSpecError("ONCELAKE_LOCK: wrong"), "ONCELAKE_LOCK: wrong", id="wrong"),
    ],
)
def test_what_ends_the_job_is_a_sentence_without_a_stack(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: BaseException, says: str
) -> None:
    """A termination, and settings that are wrong, are told as by the asset of a stream."""

    def settings(*parts: object) -> None:
        raise end

    monkeypatch.setattr(oncelake.assets.jobs.maintain, "settings_of", settings)

    result = run_job(tmp_path)

    assert_sentence(result, says)


def test_the_schedule_runs_by_default(tmp_path: Path) -> None:
    """Every night, in UTC, unless somebody stops it."""
    schedule = maintain_schedule(maintain_job([]))

    assert (schedule.cron_schedule, schedule.execution_timezone) == ("0 3 * * *", "UTC")
    assert schedule.default_status == dg.DefaultScheduleStatus.RUNNING
