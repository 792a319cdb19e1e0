"""The wiring, and the only place of it: every declared stream becomes an asset; all share the rest.

Loading this reads files and the names of environment variables. It starts no Spark and connects to
no Kafka; an unreadable declaration becomes an asset that fails with its error.
"""

from __future__ import annotations

import atexit
import gc
import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import dagster as dg

from assets.alerts import alert_sensors
from assets.asset_specs import side_specs, topic_specs
from assets.assets import ingest_asset
from assets.backfill import replay_assets
from assets.follow import follow_job, follow_sensor
from assets.jobs import ingest_job
from assets.maintain import maintain_job, maintain_schedule
from assets.operate import operate_job
from assets.proof import verify_job
from assets.retention import retention_sensor
from assets.sensors import ingest_schedule, lag_sensor
from ingestion.declaration.loader import DeclaredStream, load_streams
from ingestion.errors import InvalidSpecError
from ingestion.settings import load_settings, variable
from resources.kafka import KafkaResource
from resources.lake import LakeResource
from resources.spark import SparkResource


def definitions() -> dg.Definitions:
    """Wire the streams that are declared in the folder of the settings."""
    # Nothing of a thousand definitions is garbage: to look for some took a third of the time.
    gc.disable()
    try:
        return _definitions()
    finally:
        gc.freeze()
        gc.enable()
        # What lasts to the end would be told as leaks by libraries that count their objects.
        atexit.register(gc.unfreeze)


def _definitions() -> dg.Definitions:
    streams = load_streams(load_settings().streams)
    lake = LakeResource()
    specs = [each.spec for each in streams if each.spec is not None]
    upkeep = maintain_job(streams)
    shared = dg.Definitions(
        assets=topic_specs(specs),
        resources={
            "kafka": KafkaResource(
                **_secrets("sasl_password", "oauth_client_secret", "ssl_key_password")
            ),
            "lake": lake,
            "spark": SparkResource(lake=lake),
        },
        jobs=[ingest_job(streams), operate_job(), follow_job(), verify_job(streams), upkeep],
        schedules=[maintain_schedule(upkeep)],
        sensors=[lag_sensor(streams), follow_sensor(), *_watching(streams)],
        executor=dg.in_process_executor,
    )
    return dg.Definitions.merge(shared, *map(_of_stream, streams))


def _watching(streams: Sequence[DeclaredStream]) -> list[dg.SensorDefinition]:
    """Return the sensor of the retention, and those of alerts; a webhook starts all of them."""
    specs = [each.spec for each in streams if each.spec is not None]
    webhook = load_settings().alert_webhook
    if webhook is None:
        return [retention_sensor(specs, dg.DefaultSensorStatus.STOPPED)]
    running = retention_sensor(specs, dg.DefaultSensorStatus.RUNNING)
    return [running, *alert_sensors(streams, webhook.get_secret_value())]


def _of_stream(declared: DeclaredStream) -> dg.Definitions:
    """Wire one stream; a broken one is there as well, and breaks no other."""
    if declared.spec is None:
        # The sensor starts the run that reports it.
        return dg.Definitions(assets=[ingest_asset(declared)])
    try:
        schedule = ingest_schedule(declared)
        return dg.Definitions(
            assets=[
                ingest_asset(declared),
                *side_specs(declared.spec),
                *replay_assets(declared.spec),
            ],
            schedules=[schedule] if schedule else [],
        )
    except (InvalidSpecError, dg.DagsterInvalidDefinitionError) as error:
        wrong = InvalidSpecError(f"{declared.path.name}: {error}")
        return _of_stream(replace(declared, spec=None, error=wrong))


def _secrets(*names: str) -> dict[str, Any]:
    """Give secrets by the names of their variables; Dagster refuses one that is not set."""
    return {
        name: dg.EnvVar(variable("kafka", name))
        for name in names
        if variable("kafka", name) in os.environ
    }


defs = definitions()
