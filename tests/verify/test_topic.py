"""The second client: it delivers every record of a stretch, once, however the stretches are cut."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import closing

import pytest
from confluent_kafka import Producer
from confluent_kafka import TopicPartition as ClientTopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from oncelake.ingestion.errors import DependencyError
from oncelake.ingestion.kafka.client import client_options
from oncelake.ingestion.kafka.offsets import TopicPartition
from oncelake.ingestion.settings import Settings
from oncelake.ingestion.verify.read import topic
from oncelake.ingestion.verify.read.snapshot import OffsetRange
from oncelake.ingestion.verify.read.topic import TopicReader, is_compacted

pytestmark = pytest.mark.kafka

RECORDS = 2_000


@pytest.fixture
def full(settings: Settings) -> Iterator[str]:
    """A compacted topic of three partitions, the third of which is empty."""
    name, admin = f"t{uuid.uuid4().hex[:12]}", AdminClient(client_options(settings))
    compacted = {"cleanup.policy": "compact"}
    admin.create_topics([NewTopic(name, 3, 1, config=compacted)])[name].result(30)
    # Else a batch that is sent again comes to lie behind later ones.
    producer = Producer({**client_options(settings), "linger.ms": 1, "enable.idempotence": True})
    for number in range(RECORDS):
        for partition in (0, 1):
            producer.produce(name, b"%d" % number, key=b"%d" % number, partition=partition)
    assert producer.flush(30) == 0
    yield name
    admin.delete_topics([name])[name].result(30)


@pytest.mark.parametrize("ahead_bytes", [1_000, 1 << 25], ids=["waiting", "reading ahead"])
def test_stretches_are_delivered_whole_and_once(
    settings: Settings, full: str, monkeypatch: pytest.MonkeyPatch, ahead_bytes: int
) -> None:
    """Cut small, with partitions that wait for one another, and back to where it began."""
    monkeypatch.setattr(topic, "_AHEAD_BYTES", ahead_bytes)
    places = [TopicPartition(full, number) for number in range(3)]
    got: list[tuple[int, int]] = []

    with closing(TopicReader(settings, partitions=3)) as reader:
        for start in range(0, RECORDS, 100):
            # The second partition is always asked for less, so that it runs ahead.
            ends = (start + 100, start // 2 + 50, 0)
            starts = (start, start // 2, 0)
            parts = [OffsetRange(*cut, 0, 0) for cut in zip(places, starts, ends, strict=True)]
            got += [(each.partition, each.offset) for chunk in reader.read(parts) for each in chunk]
        back = [
            each for chunk in reader.read([OffsetRange(places[0], 5, 8, 0, 0)]) for each in chunk
        ]

    assert sorted(got) == [
        *((0, number) for number in range(RECORDS)),
        *((1, number) for number in range(RECORDS // 2)),
    ]
    assert [(each.offset, each.key, each.value) for each in back] == [
        (number, b"%d" % number, b"%d" % number) for number in (5, 6, 7)
    ]


def test_records_that_retention_takes_meanwhile_are_no_gap(settings: Settings, full: str) -> None:
    """Offsets that are gone say so, and are never taken for empty."""
    at = ClientTopicPartition(full, 0, 10)
    admin = AdminClient(client_options(settings))
    admin.incremental_alter_configs([_deletable(full)])[_deletable(full)].result(30)
    admin.delete_records([at])[at].result(30)

    with (
        closing(TopicReader(settings, partitions=1)) as reader,
        pytest.raises(DependencyError, match="Kafka deleted records while they were read"),
    ):
        list(reader.read([OffsetRange(TopicPartition(full, 0), 5, 20, 0, 0)]))


def _deletable(name: str) -> ConfigResource:
    """Let records of a topic be deleted, too."""
    both = ConfigEntry(
        "cleanup.policy", "compact,delete", incremental_operation=AlterConfigOpType.SET
    )
    return ConfigResource(ResourceType.TOPIC, name, incremental_configs=[both])


def test_a_compacted_topic_is_known(settings: Settings, full: str) -> None:
    """The topic's own configuration says whether records may vanish from its middle."""
    assert is_compacted(settings, full)
