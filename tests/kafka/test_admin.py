"""What is asked of Kafka again, and what is not."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import OFFSET_INVALID, KafkaError, KafkaException, Producer

from oncelake.ingestion.errors import DependencyError
from oncelake.ingestion.kafka.admin import Kafka, RecordReader
from oncelake.ingestion.kafka.client import client_options
from oncelake.ingestion.kafka.offsets import Offsets, Range, TopicPartition
from oncelake.ingestion.settings import Settings
from oncelake.ingestion.source.librdkafka import _read, drain
from tests.support.mock_cluster import MockCluster

AT = TopicPartition("t", 0)
# By Kafka's protocol.
METADATA = 3


class Answers:
    """Stands for the requests to a broker: an error's code, or an offset, one after the other."""

    def __init__(self, *answers: int) -> None:
        self._answers = list(answers)

    def __call__(self, *asked: Any) -> dict[TopicPartition, Future[Any]]:
        """Give the next answer; the last one again and again."""
        answer: Future[Any] = Future()
        number = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if number >= 1000 or number == OFFSET_INVALID:
            answer.set_result(SimpleNamespace(offset=number, leader_epoch=None))
        else:
            answer.set_exception(KafkaException(KafkaError(number)))
        return {AT: answer}


@pytest.fixture
def kafka(monkeypatch: pytest.MonkeyPatch) -> Kafka:
    """A client that has not connected."""
    monkeypatch.setattr("oncelake.ingestion.kafka.admin._MOVED_WITHIN_SECONDS", 0.01)
    return Kafka(Settings(kafka="127.0.0.1:1", kafka_timeout_seconds=1))


@pytest.mark.parametrize(
    "moving", [KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.OFFSET_NOT_AVAILABLE]
)
def test_a_partition_whose_leader_moves_is_asked_for_again(
    kafka: Kafka, monkeypatch: pytest.MonkeyPatch, moving: int
) -> None:
    """A new topic's first leader, a broker's restart, or its first moments end no run."""
    monkeypatch.setattr(kafka, "_asked", Answers(moving, moving, 1234))

    assert kafka.earliest([AT]) == Offsets({AT: 1234})


@pytest.mark.parametrize("code", [KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.UNKNOWN])
def test_an_error_that_stays_is_told(
    kafka: Kafka, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """A leader that does not come within the setting, and any other error."""
    monkeypatch.setattr(kafka, "_asked", Answers(code))

    with pytest.raises(DependencyError, match="Kafka at"):
        kafka.stable_end([AT])


def test_an_answer_without_an_offset_is_none(kafka: Kafka, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client gives -1001, and no error, for some partitions whose leader moves."""
    monkeypatch.setattr(kafka, "_asked", Answers(OFFSET_INVALID, OFFSET_INVALID, 1234))

    assert kafka.stable_end([AT]) == Offsets({AT: 1234})
    monkeypatch.setattr(kafka, "_asked", Answers(OFFSET_INVALID))
    assert kafka.known_ends([AT]) == Offsets({})
    with pytest.raises(DependencyError, match="it gives no offset of t-0"):
        kafka.earliest([AT])


@pytest.fixture(scope="module")
def cluster() -> MockCluster:
    """Brokers that make each topic that a client allows them to."""
    return MockCluster()


def settings_of(cluster: MockCluster) -> Settings:
    """Return settings that soon give up."""
    return Settings(kafka=cluster.address, kafka_timeout_seconds=2)


def test_a_topic_that_is_gone_is_not_made_again(cluster: MockCluster) -> None:
    """Neither asking for its offsets nor writing makes it, where brokers make what is asked for."""
    settings = settings_of(cluster)
    writer = Producer({**client_options(settings), "message.timeout.ms": 1000})
    writer.produce("gone", b"a")
    writer.flush(5)
    kafka = Kafka(settings)
    # As whoever asks for offsets; a client that only connects may lose its first question.
    kafka.names()

    with pytest.raises(DependencyError, match="DESCRIBE on topic 'gone', or it is not there"):
        kafka.stable_end([TopicPartition("gone", 0)])
    assert "gone" not in cluster.topics()


def test_a_leader_of_a_new_epoch_is_asked_under_it(cluster: MockCluster) -> None:
    """The broker that led before leads again; the client alone would repeat the old epoch."""
    at = TopicPartition("epochs", 0)
    cluster.send("epochs", b"a")
    cluster.lead("epochs", 1)
    kafka = Kafka(settings_of(cluster))
    assert kafka.stable_end([at]) == Offsets({at: 1})

    cluster.lead("epochs", 2)
    cluster.lead("epochs", 1)

    assert kafka.stable_end([at]) == Offsets({at: 1})


def test_who_is_the_controller_is_asked_again_and_again(cluster: MockCluster) -> None:
    """A client that knows no topic would wait for one that has died, and hear of no other."""
    cluster.send("known", b"a")
    kafka = Kafka(settings_of(cluster))
    kafka.cluster_id("known")

    asked = cluster.requests_within(2.5)

    assert asked[METADATA] >= 2


@pytest.mark.parametrize("reader", ["records_of", "_read"])
def test_an_end_before_that_of_the_range_is_not_its_end(cluster: MockCluster, reader: str) -> None:
    """A leader that was just elected does not know yet of all that its followers have."""
    topic = f"early{reader}"
    before, behind = [b"0", b"1", b"2"], [b"3", b"4"]
    cluster.send(topic, *before)
    later = threading.Timer(0.7, cluster.send, [topic, *behind])
    later.start()

    assert values_of(cluster, topic, reader) == before + behind


def test_a_new_topic_whose_leader_tells_of_an_early_end_keeps_back_no_other(
    cluster: MockCluster,
) -> None:
    """Batches of a pattern's topics are whole, and each record is in one of them."""
    topics, values = ("pattern_old", "pattern_new"), [b"0", b"1", b"2", b"3", b"4"]
    for topic, known in zip(topics, (5, 3), strict=True):
        cluster.send(topic, *values[:known])

    def elect() -> None:
        cluster.lead("pattern_new", 2)
        cluster.send("pattern_new", *values[3:])

    ranges = [Range(topic=topic, partition=0, start=0, end=5) for topic in topics]
    batches: list[list[tuple[Any, ...]]] = []
    threading.Timer(0.7, elect).start()

    def take(records: pa.Table, planned: Sequence[Range]) -> None:
        names = ("_topic", "_value")
        read = list(zip(*(records[name].to_pylist() for name in names), strict=True))
        assert len(read) == sum(map(len, planned))
        batches.append(read)

    drain(settings_of(cluster), ranges, take, limit=4, stop=threading.Event())

    assert len(batches) > 2
    read = [each for batch in batches for each in batch]
    assert sorted(read) == sorted((topic, value) for topic in topics for value in values)


@pytest.mark.parametrize("reader", ["records_of", "_read"])
def test_a_range_whose_end_never_comes_is_named(cluster: MockCluster, reader: str) -> None:
    """A log that was cut behind the plan ends the reading after the time-out."""
    topic = f"cut{reader}"
    cluster.send(topic, b"0", b"1")

    with pytest.raises(DependencyError, match=f"it sent no record of {topic}-0"):
        values_of(cluster, topic, reader)


def values_of(cluster: MockCluster, topic: str, reader: str) -> list[Any]:
    """Return the values of the first five records, by the second client or by the reader."""
    records, span = (
        RecordReader(settings_of(cluster)),
        Range(topic=topic, partition=0, start=0, end=5),
    )
    try:
        if reader == "_read":
            return list(_read(records, [span], threading.Event())["_value"].to_pylist())
        return [each.value() for each in records.records_of(span.topic_partition, [span])]
    finally:
        records.consumer.close()


def test_a_topic_that_is_forbidden_is_named(kafka: Kafka) -> None:
    """Of several topics, whoever must grant the right has to know which."""
    answer: Future[Any] = Future()
    answer.set_exception(KafkaException(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)))

    with pytest.raises(DependencyError, match="lacks DESCRIBE on topic 'secret', or it is not"):
        kafka._described("orders", "secret", answer)
