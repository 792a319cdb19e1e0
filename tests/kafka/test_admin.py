"""What is asked of Kafka again, and what is not."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from oncelake.ingestion.errors import DependencyError
from oncelake.ingestion.kafka.admin import Kafka
from oncelake.ingestion.kafka.offsets import Offsets, TopicPartition
from oncelake.ingestion.settings import Settings

AT = TopicPartition("t", 0)


class Answers:
    """Stands for the requests to a broker: an error's code, or an offset, one after the other."""

    def __init__(self, *answers: int) -> None:
        self._answers = list(answers)

    def __call__(self, *asked: Any) -> dict[TopicPartition, Future[Any]]:
        """Give the next answer; the last one again and again."""
        answer: Future[Any] = Future()
        number = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if number >= 1000:
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


def test_a_topic_that_is_forbidden_is_named(kafka: Kafka) -> None:
    """Of several topics, whoever must grant the right has to know which."""
    answer: Future[Any] = Future()
    answer.set_exception(KafkaException(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)))

    with pytest.raises(DependencyError, match="lacks DESCRIBE on topic 'secret', or it is not"):
        kafka._described("orders", "secret", answer)
