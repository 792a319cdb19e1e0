"""One factory: a declared stream becomes an asset, whose body is one bounded run of the engine.

Dagster reads the annotations of an asset's body, so this module does not postpone them.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import dagster as dg

from assets.asset_specs import asset_spec
from assets.checks import check_results, check_specs
from assets.evidence import gather
from assets.failures import StreamRetryError, translate_errors
from assets.metadata import earlier_events, metadata_of
from assets.refusals import remember_refusal, state_of
from ingestion.declaration.loader import DeclaredStream
from ingestion.declaration.spec import StreamSpec
from ingestion.errors import TerminalError, TransientError
from ingestion.operations.run import Run
from ingestion.pipeline.report import RunReport
from ingestion.settings import Settings
from ingestion.storage.failpoints import Failpoint, hit
from resources.kafka import KafkaResource
from resources.lake import LakeResource
from resources.part import SettingsPart, settings_of
from resources.spark import SparkResource

Say = Callable[[str], None]
Engine = Callable[[StreamSpec, Settings, SparkResource, str, Say], RunReport]

# For what passes by itself: another run holds the stream, Kafka restarts. Not a RetryPolicy: that
# would also retry a run that somebody terminates.
RETRY_AFTER_SECONDS = (10, 20)


def run_stream(
    spec: StreamSpec, settings: Settings, spark: SparkResource, run_id: str, say: Say
) -> RunReport:
    """Run the engine, which starts Spark only when there is something to read."""
    return Run(
        spec=spec,
        settings=settings,
        spark=lambda backlog: spark.session_for(backlog, say),
        run_id=run_id,
        tell=say,
    ).execute()


def ingest_asset(declared: DeclaredStream, engine: Engine = run_stream) -> dg.AssetsDefinition:
    """Return the asset of a declared stream; that of a broken declaration fails with its error."""

    @dg.multi_asset(
        name=f"ingest_{declared.name}",
        specs=[asset_spec(declared)],
        check_specs=check_specs(declared),
        pool=declared.name,
    )
    def ingest(
        context: dg.AssetExecutionContext,
        kafka: KafkaResource,
        lake: LakeResource,
        spark: SparkResource,
    ) -> dg.MaterializeResult:  # type: ignore[type-arg]  # Dagster knows only its bare name.
        with _settings_for(context, declared, kafka, lake, spark) as settings:
            spec = declared.require_spec()
            report = engine(spec, settings, spark, context.run.run_id, context.log.info)
            evidence = gather(declared, settings, spark, report, context.instance)
            hit(Failpoint.EVIDENCE_GATHERED)
            for event in earlier_events(evidence, by=context.run.run_id):
                context.log_event(event)
            return dg.MaterializeResult(
                metadata=metadata_of(evidence), check_results=check_results(evidence)
            )

    return ingest


@contextmanager
def _settings_for(
    context: dg.AssetExecutionContext, declared: DeclaredStream, *parts: SettingsPart
) -> Iterator[Settings]:
    """Read the settings; remember a refusal, and try again what passes by itself."""
    with translate_errors(declared.name):
        settings = None
        try:
            settings = settings_of(*parts)
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
