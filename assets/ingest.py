"""One factory: a declared stream becomes an asset, whose body is one bounded run of the engine.

Dagster reads the annotations of an asset's body, so this module does not postpone them.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import dagster as dg

from assets.checks import check_results, check_specs
from assets.described import asset_spec
from assets.evidence import gather
from assets.refusal import remember_refusal, state_of
from assets.reported import metadata_of, telling_batches
from ingestion.declarations import Declared
from ingestion.errors import IngestionError, TerminalError, TransientError
from ingestion.report import RunReport
from ingestion.settings import Settings
from ingestion.spec import StreamSpec
from resources.kafka import KafkaResource
from resources.lake import LakeResource
from resources.part import SettingsPart, settings_of
from resources.spark import SparkResource

Say = Callable[[str], None]
Engine = Callable[[StreamSpec, Settings, SparkResource, str, Say], RunReport]

# For what passes by itself: another run holds the stream, Kafka restarts.
RETRIES = dg.RetryPolicy(max_retries=2, delay=10, backoff=dg.Backoff.EXPONENTIAL)


def run_stream(
    spec: StreamSpec, settings: Settings, spark: SparkResource, run_id: str, say: Say
) -> RunReport:
    """Run the engine; Kafka's address must be known before Spark is worth starting."""
    from ingestion.run import Run

    settings.bootstrap_servers()
    session = spark.spark_session
    told = telling_batches(say)
    return Run(spec=spec, settings=settings, spark=session, run_id=run_id, on_batch=told).execute()


def ingest_asset(declared: Declared, engine: Engine = run_stream) -> dg.AssetsDefinition:
    """Return the asset of a declared stream; that of a broken declaration fails with its error."""

    @dg.multi_asset(
        name=f"ingest_{declared.name}",
        specs=[asset_spec(declared)],
        check_specs=check_specs(declared),
        pool=declared.name,
        retry_policy=RETRIES,
    )
    def ingest(
        context: dg.AssetExecutionContext,
        kafka: KafkaResource,
        lake: LakeResource,
        spark: SparkResource,
    ) -> dg.MaterializeResult:  # type: ignore[type-arg]  # Dagster knows only its bare name.
        with _translated(context, declared, kafka, lake, spark) as settings:
            spec = _sound(declared)
            report = engine(spec, settings, spark, context.run.run_id, context.log.info)
            evidence = gather(declared, settings, spark, report)
            return dg.MaterializeResult(
                metadata=metadata_of(report, spec), check_results=check_results(evidence)
            )

    return ingest


def _sound(declared: Declared) -> StreamSpec:
    if declared.spec is None:
        raise declared.error or TerminalError(f"{declared.path}: no stream, and no reason why")
    return declared.spec


@contextmanager
def _translated(
    context: dg.AssetExecutionContext, declared: Declared, *parts: SettingsPart
) -> Iterator[Settings]:
    """Read the settings, and turn the engine's errors into Dagster's: only here."""
    settings = None
    try:
        settings = settings_of(*parts)
        yield settings
    except TerminalError as error:
        state = state_of(declared, settings) if settings else "the settings are wrong"
        remember_refusal(context.instance, context.run.run_id, error, state=state)
        raise _failure(error, allow_retries=False) from error
    except TransientError as error:
        raise _failure(error, allow_retries=True) from error


def _failure(error: IngestionError, *, allow_retries: bool) -> dg.Failure:
    return dg.Failure(
        description=str(error),
        metadata={
            "error": type(error).__name__,
            "exit_code": error.exit_code,
            "next": getattr(error, "remedy", "see the description"),
        },
        allow_retries=allow_retries,
    )
