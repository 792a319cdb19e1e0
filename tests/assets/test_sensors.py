"""The sensor: when it starts a run, and the words in which it says why it does not."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import dagster as dg
import pytest
from dagster._core.events import EngineEventData
from dagster._core.remote_origin import RegisteredCodeLocationOrigin, RemoteRepositoryOrigin
from dagster._core.storage.event_log import SqliteEventLogStorage

from assets.definitions import _of_stream
from assets.refusals import remember_refusal, state_of
from assets.sensors import lag_sensor
from ingestion.declaration.loader import DeclaredStream
from ingestion.errors import DependencyError, KeyInTwoPartitionsError, SetupError
from ingestion.kafka.offsets import TopicPartition
from ingestion.kafka.transactions import Stall
from ingestion.lake.lock import Holder
from ingestion.settings import load_settings
from resources.kafka import KafkaResource
from resources.lake import LakeResource
from resources.spark import SparkResource
from tests.assets.conftest import declared

_EVENTS = {
    dg.DagsterRunStatus.QUEUED: dg.DagsterEventType.RUN_ENQUEUED,
    dg.DagsterRunStatus.STARTED: dg.DagsterEventType.RUN_START,
    dg.DagsterRunStatus.FAILURE: dg.DagsterEventType.RUN_FAILURE,
}


def tick(
    stream: DeclaredStream,
    instance: dg.DagsterInstance,
    monkeypatch: pytest.MonkeyPatch,
    lag: int | DependencyError = 0,
    stalls: tuple[Stall, ...] = (),
) -> dg.SensorResult | dg.SkipReason:
    """Evaluate the sensor while Kafka holds ``lag`` offsets that the table has not read."""

    def lag_of(*parts: object) -> dict[str, int]:
        if isinstance(lag, DependencyError):
            raise lag
        return {"orders": lag}

    monkeypatch.setattr("assets.sensors.lag_of", lag_of)
    monkeypatch.setattr("assets.sensors.stalls_of", lambda *parts: stalls)
    resources = {"kafka": KafkaResource(), "lake": LakeResource()}
    with dg.build_sensor_context(instance=instance, resources=resources) as context:
        return lag_sensor(stream)(context)  # type: ignore[return-value]


def reason_of(found: dg.SensorResult | dg.SkipReason) -> str:
    """Return why a tick started nothing."""
    if isinstance(found, dg.SkipReason):
        return str(found.skip_message)
    assert not found.run_requests
    assert found.skip_reason is not None
    return str(found.skip_reason.skip_message)


def start(stream: DeclaredStream, instance: dg.DagsterInstance, status: dg.DagsterRunStatus) -> str:
    """Leave a run of the stream's job in the instance."""
    lake = LakeResource()
    shared = dg.Definitions(
        resources={"kafka": KafkaResource(), "lake": lake, "spark": SparkResource(lake=lake)}
    )
    job = dg.Definitions.merge(shared, _of_stream(stream)).resolve_job_def("ingest_orders_job")
    origin = RemoteRepositoryOrigin(RegisteredCodeLocationOrigin("oncelake"), "__repository__")
    run = instance.create_run_for_job(job, remote_job_origin=origin.get_job_origin(job.name))
    event = dg.DagsterEvent(_EVENTS[status].value, job_name=job.name)
    instance.report_dagster_event(event, run.run_id)
    return run.run_id


def test_a_sensor_waits_for_a_person_to_switch_it_on(tmp_path: Path) -> None:
    """It is off by default, and looks as often as declared."""
    sensor = lag_sensor(declared(tmp_path, sensor_seconds=15))

    assert sensor.default_status is dg.DefaultSensorStatus.STOPPED
    assert (sensor.minimum_interval_seconds, sensor.job_name) == (15, "ingest_orders_job")


def test_lag_starts_a_run_and_is_reported_by_topic(
    tmp_path: Path, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unread records start a run without a run key, which a failed run would use up."""
    found = tick(declared(tmp_path), instance, monkeypatch, lag=12)

    assert isinstance(found, dg.SensorResult)
    assert [request.run_key for request in found.run_requests or ()] == [None]
    (observed,) = found.asset_events
    assert (observed.asset_key, observed.metadata["lag"].value) == (
        dg.AssetKey(["kafka", "orders"]),
        12,
    )


def test_a_batch_without_its_ledger_row_starts_a_run(
    tmp_path: Path, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its run died behind the commit: nothing is unread, and its checks have told nobody."""
    monkeypatch.setattr("assets.sensors.is_ledger_behind", lambda snapshot: True)

    found = tick(declared(tmp_path), instance, monkeypatch, lag=0)

    assert isinstance(found, dg.SensorResult)
    assert [request.run_key for request in found.run_requests or ()] == [None]


def test_nothing_new_starts_nothing(
    tmp_path: Path, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without lag the sensor says so."""
    found = tick(declared(tmp_path), instance, monkeypatch, lag=0)

    assert isinstance(found, dg.SensorResult)
    assert "nothing new" in reason_of(found)


@pytest.mark.parametrize("lag", [0, 7])
def test_every_tick_observes_the_topic(
    tmp_path: Path, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch, lag: int
) -> None:
    """A plot of the lag has a point for each tick: also at 0, and also while a run is under way."""
    stream = declared(tmp_path)
    start(stream, instance, dg.DagsterRunStatus.STARTED)

    found = tick(stream, instance, monkeypatch, lag=lag)

    assert isinstance(found, dg.SensorResult)
    assert [event.metadata["lag"].value for event in found.asset_events] == [lag]
    assert not found.run_requests


@pytest.mark.parametrize(("minutes", "runs"), [(None, 0), (60, 0), (1, 1)])
def test_a_table_that_nothing_new_reaches_is_confirmed_before_it_is_called_stale(
    tmp_path: Path,
    instance: dg.DagsterInstance,
    monkeypatch: pytest.MonkeyPatch,
    minutes: int | None,
    runs: int,
) -> None:
    """When half of `freshness_minutes` has passed, a run that finds nothing says so."""
    instance.report_runless_asset_event(dg.AssetMaterialization("orders"))
    now = time.time()
    monkeypatch.setattr("time.time", lambda: now + 45)

    found = tick(declared(tmp_path, freshness_minutes=minutes), instance, monkeypatch, lag=0)

    assert isinstance(found, dg.SensorResult)
    assert len(found.run_requests or ()) == runs


@pytest.mark.parametrize("status", [dg.DagsterRunStatus.QUEUED, dg.DagsterRunStatus.STARTED])
def test_a_run_under_way_is_not_joined_by_another(
    tmp_path: Path,
    instance: dg.DagsterInstance,
    monkeypatch: pytest.MonkeyPatch,
    status: dg.DagsterRunStatus,
) -> None:
    """While a run of the stream is queued or running the sensor names it and waits."""
    stream = declared(tmp_path)
    run_id = start(stream, instance, status)

    found = tick(stream, instance, monkeypatch, lag=12)

    assert reason_of(found) == f"run {run_id[:8]} of this stream is {status.value.lower()}"


def killed(stream: DeclaredStream, instance: dg.DagsterInstance) -> str:
    """Leave a run that is STARTED, and whose process is over."""
    run_id = start(stream, instance, dg.DagsterRunStatus.STARTED)
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait(30)
    run = instance.get_run_by_id(run_id)
    instance.report_engine_event("began", run, EngineEventData.in_process(ended.pid))
    return run_id


def test_a_run_that_died_unseen_is_reported_as_failed_and_waited_for_no_longer(
    tmp_path: Path, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed together with what watched it, a run would stay STARTED: nobody has to end it."""
    stream = declared(tmp_path)
    run_id = killed(stream, instance)

    found = tick(stream, instance, monkeypatch, lag=12)
    then = tick(stream, instance, monkeypatch, lag=12)

    assert "is gone, and nothing was watching it: it is reported" in reason_of(found)
    ended = instance.get_run_by_id(run_id)
    assert ended is not None
    assert ended.status == dg.DagsterRunStatus.FAILURE
    assert isinstance(then, dg.SensorResult)
    assert then.run_requests


@pytest.mark.parametrize("why", ["holds its stream", "is of another machine"])
def test_a_run_that_may_be_alive_is_not_called_dead(
    tmp_path: Path, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    """A JVM that still holds the stream, or an instance that hosts share, leaves it open."""
    stream = declared(tmp_path)
    run_id = killed(stream, instance)
    if why == "holds its stream":
        monkeypatch.setattr("assets.doctor.runs.holder_of", lambda paths: Holder.me(run_id))
    else:
        monkeypatch.setattr("assets.doctor.runs.InMemoryEventLogStorage", SqliteEventLogStorage)

    found = tick(stream, instance, monkeypatch, lag=12)

    assert reason_of(found).endswith("of this stream is started")


def test_a_refusal_is_not_met_again_until_something_has_changed(
    tmp_path: Path, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a refused run the sensor waits; it goes on once the declaration is another."""
    stream = declared(tmp_path)
    run_id = start(stream, instance, dg.DagsterRunStatus.FAILURE)
    refused = KeyInTwoPartitionsError("orders", "…", remedy="sequence_by")
    remember_refusal(instance, run_id, refused, state=state_of(stream, load_settings()))

    before = tick(stream, instance, monkeypatch, lag=12)
    stream.path.write_text("topic: orders\nsequence_by: at")
    after = tick(stream, instance, monkeypatch, lag=12)

    assert "KeyInTwoPartitionsError" in reason_of(before)
    assert isinstance(after, dg.SensorResult)
    assert after.run_requests


def test_a_set_up_that_was_mended_is_tried_again(
    tmp_path: Path, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that found no jars is not started again until they are there."""
    stream = declared(tmp_path)
    run_id = start(stream, instance, dg.DagsterRunStatus.FAILURE)
    missing = SetupError("no jars for Spark. Next: make setup")
    remember_refusal(instance, run_id, missing, state=state_of(stream, load_settings()))

    before = tick(stream, instance, monkeypatch, lag=12)
    (tmp_path / ".jars" / "spark").mkdir(parents=True)
    (tmp_path / ".jars" / "spark" / "delta.jar").write_bytes(b"jar")
    after = tick(stream, instance, monkeypatch, lag=12)

    assert "SetupError" in reason_of(before)
    assert isinstance(after, dg.SensorResult)
    assert after.run_requests


def test_a_refusal_stands_whatever_spark_was_given(
    tmp_path: Path, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run knows settings that its sensor does not; what both see must be called the same."""
    stream = declared(tmp_path)
    run_id = start(stream, instance, dg.DagsterRunStatus.FAILURE)
    of_run = load_settings(spark_master="local[7]", kafka_timeout_seconds=99)
    refused = KeyInTwoPartitionsError("orders", "…", remedy="sequence_by")
    remember_refusal(instance, run_id, refused, state=state_of(stream, of_run))

    assert "was refused" in reason_of(tick(stream, instance, monkeypatch, lag=12))


def test_a_stall_starts_one_run_that_reports_it(
    tmp_path: Path, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without lag nothing would run, and no check would warn; the run key makes it one run."""
    at = TopicPartition("orders", 0)
    stall = Stall(at=at, offset=41, since=None, holder="a producer", remedy="abort it")

    found = tick(declared(tmp_path), instance, monkeypatch, stalls=(stall,))

    assert isinstance(found, dg.SensorResult)
    (request,) = found.run_requests or ()
    assert request.run_key == "held back: orders-0 at 41"


def test_a_kafka_that_does_not_answer_is_a_reason(
    tmp_path: Path, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tick itself does not fail: it says that a run would not go through."""
    found = tick(declared(tmp_path), instance, monkeypatch, lag=DependencyError("Kafka is away"))

    assert isinstance(found, dg.SkipReason)
    assert "Kafka is away" in str(found.skip_message)
