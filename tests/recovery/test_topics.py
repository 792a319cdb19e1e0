"""Topics that are not what they were: made again, shortened, gone, or another cluster's."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import DataFrame

import oncelake.ingestion.pipeline.batch
from oncelake.ingestion.delta.files import open_delta
from oncelake.ingestion.errors import (
    ClusterChangedError,
    OffsetsExpiredError,
    RefusedError,
    TopicMissingError,
    TopicRecreatedError,
)
from oncelake.ingestion.operations.decisions import accept, adopt_topic
from oncelake.ingestion.operations.history.rewind import rewind
from oncelake.ingestion.operations.try_stream import try_stream
from oncelake.ingestion.verify.verify import verify
from tests.support.damage import forget_commits
from tests.support.frail_broker import PATIENCE_SECONDS, FrailBroker
from tests.support.proof import find_problems
from tests.support.world import World, row, transactional

_NOW = 1_764_000_000_000


def made_again(world: World, records: int) -> None:
    """Delete the topic, and make it again with other records."""
    world.delete_topic()
    world.create_topic()
    world.send(*(row(n, "another topic's") for n in range(records)))


def before_the_fetch(
    monkeypatch: pytest.MonkeyPatch, happen: Callable[[], object], *, batch: int = 1
) -> None:
    """Let something happen when a batch is planned, and nothing of it has been read."""
    honest, judged = oncelake.ingestion.pipeline.batch.validate, []

    def judging(*given: Any, **named: Any) -> DataFrame:
        judged.append(given)
        if len(judged) == batch:
            happen()
        return honest(*given, **named)

    monkeypatch.setattr(oncelake.ingestion.pipeline.batch, "validate", judging)


def test_a_topic_made_again_with_as_many_records_is_refused(world: World) -> None:
    """Offsets that fit mean nothing: the topic's id is another."""
    world.send(row(1, "a"), row(2, "b"))
    world.run()
    made_again(world, records=2)

    with pytest.raises(TopicRecreatedError, match=f"oncelake adopt-topic {world.topic}"):
        world.run()


@pytest.mark.parametrize("records", [3, 9], ids=["shorter", "longer"])
def test_a_topic_made_again_before_the_fetch_is_refused(
    world: World, monkeypatch: pytest.MonkeyPatch, records: int
) -> None:
    """A topic made again between plan and fetch is named as such, whatever Spark makes of it."""
    world.declare(max_offsets_per_trigger=4)
    world.send(*(row(n, "a") for n in range(6)))
    before_the_fetch(monkeypatch, lambda: made_again(world, records), batch=2)

    with pytest.raises(TopicRecreatedError, match="was deleted and created again"):
        world.run()

    assert world.rows() == [row(n, "a") for n in range(4)]
    assert [batch.balanced for batch in world.ledger] == [True]


@pytest.mark.parametrize("records", [0, 9], ids=["shorter", "longer"])
def test_a_topic_made_again_between_two_batches_is_refused(world: World, records: int) -> None:
    """No record of the new topic gets into the table, be there more of them or fewer."""
    world.declare(max_offsets_per_trigger=4)
    world.send(*(row(n, "a") for n in range(6)))

    with pytest.raises(TopicRecreatedError):
        world.run(on_batch=lambda *_: made_again(world, records))

    assert world.rows() == [row(n, "a") for n in range(4)]


def test_a_topic_deleted_in_mid_run_is_refused(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A topic that is gone when it is read is a matter for a person, not for a retry."""
    world.settings = world.settings.model_copy(update={"kafka_timeout_seconds": PATIENCE_SECONDS})
    world.send(row(1, "a"))
    before_the_fetch(monkeypatch, world.delete_topic)

    with pytest.raises(TopicMissingError):
        world.run()
    world.create_topic()

    assert world.log.last_seq(world.topic) == 0


@pytest.mark.kafka
def test_another_cluster_at_the_same_address_is_refused(
    frail: FrailBroker, frail_world: World, kafka_address: str
) -> None:
    """Another cluster is named before the topic is called missing there, and when it is there."""
    world = frail_world
    world.send(row(1, "a"))
    world.run()
    other = AdminClient({"bootstrap.servers": kafka_address})

    with frail.proxy.leading_to(int(kafka_address.rpartition(":")[2])):
        with pytest.raises(ClusterChangedError, match=f"oncelake adopt-topic {world.topic}"):
            world.run()
        other.create_topics([NewTopic(world.topic, 2, 1)])[world.topic].result(30)
        with pytest.raises(ClusterChangedError):
            world.run()
    other.delete_topics([world.topic])[world.topic].result(30)
    world.send(row(2, "b"))
    world.run()

    assert world.rows() == [row(1, "a"), row(2, "b")]


@pytest.mark.kafka
@pytest.mark.spark
def test_records_deleted_before_the_fetch_are_refused_with_their_range(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What retention takes out of a planned batch is not skipped; accepted, it is in the ledger."""
    world.send(*(row(n, "a") for n in range(5)))
    world.send(*(row(n, "b") for n in range(5, 8)), partition=1)

    def forget() -> None:
        world.forget_before(0, 3)
        world.forget_before(1, 1)

    with monkeypatch.context() as patch:
        before_the_fetch(patch, forget)
        with pytest.raises(OffsetsExpiredError) as refused:
            world.run()
    accepted = accept(world.spec, world.settings, reason="too late", run_id="me")
    report = world.run()

    lost = [f"{world.topic}-0 [0, 3)", f"{world.topic}-1 [0, 1)"]
    assert f"{', '.join(lost)} (4 offsets)" in str(refused.value)
    assert [str(counted.range) for counted in accepted.ranges] == lost
    assert (accepted.counts["lost"], accepted.accepted) == (4, "too late")
    assert world.rows() == [row(3, "a"), row(4, "a"), row(6, "b"), row(7, "b")]
    assert report.is_balanced


def test_records_deleted_after_the_fetch_are_kept(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was read before retention came is committed; gaps it took are marked as unproven."""
    producer = transactional(world)
    producer.begin_transaction()
    producer.produce(world.topic, b'{"id": 1}', partition=0)
    producer.commit_transaction(30)
    world.wait_for_end(2)
    world.send(row(2, "b"))
    honest = oncelake.ingestion.pipeline.batch.find_gaps

    def too_late(*given: Any, **named: Any) -> Any:
        world.forget_before(0, 2)
        return honest(*given, **named)

    monkeypatch.setattr(oncelake.ingestion.pipeline.batch, "find_gaps", too_late)

    report = world.run()

    assert world.rows() == [row(1, None), row(2, "b")]
    assert (report.total("gaps"), report.total("gaps_unproven")) == (1, 1)
    assert report.is_balanced


def test_a_topic_that_does_not_exist_names_the_one_that_was_meant(world: World) -> None:
    """A run and a trial say which topic has a name like it; where none has, they do not guess."""
    meant = world.topic
    world.declare(topic=f"{meant}s")

    with pytest.raises(TopicMissingError, match=rf"stream's file; did you mean `{meant}`\?"):
        world.run()
    with pytest.raises(TopicMissingError, match=rf"did you mean `{meant}`"):
        try_stream(world.spec, world.settings, lambda _: world.spark, records=1)
    world.declare(topic="nothing-is-called-like-this")
    with pytest.raises(TopicMissingError, match=r"not exist at \S+ Next: .* file$"):
        world.run()


def test_a_topic_that_is_declared_no_longer_may_go(world: World) -> None:
    """One of two topics is taken from the declaration and deleted; the other is read on."""
    second = world.add_topic(".second", row(3, "c"))
    world.declare(topic=None, topics=[world.topic, second])
    world.send(row(1, "a"))
    world.run()
    world.declare(topic=world.topic, topics=[])
    world.admin.delete_topics([second])[second].result(30)
    world.send(row(2, "b"))

    report = world.run()
    verdict = verify(world.spec, world.settings)

    assert world.rows() == [row(1, "a"), row(2, "b"), row(3, "c")]
    assert report.lag == 0
    assert verdict.holds
    assert [text for text in verdict.limits if second in text and "no longer holds [0, 1)" in text]


def test_a_topic_that_is_not_declared_now_is_not_read_again(world: World) -> None:
    """Another topic is adopted meanwhile: where this one stood is kept for the day it is back."""
    second = world.add_topic(".second", row(2, "b"))
    world.declare(topic=None, topics=[world.topic, second], mode="append", keys=[])
    world.send(row(1, "a"))
    world.run()
    world.declare(topics=[world.topic])
    made_again(world, records=1)
    adopt_topic(world.spec, world.settings, run_id="me")
    world.declare(topics=[world.topic, second])

    report = world.run()

    assert report.total("read") == 1
    assert sorted(each["id"] for each in world.rows()) == [0, 1, 2]
    assert verify(world.spec, world.settings).holds


def test_what_a_new_partition_has_lost_is_refused_behind_an_adoption_too(world: World) -> None:
    """It is a topic that did not change, and nobody has decided anything about it."""
    second = world.add_topic(".second", row(2, "b"))
    beside = replace(world, topic=second)
    world.declare(topic=None, topics=[world.topic, second])
    world.run()
    beside.add_partitions(2)
    beside.send(row(3, "lost"), row(4, "d"), partition=1)
    beside.forget_before(1, 1)
    made_again(world, records=1)
    adopt_topic(world.spec, world.settings, run_id="me")

    with pytest.raises(OffsetsExpiredError, match=rf"{second}-1 \[0, 1\)"):
        world.run()


@pytest.mark.parametrize("decided", ["adopted", "rewound"])
def test_the_ledger_remembers_where_a_decision_left_each_partition(
    world: World, decided: str
) -> None:
    """Also once the commit has aged out of the log: nothing is read again, or from the start."""
    second = world.add_topic(".second", row(2, "b"))
    world.declare(topic=None, topics=[world.topic, second], mode="append", keys=[])
    world.declare(starting="latest")
    world.run()
    world.send(row(1, "a"))
    world.run()
    if decided == "adopted":
        made_again(world, records=1)
        adopt_topic(world.spec, world.settings, run_id="me")
    else:
        rewind(world.spec, world.settings, to="seq:0", reason="a test", run_id="me")
    open_delta(world.paths.data).alter.set_table_properties({"delta.x": "1"}, False)
    forget_commits(world.paths.data)

    report = world.run()

    assert report.total("read") == 1
    assert not [each for each in world.rows() if each["id"] == 2]


def send_at(world: World, *milliseconds: int) -> None:
    """Send a record for each time stamp, to a topic that takes every one."""
    world.delete_topic()
    world.create_topic(**{"message.timestamp.after.max.ms": str(2**63 - 1)})
    for number, sent in enumerate(milliseconds, start=1):
        value = json.dumps(row(number, "a"))
        world.producer.produce(world.topic, value, partition=0, timestamp=sent)
    assert world.producer.flush(30) == 0


def test_microseconds_for_milliseconds_are_a_moment_that_readers_hold(world: World) -> None:
    """A producer that sends them stops neither the stream nor its proof."""
    send_at(world, _NOW, _NOW * 1_000, _NOW)

    world.run()

    assert find_problems(world) == ()
    (found,) = world.paths.table.scan(["_timestamp"])
    assert max(found["_timestamp"].to_pylist()) == dt.datetime.max.replace(tzinfo=dt.UTC)


@pytest.mark.kafka
@pytest.mark.spark
def test_nanoseconds_for_milliseconds_are_refused_with_the_way_past_them(world: World) -> None:
    """Spark cannot read such a record; what lies behind it can be read once it is gone."""
    send_at(world, _NOW, _NOW * 1_000_000, _NOW)

    with pytest.raises(RefusedError, match=rf"{world.topic}-0 offset 1 is {_NOW}000000,.*accept"):
        world.run()
    world.forget_before(0, 2)
    accept(world.spec, world.settings, reason="no moment", run_id="me")
    world.run()

    assert world.rows() == [row(3, "a")]
