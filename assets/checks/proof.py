"""The proof in Dagster: a job, and a check where the stream's file asks for one.

Dagster reads the annotations of an op's body, so this module does not postpone them.
"""

from collections.abc import Sequence
from typing import Any

import dagster as dg
from pydantic import Field

from oncelake.assets.asset_specs import version_of
from oncelake.assets.failures import StreamFailureError, as_markdown, translate_errors
from oncelake.assets.jobs.jobs import chosen, op_job
from oncelake.assets.translation import AS_DECLARED, ASKING, Translation
from oncelake.ingestion.declaration.files.loader import DeclaredStream
from oncelake.ingestion.errors import IngestionError
from oncelake.ingestion.settings import Settings
from oncelake.ingestion.verify.verdict import Verdict
from oncelake.resources.part import settings_of

VERIFY_JOB = "verify_job"


class VerifyConfig(dg.Config):
    """The choices of a person who starts the job."""

    streams: list[str] = Field(
        default_factory=list, description="Names of streams; none means all of them."
    )


def verify_job(
    streams: Sequence[DeclaredStream], translation: Translation = AS_DECLARED
) -> dg.JobDefinition:
    """Return the job that proves tables from their topics, without Spark."""

    @dg.op(
        name=translation.name("verify"),
        description="Prove table, quarantine and ledger from the topic",
        required_resource_keys={*translation.resource_keys(ASKING)},
    )
    def prove_streams(
        context: dg.OpExecutionContext,
        config: VerifyConfig,
    ) -> None:
        wrong: list[str] = []
        with translate_errors("verify", if_interrupted="nothing was changed"):
            settings = settings_of(*translation.resources(context, ASKING))
            for declared in chosen(streams, config.streams):
                verdict = prove(declared, settings)
                says = verdict if isinstance(verdict, str) else "\n".join(sentences(verdict))
                context.log.info("%s: %s", declared.name, says)
                if isinstance(verdict, str) or not verdict.holds:
                    wrong.append(f"{declared.name}: {says}")
        if wrong:
            raise StreamFailureError("\n".join(wrong))

    return op_job(prove_streams, translation)


def prove(declared: DeclaredStream, settings: Settings) -> Verdict | str:
    """Prove a stream; where that is refused or impossible now, return the reason."""
    from oncelake.ingestion.operations.proof.apply_transformation import spark_transformation
    from oncelake.ingestion.verify.verify import verify

    try:
        spec = declared.require_spec()
        return verify(spec, settings, apply_transformation=spark_transformation)
    except IngestionError as error:
        return str(error)


def sentences(verdict: Verdict) -> list[str]:
    """Say what came out: the headline, what is wrong, and what is not proven."""
    unproven = (f"not proven: {each}" for each in (*verdict.obstacles, *verdict.limits))
    more = [each for each in (verdict.memory, verdict.equation) if each]
    return [verdict.headline, *more, *map(str, verdict.differences), *unproven]


def metadata_of(verdict: Verdict, sink: str) -> dict[str, Any]:
    """Return a verdict as metadata: flat numbers, and the differences in words."""
    return {
        "differences": verdict.total,
        "records": verdict.records,
        "seconds": verdict.seconds,
        "batches": verdict.batches,
        "rows": verdict.rows,
        "quarantined": verdict.quarantined,
        **version_of(sink, verdict.delta_version),
        "seq": verdict.seq,
        "says": dg.MetadataValue.md(
            "\n".join(f"- {as_markdown(each)}" for each in sentences(verdict))
        ),
    }
