"""The job that keeps tables small, and the schedule that starts it every night.

Dagster reads the annotations of a job's configuration, so this module does not postpone them.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import dagster as dg
from pydantic import Field

from oncelake.assets.failures import StreamFailureError, StreamRetryError, translate_errors
from oncelake.assets.jobs.jobs import chosen, op_job
from oncelake.assets.translation import AS_DECLARED, Translation
from oncelake.ingestion.declaration.files.loader import DeclaredStream
from oncelake.ingestion.errors import IngestionError, TransientError
from oncelake.resources.part import settings_of

if TYPE_CHECKING:
    from oncelake.ingestion.operations.upkeep.maintain import UpkeepReport

SCHEDULE = "maintain"
# A stream that a run holds is free again soon; what was done already is done quickly.
RETRY_SECONDS = 60


class MaintainConfig(dg.Config):
    """Which streams."""

    streams: list[str] = Field(
        [], description="Names; none means all but those with `maintenance: {nightly: false}`."
    )


def maintain_job(
    streams: Sequence[DeclaredStream], translation: Translation = AS_DECLARED
) -> dg.JobDefinition:
    """Return the job that maintains the tables of all streams, or of some."""

    @dg.op(
        name=translation.name("maintain"),
        required_resource_keys={*translation.resource_keys()},
        description="Put small files together, and remove what no rewind needs",
    )
    def maintain_streams(
        context: dg.OpExecutionContext,
        config: MaintainConfig,
    ) -> None:
        from oncelake.ingestion.operations.upkeep.maintain import maintain

        reports, failures = [], list[IngestionError]()
        with translate_errors("maintain", if_interrupted="the next one does what is left"):
            settings, run_id = settings_of(*translation.resources(context)), context.run.run_id
            for declared in _maintained(streams, config.streams):
                try:
                    spec = declared.require_spec()
                    reports.append(maintain(spec, settings, run_id=run_id, tell=context.log.info))
                except IngestionError as error:
                    context.log.error(str(error))  # noqa: TRY400 (a sentence, and no stack)
                    failures.append(error)
        context.add_output_metadata({"tables": _table_of(reports)})
        says = "; ".join(map(str, failures))
        if failures and all(isinstance(error, TransientError) for error in failures):
            raise StreamRetryError(says, max_retries=3, seconds_to_wait=RETRY_SECONDS)
        if failures:
            raise StreamFailureError(says, metadata={"tables": _table_of(reports)})

    return op_job(maintain_streams, translation)


def maintain_schedule(
    job: dg.JobDefinition, translation: Translation = AS_DECLARED
) -> dg.ScheduleDefinition:
    """Return the schedule of every night, which runs unless somebody stops it."""
    return dg.ScheduleDefinition(
        name=translation.name(SCHEDULE),
        job=job,
        cron_schedule="0 3 * * *",
        execution_timezone="UTC",
        default_status=dg.DefaultScheduleStatus.RUNNING,
        description="Keeps the tables of all streams small, every night",
    )


def _maintained(streams: Sequence[DeclaredStream], names: Sequence[str]) -> list[DeclaredStream]:
    return [
        each
        for each in chosen(streams, names)
        if names or each.spec is None or each.spec.maintenance.nightly
    ]


def _table_of(reports: "Sequence[UpkeepReport]") -> dg.TableMetadataValue | str:
    """Return what became of each table; Dagster wants no table without any."""
    records = [
        dg.TableRecord(
            {
                "table": each.name,
                "files": each.before.files,
                "files now": each.after.files,
                "bytes on disk": each.before.bytes_on_disk,
                "bytes now": each.after.bytes_on_disk,
                "vacuumed": each.vacuumed,
            }
        )
        for report in reports
        for each in report.tables
    ]
    return dg.MetadataValue.table(records) if records else "none"
