"""A replay adds what is missing, once, and changes nothing that is there."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pydantic import SecretStr
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from oncelake.ingestion.cli.app import app
from oncelake.ingestion.errors import (
    InvalidSpecError,
    NotReplayableError,
    OffsetsExpiredError,
    StreamLockedError,
)
from oncelake.ingestion.kafka.offsets import Range, TopicPartition
from oncelake.ingestion.operations.decisions import accept
from oncelake.ingestion.operations.history.rewind import rewind
from oncelake.ingestion.settings import Settings
from oncelake.ingestion.storage.failpoints import Failpoint
from tests.support.long import only_long, twins
from tests.support.proof import find_problems, prove
from tests.support.world import World, row
from tests.trials.failpoints import PlannedError, crashing_at


@pytest.fixture(scope="module")
def ingested(module_world: World) -> World:
    """Two batches with rows, a delete, and records that wait in quarantine."""
    world = module_world
    world.declare(sequence_by=["at"], apply_as_deletes="at = 7")
    world.send(row(1, "a", at=1), row(2, "b", at=1), row(3, "c", at=1), b"garbage")
    world.run()
    world.send(row(1, "a2", at=2), row(3, "gone", at=7), b"rubbish", row(4, "d", at=1))
    world.run()
    world.write_declaration()
    return world


@pytest.fixture
def world(ingested: World, tmp_path: Path) -> World:
    """A copy of that stream's tables."""
    return ingested.copied_to(tmp_path / "lake", state=tmp_path / "state")


def everything(world: World) -> list[tuple[object, ...]]:
    """The table with the system's columns, so that a row that was written again would show."""
    rows = DeltaTable(world.paths.data.path).to_pyarrow_table().to_pylist()
    return sorted(tuple(each.values()) for each in rows)


def test_what_is_there_stays_as_it_is(world: World) -> None:
    """No row, offset or quarantined record changes; the books say what each record was."""
    before, next_offsets = everything(world), world.run().next

    report = world.replay()

    (batch,) = report.batches
    assert (batch.kind, batch.seq, batch.is_red) == ("replay", 3, False)
    assert {name: n for name, n in batch.counts.items() if n} == {
        "offsets": 8, "read": 8, "overlap": 2, "superseded": 2, "unchanged": 3, "deleted_absent": 1,
    }  # fmt: skip
    assert everything(world) == before
    assert world.run().next == next_offsets
    assert len(world.quarantined()) == 2
    assert find_problems(world) == ()


def test_what_is_missing_is_added(ingested: World, world: World) -> None:
    """Rows that somebody deleted come back, and no deleted one does."""
    DeltaTable(world.paths.data.path).delete("id IN (1, 2)")
    accept(world.spec, world.settings, reason="a test", run_id="r")

    report = world.replay()

    verdict = prove(world)
    assert report.total("inserted") == 2
    assert world.rows() == ingested.rows()
    assert verdict.holds
    assert not [limit for limit in verdict.limits if "differ" in limit]


@pytest.mark.kafka
@pytest.mark.spark
@only_long
def test_a_rewound_and_replayed_stream_is_as_if_nothing_had_been(
    ingested: World, world: World
) -> None:
    """Back to the first batch, read on, and all of it once more."""
    rewind(world.spec, world.settings, to="seq:1", reason="a test", run_id="r")
    world.run()

    world.replay()

    assert world.rows() == ingested.rows()
    assert [each.kind for each in world.ledger] == [
        "ingest",
        "ingest",
        "rewind",
        "ingest",
        "replay",
    ]
    assert find_problems(world) == ()


@pytest.mark.parametrize(
    "place", [Failpoint.COMMITTED, *twins(Failpoint.PREPARED, Failpoint.AUDITED)]
)
def test_a_replay_that_dies_is_run_again(ingested: World, world: World, place: Failpoint) -> None:
    """Dead before, at or behind a commit, the next one adds what is left, once."""
    DeltaTable(world.paths.data.path).delete("id = 1")
    accept(world.spec, world.settings, reason="a test", run_id="r")
    with crashing_at(place), pytest.raises(PlannedError):
        world.replay()

    again = world.replay()

    assert again.total("inserted") == (place == Failpoint.PREPARED)
    assert world.rows() == ingested.rows()
    assert prove(world).holds


def test_a_range_is_read_and_no_more(world: World) -> None:
    """Offsets are taken as they are named, and a moment as the records from then on."""
    some = world.replay(
        json.dumps({world.topic: {"0": 1}}), end=json.dumps({world.topic: {"0": 3}})
    )
    late = world.replay("2100-01-01T00:00Z")

    assert some.ranges == (Range(topic=world.topic, partition=0, start=1, end=3),)
    assert (some.total("offsets"), late.ranges, late.batches) == (2, (), ())
    assert find_problems(world) == ()


@pytest.mark.parametrize(
    ("begin", "message"),
    [
        pytest.param("yesterday", "none of earliest, a moment with its zone", id="garbage"),
        pytest.param("12", "none of earliest", id="bare number"),
        pytest.param('{"TOPIC": {"0": 99}}', r"the table has read \[0, ", id="never read"),
        pytest.param('{"TOPIC": {"7": 0}}', "the table has read nothing", id="no partition"),
    ],
)
def test_what_was_never_read_is_not_replayed(world: World, begin: str, message: str) -> None:
    """The message says what the table has read."""
    with pytest.raises(InvalidSpecError, match=message) as refused:
        world.replay(begin.replace("TOPIC", world.topic))

    if begin.startswith("{"):
        assert f"oncelake reset {world.topic}" in str(refused.value)


@pytest.mark.parametrize(
    ("begin", "end", "message"),
    [
        pytest.param("{}", None, "--from '{}' is none of earliest", id="nothing to begin at"),
        pytest.param("earliest", '{"TOPIC": {}}', "is none of a moment", id="nothing to end at"),
        pytest.param("earliest", "earliest", "--to 'earliest' is none of a moment", id="no end"),
        pytest.param('{"TOPIC": {"0": true}}', None, "--from .* is none of", id="a boolean"),
        pytest.param(
            '{"TOPIC": {"0": 2}}',
            '{"TOPIC": {"0": 1}}',
            "ends before --from .* begins, in TOPIC-0. Next: name a later --to",
            id="backwards",
        ),
        pytest.param(
            "2100-01-01T00:00Z", "2000-01-01T00:00Z", "in TOPIC-0. Next", id="moments backwards"
        ),
    ],
)
def test_a_range_that_was_mistyped_is_refused(
    world: World, begin: str, end: str | None, message: str
) -> None:
    """It would read nothing, and pass for done."""
    begin, message = (text.replace("TOPIC", world.topic) for text in (begin, message))

    with pytest.raises(InvalidSpecError, match=message):
        world.replay(begin, end=end and end.replace("TOPIC", world.topic))


@pytest.mark.parametrize("sink", ["delta", "postgres"])
def test_a_mode_that_folds_is_refused_with_what_its_sink_can_do(world: World, sink: str) -> None:
    """PostgreSQL keeps no state to rewind to."""
    address = {"postgres": SecretStr("postgresql://o@localhost:9/o")}
    settings = world.settings.model_copy(update=address)
    world.declare(sink=sink, ignore_null_updates=True, sequence_by=[], apply_as_deletes=None)

    with pytest.raises(NotReplayableError, match=f"oncelake rebuild {world.topic}") as refused:
        world.replay(settings=settings)

    assert ("rewind" in str(refused.value)) == (sink == "delta")


def test_what_kafka_has_deleted_is_named(settings: Settings, session: SparkSession) -> None:
    """Offsets that are gone are refused with their range; `earliest` means what is left."""
    with World.made(settings, session) as world:
        world.send(row(1, "a"), row(2, "b"))
        end = world.run().next[TopicPartition(world.topic, 0)]
        world.forget_before(0, 1)

        with pytest.raises(OffsetsExpiredError, match=r"no longer holds .*\[0, 1\)"):
            world.replay(json.dumps({world.topic: {"0": 0}}))

        assert [each.start for each in world.replay().ranges] == [1]
        assert end > 1


def test_nobody_takes_the_stream_while_a_replay_starts_spark(
    settings: Settings, session: SparkSession
) -> None:
    """Where this process commits, it plans once, and holds the stream from then on."""
    with World.made(settings, session) as world:
        world.send(row(1, "a"))
        world.run()

        def rewind_meanwhile(_: int) -> SparkSession:
            rewind(world.spec, world.settings, to="seq:0", reason="a test", run_id="r")
            return world.spark

        with pytest.raises(StreamLockedError, match="run-2"):
            world.replay(spark=rewind_meanwhile)


@pytest.mark.kafka
@pytest.mark.spark
@only_long
def test_what_a_rewind_takes_back_meanwhile_is_not_replayed(
    settings: Settings, session: SparkSession
) -> None:
    """While the JVM that commits starts nobody holds the stream: what to read is decided then."""
    by_spark = settings.model_copy(update={"merge_engine": "spark"})
    with World.made(by_spark, session) as world:
        world.declare(mode="append", keys=[])
        world.send(row(1, "a"))
        world.run()
        world.send(row(2, "b"))
        world.run()

        def rewind_meanwhile(_: int) -> SparkSession:
            rewind(world.spec, world.settings, to="seq:1", reason="a test", run_id="r")
            return world.spark

        report = world.replay(spark=rewind_meanwhile)
        world.run()

        assert [str(each) for each in report.ranges] == [f"{world.topic}-0 [0, 1)"]
        assert DeltaTable(world.paths.data.path).count() == 2
        assert find_problems(world) == ()


def test_a_topic_that_is_no_longer_declared_is_not_replayed(
    settings: Settings, session: SparkSession
) -> None:
    """Nobody has compared what it holds now with what the table has read of it."""
    with World.made(settings, session) as world, World.made(settings, session) as other:
        world.declare(topic=None, topics=[world.topic, other.topic])
        world.send(row(1, "a"))
        other.send(row(2, "b"))
        world.run()
        world.declare(topics=[world.topic])

        report = world.replay()

        assert {each.topic for each in report.ranges} == {world.topic}


def test_what_was_redriven_is_not_quarantined_again(
    settings: Settings, session: SparkSession
) -> None:
    """A record that is bad as declared now, and was sent in as declared before, stays as it is."""
    with World.made(settings, session) as world:
        world.declare(tombstones="quarantine")
        world.send(row(1, "a"), row(2, "b"))
        world.send(None, id=1)
        world.run()
        world.declare(tombstones="delete")
        world.redrive()
        world.declare(tombstones="quarantine")

        report = world.replay()

        assert (report.total("overlap"), report.total("quarantined")) == (1, 0)
        assert len(world.quarantined()) == 1
        assert world.rows() == [row(2, "b")]


def test_a_replay_from_a_shell(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nothing was read it says so, and starts no Spark."""
    world.set_environment(monkeypatch)

    done = CliRunner().invoke(app, ["replay", world.topic, "--from", "2100-01-01T00:00Z"])

    assert (done.exit_code, done.stdout) == (
        0,
        f"{world.topic}: the table has read nothing there\n",
    )
