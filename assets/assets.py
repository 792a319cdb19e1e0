"""One factory: a declared stream becomes an asset, whose body is one bounded run of the engine.

Dagster reads the annotations of an asset's body, so this module does not postpone them.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

import dagster as dg

from oncelake.assets.asset_specs import asset_spec
from oncelake.assets.checks.checks import (
    check_results,
    check_specs,
    withheld_metadata,
    withheld_result,
)
from oncelake.assets.checks.evidence import gather, standing_report
from oncelake.assets.failures import StreamRetryError, translate_errors
from oncelake.assets.metadata import cpu_seconds, earlier_events, metadata_of
from oncelake.assets.refusals import remember_refusal, state_of
from oncelake.assets.together import Say, join_siblings, run_stream
from oncelake.assets.translation import AS_DECLARED, Translation
from oncelake.ingestion.declaration.files.loader import DeclaredStream
from oncelake.ingestion.declaration.spec import StreamSpec
from oncelake.ingestion.errors import BatchWithheldError, TerminalError, TransientError
from oncelake.ingestion.settings import Settings
from oncelake.ingestion.storage.failpoints import Failpoint, hit
from oncelake.resources.part import SettingsPart, settings_of
from oncelake.resources.spark import SparkResource

if TYPE_CHECKING:
    from oncelake.ingestion.pipeline.report import RunReport

Engine = Callable[[StreamSpec, Settings, SparkResource, str, Say], "RunReport"]
Results = Iterator[dg.MaterializeResult[None] | dg.AssetCheckResult]
Execute = Callable[[dg.AssetExecutionContext, DeclaredStream], Results]

# For what passes by itself: another run holds the stream, Kafka restarts. Not a RetryPolicy: that
# would also retry a run that somebody terminates.
RETRY_AFTER_SECONDS = (10, 20)


def ingest_asset(
    declared: DeclaredStream,
    engine: Engine = run_stream,
    *,
    translation: Translation = AS_DECLARED,
    spec: dg.AssetSpec | None = None,
    execute: Execute | None = None,
    siblings: Sequence[DeclaredStream] = (),
) -> dg.AssetsDefinition:
    """Return the asset of a declared stream; that of a broken declaration fails with its error.

    Args:
        declared: The stream.
        engine: Runs it.
        translation: Under which keys and names it stands.
        spec: What Dagster shows of it, where that is not what the declaration says.
        execute: The asset's body, where that is not ``execute_stream``.
        siblings: The streams of its file that read Kafka together, itself included.
    """
    spec = spec or asset_spec(declared, topic_key=translation.topic_key)
    run = execute or partial(execute_stream, engine=engine, translation=translation)

    @dg.multi_asset(
        name=translation.name(f"ingest_{declared.name}"),
        specs=[spec.merge_attributes(metadata=translation.links(declared.name))],
        check_specs=check_specs(declared, translation),
        pool=declared.name,
        required_resource_keys={*translation.resource_keys()},
        can_subset=True,
    )
    def ingest(context: dg.AssetExecutionContext):  # type: ignore[no-untyped-def]
        join_siblings(context, siblings, translation)
        yield from run(context, declared)

    return ingest


def execute_stream(
    context: dg.AssetExecutionContext,
    declared: DeclaredStream,
    *,
    engine: Engine = run_stream,
    translation: Translation = AS_DECLARED,
) -> Results:
    """Run a stream once, and yield what came out, with its checks; or execute checks alone."""
    key, run_id, began = translation.key(declared.name), context.run.run_id, cpu_seconds()
    is_run = key in context.selected_asset_keys
    asked = {check.name for check in context.selected_asset_check_keys}
    resources = translation.resources(context)
    with _settings_for(context, declared, resources) as settings:
        spec, spark = declared.require_spec(), resources[-1]
        if is_run:
            try:
                report = engine(spec, settings, spark, run_id, context.log.info)
            except BatchWithheldError as error:
                yield from _withheld(context, spec, settings, str(error), translation)
                raise
        else:
            report = standing_report(declared, settings, run_id)
        evidence = gather(
            declared,
            settings,
            spark,
            report,
            context.instance,
            translation=translation,
            is_run=is_run,
        )
        results = [each for each in check_results(evidence) if each.check_name in asked]
        if not is_run:
            yield from results
            return
        hit(Failpoint.EVIDENCE_GATHERED)
        for event in earlier_events(evidence, context.instance, by=run_id):
            context.log_event(event)
        # Streams that run at once share the process, and its CPU time.
        is_alone = (run_id, declared.name) not in spark.together
        used = {"cpu_seconds": round(cpu_seconds() - began, 2)} if is_alone else {}
        yield dg.MaterializeResult(
            asset_key=key,
            metadata={**metadata_of(evidence), **used},
            check_results=results,
            data_version=dg.DataVersion(evidence.data_version),
        )


def _withheld(
    context: dg.AssetExecutionContext,
    spec: StreamSpec,
    settings: Settings,
    says: str,
    translation: Translation,
) -> Results:
    """Show the evidence of a batch that is held back, where Dagster shows the asset."""
    from oncelake.ingestion.lake.paths import StreamPaths
    from oncelake.ingestion.recovery.withheld import waiting_batch

    batch = waiting_batch(spec, StreamPaths.of(spec.name, settings, spec.sink))
    if batch is None:
        return
    key = translation.key(spec.name)
    context.log_event(
        dg.AssetObservation(asset_key=key, description=says, metadata=withheld_metadata(batch))
    )
    if any(each.name == "gate" for each in context.selected_asset_check_keys):
        yield withheld_result(spec, batch, says, translation)


@contextmanager
def _settings_for(
    context: dg.AssetExecutionContext, declared: DeclaredStream, resources: Sequence[SettingsPart]
) -> Iterator[Settings]:
    """Read the settings; remember a refusal, and try again what passes by itself."""
    with translate_errors(declared.name):
        settings = None
        try:
            settings = settings_of(*resources)
            yield settings
        except TerminalError as error:
            state = state_of(declared, settings) if settings else "the settings are wrong"
            remember_refusal(context.instance, context.run.run_id, error, state=state)
            raise
        except TransientError as error:
            attempt = context.op_execution_context.retry_number
            if attempt >= len(RETRY_AFTER_SECONDS):
                raise
            raise StreamRetryError(
                str(error),
                max_retries=len(RETRY_AFTER_SECONDS),
                seconds_to_wait=RETRY_AFTER_SECONDS[attempt],
            ) from error
