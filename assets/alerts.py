"""Alerts: what a person must know is posted to a webhook, where ``ONCELAKE_ALERT_WEBHOOK`` is set.

Two sensors, which setting the variable starts: one posts every run that fails, a refused one
included; the other every check that turns red, once until it is green again.
"""

from __future__ import annotations

import http.client
import json
import time
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Final

import dagster as dg

from oncelake.assets.checks.checks import check_specs
from oncelake.assets.checks.evidence import EVALUATED
from oncelake.assets.doctor.runs import location_here, location_of
from oncelake.assets.failures import as_markdown
from oncelake.assets.jobs.jobs import STREAM_TAG
from oncelake.assets.refusals import REFUSED_AT
from oncelake.assets.translation import AS_DECLARED, Translation
from oncelake.ingestion.declaration.files.loader import DeclaredStream
from oncelake.ingestion.errors import DependencyError, counted

_TIMEOUT_SECONDS: Final = 10
_PAUSES_SECONDS: Final = (1, 3)
# Chats take 4,000 characters or more of one message.
_LONGEST: Final = 2_000
_RUNNING: Final = dg.DefaultSensorStatus.RUNNING
# A tick has a minute, and one message that nobody takes needs more than half of it.
_POSTING_SECONDS: Final = 20
_FAILURE: Final = dg.DagsterEventType.RUN_FAILURE
# A tick has no time for more.
_MOST_RUNS: Final = 20
# Of one check, among the newest runs.
_MOST_EVALUATIONS: Final = 10
# What a check may say, the worst last: severities, and the levels of `retention`.
_WORSE: Final = ("passed", "unknown", "WARN", "low", "ERROR", "critical", "lost")
# When each check was evaluated last, as far as that was judged, and what it said.
_Seen = dict[str, tuple[float, str]]


def alert_sensors(
    streams: Sequence[DeclaredStream],
    webhook: str,
    translation: Translation = AS_DECLARED,
    failed_runs: dg.DefaultSensorStatus = _RUNNING,
) -> list[dg.SensorDefinition]:
    """Return the sensors that post to a webhook."""
    return [
        _failed_runs(webhook, translation, failed_runs),
        _failed_checks(streams, webhook, translation),
    ]


def _failed_runs(
    webhook: str, translation: Translation, status: dg.DefaultSensorStatus
) -> dg.SensorDefinition:
    @dg.sensor(
        name=translation.name("alert_failed_runs"),
        minimum_interval_seconds=15,
        default_status=status,
        description="Posts to ONCELAKE_ALERT_WEBHOOK when a run fails or is refused",
    )
    def tell(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        # Dagster's own sensor of failed runs skips one that it could not post.
        reached, failed = _failed_since(context)
        messages = [_message_of(context.instance, run, failure) for _, run, failure in failed]
        told = _post_in_time(webhook, messages)
        if told < len(failed):
            reached = failed[told][0] - 1
        return dg.SensorResult(
            skip_reason=f"{told} of {counted(len(failed), 'failed run')} posted",
            cursor=json.dumps({"record_id": reached}),
        )

    return tell


def _failed_since(
    context: dg.SensorEvaluationContext,
) -> tuple[int, list[tuple[int, dg.DagsterRun, dg.DagsterEvent]]]:
    """Return how far the failures of runs were read, and those of this code location.

    Each has the number of its record, the oldest comes first. What failed before the first tick is
    old, and so is a refusal that was tried again and has not changed.
    """
    instance = context.instance
    if context.cursor is None:
        newest = instance.fetch_run_status_changes(_FAILURE, limit=1).records
        return max((each.storage_id for each in newest), default=0), []
    since = int(json.loads(context.cursor)["record_id"])
    later = dg.RunStatusChangeRecordsFilter(_FAILURE, after_storage_id=since)
    records = instance.fetch_run_status_changes(later, limit=_MOST_RUNS, ascending=True).records
    failed = [
        (each.storage_id, run, each.event_log_entry.get_dagster_event())
        for each in records
        if (run := instance.get_run_by_id(each.run_id))
        and location_of(run) == location_here(context)
        and not _is_repeated(instance, run)
    ]
    return max((each.storage_id for each in records), default=since), failed


def _is_repeated(instance: dg.DagsterInstance, run: dg.DagsterRun) -> bool:
    """Tell whether the stream's run before was refused in the same state and the same words."""
    same = {name: run.tags.get(name, "") for name in (STREAM_TAG, REFUSED_AT)}
    if not all(same.values()):
        return False
    before = instance.get_runs(dg.RunsFilter(tags=same), cursor=run.run_id, limit=1)
    why = _why(instance, run)
    return bool(why) and [why] == [_why(instance, each) for each in before]


def _message_of(instance: dg.DagsterInstance, run: dg.DagsterRun, failure: dg.DagsterEvent) -> str:
    """Return which run failed, and why: an error of the engine by its own text."""
    why = _why(instance, run)
    selected = ", ".join(sorted(key.to_user_string() for key in run.asset_selection or ()))
    return f"Run {run.run_id[:8]} of {selected or run.job_name} failed: {why or failure.message}"


def _why(instance: dg.DagsterInstance, run: dg.DagsterRun) -> str:
    of_type = dg.DagsterEventType.STEP_FAILURE
    steps = instance.get_records_for_run(run.run_id, of_type=of_type).records
    return "\n".join(dict.fromkeys(_reasons(each.event_log_entry for each in steps)))


def _reasons(failures: Iterable[dg.EventLogEntry]) -> Iterator[str]:
    for each in failures:
        failure = each.get_dagster_event().step_failure_data
        if failure.user_failure_data is not None and failure.user_failure_data.description:
            yield failure.user_failure_data.description
        elif failure.error is not None:
            yield failure.error.message.strip()


def _failed_checks(
    streams: Sequence[DeclaredStream], webhook: str, translation: Translation
) -> dg.SensorDefinition:
    keys = [spec.key for declared in streams for spec in check_specs(declared, translation)]

    @dg.sensor(
        name=translation.name("alert_failed_checks"),
        minimum_interval_seconds=30,
        default_status=_RUNNING,
        description="Posts to ONCELAKE_ALERT_WEBHOOK when a check turns red",
    )
    def tell(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        before = json.loads(context.cursor or "{}")
        seen: _Seen = dict(before.get("seen", {}))
        news = _news(context.instance, keys, seen)
        untold = [*before.get("untold", []), *_messages(news)]
        told = _post_in_time(webhook, untold)
        return dg.SensorResult(
            skip_reason=f"{counted(len(news), 'check')} turned red; {told} of "
            f"{counted(len(untold), 'message')} posted",
            cursor=json.dumps({"seen": seen, "untold": untold[told:]}, sort_keys=True),
        )

    return tell


def _post_in_time(webhook: str, messages: Sequence[str]) -> int:
    """Post messages for as long as a tick has time for, and return how many were taken.

    Raises:
        DependencyError: not even the first was; the tick fails, and the next begins where it did.
    """
    deadline = time.monotonic() + _POSTING_SECONDS
    for told, message in enumerate(messages):
        if time.monotonic() > deadline:
            return told
        try:
            post(webhook, as_markdown(message))
        except DependencyError:
            if not told:
                raise
            return told
    return len(messages)


def _news(
    instance: dg.DagsterInstance, keys: Sequence[dg.AssetCheckKey], seen: _Seen
) -> list[dg.AssetCheckEvaluation]:
    """Return what has turned red, or worse, since each check was seen last; update ``seen``.

    The latest record of a check is not enough: a run may only have planned it, and the record of a
    run that follows streams is as old as that run. Of a check that was never seen, only the last
    evaluation counts.
    """
    news = {}
    for key in keys:
        name = key.to_user_string()
        since, known = seen.get(name, (0.0, "passed"))
        history = instance.event_log_storage.get_asset_check_execution_history(
            key, limit=_MOST_EVALUATIONS if since else 1, status=EVALUATED
        )
        dated = [(each.event.timestamp, each.evaluation) for each in history if each.event]
        for at, evaluation in sorted(dated, key=itemgetter(0)):
            if evaluation is None or at <= since:
                continue
            verdict = _verdict(evaluation)
            if _WORSE.index(verdict) > _WORSE.index(known):
                news[name] = evaluation
            known, seen[name] = verdict, (at, verdict)
    return list(news.values())


def _verdict(evaluation: dg.AssetCheckEvaluation) -> str:
    """Return what is posted again when it gets worse: a level, where the check has one."""
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

    In the place of one that the receiver refuses, it posts what it is about: a text that is never
    taken must not keep the others back.

    Raises:
        DependencyError: nobody takes it; names no URL, which may hold a secret.
    """
    problem = _send(webhook, _shortened(text))
    if _is_refusal(problem):
        about = _shortened(text.partition(": ")[0])
        problem = _send(webhook, f"{about}; why, Dagster shows: the text was refused ({problem})")
    if problem:
        raise DependencyError(
            f"the webhook did not take an alert ({problem}). Next: check ONCELAKE_ALERT_WEBHOOK. "
            f"The alert: {text}"
        )


def _send(webhook: str, text: str) -> str:
    """Send a text, more than once if that may help, and return why it was not taken."""
    body, reason = json.dumps({"text": text}).encode(), ""
    for pause in (*_PAUSES_SECONDS, 0):
        try:
            request = urllib.request.Request(webhook, body, {"Content-Type": "application/json"})
            with urllib.request.urlopen(request, timeout=_TIMEOUT_SECONDS):
                return ""
        except urllib.error.HTTPError as error:
            error.close()
            reason = f"HTTP {error.code}"
        except (OSError, ValueError, http.client.HTTPException) as error:
            reason = type(error).__name__
        if _is_refusal(reason):
            break
        time.sleep(pause)
    return reason


def _is_refusal(problem: str) -> bool:
    """Tell whether a receiver would refuse the same text again; two codes ask for patience."""
    return problem.startswith("HTTP 4") and problem not in {"HTTP 408", "HTTP 429"}


def _shortened(text: str) -> str:
    """Leave out the middle of a long text: it begins with what failed, and ends with what to do."""
    half = _LONGEST // 2 - 3
    return text if len(text) <= _LONGEST else f"{text[:half]} […] {text[-half:]}"
