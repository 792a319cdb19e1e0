"""Following in Dagster: one long run, in which each bounded run is a materialization.

Asset pages, plots and alerts get the same metadata and checks as from separate runs. A sensor
keeps exactly one such run alive.

Dagster reads the annotations of an op's body, so this module does not postpone them.
"""

from typing import TYPE_CHECKING

import dagster as dg

# Dagster has no public name for the materialization that a check is of.
from dagster._core.definitions.asset_checks.asset_check_evaluation import (
    AssetCheckEvaluationTargetMaterializationData,
)
from pydantic import Field

from oncelake.assets.checks.checks import ERROR, as_evaluation, check_results, check_specs
from oncelake.assets.checks.evidence import gather
from oncelake.assets.doctor.idle import FOLLOW_SENSOR
from oncelake.assets.doctor.runs import UNDER_WAY, Runs, location_here, location_of
from oncelake.assets.failures import (
    StreamFailureError,
    as_markdown,
    metadata_of_failure,
    translate_errors,
)
from oncelake.assets.jobs.jobs import FOLLOW_JOB, chosen, op_job
from oncelake.assets.metadata import earlier_events, metadata_of, version_tags
from oncelake.assets.sensors import Tick, pause_after_failures, report_under_way
from oncelake.assets.translation import AS_DECLARED, ASKING, Translation
from oncelake.ingestion.declaration.files.loader import DeclaredStream, load_streams
from oncelake.ingestion.errors import IngestionError, TransientError
from oncelake.ingestion.operations.follow.turns import EVERY_SECONDS, JOBS
from oncelake.ingestion.settings import Settings
from oncelake.resources.part import settings_of
from oncelake.resources.spark import SparkResource

if TYPE_CHECKING:
    from oncelake.ingestion.pipeline.report import RunReport

# Of all code locations, among which the last ones of this are looked for.
_MOST_RUNS = 100


class FollowConfig(dg.Config):
    """The choices of a person who starts the job."""

    streams: list[str] = Field([], description="Names of streams; none means all of them.")
    for_seconds: float = Field(
        3600.0, gt=0, description="How long; less than `max_runtime_seconds` of dagster.yaml."
    )
    every_seconds: float = Field(EVERY_SECONDS, gt=0, description="How often Kafka is asked.")
    jobs: int = Field(JOBS, gt=0, description="How many streams are run at once, at most.")


def follow_job(translation: Translation = AS_DECLARED) -> dg.JobDefinition:
    """Return the job that runs streams whenever they are behind, all of them in one JVM."""

    @dg.op(
        name=translation.name("follow"),
        description="Run streams whenever they are behind, for an hour",
        required_resource_keys={*translation.resource_keys()},
    )
    def follow_streams(
        context: dg.OpExecutionContext,
        config: FollowConfig,
    ) -> None:
        from oncelake.ingestion.operations.follow.follow import Follow
        from oncelake.ingestion.pipeline.spark.session import SharedSpark

        with translate_errors("follow"):
            resources = translation.resources(context)
            settings, spark = settings_of(*resources), resources[-1]
            chosen(load_streams(settings.streams), config.streams)
            told = _Events(context, settings, spark, translation)
            follow = Follow(
                settings=settings,
                # This JVM is to last, so it is not started for the backlog of one stream.
                spark=SharedSpark(lambda _: spark.spark_session),
                run_id=context.run.run_id,
                on_report=told.report,
                on_failure=told.failure,
                streams=config.streams,
                jobs=config.jobs,
                every_seconds=config.every_seconds,
                for_seconds=config.for_seconds,
            )
            follow.execute()
        # What a person must decide has turned checks red; this has turned none.
        if away := follow.unreachable:
            raise StreamFailureError("\n".join(away), allow_retries=True)

    # The sensor begins the next one; a retry would be a second one beside it.
    return op_job(follow_streams, translation, is_run_again=False)


def follow_sensor(
    translation: Translation = AS_DECLARED,
    status: dg.DefaultSensorStatus = dg.DefaultSensorStatus.STOPPED,
) -> dg.SensorDefinition:
    """Return the sensor that keeps one run of the job alive."""
    job = translation.name(FOLLOW_JOB)

    @dg.sensor(
        name=translation.name(FOLLOW_SENSOR),
        job_name=job,
        minimum_interval_seconds=30,
        default_status=status,
        description="Keeps one run alive that follows all streams",
        required_resource_keys={*translation.resource_keys(ASKING)},
    )
    def sense(context: dg.SensorEvaluationContext, **_: object) -> Tick:
        instance = context.instance
        try:
            runs = Runs(instance, settings_of(*translation.resources(context, ASKING)), [])
        except IngestionError as error:
            return dg.SkipReason(f"a run would not go through: {error}")
        # Who shares the instance has such a job, too; a run that has no location is of a shell.
        ours = {None, location_here(context)}
        newest = instance.get_run_records(dg.RunsFilter(job_name=job), limit=_MOST_RUNS)
        records = [each for each in newest if location_of(each.dagster_run) in ours]
        for each in records:
            if each.dagster_run.status in UNDER_WAY:
                return dg.SkipReason(
                    report_under_way(instance, runs, each, of="this job", doctor="oncelake doctor")
                )
        pause = pause_after_failures(records)
        return dg.SkipReason(pause) if pause else dg.SensorResult(run_requests=[dg.RunRequest()])

    return sense


class _Events:
    """Reports to Dagster each bounded run, and what keeps a stream from being run."""

    def __init__(
        self,
        context: dg.OpExecutionContext,
        settings: Settings,
        spark: SparkResource,
        translation: Translation,
    ) -> None:
        self._context = context
        self._settings = settings
        self._spark = spark
        self._translation = translation
        self._evaluated: set[dg.AssetCheckKey] = set()

    def report(self, declared: DeclaredStream, report: "RunReport") -> None:
        """Log a materialization and its checks; called in the thread of the run."""
        instance, run_id = self._context.instance, self._context.run.run_id
        evidence = gather(
            declared,
            self._settings,
            self._spark,
            report,
            instance,
            translation=self._translation,
        )
        for event in earlier_events(evidence, instance, by=run_id):
            self._log(event)
        metadata, tags = metadata_of(evidence), version_tags(evidence.data_version)
        self._log(dg.AssetMaterialization(evidence.asset_key, metadata=metadata, tags=tags))
        self._log_checks(declared, check_results(evidence))

    def failure(self, declared: DeclaredStream | None, error: Exception) -> None:
        """Turn the checks of a stream red that only a person can help; warn of what passes."""
        if declared is None or isinstance(error, TransientError):
            self._context.log.warning(str(error))
            return
        self._context.log.error(str(error))
        self._log_checks(
            declared,
            [
                dg.AssetCheckResult(
                    passed=False,
                    asset_key=spec.asset_key,
                    check_name=spec.name,
                    severity=ERROR,
                    description=as_markdown(str(error)),
                    metadata=metadata_of_failure(error),
                )
                for spec in check_specs(declared, self._translation)
            ],
        )

    def _log_checks(self, declared: DeclaredStream, results: list[dg.AssetCheckResult]) -> None:
        target = self._last_materialization(declared.name)
        blocking = {spec.name: spec.blocking for spec in check_specs(declared, self._translation)}
        for result in results:
            self._log_check(
                as_evaluation(
                    result,
                    target_materialization_data=target,
                    blocking=blocking[str(result.check_name)],
                )
            )

    def _log_check(self, evaluation: dg.AssetCheckEvaluation) -> None:
        """Log the result of a check so that Dagster shows it.

        Dagster writes it over this run's earlier record, and shows the newest: where another run,
        or a sensor, has made one since, a record without a run comes after that.
        """
        instance, key = self._context.instance, evaluation.asset_check_key
        newest = instance.event_log_storage.get_latest_asset_check_execution_by_key([key]).get(key)
        if key in self._evaluated and newest and newest.run_id != self._context.run.run_id:
            instance.report_runless_asset_event(evaluation)
            return
        self._log(evaluation)
        self._evaluated.add(key)

    def _last_materialization(
        self, stream: str
    ) -> AssetCheckEvaluationTargetMaterializationData | None:
        key = self._translation.key(stream)
        for record in self._context.instance.fetch_materializations(key, limit=1).records:
            return AssetCheckEvaluationTargetMaterializationData(
                storage_id=record.storage_id, run_id=record.run_id, timestamp=record.timestamp
            )
        return None

    def _log(self, event: dg.AssetMaterialization | dg.AssetCheckEvaluation) -> None:
        self._context.log_event(event)  # type: ignore[arg-type]  # It takes checks, too.
        # They are written at once; kept until the op ends, an hour of them would fill the memory.
        for _ in self._context.consume_events():
            pass
