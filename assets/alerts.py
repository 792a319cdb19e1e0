"""Alerts: what a person must know is posted to a webhook, where ``ONCELAKE_ALERT_WEBHOOK`` is set.

Two sensors, which setting the variable starts: one tells of every run that fails, a refused one
included; the other of every check that turns red, once until it is green again.
"""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Final

import dagster as dg
from dagster._core.storage.asset_check_execution_record import AssetCheckExecutionRecord

from assets.checks import check_specs
from ingestion.declaration.loader import DeclaredStream
from ingestion.errors import DependencyError

_TIMEOUT_SECONDS: Final = 10
# The sensor of failed runs is not asked again about a run that it could not tell of.
_PAUSES_SECONDS: Final = (1, 3)
_RUNNING: Final = dg.DefaultSensorStatus.RUNNING


def alert_sensors(streams: Sequence[DeclaredStream], webhook: str) -> list[dg.SensorDefinition]:
    """Return the sensors that post to a webhook."""
    return [_failed_runs(webhook), _failed_checks(streams, webhook)]


def _failed_runs(webhook: str) -> dg.SensorDefinition:
    @dg.run_failure_sensor(
        name="alert_failed_runs",
        minimum_interval_seconds=15,
        default_status=_RUNNING,
        description="Posts to ONCELAKE_ALERT_WEBHOOK when a run fails or is refused",
    )
    def tell(context: dg.RunFailureSensorContext) -> None:
        run = context.dagster_run
        why = "\n".join(dict.fromkeys(_reasons(context))) or context.failure_event.message
        selected = sorted(key.to_user_string() for key in run.asset_selection or ())
        post(
            webhook, f"Run {run.run_id[:8]} of {', '.join(selected) or run.job_name} failed: {why}"
        )

    return tell


def _reasons(context: dg.RunFailureSensorContext) -> Iterator[str]:
    """Yield why the steps of a run failed: an error of the engine in its own words."""
    for event in context.get_step_failure_events():
        failure = event.step_failure_data
        if failure.user_failure_data is not None and failure.user_failure_data.description:
            yield failure.user_failure_data.description
        elif failure.error is not None:
            yield failure.error.message.strip()


def _failed_checks(streams: Sequence[DeclaredStream], webhook: str) -> dg.SensorDefinition:
    keys = [spec.key for declared in streams for spec in check_specs(declared)]

    @dg.sensor(
        name="alert_failed_checks",
        minimum_interval_seconds=30,
        default_status=_RUNNING,
        description="Posts to ONCELAKE_ALERT_WEBHOOK when a check turns red",
    )
    def tell(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        known: dict[str, str] = json.loads(context.cursor or "{}")
        last = context.instance.event_log_storage.get_latest_asset_check_execution_by_key(keys)
        judged = {key.to_user_string(): record for key, record in last.items() if record.evaluation}
        verdicts = known | {name: _verdict(record) for name, record in judged.items()}
        news = [
            judged[name]
            for name in judged
            if verdicts[name] != "passed" and verdicts[name] != known.get(name)
        ]
        for message in _messages(news):
            post(webhook, message)
        # Only now: what could not be told is told by the next tick.
        told = f"{len(news)} checks turned red"
        return dg.SensorResult(skip_reason=told, cursor=json.dumps(verdicts, sort_keys=True))

    return tell


def _verdict(record: AssetCheckExecutionRecord) -> str:
    evaluation = record.evaluation
    assert evaluation is not None
    return "passed" if evaluation.passed else evaluation.severity.value


def _messages(records: Sequence[AssetCheckExecutionRecord]) -> Iterator[str]:
    """Yield one message for the checks of a stream that say the same, as after a refusal."""

    def of(record: AssetCheckExecutionRecord) -> tuple[str, str]:
        description = record.evaluation.description if record.evaluation else None
        return record.key.asset_key.to_user_string(), description or "no description"

    for (stream, says), alike in groupby(sorted(records, key=of), key=of):
        names = ", ".join(sorted(record.key.name for record in alike))
        yield f"Check {names} of {stream} failed: {says}"


def post(webhook: str, text: str) -> None:
    """Post a text as JSON, ``{"text": …}``, which Slack, Mattermost and many others take.

    Raises:
        DependencyError: nobody takes it; names no URL, which may hold a secret.
    """
    body = json.dumps({"text": text}).encode()
    request = urllib.request.Request(webhook, body, {"Content-Type": "application/json"})
    for pause in (*_PAUSES_SECONDS, None):
        try:
            with urllib.request.urlopen(request, timeout=_TIMEOUT_SECONDS):
                return
        except (OSError, ValueError) as error:
            if pause is None:
                raise DependencyError(
                    f"the webhook did not take an alert ({_reason(error)}). "
                    f"Next: check ONCELAKE_ALERT_WEBHOOK. The alert: {text}"
                ) from None
        time.sleep(pause)


def _reason(error: Exception) -> str:
    return (
        f"HTTP {error.code}" if isinstance(error, urllib.error.HTTPError) else type(error).__name__
    )
