"""The sensor of the retention: what it gives the check, and when it has nothing new to tell."""

from __future__ import annotations

import time
from itertools import count
from pathlib import Path

import dagster as dg
import pytest

from oncelake.assets.jobs.retention import retention_sensor
from oncelake.ingestion.declaration.spec import StreamSpec
from oncelake.ingestion.errors import RefusedError
from oncelake.ingestion.kafka.offsets import TopicPartition
from oncelake.ingestion.kafka.retention import Headroom
from oncelake.ingestion.lake.paths import StreamPaths
from oncelake.ingestion.operations.upkeep.retention import Retention
from oncelake.ingestion.settings import Settings
from oncelake.ingestion.storage.location import StoreError
from oncelake.resources.kafka import KafkaResource
from oncelake.resources.lake import LakeResource
from tests.assets.conftest import declared


def test_the_check_gets_its_result_whenever_that_has_changed(
    tmp_path: Path, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also while no run can tell it: low, critical, lost and well again, each once."""
    spec = declared(tmp_path, retention_warning="1 hour").spec
    assert spec is not None
    at = TopicPartition("orders", 3)
    left = iter((7000, 3000, 2900, 100, 50, 0, 0, 7000, 6900))

    def measured(spec: StreamSpec, settings: Settings) -> Retention:
        least = Headroom(
            at=at,
            offset=7,
            limit="time",
            seconds=(seconds := next(left)),
            of_seconds=7200,
            lost=int(not seconds),
        )
        return Retention(spec=spec, least=least)

    monkeypatch.setattr("oncelake.ingestion.operations.upkeep.retention.retention_now", measured)
    monkeypatch.setattr("oncelake.ingestion.kafka.admin.Kafka.cluster_id", lambda kafka: "c")
    sensor = retention_sensor([spec], dg.DefaultSensorStatus.STOPPED)
    resources = {
        "oncelake_kafka": KafkaResource(address="nowhere:1"),
        "oncelake_lake": LakeResource(),
    }
    told = []
    for _ in range(9):
        with dg.build_sensor_context(instance, resources=resources) as context:
            events = sensor.evaluate_tick(context).asset_events
        for event in events:
            assert isinstance(event, dg.AssetCheckEvaluation)
            instance.report_runless_asset_event(event)
        told.append([(event.passed, event.severity.value) for event in events])

    low, critical, well = [(False, "WARN")], [(False, "ERROR")], [(True, "WARN")]
    lost = critical
    assert told == [[], low, [], critical, [], lost, [], well, []]


def test_streams_that_a_tick_has_no_time_for_begin_the_next(
    tmp_path: Path, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dagster ends a tick after a minute, and forgets what it has measured."""
    spec = declared(tmp_path).spec
    assert spec is not None
    asked: list[str] = []

    def measured(spec: StreamSpec, settings: Settings) -> Retention:
        asked.append(spec.name)
        return Retention(spec=spec)

    monkeypatch.setattr("oncelake.ingestion.operations.upkeep.retention.retention_now", measured)
    monkeypatch.setattr("oncelake.ingestion.kafka.admin.Kafka.cluster_id", lambda kafka: "c")
    # Each stream takes nine seconds.
    monkeypatch.setattr("oncelake.assets.jobs.retention.time.monotonic", count(0, 9).__next__)
    specs = [spec.model_copy(update={"name": name}) for name in "abcde"]
    sensor = retention_sensor(specs, dg.DefaultSensorStatus.STOPPED)
    resources = {
        "oncelake_kafka": KafkaResource(address="nowhere:1"),
        "oncelake_lake": LakeResource(),
    }
    cursor = None
    for _ in range(3):
        with dg.build_sensor_context(instance, resources=resources, cursor=cursor) as context:
            cursor = sensor.evaluate_tick(context).cursor

    assert asked == ["a", "b", "c", "d", "e", "a"]


@pytest.mark.parametrize(
    ("error", "says"),
    [
        pytest.param(PermissionError(13, "denied", "/lake/a"), "a: no permission", id="rights"),
        pytest.param(StoreError(121, "gone", "s3://lake/a"), "store of the lake", id="store"),
        pytest.param(OSError(5, "Input/output error", "/"), "Input/output error", id="disk"),
        pytest.param(ValueError("odd"), "ValueError: odd", id="unexpected"),
    ],
)
def test_a_table_that_cannot_be_read_hides_no_other(
    tmp_path: Path,
    instance: dg.DagsterInstance,
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
    says: str,
) -> None:
    """Of its stream nothing is known, which its check tells; the others are measured."""
    spec = declared(tmp_path).spec
    assert spec is not None
    asked: list[str] = []

    def position(paths: StreamPaths, *tolerated: type[RefusedError]) -> None:
        asked.append(paths.stream)
        if paths.stream == "a":
            raise error

    monkeypatch.setattr("oncelake.ingestion.operations.upkeep.retention.read_position", position)
    monkeypatch.setattr("oncelake.ingestion.kafka.admin.Kafka.cluster_id", lambda kafka: "c")
    specs = [spec.model_copy(update={"name": name}) for name in "ab"]
    sensor = retention_sensor(specs, dg.DefaultSensorStatus.STOPPED)
    resources = {
        "oncelake_kafka": KafkaResource(address="nowhere:1"),
        "oncelake_lake": LakeResource(),
    }

    with dg.build_sensor_context(instance, resources=resources) as context:
        (event,) = sensor.evaluate_tick(context).asset_events

    assert isinstance(event, dg.AssetCheckEvaluation)
    assert asked == ["a", "b"]
    assert (event.asset_key, event.passed) == (dg.AssetKey("a"), False)
    assert says in str(event.description)


def test_a_kafka_that_does_not_answer_is_waited_for_once(
    tmp_path: Path, instance: dg.DagsterInstance
) -> None:
    """Nothing is known of any stream, so no check is touched."""
    spec = declared(tmp_path).spec
    assert spec is not None
    sensor = retention_sensor([spec] * 50, dg.DefaultSensorStatus.STOPPED)
    kafka = KafkaResource(address="127.0.0.1:1", timeout_seconds=0.5)
    began = time.monotonic()

    with dg.build_sensor_context(
        instance, resources={"oncelake_kafka": kafka, "oncelake_lake": LakeResource()}
    ) as context:
        found = sensor.evaluate_tick(context)

    assert "nothing is known: Kafka at 127.0.0.1:1 does not answer" in str(found.skip_message)
    assert not found.asset_events
    assert time.monotonic() - began < 10
