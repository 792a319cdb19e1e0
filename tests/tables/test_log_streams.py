"""A stream into a topic keeps the promises that a log can keep: from Kafka to the proof."""

from __future__ import annotations

import json
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext

from oncelake.ingestion.declaration.sql import quoted
from oncelake.ingestion.errors import (
    CommitConflictError,
    KeyInTwoPartitionsError,
    RefusedError,
    TableBusyError,
)
from oncelake.ingestion.operations.decisions import reset
from oncelake.ingestion.sinks.kafka.writer import TopicWriter
from oncelake.ingestion.verify.verify import verify
from tests.support.committed import committed_records
from tests.support.proof import find_problems, prove
from tests.support.registry import Subject
from tests.support.world import World, row

pytestmark = [pytest.mark.kafka, pytest.mark.spark]


@pytest.fixture
def sink() -> str:
    """The sink of every stream here."""
    return "kafka"


def records_of(world: World) -> list[tuple[Any, Any]]:
    """Read key and value of each record of the output topic."""
    found = committed_records(world.settings, f"oncelake.{world.name}")
    parts = ((message.key(), message.value()) for message in found)
    return [(json.loads(key or "null"), json.loads(value or "null")) for key, value in parts]


def test_a_record_has_names_as_the_values_had_them(world: World) -> None:
    """JSON takes any name, that of a key included; a delete is known by one of Debezium's."""
    odd = "a.b`c \"d'\n"
    world.declare(schema=f"{quoted(odd)} INT NOT NULL, __deleted STRING", keys=[odd])
    world.declare(apply_as_deletes="__deleted = 'true'", tombstones="ignore")
    world.send({odd: 1, "__deleted": "false"}, {odd: 2, "__deleted": "false"})
    world.run()
    world.send({odd: 1, "__deleted": "true"})

    world.run()

    assert [key for key, value in records_of(world) if value is None] == [{odd: 1}]
    assert [row[odd] for row in world.rows()] == [2]
    assert find_problems(world) == ()


def test_an_upsert_is_a_record_a_key_and_batch(world: World) -> None:
    """Who keeps the last record of each key has the table; deletes have no value."""
    world.send(row(1, "a"), row(2, "b"), row(2, "c"), b"not JSON")
    world.send(row(3, "d"), partition=1)
    first = world.run()
    world.send(row(1, "e"), None, id=1)
    world.send(row(2, "f"))

    second = world.run()

    assert world.rows() == [row(2, "f"), row(3, "d")]
    assert [first.total(name) for name in ("inserted", "superseded")] == [3, 1]
    assert [second.total(name) for name in ("inserted", "superseded", "deleted")] == [1, 1, 1]
    assert first.is_balanced
    assert second.is_balanced
    assert find_problems(world) == ()
    written = [(key, value and value["name"]) for key, value in records_of(world)]
    assert sorted(written, key=str) == sorted(
        [({"id": 1}, "a"), ({"id": 2}, "c"), ({"id": 3}, "d"), ({"id": 1}, None), ({"id": 2}, "f")],
        key=str,
    )


def test_an_append_is_what_was_read_filtered_and_computed(world: World) -> None:
    """Read, process, write: each record that passes is one record of other columns."""
    world.declare(
        mode="append",
        keys=[],
        value_schema="id INT, name STRING, at INT",
        where="at > 0",
        schema="id INT, loud STRING",
        select={"loud": "upper(name)"},
    )
    world.send(row(1, "a", 1), row(1, "a", 1), row(2, "b", 0), b"not JSON")
    world.run()
    world.send(row(3, "c", 2))

    world.run()

    names = sorted((value["id"], value["loud"]) for _, value in records_of(world))
    assert names == [(1, "A"), (1, "A"), (3, "C")]
    assert prove(world).holds


def test_a_new_column_is_in_new_records(world: World) -> None:
    """Records that are there stay as they are, and lack it."""
    world.send(row(1, "a"))
    world.run()
    world.declare(schema="id INT NOT NULL, name STRING, at INT, more INT", schema_change="evolve")
    world.send({**row(2, "b"), "more": 7})

    world.run()

    assert [each["more"] for each in world.rows()] == [None, 7]
    assert find_problems(world) == ()


def test_in_avro_a_consumer_needs_the_registry_alone(world: World, registry_address: str) -> None:
    """Confluent's own deserializer has the table by the last record of each key, as the proof."""
    settings = world.settings.model_copy(update={"schema_registry": registry_address})
    world = replace(world, settings=settings)
    world.declare(sink={"kafka": {"format": "avro"}})
    world.send(row(1, "a"), row(2, "b"))
    world.run()
    new = "id INT NOT NULL, name STRING, at INT, price DECIMAL(5, 2)"
    world.declare(schema=new, schema_change="evolve")
    world.send({**row(3, "c"), "price": 1.25})
    world.send(None, id=1)

    world.run()

    topic = f"oncelake.{world.name}"
    key = SerializationContext(topic, MessageField.KEY)
    value = SerializationContext(topic, MessageField.VALUE)
    with Subject(registry_address, f"{topic}-value") as subject:
        read = AvroDeserializer(subject.client)
        found = [
            (read(message.key(), key), read(message.value(), value))
            for message in committed_records(settings, topic)
        ]
    newest = {of["id"]: columns for of, columns in found}
    assert newest[1] is None
    assert "price" not in newest[2]
    assert (newest[3]["price"], newest[3]["_seq"]) == (Decimal("1.25"), 3)
    assert [each["price"] for each in world.rows()] == [None, Decimal("1.25")]
    assert find_problems(world) == ()


def test_what_compaction_may_have_taken_is_no_difference(world: World) -> None:
    """What is wrong in a topic that has gone on meanwhile may be what compaction did since."""
    world.send(row(1, "a"))
    world.run()
    (written,) = committed_records(world.settings, topic := f"oncelake.{world.name}")
    world.producer.produce(topic, None, written.key(), written.partition())
    world.producer.flush(30)
    world.send(row(2, "b"))
    world.run()
    (missing,) = prove(world).differences
    world.send(row(3, "c"))

    with pytest.raises(TableBusyError, match="if it happens again, pause the stream"):
        verify(world.spec, world.settings, tell=lambda *_: world.run() and None)

    assert "is missing from the table" in str(missing)


def test_a_key_in_two_partitions_of_a_batch_is_refused(world: World) -> None:
    """Nothing says which record is the newer one, and nothing is written."""
    world.send(row(1, "a"))
    world.send(row(1, "b"), partition=1)

    with pytest.raises(KeyInTwoPartitionsError, match="came from") as refused:
        world.run()

    assert refused.value.remedy.startswith("make the producer partition by key")
    assert world.rows() == []


def test_a_batch_that_its_transaction_does_not_take_says_why(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the topic has to say of it is not lost where no commit came instead."""
    world.run()
    world.send(row(1, "a"))
    flush = TopicWriter.flush

    def overtaken(writer: TopicWriter) -> None:
        TopicWriter(writer._place, writer._topic_id)
        flush(writer)

    with monkeypatch.context() as patch:
        patch.setattr(TopicWriter, "flush", overtaken)
        with pytest.raises(CommitConflictError, match="a smaller `max_offsets_per_trigger`"):
            world.run()

    world.run()
    assert world.rows() == [row(1, "a")]


@pytest.mark.parametrize("operation", ["redrive", "replay", "rebuild"])
def test_what_would_come_behind_newer_records_is_refused(world: World, operation: str) -> None:
    """A log keeps what was written to it; the reason is said, and nothing is done."""
    world.send(row(1, "a"), b"not JSON")
    world.run()

    with pytest.raises(RefusedError, match=f"cannot {operation}: a topic keeps what was written"):
        getattr(world, operation)()

    assert find_problems(world) == ()


def test_a_stream_moves_into_a_topic_by_a_reset(world: World) -> None:
    """The new table is what one that began there is; a topic itself is never taken away."""
    world.declare(sink="delta")
    world.send(row(1, "a"), row(2, "b"), row(1, "c"))
    world.run()
    before = world.rows()
    world.declare(sink="kafka")
    reset(world.name, world.settings, run_id="r", sink=world.spec.sink)

    world.run()

    assert world.rows() == before
    assert find_problems(world) == ()
    with pytest.raises(RefusedError, match="a topic cannot be renamed"):
        reset(world.name, world.settings, run_id="r", sink=world.spec.sink)
