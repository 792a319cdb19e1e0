"""The sensor: when it starts a run, and the words in which it says why it does not."""

from __future__ import annotations

import errno
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dagster as dg
import pytest
from dagster._core.events import EngineEventData
from dagster._core.remote_origin import RegisteredCodeLocationOrigin, RemoteRepositoryOrigin
from dagster._core.storage.event_log import SqliteEventLogStorage
from sqlalchemy import event
from sqlalchemy.engine import Engine

from oncelake.assets.assets import ingest_asset
from oncelake.assets.doctor.runs import Runs
from oncelake.assets.jobs.jobs import INGEST_JOB, STREAM_TAG, ingest_job
from oncelake.assets.refusals import remember_refusal, state_of
from oncelake.assets.sensors import ingest_schedule, lag_sensor, report_under_way
from oncelake.ingestion.declaration.files.loader import DeclaredStream, load_streams
from oncelake.ingestion.declaration.spec import StreamSpec
from oncelake.ingestion.errors import (
    BadFieldError,
    DependencyError,
    IngestionError,
    KeyInTwoPartitionsError,
    SetupError,
    TerminalError,
)
from oncelake.ingestion.kafka.offsets import TopicPartition
from oncelake.ingestion.kafka.transactions import Stall
from oncelake.ingestion.lake.lock import Holder
from oncelake.ingestion.operations.status.lag import LagReader
from oncelake.ingestion.settings import load_settings
from oncelake.ingestion.storage.location import StoreError
from oncelake.resources.kafka import KafkaResource
from oncelake.resources.lake import LakeResource
from oncelake.resources.spark import SparkResource
from tests.assets.conftest import broken, declared

REFUSAL = KeyInTwoPartitionsError("orders", "…", remedy="sequence_by")
_EVENTS = {
    dg.DagsterRunStatus.QUEUED: dg.DagsterEventType.RUN_ENQUEUED,
    dg.DagsterRunStatus.STARTED: dg.DagsterEventType.RUN_START,
    dg.DagsterRunStatus.FAILURE: dg.DagsterEventType.RUN_FAILURE,
    dg.DagsterRunStatus.SUCCESS: dg.DagsterEventType.RUN_SUCCESS,
    dg.DagsterRunStatus.CANCELED: dg.DagsterEventType.RUN_CANCELED,
}


@pytest.fixture(autouse=True)
def _declared_in_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the sensor find the files that ``declared`` writes."""
    monkeypatch.setenv("ONCELAKE_STREAMS", str(tmp_path))


def tick(
    stream: DeclaredStream,
    instance: dg.DagsterInstance,
    monkeypatch: pytest.MonkeyPatch,
    lag: int | IngestionError | None = 0,
    stalls: tuple[Stall, ...] = (),
    *,
    cursor: str | None = None,
) -> dg.SensorResult | dg.SkipReason:
    """Evaluate the sensor while Kafka holds ``lag`` offsets that the table has not read."""

    def read(reader: LagReader, specs: Sequence[StreamSpec]) -> dict[str, dict[str, int] | None]:
        if isinstance(lag, IngestionError):
            raise lag
        return {spec.name: None if lag is None else {spec.name: lag} for spec in specs}

    monkeypatch.setattr("oncelake.ingestion.operations.status.lag.LagReader.read", read)
    found = {stream.name: stalls} if stalls else {}
    monkeypatch.setattr(
        "oncelake.ingestion.operations.status.lag.LagReader.stalls", lambda reader, lags: found
    )
    resources = {"oncelake_kafka": KafkaResource(), "oncelake_lake": LakeResource()}
    with dg.build_sensor_context(instance=instance, resources=resources, cursor=cursor) as context:
        return lag_sensor([stream])(context)  # type: ignore[return-value]


def requests(found: dg.SensorResult | dg.SkipReason) -> list[str | None]:
    """Return the run keys of the runs that a tick asks for."""
    assert isinstance(found, dg.SensorResult)
    return [request.run_key for request in found.run_requests or ()]


def reason_of(found: dg.SensorResult | dg.SkipReason) -> str:
    """Return why a tick started nothing."""
    if isinstance(found, dg.SkipReason):
        return str(found.skip_message)
    assert not found.run_requests
    assert found.skip_reason is not None
    return str(found.skip_reason.skip_message)


def start(stream: DeclaredStream, instance: dg.DagsterInstance, status: dg.DagsterRunStatus) -> str:
    """Leave a run of the stream in the instance, as the sensor asks for one."""
    lake = LakeResource()
    shared = dg.Definitions(
        resources={
            "oncelake_kafka": KafkaResource(),
            "oncelake_lake": lake,
            "oncelake_spark": SparkResource(lake=lake),
        },
        jobs=[ingest_job([stream])],
        assets=[ingest_asset(stream)],
    )
    job = shared.resolve_job_def(INGEST_JOB)
    origin = RemoteRepositoryOrigin(RegisteredCodeLocationOrigin("oncelake"), "__repository__")
    run = instance.create_run_for_job(
        job,
        remote_job_origin=origin.get_job_origin(job.name),
        asset_selection=frozenset([dg.AssetKey(stream.name)]),
        tags={STREAM_TAG: stream.name},
    )
    event = dg.DagsterEvent(_EVENTS[status].value, job_name=job.name)
    instance.report_dagster_event(event, run.run_id)
    return run.run_id


def test_a_sensor_waits_for_a_person_to_switch_it_on(tmp_path: Path) -> None:
    """It is off by default, and looks as often as declared."""
    often, seldom = declared(tmp_path, sensor_seconds=15), declared(tmp_path)

    sensor = lag_sensor([often, seldom])

    assert sensor.default_status is dg.DefaultSensorStatus.STOPPED
    assert (sensor.minimum_interval_seconds, sensor.job_name) == (15, INGEST_JOB)


@pytest.mark.parametrize(
    ("given", "runs"),
    [
        ({}, 1),
        ({"sensor": False}, 0),
        ({"schedule": "@daily"}, 0),
        ({"schedule": "@daily", "sensor": True}, 1),
    ],
)
def test_a_stream_opts_out_in_its_file(
    tmp_path: Path,
    instance: dg.DagsterInstance,
    monkeypatch: pytest.MonkeyPatch,
    given: dict[str, Any],
    runs: int,
) -> None:
    """What a schedule starts is left to that, unless the file says otherwise."""
    found = tick(declared(tmp_path, **given), instance, monkeypatch, lag=12)

    assert isinstance(found, dg.SensorResult)
    assert len(found.run_requests or ()) == runs


@pytest.mark.parametrize(("given", "runs"), [({}, 1), ({"sensor": False}, 0)])
def test_a_terminated_stream_is_started_again_unless_its_file_says_no(
    tmp_path: Path,
    instance: dg.DagsterInstance,
    monkeypatch: pytest.MonkeyPatch,
    given: dict[str, Any],
    runs: int,
) -> None:
    """Its records are still unread; `sensor: false` stops it for good, as the page says."""
    stream = declared(tmp_path, **given)
    start(stream, instance, dg.DagsterRunStatus.CANCELED)

    found = tick(stream, instance, monkeypatch, lag=12)

    assert isinstance(found, dg.SensorResult)
    assert len(found.run_requests or ()) == runs


def test_each_stream_is_looked_at_as_often_as_it_declares(
    tmp_path: Path, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that declares minutes is passed over by the ticks of another."""
    looked: list[str] = []

    def read(reader: LagReader, specs: Sequence[StreamSpec]) -> dict[str, dict[str, int]]:
        looked.append(" ".join(spec.name for spec in specs))
        return {spec.name: {spec.name: 0} for spec in specs}

    monkeypatch.setattr("oncelake.ingestion.operations.status.lag.LagReader.read", read)
    often = declared(tmp_path, sensor_seconds=15)
    (tmp_path / "seldom.yaml").write_text(
        often.path.read_text().replace('"sensor_seconds": 15', '"sensor_seconds": 300')
    )
    loaded = [each for each in load_streams(tmp_path) if each.spec is not None]
    sensor, now = lag_sensor(loaded), time.time()
    resources = {"oncelake_kafka": KafkaResource(), "oncelake_lake": LakeResource()}
    for seconds in (0, 15, 30, 300):
        monkeypatch.setattr("time.time", lambda after=seconds: now + after)
        with dg.build_sensor_context(instance=instance, resources=resources) as context:
            sensor(context)

    assert looked == ["orders seldom", "orders", "orders", "orders seldom"]


def test_a_password_that_was_changed_is_used_by_the_next_tick(
    tmp_path: Path, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Settings are told apart by what they hold, and not by how they are shown."""
    used: list[str] = []

    def read(reader: LagReader, specs: Sequence[StreamSpec]) -> dict[str, dict[str, int]]:
        password = reader._settings.kafka.sasl_password
        used.append(password.get_secret_value() if password else "")
        return {}

    monkeypatch.setattr("oncelake.ingestion.operations.status.lag.LagReader.read", read)
    monkeypatch.setenv("ONCELAKE_KAFKA_SECURITY_PROTOCOL", "SASL_SSL")
    monkeypatch.setenv("ONCELAKE_KAFKA_SASL_MECHANISM", "PLAIN")
    monkeypatch.setenv("ONCELAKE_KAFKA_SASL_USERNAME", "reader")
    sensor = lag_sensor([declared(tmp_path)])
    resources = {"oncelake_kafka": KafkaResource(), "oncelake_lake": LakeResource()}
    for password in ("of-yesterday", "of-today"):
        monkeypatch.setenv("ONCELAKE_KAFKA_SASL_PASSWORD", password)
        with dg.build_sensor_context(instance=instance, resources=resources) as context:
            sensor(context)

    assert used == ["of-yesterday", "of-today"]


def test_every_stream_that_is_behind_gets_a_run_of_its_own(
    tmp_path: Path, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One tick asks for all of them; each selects one asset, and says which stream it is of."""
    orders = declared(tmp_path)
    for name in ("bills", "quiet"):
        (orders.path.parent / f"{name}.yaml").write_text(orders.path.read_text())
    lags = {"orders": {"orders": 3}, "bills": None, "quiet": {"orders": 0}}
    monkeypatch.setattr(
        "oncelake.ingestion.operations.status.lag.LagReader.read", lambda reader, specs: lags
    )
    resources = {"oncelake_kafka": KafkaResource(), "oncelake_lake": LakeResource()}

    with dg.build_sensor_context(instance=instance, resources=resources) as context:
        found = lag_sensor(load_streams(orders.path.parent))(context)

    assert isinstance(found, dg.SensorResult)
    selected = {each.tags[STREAM_TAG]: each.asset_selection for each in found.run_requests or ()}
    assert selected == {name: [dg.AssetKey(name)] for name in ("bills", "orders")}


ROUTED = """\
topic: events
route_by: type
tables:
  a: {schema: id INT NOT NULL, keys: [id]}
  b: {schema: id INT NOT NULL, keys: [id]}
  c: {schema: id INT NOT NULL, keys: [id]}
"""


def test_streams_of_one_file_get_one_run_unless_their_last_one_failed(
    tmp_path: Path, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever has failed, or was in a run that did, is run alone until it has ended well."""
    (tmp_path / "events.yaml").write_text(ROUTED)
    streams = load_streams(tmp_path)
    monkeypatch.setenv("ONCELAKE_STREAMS", str(tmp_path))
    lags = {name: {"events": 3} for name in ("events_a", "events_b", "events_c")}
    monkeypatch.setattr(
        "oncelake.ingestion.operations.status.lag.LagReader.read", lambda reader, specs: lags
    )
    resources = {"oncelake_kafka": KafkaResource(), "oncelake_lake": LakeResource()}

    def tick_once() -> dict[str, tuple[list[str], str]]:
        with dg.build_sensor_context(instance=instance, resources=resources) as context:
            found = lag_sensor(streams)(context)
        assert isinstance(found, dg.SensorResult)
        return {
            each.tags[STREAM_TAG]: (
                [key.to_user_string() for key in each.asset_selection or ()],
                each.tags["oncelake/lag"],
            )
            for each in found.run_requests or ()
        }

    @dg.asset(name="events_b")
    def failing() -> None:
        raise ValueError

    first = tick_once()
    dg.materialize([failing], instance=instance, raise_on_error=False)

    assert first == {"events_a,events_b,events_c": (["events_a", "events_b", "events_c"], "9")}
    assert tick_once() == {
        "events_b": (["events_b"], "3"),
        "events_a,events_c": (["events_a", "events_c"], "6"),
    }


def test_lag_starts_a_run_and_is_reported_by_topic(
    tmp_path: Path, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unread records start a run without a run key, which a failed run would use up."""
    found = tick(declared(tmp_path), instance, monkeypatch, lag=12)

    assert requests(found) == [None]
    assert isinstance(found, dg.SensorResult)
    (observed,) = found.asset_events
    assert (observed.asset_key, observed.metadata["lag"].value) == (
        dg.AssetKey(["kafka", "orders"]),
        12,
    )


@contextmanager
def counted_queries() -> Iterator[list[str]]:
    """Collect the statements that Dagster's storages execute."""
    executed: list[str] = []

    def note(_: object, __: object, statement: str, *___: object) -> None:
        executed.append(statement)

    event.listen(Engine, "before_cursor_execute", note)
    try:
        yield executed
    finally:
        event.remove(Engine, "before_cursor_execute", note)


@pytest.mark.parametrize("lag", [0, 12], ids=["quiet", "behind"])
def test_a_tick_asks_dagster_as_often_for_many_streams_as_for_few(
    tmp_path: Path, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch, lag: int
) -> None:
    """It asks for all of them at once, also where all of them are to be run."""
    monkeypatch.setattr(
        "oncelake.ingestion.operations.status.lag.LagReader.read",
        lambda reader, specs: {spec.name: {spec.name: lag} for spec in specs},
    )
    resources = {"oncelake_kafka": KafkaResource(), "oncelake_lake": LakeResource()}
    text, asked = declared(tmp_path).path.read_text(), []
    for number in (2, 8):
        for nth in range(number):
            (tmp_path / f"s{nth}.yaml").write_text(text)
        streams = [each for each in load_streams(tmp_path) if each.spec is not None]
        for each in streams:
            start(each, instance, dg.DagsterRunStatus.SUCCESS)
            instance.report_runless_asset_event(dg.AssetMaterialization(each.name))
        with (
            dg.build_sensor_context(instance=instance, resources=resources) as context,
            counted_queries() as queries,
        ):
            found = lag_sensor(streams)(context)
        assert isinstance(found, dg.SensorResult)
        assert len(found.run_requests or ()) == (len(streams) if lag else 0)
        asked.append(len(queries))

    assert asked[0] == asked[1]


def test_a_tick_reads_the_history_only_of_tables_that_have_changed(
    tmp_path: Path, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a thousand quiet streams it would take seconds of each minute."""
    reader = "oncelake.ingestion.operations.status.lag.LagReader"
    first, second = (SimpleNamespace(seq=seq, table_id="t") for seq in (1, 2))
    monkeypatch.setattr(f"{reader}.read", lambda reader, specs: {"orders": {"orders": 0}})
    monkeypatch.setattr(f"{reader}.stalls", lambda reader, lags: {})
    resources = {"oncelake_kafka": KafkaResource(), "oncelake_lake": LakeResource()}
    sensor, now, seen = lag_sensor([declared(tmp_path)]), time.time(), []
    shown = {"seq": 1, "table_id": "t"}
    instance.report_runless_asset_event(dg.AssetMaterialization("orders", metadata=shown))
    for minutes, at in enumerate([first, first, second, second]):
        monkeypatch.setattr("time.time", lambda after=minutes: now + after * 60)
        monkeypatch.setattr(f"{reader}.position", lambda reader, spec, at=at: at)
        with (
            dg.build_sensor_context(instance=instance, resources=resources) as context,
            counted_queries() as queries,
        ):
            found = sensor(context)
        assert isinstance(found, dg.SensorResult)
        is_read = any("last_materialization" in each for each in queries)
        seen.append((is_read, len(found.run_requests or ())))

    assert seen == [(True, 0), (False, 0), (True, 1), (True, 1)]


def test_what_only_a_run_can_tell_starts_one(
    tmp_path: Path, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No table yet, a last run that died behind its commit, a topic that was made again."""
    found = tick(declared(tmp_path), instance, monkeypatch, lag=None)

    assert requests(found) == [None]


def test_nothing_new_starts_nothing(
    tmp_path: Path, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without lag the sensor says so."""
    found = tick(declared(tmp_path), instance, monkeypatch, lag=0)

    assert isinstance(found, dg.SensorResult)
    assert "nothing new" in reason_of(found)


def test_a_lag_is_observed_whenever_it_has_changed(
    tmp_path: Path, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also at 0, and while a run is under way; a lag that stays is observed again in an hour."""
    stream, cursor, observed = declared(tmp_path), None, []
    start(stream, instance, dg.DagsterRunStatus.STARTED)
    now = time.time()
    for lag, minutes in [(0, 0), (0, 1), (7, 2), (7, 30), (0, 31), (0, 92)]:
        monkeypatch.setattr("time.time", lambda after=minutes: now + after * 60)
        found = tick(stream, instance, monkeypatch, lag=lag, cursor=cursor)
        assert isinstance(found, dg.SensorResult)
        assert not found.run_requests
        observed.append([event.metadata["lag"].value for event in found.asset_events])
        cursor = found.cursor

    assert observed == [[0], [], [7], [], [0], [0]]


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

    says = f"orders: run {run_id[:8]} of this stream is {status.value.lower()}"
    assert reason_of(found) == says


def refuse(
    stream: DeclaredStream,
    instance: dg.DagsterInstance,
    status: dg.DagsterRunStatus = dg.DagsterRunStatus.FAILURE,
    refused: TerminalError = REFUSAL,
    **given: Any,
) -> None:
    """Leave a run that was refused, as a process with these settings sees the state of things."""
    run_id = start(stream, instance, status)
    state = state_of(stream, load_settings(**given))
    remember_refusal(instance, run_id, refused, state=state)


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


def test_a_run_that_ends_while_it_is_looked_at_keeps_its_end(
    tmp_path: Path, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its process is gone since it has succeeded: that is not turned into a failure."""
    stream = declared(tmp_path)
    run_id = killed(stream, instance)
    (record,) = instance.get_run_records()
    ended = dg.DagsterEvent(dg.DagsterEventType.RUN_SUCCESS.value, job_name=INGEST_JOB)
    instance.report_dagster_event(ended, run_id)

    runs = Runs(instance, load_settings(), ["orders"])
    report_under_way(instance, runs, record, of="this stream", doctor="oncelake doctor")

    run = instance.get_run_by_id(run_id)
    assert run is not None
    assert run.status is dg.DagsterRunStatus.SUCCESS


def test_a_run_that_waited_in_the_queue_is_given_time_to_begin(
    tmp_path: Path, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What counts is when it left the queue, not when somebody asked for it."""
    with monkeypatch.context() as earlier:
        long_ago = datetime.now(UTC) - timedelta(hours=1)
        earlier.setattr(
            "dagster._core.storage.runs.sql_run_storage.get_current_datetime", lambda: long_ago
        )
        start(declared(tmp_path), instance, dg.DagsterRunStatus.QUEUED)
    (run_id,) = (run.run_id for run in instance.get_runs())
    event = dg.DagsterEvent(dg.DagsterEventType.RUN_STARTING.value, job_name=INGEST_JOB)
    instance.report_dagster_event(event, run_id)

    (record,) = instance.get_run_records()
    facts = Runs(instance, load_settings(), ["orders"]).facts(record)

    assert facts.status == "STARTING"
    assert not facts.is_dead(time.time())
    assert facts.is_dead(time.time() + 200)


@pytest.mark.parametrize(
    ("state", "says"), [("sound", ""), ("refused", "was refused"), ("gone", "declares no orders")]
)
def test_a_schedule_starts_no_run_that_would_fail_again(
    tmp_path: Path, state: str, says: str
) -> None:
    """Every five minutes is 288 times a day: one refusal is told once."""
    stream = declared(tmp_path, schedule="*/5 * * * *")
    schedule = ingest_schedule(stream)
    assert schedule is not None

    resources = {"oncelake_kafka": KafkaResource(), "oncelake_lake": LakeResource()}
    with (
        dg.instance_for_test() as instance,
        dg.build_schedule_context(instance, resources=resources) as context,
    ):
        if state == "refused":
            refuse(stream, instance)
        if state == "gone":
            stream.path.unlink()
        found = schedule.evaluate_tick(context)

    assert len(found.run_requests or ()) == (not says)
    assert says in str(found.skip_message)


@pytest.mark.parametrize("why", ["holds its stream", "is of another machine"])
def test_a_run_that_may_be_alive_is_not_called_dead(
    tmp_path: Path, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    """A JVM that still holds the stream, or an instance that hosts share, leaves it open."""
    stream = declared(tmp_path)
    run_id = killed(stream, instance)
    if why == "holds its stream":
        monkeypatch.setattr(
            "oncelake.ingestion.lake.lock.holder_of", lambda paths: Holder.me(run_id)
        )
    else:
        monkeypatch.setattr(
            "oncelake.assets.doctor.runs.InMemoryEventLogStorage", SqliteEventLogStorage
        )

    found = tick(stream, instance, monkeypatch, lag=12)

    assert reason_of(found).endswith("of this stream is started")


def test_a_refusal_is_not_met_again_until_something_has_changed(
    tmp_path: Path, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a refused run the sensor waits; it goes on once the declaration is another."""
    stream = declared(tmp_path)
    refuse(stream, instance)

    before = tick(stream, instance, monkeypatch, lag=12)
    stream = declared(tmp_path, sequence_by=["id"])
    after = tick(stream, instance, monkeypatch, lag=12)

    assert "KeyInTwoPartitionsError" in reason_of(before)
    assert requests(after) == [None]


@pytest.mark.parametrize(
    ("refused", "minutes", "runs"),
    [
        pytest.param(SetupError("orders: no permission"), 9, 0, id="soon"),
        pytest.param(SetupError("orders: no permission"), 11, 1, id="set-up"),
        pytest.param(BadFieldError("orders", ("schema",), "x"), 11, 1, id="declaration"),
        pytest.param(REFUSAL, 11, 0, id="table"),
    ],
)
def test_what_was_refused_for_more_than_can_be_seen_is_tried_again_later(
    tmp_path: Path,
    instance: dg.DagsterInstance,
    monkeypatch: pytest.MonkeyPatch,
    refused: TerminalError,
    minutes: int,
    runs: int,
) -> None:
    """A right below a folder, a package, or a schema in the registry changes no state of ours."""
    stream, now = declared(tmp_path), time.time()
    refuse(stream, instance, refused=refused)

    monkeypatch.setattr("time.time", lambda: now + minutes * 60)
    found = tick(stream, instance, monkeypatch, lag=12)

    assert isinstance(found, dg.SensorResult)
    assert len(found.run_requests or ()) == runs


def test_what_only_a_person_can_resolve_starts_one_run(
    tmp_path: Path, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing can be read, and yet somebody must be told: by one run, which is refused."""
    stream = declared(tmp_path)

    first = tick(stream, instance, monkeypatch, lag=None)
    refuse(stream, instance)
    then = tick(stream, instance, monkeypatch, lag=None)

    assert requests(first) == [None]
    assert "was refused" in reason_of(then)


def test_a_file_that_broke_is_told_by_one_run(
    tmp_path: Path, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sensor was loaded before; the run's process finds the job, and fails with the error."""
    stream = declared(tmp_path)
    broken(tmp_path)

    first = tick(stream, instance, monkeypatch)
    refuse(stream, instance)
    then = tick(stream, instance, monkeypatch)

    assert requests(first) == [None]
    assert "was refused" in reason_of(then)


def test_a_lock_that_cannot_be_looked_at_is_a_reason(
    tmp_path: Path, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store of one stream's lake, or a right of its lock, does not end the tick of all."""

    def fail(paths: object) -> None:
        raise StoreError(errno.EREMOTEIO, "Generic S3 error: 503", "s3://b/lake")

    monkeypatch.setattr("oncelake.ingestion.lake.lock.holder_of", fail)

    found = tick(declared(tmp_path), instance, monkeypatch, lag=12)

    assert "orders: the store of the lake failed: Generic S3 error" in reason_of(found)


def test_a_file_that_is_gone_starts_nothing(
    tmp_path: Path, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the process of a run there would be no job: the tick says what to reload."""
    stream = declared(tmp_path)
    stream.path.unlink()

    found = tick(stream, instance, monkeypatch, lag=12)

    assert "orders.yaml declares no orders any more. Next: reload" in reason_of(found)


@pytest.mark.parametrize(
    ("minutes", "runs"), [(0, [1, 1, 0, 0]), (1.1, [1, 1, 1, 0]), (10.1, [1, 1, 1, 1])]
)
def test_runs_that_fail_again_and_again_are_started_more_seldom(
    tmp_path: Path,
    instance: dg.DagsterInstance,
    monkeypatch: pytest.MonkeyPatch,
    minutes: float,
    runs: list[int],
) -> None:
    """Each costs a JVM and an alert: after two there is a pause of a minute, then of two."""
    stream, now, started = declared(tmp_path), time.time(), []
    for _ in range(4):
        with monkeypatch.context() as later:
            later.setattr("time.time", lambda: now + minutes * 60)
            found = tick(stream, instance, monkeypatch, lag=12)
        started.append(len(requests(found)))
        start(stream, instance, dg.DagsterRunStatus.FAILURE)

    assert started == runs


def test_a_run_that_took_over_the_tags_of_a_refused_one_is_judged_by_itself(
    tmp_path: Path, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Executed again, and successful, it refuses nothing."""
    stream = declared(tmp_path)
    refuse(stream, instance, dg.DagsterRunStatus.SUCCESS)

    assert requests(tick(stream, instance, monkeypatch, lag=12)) == [None]


def add_jars(folder: Path, _: pytest.MonkeyPatch) -> None:
    """Fetch the jars."""
    (folder / ".jars" / "spark").mkdir(parents=True)
    (folder / ".jars" / "spark" / "delta.jar").write_bytes(b"jar")


def take_a_lease(_: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Do what a file system without locks asks for."""
    monkeypatch.setenv("ONCELAKE_LOCK", "lease")


def correct_the_function(folder: Path, _: pytest.MonkeyPatch) -> None:
    """Correct the module of ``transform``, and leave the stream's file as it is."""
    (folder / "shop.py").write_text("def convert(frame): return frame")


def upgrade(_: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Install the version that a refusal has named."""
    monkeypatch.setattr("oncelake.assets.refusals.engine_version", lambda: "9.8.0")


@pytest.mark.parametrize("mend", [add_jars, take_a_lease, correct_the_function, upgrade])
def test_a_set_up_that_was_mended_is_tried_again(
    tmp_path: Path,
    instance: dg.DagsterInstance,
    monkeypatch: pytest.MonkeyPatch,
    mend: Callable[[Path, pytest.MonkeyPatch], None],
) -> None:
    """A run that missed something on this machine is not started again until that is there."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "shop.py").write_text("def convert(frame): 1 / 0")
    stream = declared(tmp_path, transform="shop.convert")
    refuse(stream, instance)

    before = tick(stream, instance, monkeypatch, lag=12)
    mend(tmp_path, monkeypatch)
    after = tick(stream, instance, monkeypatch, lag=12)

    assert "was refused" in reason_of(before)
    assert requests(after) == [None]


def test_a_refusal_stands_whatever_spark_was_given(
    tmp_path: Path, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run knows settings that its sensor does not; what both see must be called the same."""
    stream = declared(tmp_path)
    refuse(stream, instance, spark_master="local[7]", kafka_timeout_seconds=99)

    assert "was refused" in reason_of(tick(stream, instance, monkeypatch, lag=12))


def test_a_stall_starts_one_run_that_reports_it(
    tmp_path: Path, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without lag no check would warn; the run key makes it one run, unless that one fails."""
    at = TopicPartition("orders", 0)
    stall = Stall(at=at, offset=41, since=None, holder="a producer", remedy="abort it")

    stream = declared(tmp_path)

    found = tick(stream, instance, monkeypatch, stalls=(stall,))
    failed = start(stream, instance, dg.DagsterRunStatus.FAILURE)
    then = tick(stream, instance, monkeypatch, stalls=(stall,))

    assert requests(found) == ["orders held back: orders-0 at 41"]
    assert requests(then) == [f"orders held back: orders-0 at 41 after {failed}"]


def test_a_kafka_that_does_not_answer_is_a_reason(
    tmp_path: Path, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tick itself does not fail: it says that a run would not go through."""
    found = tick(declared(tmp_path), instance, monkeypatch, lag=DependencyError("Kafka is away"))

    assert isinstance(found, dg.SkipReason)
    assert "Kafka is away" in str(found.skip_message)
