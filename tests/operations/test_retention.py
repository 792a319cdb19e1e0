"""The alarm comes before the loss: what is told of headroom, on a broker that really deletes."""

from __future__ import annotations

import json
import time
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import (
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
)
from typer.testing import CliRunner

from oncelake.assets.checks.evidence import _retention
from oncelake.ingestion.cli.app import app
from oncelake.ingestion.declaration.files.loader import DeclaredStream
from oncelake.ingestion.errors import OffsetsExpiredError
from oncelake.ingestion.kafka.admin import Kafka
from oncelake.ingestion.kafka.offsets import TopicPartition
from oncelake.ingestion.kafka.transactions import JavaAdmin, java_admin
from oncelake.ingestion.operations.status.status import StatusReader
from oncelake.ingestion.operations.upkeep.retention import Retention, retention_now
from oncelake.ingestion.settings import Settings
from tests.support.world import World, changed, row, transactional


def configure(world: World, **settings: object) -> None:
    """Change the topic's configuration."""
    entries = [
        ConfigEntry(name.replace("_", "."), str(value), incremental_operation=AlterConfigOpType.SET)
        for name, value in settings.items()
    ]
    topic = ConfigResource(ConfigResource.Type.TOPIC, world.topic, incremental_configs=entries)
    for answer in world.admin.incremental_alter_configs([topic]).values():
        answer.result(30)


def now(world: World) -> Retention:
    """Measure the headroom."""
    return retention_now(world.spec, world.settings)


@pytest.mark.kafka
def test_the_alarm_comes_while_every_unread_record_is_still_there(frail_world: World) -> None:
    """It is ok, then low, then critical, all before the first record is gone; then it is lost."""
    world, at = frail_world, TopicPartition(frail_world.topic, 0)
    configure(world, retention_ms=16_000, segment_ms=100)
    world.send(row(1, "read"))
    world.run()
    world.send(row(2, "unread"), row(3, "unread"))
    kafka = Kafka(world.settings)

    seen: dict[str, int] = {}
    deadline = time.monotonic() + 60
    while not (found := now(world)).least or not found.least.lost:
        assert time.monotonic() < deadline, f"nothing was deleted; {found}"
        # Asked later than the level: what is there now was there when it was told.
        seen.setdefault(found.level, kafka.earliest([at])[at])
        time.sleep(0.2)

    assert (list(seen), found.level) == (["ok", "low", "critical"], "lost")
    assert max(seen["ok"], seen["low"], seen["critical"]) <= 1, "records were gone by then"
    assert found.least.lost == 2
    with pytest.raises(OffsetsExpiredError):
        world.run()


def test_status_exits_with_1_before_anything_is_lost(
    world: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A run would go through, and yet a person must know: with partition, offset and command."""
    world.declare(retention_warning="8 days")
    world.write_declaration()
    for name, value in world.environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    world.send(row(1, "read"), partition=1)
    first = CliRunner().invoke(app, ["status", world.topic, "--json"])
    world.run()
    caught_up = CliRunner().invoke(app, ["status", world.topic, "--json"])
    world.send(row(2, "unread"), partition=1)
    behind = CliRunner().invoke(app, ["status", world.topic, "--json"])
    told = CliRunner().invoke(app, ["status"])

    assert [each.exit_code for each in (first, caught_up, behind, told)] == [0, 0, 1, 1]
    documents = [json.loads(each.stdout) for each in (first, caught_up, behind)]
    seconds = [each["retention_headroom_seconds"] for each in documents]
    assert seconds[:2] == [None, None]
    assert 7 * 86400 - 60 < seconds[2] < 7 * 86400
    retention: dict[str, Any] = documents[2]["retention"]
    assert {name: retention[name] for name in ("level", "partition", "offset", "limit")} == {
        "level": "low",
        "partition": 1,
        "offset": 1,
        "limit": "time",
    }
    assert f"{world.topic}-1: Kafka may delete unread offset 1 in 6 d 23 h" in told.stdout
    assert f"retention_warning is 8 days. Next: oncelake run {world.topic}" in told.stdout


@pytest.mark.kafka
def test_a_topic_limited_by_size_is_measured(world: World) -> None:
    """The log's size is the broker's own, and the estimate says which limit it is."""
    world.send(row(1, "read"))
    world.run()
    configure(world, retention_bytes=100_000)
    world.send(*(row(number, "x" * 500) for number in range(100)))

    found = now(world)
    assert (found.unknown, found.least and found.least.limit) == ("", "size")

    world.send(*(row(number, "x" * 500) for number in range(200)))
    assert now(world).level == "critical"


@pytest.mark.kafka
def test_the_size_of_a_log_is_not_asked_for_by_every_measurement(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A JVM a stream every half minute would cost more than the runs."""
    started: list[Settings] = []

    def counted(settings: Settings) -> AbstractContextManager[JavaAdmin]:
        started.append(settings)
        return java_admin(settings)

    monkeypatch.setattr("oncelake.ingestion.kafka.retention.java_admin", counted)
    world.run()
    configure(world, retention_bytes=100_000)
    world.send(*(row(number, "x" * 500) for number in range(10)))

    assert [now(world).unknown for _ in range(3)] == ["", "", ""]
    assert len(started) == 1


def test_a_topic_that_is_declared_no_longer_is_not_judged(world: World) -> None:
    """The check of a run and the sensor agree: what is in it of a removed topic is nobody's."""
    other = f"{world.topic}b"
    world.admin.create_topics([NewTopic(other, 1, 1)])[other].result(30)
    world.declare(topic=None, topics=[world.topic, other])
    try:
        world.producer.produce(other, b'{"id": 1}')
        world.producer.flush(30)
        world.run()
        world.declare(topics=[world.topic], retention_warning="8 days")
        world.send(row(2, "b"))
        report = world.run()
        world.producer.produce(other, b'{"id": 3}')
        world.producer.flush(30)
        behind = replace(report, lag=1)

        found = _retention(world.spec, world.settings, behind)
    finally:
        world.admin.delete_topics([other])[other].result(30)

    assert found is not None
    assert (found.level, found.least) == ("ok", None)


def test_what_an_open_transaction_withholds_counts(world: World) -> None:
    """Nobody can read it, retention deletes it all the same."""
    world.run()
    world.declare(retention_warning="8 days")
    producer = transactional(world)
    producer.begin_transaction()
    producer.produce(world.topic, value=b"{}", partition=0)
    producer.flush(30)

    declared = DeclaredStream(name=world.topic, path=Path(), spec=world.spec, error=None)
    status = StatusReader(world.settings).read_status(declared)

    assert (status.lag, status.retention and status.retention.level) == (0, "low")
    producer.abort_transaction(30)


@pytest.mark.kafka
def test_a_size_that_nobody_tells_leaves_the_other_limits(world: World, tmp_path: Path) -> None:
    """Without the Java client the age is still known; what is not, is said."""
    world.run()
    configure(world, retention_bytes=100_000)
    world.send(row(1, "unread"))
    without_jars = world.settings.model_copy(update={"jars": tmp_path})

    found = retention_now(world.spec, without_jars)

    assert (found.level, found.least and found.least.limit) == ("unknown", "time")
    assert "retention.bytes limits: no kafka-clients" in str(found)


def test_what_cannot_be_known_is_told_as_unknown(world: World) -> None:
    """A Kafka that does not answer gives no headroom, and a reason."""
    world.run()
    given = {"kafka": "127.0.0.1:1", "kafka_timeout_seconds": 1}

    found = retention_now(world.spec, changed(world.settings, **given))

    assert (found.level, found.least) == ("unknown", None)
    assert "does not answer" in str(found)
