"""How far streams are behind, as real Kafka and real tables tell."""

from __future__ import annotations

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from oncelake.ingestion.declaration.spec import StreamSpec
from oncelake.ingestion.delta.files import storage_options
from oncelake.ingestion.delta.log_files import log_files
from oncelake.ingestion.errors import DependencyError
from oncelake.ingestion.lake.paths import StreamPaths
from oncelake.ingestion.operations.status.lag import LagReader, awaits_run
from oncelake.ingestion.recovery.snapshot import read_snapshot
from oncelake.ingestion.settings import Settings
from oncelake.ingestion.storage.failpoints import Failpoint
from tests.support.long import twins
from tests.support.world import COLUMNS, World, changed, row
from tests.trials.failpoints import PlannedError, crashing_at


def of(world: World, name: str, **fields: object) -> StreamSpec:
    """Declare another stream that reads the world's topic."""
    declared = {"name": name, "topic": world.topic, "schema": COLUMNS, "keys": ["id"], **fields}
    if "topic_pattern" in fields:
        del declared["topic"]
    return StreamSpec.model_validate(declared)


def test_lag_follows_topic_and_table(world: World) -> None:
    """Nobody knows at first; then nothing after a run, what came since, and nothing again."""
    reader = LagReader(world.settings)
    found = []
    for _ in range(2):
        world.send(*(row(number, "a") for number in range(3)))
        world.send(row(9, "b"), partition=1)
        for run in (lambda: None, world.run):
            run()
            found.append(reader.read([world.spec])[world.topic])

    assert found == [None, {world.topic: 0}, {world.topic: 4}, {world.topic: 0}]


def test_a_first_run_is_due_though_nothing_is_there_to_read(world: World) -> None:
    """A stream that starts at the latest begins where its topic ended when it was declared."""
    world.declare(starting="latest")
    reader = LagReader(world.settings)
    before = reader.read([world.spec])[world.topic], awaits_run(read_snapshot(world.paths))

    world.run()

    after = reader.read([world.spec])[world.topic], awaits_run(read_snapshot(world.paths))
    world.send(row(1, "a"))
    assert (before, after) == ((None, True), ({world.topic: 0}, False))
    assert world.run().total("read") == 1


@pytest.mark.parametrize("records", [1, 2, 3])
def test_a_topic_that_was_made_again_is_left_to_a_run(world: World, records: int) -> None:
    """It means other records, however many it holds now: fewer than were read, as many, or more."""
    reader = LagReader(world.settings)
    world.send(row(1, "a"), row(2, "b"))
    world.run()
    assert reader.read([world.spec]) == {world.topic: {world.topic: 0}}
    world.delete_topic()
    world.create_topic()
    world.send(*(row(number, "c") for number in range(records)))

    assert reader.read([world.spec]) == {world.topic: None}


def test_a_batch_without_its_ledger_row_is_left_to_a_run(world: World) -> None:
    """Nothing is unread, and yet the last batch is not accounted for until another run comes."""
    reader = LagReader(world.settings)
    world.send(row(1, "a"))
    with crashing_at(Failpoint.COMMITTED), pytest.raises(PlannedError):
        world.run()

    assert reader.read([world.spec]) == {world.topic: None}
    assert [each.seq for each in world.run().recovered] == [1]
    assert reader.read([world.spec]) == {world.topic: {world.topic: 0}}


@pytest.mark.parametrize("sink", ["iceberg", *twins("delta")])
def test_a_redrive_that_died_behind_its_commit_awaits_a_run(world: World, sink: str) -> None:
    """Also where its table is none of Delta's, and the topic is quiet."""
    tolerant = {"warn_above": 1, "fail_above": 1}
    world.declare(sink=sink, extra_fields="reject", quarantine_rate=tolerant)
    world.send(row(1, "a"), {**row(2, "b"), "more": 1})
    world.run()
    reader = LagReader(world.settings)
    assert reader.read([world.spec]) == {world.name: {world.topic: 0}}
    world.declare(extra_fields="ignore")
    with crashing_at(Failpoint.COMMITTED), pytest.raises(PlannedError):
        world.redrive()

    assert reader.read([world.spec]) == {world.name: None}
    assert world.run().is_balanced
    assert reader.read([world.spec]) == {world.name: {world.topic: 0}}


def test_a_position_is_not_older_than_the_state_that_it_is_kept_under(
    bucket: str, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store's listing holds for a moment: what was committed since would wait for the next."""
    monkeypatch.setattr("oncelake.ingestion.delta.log_files._HOLDS_SECONDS", 3600.0)
    monkeypatch.setattr(
        "oncelake.ingestion.operations.status.lag.awaits_run", lambda snapshot: False
    )
    monkeypatch.setattr(
        "oncelake.ingestion.operations.status.lag.position_of", lambda snapshot: snapshot
    )
    monkeypatch.setattr(
        "oncelake.ingestion.operations.status.lag.read_snapshot",
        lambda paths: paths.table.log().versions(),
    )
    spec = StreamSpec.model_validate(
        {"name": "orders", "topic": "orders", "schema": COLUMNS, "keys": ["id"]}
    )
    settings = settings.model_copy(update={"lake": bucket})
    data = StreamPaths.of("orders", settings).data
    for _ in range(2):
        rows, options = pa.table({"id": [1]}), storage_options(data)
        write_deltalake(str(data), rows, mode="append", storage_options=options)
        # Lists the log, as an earlier question of this process did.
        log_files(data).names()

    assert LagReader(settings).position(spec) == [1, 0]


def test_one_question_covers_all_streams(world: World) -> None:
    """A topic that is not there, and a table that a run would refuse, are left to a run to tell."""
    world.send(row(1, "a"))
    matching = of(world, "pattern", topic_pattern=f"{world.topic[:-2]}.*")
    world.run()
    world.run(spec=matching)
    world.send(row(2, "b"))
    foreign = world.settings.lake / "foreign"
    foreign.mkdir(parents=True)
    (foreign / "part.parquet").touch()
    specs = [
        world.spec,
        matching,
        of(world, "unmatched", topic_pattern="nothing[.]like[.]it"),
        of(world, "missing", topic="no.such.topic"),
        of(world, "foreign"),
    ]

    lag = LagReader(world.settings).read(specs)

    none = {"unmatched": None, "missing": None, "foreign": None}
    one = {world.topic: 1}
    assert lag == {world.topic: one, "pattern": one, **none}


def test_a_kafka_that_is_away_is_one_error(world: World) -> None:
    """Nobody answers for any stream; the next question is asked at today's address."""
    given = {"kafka": "127.0.0.1:1", "kafka_timeout_seconds": 1}
    reader = LagReader(changed(world.settings, **given))

    with pytest.raises(DependencyError, match="does not answer"):
        reader.read([world.spec])
