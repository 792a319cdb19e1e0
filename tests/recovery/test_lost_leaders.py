"""Leaders that lose what was read of them, on three brokers: an election, and a cut network."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from oncelake.ingestion.declaration.spec import StreamSpec
from oncelake.ingestion.errors import DependencyError, TopicTruncatedError
from oncelake.ingestion.kafka.admin import Kafka
from oncelake.ingestion.kafka.offsets import TopicPartition
from oncelake.ingestion.lake.ledger import Ledger
from oncelake.ingestion.lake.paths import StreamPaths
from oncelake.ingestion.operations.run import Run
from oncelake.ingestion.pipeline.report import RunReport
from oncelake.ingestion.settings import Settings
from tests.support.long import only_long
from tests.support.three_brokers import ThreeBrokers
from tests.support.world import changed, settings_in

pytestmark = [pytest.mark.kafka, pytest.mark.spark, only_long]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ThreeBrokers]:
    """One cluster for all of them."""
    with ThreeBrokers.up(tmp_path_factory.mktemp("three")) as cluster:
        yield cluster


def run(settings: Settings, spark: SparkSession, name: str, /, **fields: Any) -> RunReport:
    """Append the values of a topic, or of what else is declared, to a table of that name."""
    declared = {"name": name, "topic": name, "format": "raw", "mode": "append", **fields}
    spec = StreamSpec.model_validate({**declared, "schema": "value BINARY"})
    return Run(spec=spec, settings=settings, spark=lambda _: spark, run_id="run").execute()


def values(name: str, count: int) -> list[str]:
    """Return values of a topic."""
    return [f"{name} {n}" for n in range(count)]


def test_an_unclean_election_is_refused_and_a_clean_one_is_not(
    cluster: ThreeBrokers, tmp_path: Path, spark: SparkSession
) -> None:
    """A follower that was left behind takes over, and other records come in place of those read."""
    settings = settings_in(tmp_path, cluster.addresses[1])
    cluster.make_topic("elected")
    cluster.send(2, "elected", *values("kept", 10))
    assert run(settings, spark, "elected").total("read") == 10
    cluster.stop(2)
    cluster.await_leader("elected", 3)
    cluster.start(2)
    cluster.await_all("elected")
    assert run(settings, spark, "elected").total("read") == 0
    cluster.send(3, "elected", *values("more", 2))
    assert run(settings, spark, "elected").total("read") == 2
    cluster.stop(2)
    cluster.await_alone("elected", 3)
    cluster.send(3, "elected", *values("lost", 5))
    assert run(settings, spark, "elected").total("read") == 5

    cluster.kill(3)
    cluster.start(2)
    cluster.await_leader("elected", 2)
    cluster.send(2, "elected", *values("new", 8))

    with pytest.raises(TopicTruncatedError, match=r"elected-0: the last record read .* offset 16 "):
        run(settings, spark, "elected")
    # The record at offset 11 is there, the one at 12 is not, by what the leader knows of epochs.
    at = TopicPartition("elected", 0)
    epoch = Ledger(StreamPaths.of("elected", settings).ledger).rows()[-1].last[at].leader_epoch
    kafka = Kafka(settings)
    truncated = [kafka.truncated({at: end}, {at: epoch}) for end in (12, 13, 20)]
    assert truncated == [frozenset(), {at}, {at}]
    cluster.start(3)
    cluster.await_all("elected")


def test_a_leader_that_was_cut_off_loses_what_was_read_of_it(
    cluster: ThreeBrokers, tmp_path: Path, spark: SparkSession
) -> None:
    """It goes on to take records that nobody else has, and drops them when the network is back."""
    settings = settings_in(tmp_path, cluster.addresses[2])
    cluster.make_topic("cut_off")
    cluster.send(2, "cut_off", *values("kept", 10))
    cluster.stop(3)
    cluster.await_alone("cut_off", 2)
    cluster.line.switch("reset")
    cluster.send(2, "cut_off", *values("lost", 5))
    assert run(settings, spark, "cut_off").total("read") == 15

    # Before that, the other would still get all from it.
    cluster.await_leader("cut_off", -1)
    by_controller = Kafka(changed(settings, kafka=cluster.addresses[1], kafka_timeout_seconds=2))
    with pytest.raises(DependencyError, match="no broker leads cut_off-0"):
        by_controller.stable_end([TopicPartition("cut_off", 0)])
    cluster.start(3)
    cluster.await_leader("cut_off", 3)
    cluster.send(3, "cut_off", *values("new", 8))
    cluster.line.switch("none")
    cluster.await_all("cut_off")

    with pytest.raises(TopicTruncatedError, match=r"cut_off-0: the last record read .* offset 14 "):
        run(settings, spark, "cut_off")


def test_topics_of_a_pattern_are_read_whole_while_their_leaders_move(
    cluster: ThreeBrokers, tmp_path: Path, spark: SparkSession
) -> None:
    """One of them is new meanwhile; a run may have to be repeated, and nothing is read twice."""
    settings = settings_in(tmp_path, cluster.addresses[1], reader="librdkafka")
    declared = {"topic": None, "topic_pattern": r"moved_\w+", "max_offsets_per_trigger": 100}
    cluster.make_topic("moved_a")

    def move() -> None:
        for nth in range(3):
            topic = f"moved_{'bcd'[nth]}"
            cluster.make_topic(topic)
            cluster.send(2, topic, *values(topic, 300))
            cluster.send(2, "moved_a", *values(f"a {nth}", 300))
            cluster.stop(2)
            cluster.await_leader("moved_a", 3)
            cluster.send(3, topic, *values(f"{topic} later", 300))
            cluster.start(2)
            cluster.await_all("moved_a")
            cluster.await_all(topic)
            cluster.stop(3)
            cluster.await_leader(topic, 2)
            cluster.start(3)
            cluster.await_all(topic)
            cluster.await_all("moved_a")

    mover = threading.Thread(target=move)
    mover.start()
    while mover.is_alive():
        mover.join(0.2)
        with suppress(DependencyError):
            run(settings, spark, "moved", **declared)
    run(settings, spark, "moved", **declared)

    paths = StreamPaths.of("moved", settings)
    found = [row["value"] for part in paths.table.scan(["value"]) for row in part.to_pylist()]
    written = [f"a {nth}" for nth in range(3)]
    written += [f"moved_{each}{when}" for each in "bcd" for when in ("", " later")]
    expected = [value.encode() for name in written for value in values(name, 300)]
    assert sorted(found) == sorted(expected)
