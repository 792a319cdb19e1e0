"""Alerts: what is posted to the webhook, when, and that nothing is told twice."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import dagster as dg
import pytest
from dagster._core.remote_origin import RegisteredCodeLocationOrigin, RemoteRepositoryOrigin

from oncelake.assets.alerts import alert_sensors, post
from oncelake.assets.assets import ingest_asset
from oncelake.assets.definitions import definitions
from oncelake.assets.jobs.jobs import STREAM_TAG
from oncelake.ingestion.declaration.files.loader import DeclaredStream
from oncelake.ingestion.errors import DependencyError, OffsetsExpiredError
from oncelake.resources.kafka import KafkaResource
from oncelake.resources.lake import LakeResource
from oncelake.resources.spark import SparkResource
from tests.assets.conftest import declared
from tests.support.http_sink import HttpSink, http_sink

# Dagster's own, wherever one resource holds another.
pytestmark = pytest.mark.filterwarnings("ignore:InitResourceContext.dagster_run:DeprecationWarning")

REFUSAL = OffsetsExpiredError(
    "orders",
    "Kafka has deleted records that were never read: orders-0 [3, 10) (7 offsets).",
    remedy="oncelake accept orders --reason '…'",
)


@pytest.fixture
def webhook(monkeypatch: pytest.MonkeyPatch) -> Iterator[HttpSink]:
    """A webhook, without pauses for one that fails."""
    monkeypatch.setattr("oncelake.assets.alerts._PAUSES_SECONDS", (0, 0))
    with http_sink() as sink:
        yield sink


def texts(webhook: HttpSink) -> list[str]:
    """What was told."""
    return [json.loads(body)["text"] for body in webhook.bodies("/hook")]


def sensors(stream: DeclaredStream, webhook: HttpSink) -> list[dg.SensorDefinition]:
    """The two sensors, of runs and of checks."""
    return alert_sensors([stream], f"{webhook.address}/hook")


def repository(stream: DeclaredStream) -> dg.RepositoryDefinition:
    """A code location with the asset of a stream, which is always refused."""

    def refuse(*parts: object) -> object:
        raise REFUSAL

    lake = LakeResource()
    return dg.Definitions(
        assets=[ingest_asset(stream, refuse)],  # type: ignore[arg-type]
        resources={
            "oncelake_kafka": KafkaResource(),
            "oncelake_lake": lake,
            "oncelake_spark": SparkResource(lake=lake),
        },
    ).get_repository_def()


def tick(
    sensor: dg.SensorDefinition,
    instance: dg.DagsterInstance,
    repository: dg.RepositoryDefinition | None = None,
    cursor: str | None = None,
) -> str | None:
    """Evaluate a sensor, and return its cursor."""
    with dg.build_sensor_context(
        instance, cursor=cursor, repository_def=repository, sensor_name=sensor.name
    ) as context:
        return sensor.evaluate_tick(context).cursor


def executed(
    repository: dg.RepositoryDefinition, instance: dg.DagsterInstance, **tags: str
) -> dg.ExecuteInProcessResult:
    """Run all assets, however that ends."""
    job = repository.get_implicit_global_asset_job_def()
    return job.execute_in_process(instance=instance, raise_on_error=False, tags=tags)


def test_a_refused_run_is_told_once_with_offsets_and_command(
    tmp_path: Path, instance: dg.DagsterInstance, webhook: HttpSink
) -> None:
    """The message is the refusal's own: stream, partition, offsets, and what to run."""
    stream = declared(tmp_path)
    runs, checks = sensors(stream, webhook)
    location = repository(stream)
    cursor = tick(runs, instance, location)

    run = executed(location, instance)
    for _ in range(2):
        cursor = tick(runs, instance, location, cursor)
    # Its checks were planned, and never evaluated.
    tick(checks, instance)

    assert not run.success
    (text,) = texts(webhook)
    assert text.startswith(f"Run {run.run_id[:8]} of ")
    assert text.endswith(f"failed: {REFUSAL}")


def test_a_refusal_that_was_tried_again_is_told_when_something_has_changed(
    tmp_path: Path, instance: dg.DagsterInstance, webhook: HttpSink
) -> None:
    """The sensor tries some again every ten minutes; a run by hand is told in any case."""
    stream = declared(tmp_path)
    runs, _ = sensors(stream, webhook)
    location, sensed = repository(stream), {STREAM_TAG: "orders"}
    cursor, told = tick(runs, instance, location), []

    for tags in (sensed, sensed, {}, sensed):
        executed(location, instance, **tags)
        cursor = tick(runs, instance, location, cursor)
        told.append(len(texts(webhook)))
    declared(tmp_path, description="corrected")
    executed(location, instance, **sensed)
    tick(runs, instance, location, cursor)

    assert told == [1, 1, 2, 2]
    assert len(texts(webhook)) == 3


def test_a_failed_run_that_nobody_took_is_told_by_the_next_tick(
    tmp_path: Path, instance: dg.DagsterInstance, webhook: HttpSink
) -> None:
    """A webhook that is away for a while loses no failed run, and is told of none twice."""
    stream = declared(tmp_path)
    runs, _ = sensors(stream, webhook)
    location = repository(stream)
    cursor = tick(runs, instance, location)
    failed = [executed(location, instance) for _ in range(3)]
    webhook.statuses = [*[503] * 3, 200, *[503] * 3]

    with pytest.raises(DependencyError):
        tick(runs, instance, location, cursor)
    del webhook.posts[:]
    for _ in range(3):
        cursor = tick(runs, instance, location, cursor)

    told = Counter(text.split()[1] for text in texts(webhook))
    assert told == dict(zip([each.run_id[:8] for each in failed], [1, 4, 1], strict=True))


def test_a_run_of_another_code_location_is_not_told(
    tmp_path: Path, instance: dg.DagsterInstance, webhook: HttpSink
) -> None:
    """An instance may be shared; who else runs there is told by others."""
    stream = declared(tmp_path)
    runs, _ = sensors(stream, webhook)
    before = tick(runs, instance)
    instance.report_run_failed(plan_checks(stream, instance))

    after = tick(runs, instance, cursor=before)

    assert texts(webhook) == []
    assert after != before


def plan_checks(stream: DeclaredStream, instance: dg.DagsterInstance) -> dg.DagsterRun:
    """Leave a run in the instance that has planned the checks of a stream, and is not there yet."""
    job = repository(stream).get_implicit_global_asset_job_def()
    origin = RemoteRepositoryOrigin(RegisteredCodeLocationOrigin("oncelake"), "__repository__")
    return instance.create_run_for_job(job, remote_job_origin=origin.get_job_origin(job.name))


def evaluation(
    check: str, *, passed: bool, says: str = "says", severity: str = "WARN"
) -> dg.AssetCheckEvaluation:
    """What a check of the stream came to."""
    return dg.AssetCheckEvaluation(
        asset_key=dg.AssetKey("orders"),
        check_name=check,
        passed=passed,
        description=says,
        severity=dg.AssetCheckSeverity(severity),
        metadata={},
    )


def test_a_check_is_told_when_it_turns_and_when_it_gets_worse(
    tmp_path: Path, instance: dg.DagsterInstance, webhook: HttpSink
) -> None:
    """Not every evaluation is news: once until it is green again, and once more as an error."""
    _, checks = sensors(declared(tmp_path), webhook)
    cursor, told = None, []
    for passed, severity in [
        *[(True, "WARN"), (False, "WARN"), (False, "WARN"), (False, "ERROR")],
        *[(True, "ERROR"), (False, "WARN")],
    ]:
        instance.report_runless_asset_event(
            evaluation("retention", passed=passed, severity=severity)
        )
        cursor = tick(checks, instance, cursor=cursor)
        told.append(len(texts(webhook)))

    assert told == [0, 1, 1, 2, 2, 3]
    assert texts(webhook)[0] == "Check retention of orders failed: says"


def test_an_improvement_is_no_news(
    tmp_path: Path, instance: dg.DagsterInstance, webhook: HttpSink
) -> None:
    """A failure that is a warning by now has been told; when it gets worse again, that is told."""
    _, checks = sensors(declared(tmp_path), webhook)
    cursor, told = None, []
    for severity in ("ERROR", "WARN", "ERROR"):
        instance.report_runless_asset_event(
            evaluation("retention", passed=False, severity=severity)
        )
        cursor = tick(checks, instance, cursor=cursor)
        told.append(len(texts(webhook)))

    assert told == [1, 1, 2]


def test_a_check_that_was_red_between_two_ticks_is_told(
    tmp_path: Path, instance: dg.DagsterInstance, webhook: HttpSink
) -> None:
    """A run that only plans its checks hides none before it, and one that turns green neither."""
    stream = declared(tmp_path)
    _, checks = sensors(stream, webhook)
    instance.report_runless_asset_event(evaluation("retention", passed=True))
    cursor = tick(checks, instance)
    instance.report_runless_asset_event(evaluation("retention", passed=False))
    plan_checks(stream, instance)

    cursor = tick(checks, instance, cursor=cursor)
    hidden = len(texts(webhook))
    for passed in (True, False, True):
        instance.report_runless_asset_event(evaluation("retention", passed=passed))
    tick(checks, instance, cursor=cursor)

    assert hidden == 1
    assert len(texts(webhook)) == 2


def test_a_run_that_goes_on_is_heard_beside_a_later_one(
    tmp_path: Path, instance: dg.DagsterInstance, webhook: HttpSink
) -> None:
    """Dagster has one record of a check and run: that of an hour of following is an old one."""
    stream = declared(tmp_path)
    _, checks = sensors(stream, webhook)
    following, cursor = plan_checks(stream, instance), None
    for passed in (True, False):
        judged = dg.DagsterEvent(
            dg.DagsterEventType.ASSET_CHECK_EVALUATION.value,
            job_name=following.job_name,
            event_specific_data=evaluation("freshness", passed=passed),
        )
        instance.report_dagster_event(judged, following.run_id)
        cursor = tick(checks, instance, cursor=cursor)
        instance.report_runless_asset_event(evaluation("freshness", passed=True))
        cursor = tick(checks, instance, cursor=cursor)

    assert len(texts(webhook)) == 1


def test_what_was_posted_is_not_posted_again_when_a_later_message_fails(
    tmp_path: Path, instance: dg.DagsterInstance, webhook: HttpSink
) -> None:
    """The tick keeps what nobody took, and the next one posts that alone."""
    _, checks = sensors(declared(tmp_path), webhook)
    names = ("books_balance", "freshness", "retention")
    for name in names:
        instance.report_runless_asset_event(evaluation(name, passed=False, says=name))
    webhook.statuses = [200, 429, 429, 429]

    cursor = tick(checks, instance)
    tick(checks, instance, cursor=cursor)

    counted = Counter(text.rpartition(": ")[2] for text in texts(webhook))
    assert counted == {"books_balance": 1, "freshness": 4, "retention": 1}


def test_a_tick_posts_for_as_long_as_it_has_time(
    tmp_path: Path,
    instance: dg.DagsterInstance,
    webhook: HttpSink,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Dagster would end it after a minute, and forget what it has posted."""
    _, checks = sensors(declared(tmp_path), webhook)
    for name in ("books_balance", "freshness", "retention"):
        instance.report_runless_asset_event(evaluation(name, passed=False, says=name))
    cursor, posted = None, []
    for _ in range(4):
        with monkeypatch.context() as slow:
            # Each message takes 15 seconds.
            slow.setattr("oncelake.assets.alerts.time.monotonic", count(0, 15).__next__)
            cursor = tick(checks, instance, cursor=cursor)
        posted.append(len(texts(webhook)))

    assert posted == [1, 2, 3, 3]


def test_checks_that_say_the_same_are_one_message(
    tmp_path: Path, instance: dg.DagsterInstance, webhook: HttpSink
) -> None:
    """While streams are followed, a refusal turns all checks of the stream red at once."""
    _, checks = sensors(declared(tmp_path), webhook)
    for name in ("books_balance", "freshness"):
        instance.report_runless_asset_event(
            evaluation(name, passed=False, says=str(REFUSAL), severity="ERROR")
        )

    tick(checks, instance)

    assert texts(webhook) == [f"Check books_balance, freshness of orders failed: {REFUSAL}"]


def test_what_the_webhook_does_not_take_is_told_by_the_next_tick(
    tmp_path: Path, instance: dg.DagsterInstance, webhook: HttpSink
) -> None:
    """A tick fails visibly after three tries, and forgets nothing."""
    _, checks = sensors(declared(tmp_path), webhook)
    instance.report_runless_asset_event(evaluation("retention", passed=False))
    webhook.statuses = [503] * 3

    with pytest.raises(DependencyError, match=r"did not take an alert \(HTTP 503\)") as failed:
        tick(checks, instance)
    tick(checks, instance)

    assert webhook.address not in str(failed.value)
    assert len(set(texts(webhook))) == 1
    assert len(texts(webhook)) == 4


def test_a_text_that_is_refused_keeps_no_other_back(
    tmp_path: Path, instance: dg.DagsterInstance, webhook: HttpSink
) -> None:
    """What failed is told all the same, without the words that the receiver does not take."""
    _, checks = sensors(declared(tmp_path), webhook)
    for name in ("freshness", "retention"):
        instance.report_runless_asset_event(evaluation(name, passed=False, says=f"odd {name}"))
    webhook.statuses = [400]

    cursor = tick(checks, instance)
    tick(checks, instance, cursor=cursor)

    assert texts(webhook) == [
        "Check freshness of orders failed: odd freshness",
        "Check freshness of orders failed; why, Dagster shows: the text was refused (HTTP 400)",
        "Check retention of orders failed: odd retention",
    ]


def test_a_webhook_that_refuses_all_loses_nothing(
    tmp_path: Path, instance: dg.DagsterInstance, webhook: HttpSink
) -> None:
    """Its address is wrong, or was revoked: the tick fails, and the next begins where it did."""
    _, checks = sensors(declared(tmp_path), webhook)
    instance.report_runless_asset_event(evaluation("retention", passed=False))
    webhook.statuses = [404, 404]

    with pytest.raises(DependencyError, match="HTTP 404"):
        tick(checks, instance)
    tick(checks, instance)

    assert texts(webhook)[2:] == ["Check retention of orders failed: says"]


def test_a_long_text_is_cut_in_its_middle(webhook: HttpSink) -> None:
    """It begins with what failed and ends with what to do; receivers limit what they take."""
    post(f"{webhook.address}/hook", f"Run a of orders failed: {'x' * 5000} Next: oncelake accept")

    (text,) = texts(webhook)
    assert len(text) <= 2_000
    assert text.startswith("Run a of orders failed: x")
    assert text.endswith("x Next: oncelake accept")


@pytest.mark.parametrize(
    "url",
    [
        pytest.param("http://127.0.0.1:1/secret", id="away"),
        pytest.param("127.0.0.1/secret", id="no scheme"),
        pytest.param("http://127.0.0.1:1/a secret", id="a space"),
    ],
)
def test_a_webhook_that_is_away_is_no_secret_told(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error names the setting, and not its value."""
    monkeypatch.setattr("oncelake.assets.alerts._PAUSES_SECONDS", (0, 0))

    with pytest.raises(DependencyError) as failed:
        post(url, "text")

    assert "ONCELAKE_ALERT_WEBHOOK" in str(failed.value)
    assert "secret" not in str(failed.value)


@pytest.mark.parametrize("webhook_is_set", [False, True])
def test_setting_the_webhook_starts_the_sensors(
    monkeypatch: pytest.MonkeyPatch, webhook_is_set: bool
) -> None:
    """Without it there are none, and the headroom is watched when a person wants it."""
    if webhook_is_set:
        monkeypatch.setenv("ONCELAKE_ALERT_WEBHOOK", "http://127.0.0.1:1/hook")

    found = {
        sensor.name: sensor.default_status is dg.DefaultSensorStatus.RUNNING
        for sensor in definitions().sensors or ()
    }

    alerts = {"alert_failed_runs": True, "alert_failed_checks": True}
    assert found == {
        "lag": False,
        "follow": False,
        "retention": webhook_is_set,
        **(alerts if webhook_is_set else {}),
    }
