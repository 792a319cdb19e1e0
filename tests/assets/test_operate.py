"""The operations as Dagster runs them: a job whose failure says what a person must do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa
import pytest
from dagster._core.execution.retries import auto_reexecution_should_retry_run
from deltalake import write_deltalake

from oncelake.assets.jobs.backfill import replay_assets
from oncelake.assets.jobs.operate import operate_job
from oncelake.ingestion.errors import DependencyError, IngestionError, TableRestoredError
from oncelake.ingestion.lake.ledger import LedgerRow
from oncelake.ingestion.operations.history.archive import list_archive
from oncelake.ingestion.operations.history.replay import Replay, ReplayReport
from oncelake.ingestion.operations.history.rewind import Savepoint
from oncelake.ingestion.operations.quarantine.redrive import Redrive, RedriveReport
from oncelake.ingestion.settings import load_settings
from oncelake.resources.kafka import KafkaResource
from oncelake.resources.lake import LakeResource
from oncelake.resources.spark import SparkResource
from tests.assets.conftest import batch, declared
from tests.assets.shell import failure_of
from tests.support.quarantine import as_quarantine

pytestmark = pytest.mark.filterwarnings("ignore:InitResourceContext.dagster_run:DeprecationWarning")


@pytest.fixture(autouse=True)
def _declared_in_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the job find the file that ``declared`` writes."""
    monkeypatch.setenv("ONCELAKE_STREAMS", str(tmp_path))


def run_job(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    execute: Callable[[Redrive], RedriveReport],
    reason: str | None = None,
) -> dg.ExecuteInProcessResult:
    """Run the job of a stream with an engine of the test's own."""
    monkeypatch.setattr("oncelake.ingestion.operations.quarantine.redrive.Redrive.execute", execute)
    return operate(folder, redrive={"of_reason": reason} if reason else {})


def operate(folder: Path, **operation: dict[str, Any]) -> dg.ExecuteInProcessResult:
    """Run the job of a stream, configured as in the launchpad."""
    declared(folder)
    lake, config = LakeResource(), {"stream": "orders", "operation": operation}
    return operate_job().execute_in_process(
        run_config={"ops": {"operate": {"config": config}}},
        resources={
            "oncelake_kafka": KafkaResource(),
            "oncelake_lake": lake,
            "oncelake_spark": SparkResource(lake=lake),
        },
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


def test_an_operation_is_not_done_twice() -> None:
    """Killed, its run is not started again: a second reset would archive what was read since."""
    with dg.instance_for_test(
        overrides={"run_retries": {"enabled": True, "max_retries": 2}}
    ) as instance:
        of_orders = {"stream": "orders", "operation": {"redrive": {}}}
        config = {"ops": {"operate": {"config": of_orders}}}
        job = operate_job()
        run = instance.create_run_for_job(job, run_config=config, tags=job.run_tags)
        killed = dg.DagsterEvent(dg.DagsterEventType.RUN_FAILURE.value, job_name=run.job_name)
        instance.report_dagster_event(killed, run.run_id)
        failed = instance.get_run_by_id(run.run_id)
        assert failed is not None

        assert not auto_reexecution_should_retry_run(instance, failed, None)


@pytest.mark.parametrize("operation", ["accept", "adopt_topic", "rebuild", "reset"])
def test_a_decision_needs_a_reason(tmp_path: Path, operation: str) -> None:
    """What only a person may decide cannot be started without saying why."""
    with pytest.raises(dg.DagsterInvalidConfigError):
        operate(tmp_path, **{operation: {}})

    assert "say why" in failure_of(operate(tmp_path, **{operation: {"reason": "  "}}))


@pytest.mark.parametrize(
    ("operation", "done_by"),
    [("accept", "publish.publish_or_accept"), ("adopt_topic", "decisions.adopt_topic")],
)
def test_a_decision_reaches_the_engine_with_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, operation: str, done_by: str
) -> None:
    """The job calls what the command line calls, with the reason that was given."""
    asked: list[str] = []

    def decide(*given: Any, reason: str, run_id: str, **more: Any) -> LedgerRow:
        asked.append(reason)
        return batch(3, 0, 1)

    monkeypatch.setattr(f"oncelake.ingestion.operations.{done_by}", decide)

    assert operate(tmp_path, **{operation: {"reason": "the topic was moved"}}).success
    assert asked == ["the topic was moved"]


def test_a_reset_archives_the_tables_with_the_reason(tmp_path: Path) -> None:
    """What the job archives is listed with why, and nothing of it is deleted."""
    settings = load_settings()
    write_deltalake(settings.lake / "orders", pa.table({"id": [1, 2]}))
    waiting = {"_seq": [1, 1], "redriven_seq": pa.array([None, 2], pa.int64())}
    write_deltalake(settings.lake / "orders__quarantine", as_quarantine(pa.table(waiting)))

    done = operate(tmp_path, reset={"reason": "a fresh start"})

    (entry,) = list_archive("orders", settings)
    assert (entry.why, entry.rows) == ("reset: a fresh start", 2)
    assert entry.tables == ("orders", "orders__quarantine")
    (output,) = (each for each in done.all_events if each.event_type_value == "STEP_OUTPUT")
    assert output.step_output_data.metadata["quarantined_archived"].value == 1


def test_a_rewind_and_a_replay_reach_the_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The savepoint, the reason and the offsets are those of the launchpad."""
    asked: list[Any] = []

    def rewind(*given: Any, to: str, reason: str, run_id: str) -> tuple[Savepoint, LedgerRow]:
        asked.append((to, reason))
        row = batch(3, 0, 1)
        places = {"seq": 1, "kind": "ingest", "epoch": 1, "delta_version": 2}
        point = Savepoint(**places, committed_at=row.committed_at, next=None, obstacle=None)
        return point, row

    def execute(replay: Replay) -> ReplayReport:
        asked.append((replay.begin, replay.end))
        return ReplayReport(stream="orders", run_id="r")

    monkeypatch.setattr("oncelake.ingestion.operations.history.rewind.rewind", rewind)
    monkeypatch.setattr("oncelake.ingestion.operations.history.replay.Replay.execute", execute)

    assert operate(tmp_path, rewind={"to": "seq:1", "reason": "test data"}).success
    assert operate(tmp_path, replay={"begin": "earliest"}).success
    assert asked == [("seq:1", "test data"), ("earliest", None)]


def test_a_range_of_days_is_replayed_in_one_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the first day's midnight, UTC, to the midnight after the last."""
    asked: list[tuple[str, str | None]] = []

    def execute(replay: Replay) -> ReplayReport:
        asked.append((replay.begin, replay.end))
        return ReplayReport(stream="orders", run_id="r")

    monkeypatch.setattr("oncelake.ingestion.operations.history.replay.Replay.execute", execute)
    spec, lake = declared(tmp_path, backfill_from="2026-01-01").spec, LakeResource()
    assert spec is not None
    (asset,) = replay_assets(spec)
    days = {
        "dagster/asset_partition_range_start": "2026-01-02",
        "dagster/asset_partition_range_end": "2026-01-04",
    }

    result = dg.materialize(
        [asset],
        selection=[asset],
        resources={
            "oncelake_kafka": KafkaResource(),
            "oncelake_lake": lake,
            "oncelake_spark": SparkResource(lake=lake),
        },
        tags=days,
    )

    assert result.success
    assert asked == [("2026-01-02T00:00:00+00:00", "2026-01-05T00:00:00+00:00")]
