"""One job a stream, and its schedule where one is declared; and the job that redrives.

Dagster reads the annotations of a job's configuration, so this module does not postpone them.
"""

from typing import Any

import dagster as dg
from dagster._utils.schedules import is_valid_cron_schedule

from ingestion.declaration.spec import StreamSpec
from ingestion.errors import IngestionError, InvalidSpecError, TransientError
from ingestion.operations.redrive import Redrive, RedriveReport
from resources.kafka import KafkaResource
from resources.lake import LakeResource
from resources.part import settings_of
from resources.spark import SparkResource


def job_name(stream: str) -> str:
    """Return the name of a stream's job."""
    return f"ingest_{stream}_job"


def sensor_name(stream: str) -> str:
    """Return the name of the sensor that starts a stream's runs."""
    return f"{stream}_lag"


FOLLOW_JOB = "follow_job"
FOLLOW_SENSOR = "follow"


def ingest_job(spec: StreamSpec) -> "dg.UnresolvedAssetJobDefinition":
    """Return the job that materializes one stream, in one process and one JVM."""
    return dg.define_asset_job(
        job_name(spec.name),
        selection=[spec.name],
        description=f"Read what Kafka holds now into {spec.name}",
        executor_def=dg.in_process_executor,
    )


def ingest_schedule(spec: StreamSpec) -> dg.ScheduleDefinition | None:
    """Return the declared schedule, in UTC; declaring it is what starts it.

    Raises:
        InvalidSpecError: the line is not one that cron understands.
    """
    if spec.schedule is None:
        return None
    if not is_valid_cron_schedule(spec.schedule):
        raise InvalidSpecError(f"{spec.name}: schedule {spec.schedule!r} is no line of cron")
    return dg.ScheduleDefinition(
        name=f"ingest_{spec.name}_schedule",
        job_name=job_name(spec.name),
        cron_schedule=spec.schedule,
        execution_timezone="UTC",
        default_status=dg.DefaultScheduleStatus.RUNNING,
    )


def op_job(op: dg.OpDefinition, description: str) -> dg.JobDefinition:
    """Return the job of one op, named after it, which runs in the process that starts it."""
    graph = dg.GraphDefinition(name=f"{op.name}_job", description=description, node_defs=[op])
    return graph.to_job(executor_def=dg.in_process_executor)


class RedriveConfig(dg.Config):
    """What a person may choose when the job is started."""

    reason: str | None = None


def redrive_job(spec: StreamSpec) -> dg.JobDefinition:
    """Return the job that sends a stream's quarantined records through its declaration again."""

    @dg.op(
        name=f"redrive_{spec.name}",
        description=f"Send the quarantine of {spec.name} through today's declaration again",
        pool=spec.name,
    )
    def redrive_stream(
        context: dg.OpExecutionContext,
        config: RedriveConfig,
        kafka: KafkaResource,
        lake: LakeResource,
        spark: SparkResource,
    ) -> None:
        try:
            report = Redrive(
                spec=spec,
                settings=settings_of(kafka, lake, spark),
                spark=spark.session_for,
                run_id=context.run.run_id,
                reason=config.reason,
            ).execute()
        except IngestionError as error:
            may_retry = isinstance(error, TransientError)
            raise dg.Failure(description=str(error), allow_retries=may_retry) from error
        context.add_output_metadata(_metadata_of(report))
        if not report.is_balanced:
            told = "; ".join(row.says() for row in report.batches if row.is_red)
            raise dg.Failure(
                description=f"the books do not balance: {told}",
                metadata=_metadata_of(report),
                allow_retries=False,
            )

    return op_job(redrive_stream, str(redrive_stream.description))


def _metadata_of(report: RedriveReport) -> dict[str, Any]:
    return {
        "waiting": report.waiting,
        "redriven": report.redriven,
        "still_bad": dict(report.still_bad),
        "seqs": [row.seq for row in report.batches],
    }
