"""Following in Dagster: what is told of each bounded run, and one run kept alive."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from dagster._core.events import EngineEventData
from dagster._core.remote_origin import RegisteredCodeLocationOrigin, RemoteRepositoryOrigin

from oncelake.assets.assets import ingest_asset
from oncelake.assets.follow import follow_job, follow_sensor
from oncelake.assets.jobs.jobs import FOLLOW_JOB
from oncelake.assets.sensors import Tick
from oncelake.ingestion.declaration.files.loader import DeclaredStream
from oncelake.ingestion.errors import DependencyError, InvalidSpecError, TopicRecreatedError
from oncelake.ingestion.lake.ledger import Ledger
from oncelake.ingestion.operations.follow.follow import Follow
from oncelake.ingestion.operations.upkeep.retention import Retention
from oncelake.ingestion.pipeline.report import RunReport
from oncelake.ingestion.storage.location import Location
from oncelake.resources.kafka import KafkaResource
from oncelake.resources.lake import LakeResource
from oncelake.resources.spark import SparkResource
from tests.assets.conftest import batch, broken, declared, report
from tests.assets.shell import failure_of, reported_in
from tests.support.world import JARS

# Dagster's own, wherever one resource holds another.
pytestmark = pytest.mark.filterwarnings("ignore:InitResourceContext.dagster_run:DeprecationWarning")

HERE = RegisteredCodeLocationOrigin("oncelake")
Script = Callable[[Follow], None]


@pytest.fixture(autouse=True)
def _no_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the ledger stand alone where no engine runs, Kafka keep all, and sensors be ours."""
    monkeypatch.setattr(dg.SensorEvaluationContext, "code_location_origin", HERE)
    monkeypatch.setattr("oncelake.ingestion.sinks.delta.table.DeltaLog.table_id", lambda self: "t")
    monkeypatch.setattr(
        "oncelake.ingestion.operations.upkeep.retention.retention_now",
        lambda spec, settings: Retention(spec=spec),
    )


def job() -> dg.JobDefinition:
    """The job, with what it needs."""
    lake = LakeResource()
    given = {"oncelake_kafka": KafkaResource(address="nowhere:1"), "oncelake_lake": lake}
    given |= {"oncelake_spark": SparkResource(lake=lake)}  # type: ignore[dict-item]
    return dg.Definitions(jobs=[follow_job()], resources=given).resolve_job_def(FOLLOW_JOB)


def followed(
    script: Script, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> dg.ExecuteInProcessResult:
    """Run the job while streams do what a script says."""
    monkeypatch.setattr(
        "oncelake.ingestion.operations.follow.follow.Follow.execute", lambda follow: script(follow)
    )
    return run_job(instance)


def run_job(instance: dg.DagsterInstance, **config: Any) -> dg.ExecuteInProcessResult:
    """Run the job as it is configured."""
    given = {"ops": {"follow": {"config": config}}}
    return job().execute_in_process(run_config=given, instance=instance, raise_on_error=False)


def end_with(follow: Follow, stream: DeclaredStream, found: RunReport) -> None:
    """Let a bounded run of a stream end with a report, in a thread of its own."""
    Ledger(Location.of(follow.settings.lake / "orders__ledger")).put(*found.batches)
    thread = threading.Thread(target=follow.on_report, args=(stream, found))
    thread.start()
    thread.join()


def test_each_bounded_run_is_a_materialization_with_its_checks(
    tmp_path: Path, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both batches of one long run are told, each once and with all five checks."""
    stream = declared(tmp_path)

    def script(follow: Follow) -> None:
        end_with(follow, stream, report(batch(1, 0, 5)))
        end_with(follow, stream, report(batch(2, 5, 9), lag=7))

    result = followed(script, instance, monkeypatch)

    assert result.success
    assert reported_in(instance, "orders") == [(False, [1]), (False, [2])]
    last = instance.get_latest_materialization_event(dg.AssetKey("orders"))
    assert last is not None
    assert last.run_id == result.run_id
    materialized = last.asset_materialization
    assert materialized is not None
    assert (materialized.metadata["read"].value, materialized.metadata["lag"].value) == (4, 7)
    assert checks_of(instance, result) == [True] * 10


def test_a_refusal_turns_the_checks_of_its_stream_red(
    tmp_path: Path, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its text and remedy are on every check; what passes by itself turns nothing red."""
    refused = TopicRecreatedError("orders", "the topic is another.", remedy="adopt-topic")

    def script(follow: Follow) -> None:
        follow.on_failure(declared(tmp_path), DependencyError("orders: Kafka is away"))
        follow.on_failure(None, DependencyError("Kafka is away"))
        follow.on_failure(declared(tmp_path), refused)

    result = followed(script, instance, monkeypatch)

    assert result.success
    assert checks_of(instance, result) == [False] * 5
    key = dg.AssetCheckKey(dg.AssetKey("orders"), "books_balance")
    (record,) = instance.event_log_storage.get_asset_check_execution_history(key, limit=10)
    assert record.event is not None
    told = record.event.get_dagster_event().asset_check_evaluation_data
    assert told.description == str(refused)
    assert (told.metadata["next"].value, told.blocking) == ("adopt-topic", True)


def test_a_refusal_after_a_run_by_hand_is_what_dagster_shows(
    tmp_path: Path, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One record of a check and run is written over: it would stand behind that of the other."""
    stream = declared(tmp_path)
    key = dg.AssetCheckKey(dg.AssetKey("orders"), "books_balance")
    shown = []

    def note() -> None:
        latest = instance.event_log_storage.get_latest_asset_check_execution_by_key([key])
        shown.append(latest[key].status.value)

    def script(follow: Follow) -> None:
        end_with(follow, stream, report(batch(1, 0, 5)))
        by_hand = dg.AssetCheckEvaluation(
            asset_key=key.asset_key, check_name=key.name, passed=True, metadata={}
        )
        instance.report_dagster_event(
            dg.DagsterEvent(
                dg.DagsterEventType.ASSET_CHECK_EVALUATION.value,
                job_name="by_hand",
                event_specific_data=by_hand,
            ),
            instance.create_run_for_job(job()).run_id,
        )
        note()
        follow.on_failure(stream, TopicRecreatedError("orders", "another.", remedy="adopt-topic"))
        note()
        end_with(follow, stream, report(batch(2, 5, 9)))
        note()

    assert followed(script, instance, monkeypatch).success
    assert shown == ["SUCCEEDED", "FAILED", "SUCCEEDED"]


def test_a_broken_file_turns_the_checks_of_its_stream_red(
    tmp_path: Path, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A declaration that cannot be read has the checks that every stream has."""

    def script(follow: Follow) -> None:
        follow.on_failure(broken(tmp_path), InvalidSpecError("orders.yaml:1: unknown key"))

    result = followed(script, instance, monkeypatch)

    assert checks_of(instance, result) == [False] * 5


def test_a_jvm_that_died_fails_the_run(
    instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sensor begins the next one, with another JVM."""

    def script(follow: Follow) -> None:
        raise DependencyError("orders: the Spark JVM died")

    assert not followed(script, instance, monkeypatch).success


def test_what_did_not_answer_to_the_end_fails_the_run(
    instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It turns no check red, so that an hour without Kafka would be green."""
    monkeypatch.setattr(
        "oncelake.ingestion.operations.follow.follow.Follow.unreachable", ("Kafka is away",)
    )

    result = followed(lambda follow: None, instance, monkeypatch)

    assert "Kafka is away" in failure_of(result)


def test_a_name_that_nobody_declared_fails_the_run(
    tmp_path: Path, instance: dg.DagsterInstance
) -> None:
    """An hour in which no stream is followed would look like one in which nothing was new."""
    folder = tmp_path / "assets" / "streams"
    folder.mkdir(parents=True)
    (folder / "orders.yaml").write_text("topic: orders\nschema: id INT NOT NULL\nkeys: [id]\n")

    result = run_job(instance, streams=["ordres"], for_seconds=1)

    assert "did you mean `orders`?" in failure_of(result)


@pytest.mark.parametrize("field", ["for_seconds", "every_seconds", "jobs"])
def test_a_number_that_makes_no_sense_is_refused(instance: dg.DagsterInstance, field: str) -> None:
    """None of them is for ever, and no stream would be run by nobody."""
    (failed,) = run_job(instance, **{field: 0}).get_step_failure_events()

    error = failed.step_failure_data.error
    assert error is not None
    assert error.cause is not None
    assert f"{field}\n  Input should be greater than 0" in error.cause.message


def test_terminating_the_run_ends_the_open_runs(
    instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Terminated in the UI, it asks the open run to end, waits for that, and is canceled."""
    folder = tmp_path / "assets" / "streams"
    folder.mkdir(parents=True)
    (folder / "orders.yaml").write_text("topic: orders\nschema: id INT NOT NULL\nkeys: [id]\n")
    ended = []

    class _Run:
        def __init__(self, **asked: Any) -> None:
            self.stop = asked["stop"]

        def execute(self) -> RunReport:
            (run,) = instance.get_runs(dg.RunsFilter(statuses=[dg.DagsterRunStatus.STARTED]))
            instance.report_run_canceling(run)
            os.kill(os.getpid(), signal.SIGINT)
            ended.append(self.stop.wait(30))
            raise InterruptedError

    monkeypatch.setattr("oncelake.ingestion.operations.follow.follow.Run", _Run)
    monkeypatch.setattr(
        "oncelake.ingestion.operations.follow.follow.LagReader.read",
        lambda self, specs: {"orders": {"orders": 500}},
    )
    began = time.monotonic()

    result = job().execute_in_process(instance=instance, raise_on_error=False)

    run = instance.get_run_by_id(result.run_id)
    assert run is not None
    assert (run.status, ended) == (dg.DagsterRunStatus.CANCELED, [True])
    assert time.monotonic() - began < 20


def test_the_sensor_keeps_one_run_alive(instance: dg.DagsterInstance) -> None:
    """It starts one, waits while that is under way, and reports one that died unseen."""
    sensor = follow_sensor()
    assert sensor.default_status is dg.DefaultSensorStatus.STOPPED
    assert isinstance(tick(instance), dg.SensorResult)

    run = start(instance, HERE)
    waits = tick(instance)
    over = subprocess.Popen([sys.executable, "-c", ""])
    over.wait(30)
    instance.report_engine_event("began", run, EngineEventData.in_process(over.pid))
    died = tick(instance)

    assert isinstance(waits, dg.SkipReason)
    assert waits.skip_message == f"run {run.run_id[:8]} of this job is started"
    assert isinstance(died, dg.SkipReason)
    assert "is gone, and nothing was watching it" in str(died.skip_message)
    assert isinstance(tick(instance), dg.SensorResult)


def start(instance: dg.DagsterInstance, location: RegisteredCodeLocationOrigin) -> dg.DagsterRun:
    """Start a run of the job in a code location."""
    origin = RemoteRepositoryOrigin(location, "__repository__").get_job_origin(FOLLOW_JOB)
    run = instance.create_run_for_job(job(), remote_job_origin=origin)
    started = dg.DagsterEvent(dg.DagsterEventType.RUN_START.value, job_name=FOLLOW_JOB)
    instance.report_dagster_event(started, run.run_id)
    return run


def test_the_sensor_leaves_the_runs_of_another_code_location_alone(
    instance: dg.DagsterInstance,
) -> None:
    """Who shares the instance follows streams of their own, and may fail on their own."""
    elsewhere = RegisteredCodeLocationOrigin("elsewhere")
    for _ in range(2):
        instance.report_run_failed(start(instance, elsewhere))
    start(instance, elsewhere)

    assert isinstance(tick(instance), dg.SensorResult)


def test_the_sensor_pauses_after_runs_that_failed(
    tmp_path: Path, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that fails as it begins, or at every hour, is not begun again every half minute."""
    now, begun = time.time(), []
    for minutes in (0, 0, 0, 0.9, 1.1):
        with monkeypatch.context() as later:
            later.setattr("time.time", lambda minutes=minutes: now + minutes * 60)
            found = tick(instance)
        begun.append(isinstance(found, dg.SensorResult))
        if begun[-1]:
            instance.report_run_failed(instance.create_run_for_job(job()))

    assert begun == [True, True, False, False, True]


def test_the_sensor_starts_no_run_that_could_not_read_its_settings(
    tmp_path: Path, instance: dg.DagsterInstance
) -> None:
    """It says what is wrong in `.env`, and goes on once that is mended."""
    (tmp_path / ".env").write_text("ONCELAKE_KAFKAA=k:1\n")
    found = tick(instance)
    (tmp_path / ".env").unlink()

    assert isinstance(found, dg.SkipReason)
    assert "ONCELAKE_KAFKAA" in str(found.skip_message)
    assert isinstance(tick(instance), dg.SensorResult)


def test_only_the_sensor_starts_a_run_that_died_again() -> None:
    """Dagster's retry of a killed run would be a second one beside the sensor's."""
    assert job().tags["dagster/max_retries"] == "0"


def test_the_assets_of_one_job_share_one_session(
    tmp_path: Path, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several streams materialized together start one JVM."""
    started = []
    monkeypatch.setattr(
        "oncelake.ingestion.pipeline.spark.session.start_session",
        lambda *parts, **more: started.append(more) or object(),
    )
    # A worker that has run other tests has a session, which is not this resource's.
    monkeypatch.setattr(
        "oncelake.resources.spark._refuse_contradictions", lambda more, settings: None
    )

    def engine(spec: Any, settings: Any, spark: SparkResource, *rest: Any) -> RunReport:
        spark.session_for(10)
        return report(stream=spec.name)

    def named(name: str) -> DeclaredStream:
        stream = declared(tmp_path, name=name)
        return DeclaredStream(name=name, path=stream.path, spec=stream.spec, error=None)

    streams = [named(name) for name in ("orders", "paid", "sent")]
    lake = LakeResource(jars=str(JARS))
    given: dict[str, Any] = {"oncelake_kafka": KafkaResource(), "oncelake_lake": lake}
    result = (
        dg.Definitions(
            assets=[ingest_asset(stream, engine) for stream in streams],
            resources={**given, "oncelake_spark": SparkResource(lake=lake)},
            executor=dg.in_process_executor,
        )
        .resolve_implicit_global_asset_job_def()
        .execute_in_process(instance=instance)
    )

    assert result.success
    assert len(started) == 1


def tick(instance: dg.DagsterInstance) -> Tick:
    """Evaluate the sensor."""
    given = {"oncelake_kafka": KafkaResource(address="nowhere:1"), "oncelake_lake": LakeResource()}
    with dg.build_sensor_context(instance=instance, resources=given) as context:
        return follow_sensor()(context)  # type: ignore[return-value]


def checks_of(instance: dg.DagsterInstance, result: dg.ExecuteInProcessResult) -> list[bool]:
    """Return whether each check passed that the event log has of a run."""
    records = instance.get_records_for_run(
        result.run_id, of_type=dg.DagsterEventType.ASSET_CHECK_EVALUATION
    ).records
    return [
        record.event_log_entry.get_dagster_event().asset_check_evaluation_data.passed
        for record in records
    ]
