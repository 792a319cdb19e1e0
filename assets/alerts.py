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
        # A run that failed leaves checks that were planned, and never evaluated.
        judged = [each for each in map(_evaluation, last.values()) if each is not None]
        verdicts = {**known, **{_name(each): _verdict(each) for each in judged}}
        news = [each for each in judged if _verdict(each) not in ("passed", known.get(_name(each)))]
        for message in _messages(news):
            post(webhook, message)
        # Only now: what could not be told is told by the next tick.
        told = f"{len(news)} checks turned red"
        return dg.SensorResult(skip_reason=told, cursor=json.dumps(verdicts, sort_keys=True))

    return tell


def _evaluation(record: AssetCheckExecutionRecord) -> dg.AssetCheckEvaluation | None:
    found: object = record.evaluation
    return found if isinstance(found, dg.AssetCheckEvaluation) else None


def _name(evaluation: dg.AssetCheckEvaluation) -> str:
    return f"{evaluation.asset_key.to_user_string()}:{evaluation.check_name}"


def _verdict(evaluation: dg.AssetCheckEvaluation) -> str:
    """Return what is told again when it changes: a level, where the check has one."""
    level = evaluation.metadata.get("level", evaluation.severity)
    return "passed" if evaluation.passed else str(level.value)


def _messages(evaluations: Sequence[dg.AssetCheckEvaluation]) -> Iterator[str]:
    """Yield one message for the checks of a stream that say the same, as after a refusal."""

    def of(evaluation: dg.AssetCheckEvaluation) -> tuple[str, str]:
        return evaluation.asset_key.to_user_string(), evaluation.description or "no description"

    for (stream, says), alike in groupby(sorted(evaluations, key=of), key=of):
        names = ", ".join(sorted(evaluation.check_name for evaluation in alike))
        yield f"Check {names} of {stream} failed: {says}"


def post(webhook: str, text: str) -> None:
    """Post a text as JSON, ``{"text": …}``, which Slack, Mattermost and many others take.

    Raises:
        DependencyError: nobody takes it; names no URL, which may hold a secret.
    """
    body = json.dumps({"text": text}).encode()
    request = urllib.request.Request(webhook, body, {"Content-Type": "application/json"})
    for pause in (*_PAUSES_SECONDS, 0):
        try:
            with urllib.request.urlopen(request, timeout=_TIMEOUT_SECONDS):
                return
        except urllib.error.HTTPError as error:
            error.close()
            reason = f"HTTP {error.code}"
        except (OSError, ValueError) as error:
            reason = type(error).__name__
        time.sleep(pause)
    raise DependencyError(
        f"the webhook did not take an alert ({reason}). Next: check ONCELAKE_ALERT_WEBHOOK. "
        f"The alert: {text}"
    )
