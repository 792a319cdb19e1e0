"""The proof in Dagster: a job a stream, and a check where the stream's file asks for one.

Dagster reads the annotations of an op's body, so this module does not postpone them.
"""

from typing import Any

import dagster as dg

from assets.jobs import op_job
from ingestion.declaration.spec import StreamSpec
from ingestion.errors import IngestionError
from ingestion.operations.apply_transformation import spark_transformation
from ingestion.settings import Settings
from ingestion.verify.verdict import Verdict
from ingestion.verify.verify import verify
from resources.kafka import KafkaResource
from resources.lake import LakeResource
from resources.part import settings_of


def verify_job(spec: StreamSpec) -> dg.JobDefinition:
    """Return the job that proves a stream's tables from its topic, without Spark."""

    @dg.op(name=f"verify_{spec.name}", description=f"Prove {spec.name} from its topic")
    def prove_stream(
        context: dg.OpExecutionContext, kafka: KafkaResource, lake: LakeResource
    ) -> None:
        verdict = prove(spec, settings_of(kafka, lake))
        if isinstance(verdict, str):
            raise dg.Failure(description=verdict, allow_retries=False)
        context.log.info(verdict.headline)
        context.add_output_metadata(metadata_of(verdict))
        if not verdict.holds:
            raise dg.Failure(
                description="\n".join(sentences(verdict)),
                metadata=metadata_of(verdict),
                allow_retries=False,
            )

    return op_job(prove_stream, f"Prove table, quarantine and ledger of {spec.name} from its topic")


def prove(spec: StreamSpec, settings: Settings) -> Verdict | str:
    """Prove a stream; where that is refused or impossible now, return the reason."""
    try:
        return verify(spec, settings, apply_transformation=spark_transformation)
    except IngestionError as error:
        return str(error)


def sentences(verdict: Verdict) -> list[str]:
    """Say what came out: the headline, what is wrong, and what is not proven."""
    unproven = (f"not proven: {each}" for each in (*verdict.obstacles, *verdict.limits))
    return [verdict.headline, *map(str, verdict.differences), *unproven]


def metadata_of(verdict: Verdict) -> dict[str, Any]:
    """Return a verdict as metadata: flat numbers, and the differences in words."""
    return {
        "differences": verdict.total,
        "records": verdict.records,
        "batches": verdict.batches,
        "rows": verdict.rows,
        "quarantined": verdict.quarantined,
        "delta_version": verdict.delta_version,
        "seq": verdict.seq,
        "says": dg.MetadataValue.md("\n".join(f"- {each}" for each in sentences(verdict))),
    }
