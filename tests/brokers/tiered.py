"""A topic whose log is in tiered storage: python -m tests.brokers.tiered [VERSION].

The remote storage is the one of Kafka's own tests, a folder; its jars are fetched as those of
``tests.brokers.versions``. The brokers keep no segment that was copied there, so that what is read
from the beginning comes from it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from confluent_kafka import TopicPartition
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, OffsetSpec

from oncelake.ingestion.local import broker
from tests.brokers.versions import expect, fetch
from tests.support.traffic import Traffic
from tests.support.world import World, settings_in, wait_until
from tests.trials.judge import differing_rows
from tests.trials.world import folder_of_its_own

_PARTITIONS = 2
_READERS = ("librdkafka", "spark")
_TEST_JAR = """<dependency org="org.apache.kafka" name="kafka-storage" rev="{}"
conf="broker->default">
<artifact name="kafka-storage" type="jar"/>
<artifact name="kafka-storage" type="jar" m:classifier="test"/></dependency>
"""
_BROKER = {
    "remote.log.storage.system.enable": "true",
    "remote.log.storage.manager.class.name": (
        "org.apache.kafka.server.log.remote.storage.LocalTieredStorage"
    ),
    "remote.log.storage.manager.impl.prefix": "rsm.config.",
    "remote.log.metadata.manager.listener.name": "PLAINTEXT",
    "rlmm.config.remote.log.metadata.topic.replication.factor": "1",
    "rlmm.config.remote.log.metadata.topic.num.partitions": "1",
    "remote.log.manager.task.interval.ms": "500",
    "log.retention.check.interval.ms": "500",
    "log.initial.task.delay.ms": "500",
}
_TOPIC = {
    "remote.storage.enable": "true",
    "local.retention.ms": "1",
    "segment.ms": "100",
    "file.delete.delay.ms": "1",
}


def main(version: str = "4.1.2") -> None:
    """Read, prove, rewind and restart on such a topic, and let its retention end unread records."""
    jars = fetch(version, f"{version}-tiered", _TEST_JAR.format(version))
    with folder_of_its_own("tiered") as folder, _broker(jars, folder) as address:
        world = World.over("told", settings_in(folder, address))
        world.create_topic(_PARTITIONS, **_TOPIC)
        world.declare(sequence_by=["at"], max_offsets_per_trigger=300)
        world.write_declaration()
        traffic = Traffic(
            settings=world.settings, topic=world.topic, partitions=_PARTITIONS, seed=1, deletes=0
        )
        traffic.send(1000)
        _wait_until_remote(world, folder)
        for reader in _READERS:
            _read_and_prove(world, reader)
            expect(world, "reset --yes", 0)
        _read_and_prove(world, "librdkafka")
        _go_on_behind_a_new_leader(world, traffic, folder, jars)
        _lose_unread_records(world, traffic)
    print("held")


@contextmanager
def _broker(jars: Path, folder: Path) -> Iterator[str]:
    try:
        yield _up(jars, folder)
    finally:
        broker.down(folder / "kafka")


def _up(jars: Path, folder: Path) -> str:
    settings = {**_BROKER, "rsm.config.dir": str(folder / "remote")}
    return broker.up(folder / "kafka", jars=jars, tied_to_caller=True, settings=settings).address


def _wait_until_remote(world: World, folder: Path) -> None:
    """Wait until the broker's own log has lost the beginning of each partition."""
    logs = [folder / "kafka" / "data" / f"{world.topic}-{each}" for each in range(_PARTITIONS)]
    wait_until(
        lambda: all(min(int(file.stem) for file in log.glob("*.log")) for log in logs),
        "a first segment stayed with the broker",
    )
    print("each partition begins in the remote storage", flush=True)


def _read_and_prove(world: World, reader: str) -> None:
    expect(world, "run", 0, reader)
    expect(world, "verify", 0)
    assert not list(differing_rows(world)), "the table differs from its topic"
    print(f"read by {reader}, and proven", flush=True)


def _go_on_behind_a_new_leader(world: World, traffic: Traffic, folder: Path, jars: Path) -> None:
    """Restart the broker: the leader's epoch of what was read ends in the remote storage."""
    broker.down(folder / "kafka")
    _up(jars, folder)
    traffic.begin_again()
    traffic.send(200)
    for reader in _READERS:
        _read_and_prove(world, reader)
        expect(world, "rewind --to seq:1 --reason=told --yes", 0)
    _read_and_prove(world, "librdkafka")


def _lose_unread_records(world: World, traffic: Traffic) -> None:
    """Let retention delete, in the remote storage, what was read and what was not."""
    traffic.send(300)
    _configure(world, "retention.ms", "1")
    wait_until(
        lambda: _offsets(world, OffsetSpec.earliest()) == _offsets(world, OffsetSpec.latest()),
        "what retention allows to delete stayed",
    )
    _configure(world, "retention.ms", "-1")
    for reader in _READERS:
        said = expect(world, "run", 3, reader)
        assert "has deleted" in said or "OffsetsExpired" in said, said
    expect(world, "accept --reason=told", 0)
    traffic.send(100)
    expect(world, "run", 0)
    expect(world, "verify", 0)
    print("unread records that were deleted are refused, accepted, and gone on from", flush=True)


def _offsets(world: World, wanted: OffsetSpec) -> list[int]:
    """Return such an offset of each partition."""
    places = {TopicPartition(world.topic, each): wanted for each in range(_PARTITIONS)}
    return [each.result(30).offset for each in world.admin.list_offsets(places).values()]


def _configure(world: World, name: str, value: str) -> None:
    entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
    topic = ConfigResource(ConfigResource.Type.TOPIC, world.topic, incremental_configs=[entry])
    world.admin.incremental_alter_configs([topic])[topic].result(30)


if __name__ == "__main__":
    main(*sys.argv[1:])
