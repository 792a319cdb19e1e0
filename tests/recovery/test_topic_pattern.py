"""A pattern instead of a topic: whatever matches when a run begins is read, and nothing is lost."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from oncelake.ingestion.errors import TopicMissingError
from oncelake.ingestion.kafka.admin import Kafka
from oncelake.ingestion.operations.decisions import adopt_topic
from oncelake.ingestion.operations.status.lag import LagReader
from oncelake.ingestion.settings import Settings
from oncelake.ingestion.storage.checksums import sidecar_of
from oncelake.ingestion.storage.failpoints import Failpoint
from oncelake.ingestion.storage.location import Location
from oncelake.ingestion.verify.verify import verify
from tests.support.damage import newest_commit
from tests.support.proof import find_problems
from tests.support.world import World, row
from tests.trials.failpoints import PlannedError, crashing_at


@pytest.fixture
def world(settings: Settings, session: SparkSession) -> Iterator[World]:
    """A stream of a pattern; topics that it does not match are there, too."""
    with World.made(settings, session) as made:
        made.declare(topic=None, topic_pattern=rf"{made.topic}(_\w+)?", sequence_by=["at"])
        made.add_topic("-other", row(99, "not ours", at=1))
        yield made


@pytest.mark.kafka
def test_topics_that_match_are_read_and_one_that_vanishes_is_missed(world: World) -> None:
    """A topic that appears is read from its start; one that is gone is refused, not forgotten."""
    world.send(row(1, "a", at=1))
    world.add_topic("_x", row(1, "newer", at=2), row(2, "b", at=1))
    first = world.run()
    later = world.add_topic("_y", row(3, "c", at=1))
    lag = LagReader(world.settings).read([world.spec])[world.spec.name] or {}

    second = world.run()

    assert [each["id"] for each in world.rows()] == [1, 2, 3]
    assert (first.total("read"), second.total("read")) == (3, 1)
    assert {name: n for name, n in lag.items() if n} == {later: 1}
    assert set(world.ledger[-1].identity.topic_ids) == {
        world.topic, f"{world.topic}_x", f"{world.topic}_y"
    }  # fmt: skip
    assert find_problems(world) == ()
    world.admin.delete_topics([later])[later].result(30)
    with pytest.raises(TopicMissingError, match=later):
        world.run()
    world.declare(sink="iceberg")
    with pytest.raises(TopicMissingError, match=later):
        world.rebuild()


def test_a_pattern_that_matches_nothing_is_refused(world: World) -> None:
    """Kafka's own topics are nobody's records."""
    world.declare(topic_pattern="__consumer.*|nothing-is-called-so")

    with pytest.raises(TopicMissingError, match=r"no topic at .* matches"):
        world.run()
    assert not any(name.startswith("__") for name in Kafka(world.settings).names())


def test_only_the_topic_that_was_made_again_is_read_again(world: World) -> None:
    """The others go on where they were: a mode that appends would take their records twice."""
    world.declare(mode="append", keys=[], sequence_by=[])
    world.send(row(1, "a"))
    other = world.add_topic("_x", row(2, "b"))
    world.run()
    world.delete_topic()
    world.create_topic()
    world.send(row(3, "c"))
    world.producer.produce(other, b'{"id": 4}', partition=0)
    assert world.producer.flush(30) == 0

    adopt_topic(world.spec, world.settings, run_id="me")
    report = world.run()

    assert sorted(each["id"] for each in world.rows()) == [1, 2, 3, 4]
    assert (report.total("read"), report.lag) == (2, 0)
    assert verify(world.spec, world.settings).holds


@pytest.mark.parametrize("place", [Failpoint.SWAP_CLEARED, Failpoint.COMMITTED])
def test_what_a_run_has_to_finish_first_does_not_stop_it(world: World, place: Failpoint) -> None:
    """The topics of earlier runs are looked for in the table, which is not yet whole."""
    world.send(row(1, "a", at=1))
    world.run()
    world.send(row(2, "b", at=1))
    go_on = world.rebuild if place == Failpoint.SWAP_CLEARED else world.run
    with crashing_at(place), pytest.raises(PlannedError):
        go_on()
    if place == Failpoint.COMMITTED:
        # As a power cut leaves it.
        commit = Location.of(newest_commit(world.paths.data))
        sidecar_of(commit).delete()
        commit.put(b"")

    world.run()

    assert [each["id"] for each in world.rows()] == [1, 2]
    assert find_problems(world) == ()
