"""The days of a stream that may be read again: an asset with a partition a day, by Kafka's time.

To materialize a day, or to backfill a range of days in one run, is to replay it: what is missing is
added, and nothing that is there changes.

Dagster reads the annotations of an asset, so this module does not postpone them.
"""

import datetime as dt
import warnings

import dagster as dg

from oncelake.assets.asset_specs import kinds_of
from oncelake.assets.failures import StreamFailureError, translate_errors
from oncelake.assets.jobs.operate import red_of
from oncelake.assets.translation import AS_DECLARED, Translation
from oncelake.ingestion.declaration.spec import StreamSpec
from oncelake.resources.part import settings_of


def replay_assets(
    spec: StreamSpec, translation: Translation = AS_DECLARED, *, group: str | None = None
) -> list[dg.AssetsDefinition]:
    """Return the asset of the days that are declared by ``backfill_from``, if any are."""
    if spec.backfill_from is None:
        return []
    with warnings.catch_warnings():
        # Dagster calls the policy of backfills a beta.
        warnings.simplefilter("ignore", dg.BetaWarning)
        return [_replay_asset(spec, spec.backfill_from, translation, group or spec.group)]


def _replay_asset(
    spec: StreamSpec, first: dt.date, translation: Translation, group: str
) -> dg.AssetsDefinition:
    key = translation.key(spec.name)

    @dg.asset(
        key=dg.AssetKey([*key.path, "replay"]),
        deps=[key],
        group_name=group,
        description=f"Days of {spec.name}, by Kafka's timestamps in UTC, read again",
        kinds=kinds_of(spec),
        partitions_def=dg.DailyPartitionsDefinition(start_date=first.isoformat()),
        backfill_policy=dg.BackfillPolicy.single_run(),
        pool=spec.name,
        required_resource_keys={*translation.resource_keys()},
    )
    def replay_days(
        context: dg.AssetExecutionContext,
    ) -> dg.MaterializeResult[None]:
        from oncelake.ingestion.operations.history.replay import Replay

        days, resources = context.partition_time_window, translation.resources(context)
        with translate_errors(spec.name):
            report = Replay(
                spec=spec,
                settings=settings_of(*resources),
                spark=resources[-1].session_for,
                run_id=context.run.run_id,
                begin=days.start.isoformat(),
                end=days.end.isoformat(),
            ).execute()
        counts = {name: report.total(name) for name in ("read", "inserted", "updated", "unchanged")}
        ranges = [str(part) for part in report.ranges]
        if red := red_of(report.batches):
            raise StreamFailureError(f"the books do not balance: {red}", metadata=counts)
        return dg.MaterializeResult(metadata={"ranges": ranges, **counts})

    return replay_days
