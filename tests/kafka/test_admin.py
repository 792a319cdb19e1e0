"""What is asked of Kafka again, and what is not."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any, cast

import pytest
from confluent_kafka import OFFSET_INVALID, Consumer, KafkaError, KafkaException, Message

from oncelake.ingestion.errors import DependencyError
from oncelake.ingestion.kafka.admin import Kafka, RecordReader
from oncelake.ingestion.kafka.offsets import Offsets, Range, TopicPartition
from oncelake.ingestion.settings import Settings
from oncelake.ingestion.source.librdkafka import _read

AT = TopicPartition("t", 0)


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


class EarlyEnd:
    """Stands for a consumer of a leader that learns of its followers: records come behind an end.

    The end of a partition is a message whose offset is the next that the leader knows of.
    """

    def __init__(self) -> None:
        self._messages = [
            Message("t", 0, 4, value=b"before"),
            Message("t", 0, 5, error=KafkaError(KafkaError._PARTITION_EOF)),
            Message("t", 0, 7, value=b"behind"),
            Message("t", 0, 10, error=KafkaError(KafkaError._PARTITION_EOF)),
        ]

    def poll(self, *_: float) -> Message:
        """Return the next message."""
        return self._messages.pop(0)

    def consume(self, *_: float) -> list[Message]:
        """Return none at once."""
        return []

    def assign(self, *_: object) -> None:
        """Begin at the first."""

    incremental_unassign = assign


def test_an_end_before_that_of_the_range_is_not_its_end() -> None:
    """A leader that was just elected does not know yet of all that its followers have."""
    reader = RecordReader(Settings(kafka="127.0.0.1:1"))
    span = Range(topic="t", partition=0, start=4, end=10)
    reader.consumer.close()

    reader.consumer = cast("Consumer", EarlyEnd())
    asked_for = [message.value() for message in reader.records_of(AT, [span])]
    reader.consumer = cast("Consumer", EarlyEnd())
    rows = _read(reader, [span], threading.Event())

    assert asked_for == [b"before", b"behind"]
    assert rows["_value"].to_pylist() == asked_for


def test_a_topic_that_is_forbidden_is_named(kafka: Kafka) -> None:
    """Of several topics, whoever must grant the right has to know which."""
    answer: Future[Any] = Future()
    answer.set_exception(KafkaException(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)))

    with pytest.raises(DependencyError, match="lacks DESCRIBE on topic 'secret', or it is not"):
        kafka._described("orders", "secret", answer)
