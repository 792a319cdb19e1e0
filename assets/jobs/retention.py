"""The sensor that reports records which Kafka may delete before a stream has read them.

The check `retention` comes with each materialization, and there is none while runs are refused,
hang or are not started, which is when records are lost. So this asks by itself, without Spark, and
gives the check its result whenever that has changed.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import dagster as dg

from oncelake.assets.checks.checks import as_evaluation, retention_result
from oncelake.assets.translation import AS_DECLARED, ASKING, Translation
from oncelake.ingestion.declaration.spec import StreamSpec
from oncelake.ingestion.errors import IngestionError
from oncelake.resources.part import settings_of

if TYPE_CHECKING:
    from oncelake.ingestion.operations.upkeep.retention import Retention

RETENTION_SENSOR = "retention"
# A tick has a minute. Those that it has no time for begin the next; a stream's few questions, each
# of which may last so long, must fit into what is left.
_MOST_SECONDS: Final = 5.0
_BEGIN_WITHIN_SECONDS: Final = 20.0


def retention_sensor(
    specs: Sequence[StreamSpec],
    status: dg.DefaultSensorStatus,
    translation: Translation = AS_DECLARED,
) -> dg.SensorDefinition:
    """Return the sensor that measures the headroom of all streams."""

    @dg.sensor(
        name=translation.name(RETENTION_SENSOR),
        minimum_interval_seconds=60,
        default_status=status,
        description="Tells of records that Kafka may delete before a stream has read them",
        required_resource_keys={*translation.resource_keys(ASKING)},
    )
    def sense(context: dg.SensorEvaluationContext, **_: object) -> dg.SensorResult | dg.SkipReason:
        from oncelake.ingestion.kafka.admin import Kafka
        from oncelake.ingestion.operations.upkeep.retention import retention_now

        try:
            asked = translation.resources(context, ASKING)
            settings = settings_of(*asked, most_seconds=_MOST_SECONDS)
            # A Kafka that does not answer is waited for once, and not for each stream.
            Kafka(settings).cluster_id()
        except IngestionError as error:
            return dg.SkipReason(f"nothing is known: {error}")
        # Those come first that the last tick had no time for.
        first = context.cursor or ""
        waiting = sorted(specs, key=lambda spec: (spec.name < first, spec.name))
        measured: list[Retention] = []
        deadline = time.monotonic() + _BEGIN_WITHIN_SECONDS
        while waiting and time.monotonic() < deadline:
            measured.append(retention_now(waiting.pop(0), settings))
        return dg.SensorResult(
            asset_events=_news(context.instance, measured, translation),
            skip_reason="; ".join(map(str, measured)) or "no stream is declared",
            cursor=waiting[0].name if waiting else None,
        )

    return sense


def _news(
    instance: dg.DagsterInstance, measured: Sequence[Retention], translation: Translation
) -> list[dg.AssetCheckEvaluation]:
    """Return what the check does not report yet: Dagster keeps every evaluation for good."""
    evaluations = {
        evaluation.asset_check_key: evaluation
        for each in measured
        if (evaluation := as_evaluation(retention_result(each, translation)))
    }
    last = instance.event_log_storage.get_latest_asset_check_execution_by_key(list(evaluations))
    told = {key: _level(record.evaluation) for key, record in last.items()}
    # What was never told is news only when it is bad.
    return [
        evaluation
        for key, evaluation in evaluations.items()
        if _level(evaluation) != told.get(key, "ok")
    ]


def _level(evaluation: object) -> object:
    # A run that failed leaves a check that was planned, and never evaluated.
    if not isinstance(evaluation, dg.AssetCheckEvaluation):
        return None
    # Where streams are followed, the text of a refusal stands in for it.
    level = evaluation.metadata.get("level")
    return level and level.value
