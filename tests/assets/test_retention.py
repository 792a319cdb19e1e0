"""The sensor of the retention: what it gives the check, and when it has nothing new to tell."""

from __future__ import annotations

from pathlib import Path

import dagster as dg
import pytest

from assets.retention import retention_sensor
from ingestion.declaration.spec import StreamSpec
from ingestion.kafka.offsets import TopicPartition
from ingestion.kafka.retention import Headroom
from ingestion.operations.retention import Retention
from ingestion.settings import Settings
from resources.kafka import KafkaResource
from resources.lake import LakeResource
from tests.assets.conftest import declared


def test_the_check_gets_its_result_whenever_that_has_changed(
    tmp_path: Path, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also while no run can tell it: low, critical and well again, each once."""
    spec = declared(tmp_path, retention_warning="1 hour").spec
    assert spec is not None
    at = TopicPartition("orders", 3)
    left = iter((7000, 3000, 2900, 100, 50, 7000, 6900))

    def measured(spec: StreamSpec, settings: Settings) -> Retention:
        least = Headroom(at=at, offset=7, limit="time", seconds=next(left), of_seconds=7200)
        return Retention(spec=spec, least=least)

    monkeypatch.setattr("assets.retention.retention_now", measured)
    sensor = retention_sensor([spec], dg.DefaultSensorStatus.STOPPED)
    resources = {"kafka": KafkaResource(kafka="nowhere:1"), "lake": LakeResource()}
    told = []
    for _ in range(7):
        with dg.build_sensor_context(instance, resources=resources) as context:
            events = sensor.evaluate_tick(context).asset_events
        for event in events:
            assert isinstance(event, dg.AssetCheckEvaluation)
            instance.report_runless_asset_event(event)
        told.append([(event.passed, event.severity.value) for event in events])

    low, critical, well = [(False, "WARN")], [(False, "ERROR")], [(True, "WARN")]
    assert told == [[], low, [], critical, [], well, []]
