"""Alerts: what is posted to the webhook, when, and that nothing is told twice."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest

from assets.alerts import alert_sensors, post
from assets.assets import ingest_asset
from assets.definitions import definitions
from ingestion.declaration.loader import DeclaredStream
from ingestion.errors import DependencyError, OffsetsExpiredError
from resources.kafka import KafkaResource
from resources.lake import LakeResource
from resources.spark import SparkResource
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
    monkeypatch.setattr("assets.alerts._PAUSES_SECONDS", (0, 0))
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
        resources={"kafka": KafkaResource(), "lake": lake, "spark": SparkResource(lake=lake)},
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


def test_a_refused_run_is_told_once_with_offsets_and_command(
    tmp_path: Path, instance: dg.DagsterInstance, webhook: HttpSink
) -> None:
    """The message is the refusal's own: stream, partition, offsets, and what to run."""
    stream = declared(tmp_path)
    runs, checks = sensors(stream, webhook)
    location = repository(stream)
    cursor = tick(runs, instance, location)

    run = location.get_implicit_global_asset_job_def().execute_in_process(
        instance=instance, raise_on_error=False
    )
    for _ in range(2):
        cursor = tick(runs, instance, location, cursor)
    # Its checks were planned, and never evaluated.
    tick(checks, instance)

    assert not run.success
    (text,) = texts(webhook)
    assert text.startswith(f"Run {run.run_id[:8]} of ")
    assert text.endswith(f"failed: {REFUSAL}")


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


def test_a_webhook_that_is_away_is_no_secret_told() -> None:
    """The error names the setting, and not its value."""
    with pytest.raises(DependencyError) as failed:
        post("http://127.0.0.1:1/secret", "text")

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
        "follow": False,
        "retention": webhook_is_set,
        **(alerts if webhook_is_set else {}),
    }
