"""Many streams that ask one cluster the same, by the requests that real Kafka gets."""

from __future__ import annotations

import datetime as dt
import json
from collections import Counter
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient

from oncelake.ingestion.declaration.files.loader import load_streams
from oncelake.ingestion.errors import DependencyError, TopicMissingError, TopicRecreatedError
from oncelake.ingestion.kafka import shared
from oncelake.ingestion.kafka.admin import Kafka
from oncelake.ingestion.kafka.shared import SharedKafka
from oncelake.ingestion.storage.failpoints import Failpoint
from tests.cli.shell import answer, oncelake
from tests.support.world import COLUMNS, World, changed, row, transactional
from tests.trials.failpoints import PlannedError, crashing_at

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

MANY = 12
REQUESTS = ("describe_cluster", "describe_topics", "list_offsets", "list_topics")


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """The clients that are made from now on, and their requests, by name."""
    counted: Counter[str] = Counter()

    class CountingClient(AdminClient):
        def __init__(self, *options: Any) -> None:
            counted["clients"] += 1
            super().__init__(*options)

        def __getattribute__(self, name: str) -> Any:
            counted[name] += name in REQUESTS
            return super().__getattribute__(name)

    monkeypatch.setattr("oncelake.ingestion.kafka.admin.AdminClient", CountingClient)
    return counted


@pytest.fixture
def many(world: World, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The streams of one file, a topic each, which have read all there is."""
    world.set_environment(monkeypatch)
    topics = [world.add_topic(f".t{number}", row(number, "a")) for number in range(MANY)]
    declared = {"topics": topics, "table_per_topic": True, "schema": COLUMNS, "keys": ["id"]}
    world.settings.streams.mkdir(parents=True)
    (world.settings.streams / "shop.yaml").write_text(json.dumps(declared))
    streams = load_streams(world.settings.streams)
    for each in streams:
        world.run(spec=each.require_spec())
    return [each.name for each in streams]


def test_requests_do_not_grow_with_the_streams(many: list[str], requests: Counter[str]) -> None:
    """Two streams or twelve that have nothing to read: one client, and the same few requests."""
    costs = []
    for names in (many[:2], many):
        requests.clear()
        done = answer(oncelake("run", *names, "--json"))
        costs.append({name: n for name, n in requests.items() if n})
        assert [each["lag"] for each in done["streams"]] == [0] * len(names)
        assert done["exit_code"] == 0

    few = {"clients": 1, "describe_topics": 1, "list_offsets": 3, "list_topics": 1}
    assert costs == [few, few]


def test_a_run_reads_what_came_and_heals_what_was_left(world: World) -> None:
    """By a shared client it is the run that it would be by one of its own."""
    world.send(row(1, "a"))
    with crashing_at(Failpoint.COMMITTED), pytest.raises(PlannedError):
        world.run()

    healed = world.run(kafka=SharedKafka(world.settings, [world.topic]))
    world.send(row(2, "b"))
    read = world.run(kafka=SharedKafka(world.settings, [world.topic]))

    assert ([each.seq for each in healed.recovered], healed.lag, healed.batches) == ([1], 0, ())
    assert (read.total("read"), read.lag, len(world.rows())) == (1, 0, 2)


def test_a_table_that_is_ahead_of_the_answers_is_not_refused(world: World) -> None:
    """Another process has read on since: by old answers the topic would have lost records."""
    old = SharedKafka(world.settings, [world.topic])
    world.send(row(1, "a"))
    world.run(kafka=old)
    assert world.run(kafka=old).batches == ()
    world.send(row(2, "b"), row(3, "c"))
    world.run()
    world.send(row(4, "d"))

    assert world.run(kafka=old).total("read") == 1


def test_what_came_since_the_answer_is_read_once_it_is_old(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No answer lasts: a stream that waited long for its turn is compared with Kafka as it is."""
    client = SharedKafka(world.settings, [world.topic])
    world.send(row(1, "a"))
    world.run()
    assert world.run(kafka=client).batches == ()
    world.send(row(2, "b"))

    assert world.run(kafka=client).batches == ()
    monkeypatch.setattr(shared, "_FRESH_SECONDS", 0.0)
    monkeypatch.setattr(client, "_answers", {})
    assert world.run(kafka=client).total("read") == 1


def test_a_topic_that_is_another_or_gone_is_refused(world: World) -> None:
    """A shared client accepts nothing that one of the stream's own would refuse."""
    world.send(row(1, "a"))
    world.run()
    world.delete_topic()
    with pytest.raises(TopicMissingError):
        world.run(kafka=SharedKafka(world.settings, [world.topic]))
    world.create_topic()
    world.send(row(2, "b"))

    with pytest.raises(TopicRecreatedError):
        world.run(kafka=SharedKafka(world.settings, [world.topic]))


def test_a_topic_that_nobody_named_is_asked_for(world: World) -> None:
    """Of a pattern's topics those are known that matched; of any other Kafka is asked."""
    world.send(row(1, "a"))
    ends = Kafka(world.settings).stable_end(
        Kafka(world.settings).topics("", [world.topic]).partitions
    )

    for client in (
        SharedKafka(world.settings, []),
        SharedKafka(world.settings, [], [f"{world.topic[:-1]}."]),
        SharedKafka(world.settings, [f"{world.topic}.none"]),
    ):
        found = client.topics("", [world.topic])
        assert client.stable_end(found.partitions) == ends


def test_a_cluster_that_does_not_answer_is_waited_for_once(
    world: World, requests: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other streams are given the same failure at once."""
    silent = changed(world.settings, kafka="127.0.0.1:1", kafka_timeout_seconds=1)
    client = SharedKafka(silent, [world.topic])

    for _ in range(3):
        with pytest.raises(DependencyError):
            client.topics("orders", [world.topic])

    assert requests["list_topics"] == 1


def test_a_transaction_that_holds_records_back_is_looked_at_anew(world: World) -> None:
    """Old answers make no stall of a transaction that has ended since."""
    long_ago, now = dt.datetime(2020, 1, 1, tzinfo=dt.UTC), dt.datetime.now(dt.UTC)
    producer = transactional(world)
    producer.begin_transaction()
    then = int(long_ago.timestamp() * 1000)
    producer.produce(world.topic, b"{}", partition=0, timestamp=then)
    producer.flush()
    client = SharedKafka(world.settings, [world.topic])
    partitions = client.topics("", [world.topic]).partitions

    held = client.withheld(partitions, since=now)
    producer.abort_transaction(30)
    world.wait_for_end(2)

    assert list(held.values()) == [0]
    assert client.withheld(partitions, since=now) == {}
