"""What the next run does about what the last one, or somebody else, left behind.

One stream is ingested once; tests that leave its topic as it is take copies of its lake.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable, write_deltalake

from oncelake.ingestion.errors import (
    ForeignTableError,
    IdentityChangedError,
    IngestionError,
    OffsetsExpiredError,
    SchemaChangedError,
    TableAlteredError,
    TableReplacedError,
    TableRestoredError,
    TopicMissingError,
    TopicRecreatedError,
    TopicTruncatedError,
)
from oncelake.ingestion.lake.ledger import Ledger
from oncelake.ingestion.operations.decisions import accept, adopt_topic, reset
from tests.support.damage import forget_commits
from tests.support.long import IS_LONG, twins
from tests.support.world import World, row

LATEST = [row(1, "b"), row(2, "c")]


@pytest.fixture(scope="module")
def ingested(module_world: World) -> World:
    """A stream of two batches, what it was after the first, and a record that is not read yet."""
    module_world.send(row(1, "a"), b"bad")
    module_world.run()
    shutil.copytree(module_world.paths.checkpoints, module_world.settings.lake.with_name("older"))
    module_world.send(row(1, "b"))
    module_world.run()
    module_world.send(row(2, "c"))
    return module_world


@pytest.fixture
def behind(ingested: World, tmp_path: Path) -> World:
    """A copy of its tables and its checkpoint, one record behind the topic."""
    copy = ingested.copied_to(tmp_path / "lake", state=tmp_path / "state")
    shutil.copytree(ingested.paths.checkpoints, copy.paths.checkpoints)
    return copy


def damage_checkpoint(world: World, kind: str, content: str | None) -> None:
    """Take a file of the checkpoint away, or write something else into it."""
    (generation,) = world.paths.checkpoints.iterdir()
    (generation / kind).unlink()
    if content is not None:
        (generation / kind).write_text(content)


def append_nothing(world: World) -> None:
    """Commit as somebody who changes no row, such as an OPTIMIZE."""
    table = DeltaTable(world.paths.data.path)
    write_deltalake(table, table.to_pyarrow_table()[:0], mode="append")


HARMLESS: dict[str, Callable[[World], object]] = {
    "checkpoint deleted": lambda world: shutil.rmtree(world.paths.checkpoints),
    "metadata garbage": lambda world: damage_checkpoint(world, "metadata", "v1\n{garbage"),
    "somebody's empty commit": append_nothing,
}
if IS_LONG:
    HARMLESS |= {
        "offsets gone": lambda world: damage_checkpoint(world, "offsets/0", None),
        "commits empty": lambda world: damage_checkpoint(world, "commits/0", ""),
        "sources garbage": lambda world: damage_checkpoint(world, "sources/0/0", "v1\n{garbage"),
    }


@pytest.mark.parametrize("change", HARMLESS)
def test_what_does_not_matter_costs_no_record(behind: World, change: str) -> None:
    """Whatever becomes of the checkpoint, and behind somebody's upkeep, the new is read once."""
    HARMLESS[change](behind)

    report = behind.run()

    assert [batch.counts["read"] for batch in report.batches] == [1]
    assert (report.seq, behind.rows()) == (3, LATEST)


def test_a_checkpoint_rolled_back_is_discarded(behind: World, ingested: World) -> None:
    """An older copy of the checkpoint is not believed, and the run says so."""
    shutil.rmtree(behind.paths.checkpoints)
    shutil.copytree(ingested.settings.lake.with_name("older"), behind.paths.checkpoints)

    report = behind.run()

    assert "the last Spark checkpoint was not as the table says" in report.notices[0]
    assert [batch.counts["read"] for batch in report.batches] == [1]
    assert behind.rows() == LATEST


def test_each_run_begins_a_generation_of_its_own(behind: World) -> None:
    """No checkpoint outlives its run; one that agreed with the table is not worth a word."""
    assert [at.name for at in behind.paths.checkpoints.iterdir()] == ["2"]

    report = behind.run()

    assert report.notices == ()
    assert [at.name for at in behind.paths.checkpoints.iterdir()] == ["3"]


def test_a_table_gone_beside_its_ledger_is_refused_until_reset(behind: World) -> None:
    """A table that vanished is never taken for a new stream."""
    shutil.rmtree(behind.paths.data)

    with pytest.raises(TableReplacedError, match=f"oncelake reset {behind.topic}"):
        behind.run()
    moved = reset(behind.topic, behind.settings, run_id="me").archived
    behind.run()

    assert {at.name.removeprefix(behind.topic) for at in moved} == {"__ledger", "__quarantine"}
    assert behind.rows() == LATEST


@pytest.mark.parametrize(
    ("with_ledger", "error"), [(True, TableReplacedError), (False, ForeignTableError)]
)
def test_somebody_elses_table_is_refused(
    behind: World, with_ledger: bool, error: type[IngestionError]
) -> None:
    """A table with rows and no commit of ours is left alone, whether or not a ledger is there."""
    copy = DeltaTable(behind.paths.data.path).to_pyarrow_table()
    if with_ledger:
        shutil.rmtree(behind.paths.data)
    else:
        reset(behind.topic, behind.settings, run_id="me")
    write_deltalake(behind.paths.data.path, copy)

    with pytest.raises(error):
        behind.run()


def test_a_restored_table_is_refused_until_accepted(behind: World) -> None:
    """After somebody's RESTORE the offsets say more than the rows; a person must decide."""
    (second,) = (v for v in behind.log.versions() if _seq(behind, v) == 2)
    DeltaTable(behind.paths.data.path).restore(second - 1)

    with pytest.raises(TableRestoredError):
        behind.run()
    accept(behind.spec, behind.settings, reason="meant to", run_id="me")
    behind.run()

    assert behind.rows() == [row(1, "a"), row(2, "c")]


def _seq(world: World, version: int) -> int | None:
    metadata = world.log.read(version).metadata
    return metadata.seq if metadata else None


@pytest.mark.parametrize(
    ("fields", "error", "says"),
    [
        ({"keys": ["id", "name"]}, IdentityChangedError, "oncelake rebuild"),
        (
            {"schema": "id INT NOT NULL, name STRING, at STRING, more INT"},
            SchemaChangedError,
            "at is INT in the table, declared STRING; more INT is new",
        ),
    ],
    ids=["keys", "columns"],
)
def test_a_declaration_that_does_not_fit_the_table_is_refused(
    behind: World, fields: dict[str, Any], error: type[IngestionError], says: str
) -> None:
    """Other keys need a new table; a declared column that the table does not have is named."""
    behind.declare(**fields)

    with pytest.raises(error, match=says):
        behind.run()


def test_a_lost_ledger_is_made_again_from_the_log(behind: World) -> None:
    """Rows that a crash, or a hand, took from the ledger come back from the commits."""
    before = behind.ledger
    shutil.rmtree(behind.paths.ledger)

    report = behind.run()

    assert [each.seq for each in report.recovered] == [1, 2]
    for healed, original in zip(behind.ledger[:2], before, strict=True):
        assert (healed.ranges, healed.balanced) == (original.ranges, True)
        assert {n: c for n, c in healed.counts.items() if c} == {
            n: c for n, c in original.counts.items() if c
        }


def test_commits_that_aged_out_are_remembered_by_the_ledger(behind: World) -> None:
    """When Delta's log no longer holds our commits, the ledger tells the offsets."""
    append_nothing(behind)
    forget_commits(behind.paths.data)

    report = behind.run()

    assert "the ledger gave the offsets" in report.notices[0]
    assert (report.seq, behind.rows()) == (3, LATEST)


@pytest.mark.kafka
@pytest.mark.spark
def test_a_new_partition_is_read_from_its_start(world: World) -> None:
    """Partitions added between two runs are read whole, and the others go on."""
    world.send(row(1, "a"))
    world.run()
    world.add_partitions(4)
    world.send(row(2, "b"), partition=3)
    world.send(row(3, "c"))

    world.run()

    assert world.rows() == [row(1, "a"), row(2, "b"), row(3, "c")]
    assert [str(c.range) for c in world.ledger[1].ranges if c.records] == [
        f"{world.topic}-0 [1, 2)",
        f"{world.topic}-3 [0, 1)",
    ]


@pytest.mark.parametrize("longer", [True, *twins(False)])
def test_a_recreated_topic_is_refused_until_it_is_adopted(world: World, longer: bool) -> None:
    """A topic with another id is refused; adopting it reads it from its start, and it wins.

    A batch that its run did not live to enter in the ledger is entered first.
    """
    world.send(row(1, "a"), row(2, "b"))
    world.run()
    world.delete_topic()
    world.create_topic()
    world.send(row(1, "new"), *(row(9, "x") for _ in range(5 if longer else 0)))

    with pytest.raises(TopicRecreatedError, match=f"oncelake adopt-topic {world.topic}"):
        world.run()
    DeltaTable(world.paths.ledger.path).delete("seq = 1")
    adopted = adopt_topic(world.spec, world.settings, run_id="me")
    recorded = [each.seq for each in world.ledger]
    world.run()

    assert (adopted.kind, adopted.epoch, adopted.seq) == ("accept", 2, 2)
    assert recorded == [1, 2]
    expected = [row(1, "new"), row(2, "b")]
    assert world.rows() == ([*expected, row(9, "x")] if longer else expected)


def test_a_recreated_topic_keeps_nobody_from_accepting_what_else_was_found(world: World) -> None:
    """Each remedy leads on: rows that somebody deleted are accepted, then the topic is adopted."""
    world.send(row(1, "a"), row(2, "b"))
    world.run()
    DeltaTable(world.paths.data.path).delete("id = 2")
    world.delete_topic()
    world.create_topic()
    world.send(row(1, "new"))

    with pytest.raises(TableAlteredError, match=f"oncelake accept {world.topic}"):
        world.run()
    accept(world.spec, world.settings, reason="meant to", run_id="me")
    with pytest.raises(TopicRecreatedError, match=f"oncelake adopt-topic {world.topic}"):
        world.run()
    with pytest.raises(TopicRecreatedError):
        accept(world.spec, world.settings, reason="nothing else", run_id="me")
    adopt_topic(world.spec, world.settings, run_id="me")
    world.run()

    assert world.rows() == [row(1, "new")]


def test_a_missing_topic_is_refused(world: World) -> None:
    """A topic that does not exist is named, with what to correct."""
    world.declare(topic="nosuchtopic")

    with pytest.raises(TopicMissingError, match="nosuchtopic"):
        world.run()


@pytest.mark.kafka
@pytest.mark.spark
def test_expired_offsets_are_refused_until_accepted(world: World) -> None:
    """Retention beyond our offset is refused with the exact range, and goes on once accepted."""
    world.send(row(1, "a"))
    world.run()
    world.send(row(2, "lost"), row(3, "lost"), row(4, "kept"))
    world.forget_before(0, 3)

    with pytest.raises(OffsetsExpiredError, match=r"-0 \[1, 3\) \(2 offsets\)"):
        world.run()
    accepted = accept(world.spec, world.settings, reason="retention was too short", run_id="me")
    world.run()

    assert world.rows() == [row(1, "a"), row(4, "kept")]
    assert accepted.accepted == "retention was too short"
    assert [str(c.range) for c in accepted.ranges] == [f"{world.topic}-0 [1, 3)"]
    assert [batch.kind for batch in world.ledger] == ["ingest", "accept", "ingest"]


def test_the_first_run_begins_at_what_retention_has_left(world: World) -> None:
    """What expired before the stream began was never promised."""
    world.send(row(1, "gone"), row(2, "kept"))
    world.forget_before(0, 1)

    report = world.run()

    assert world.rows() == [row(2, "kept")]
    assert report.is_balanced


def test_a_truncated_topic_is_refused(world: World) -> None:
    """A partition that ends before the table's offset has lost what the table holds."""
    world.send(row(1, "a"), row(2, "b"))
    world.run()
    position = Ledger(world.paths.ledger).rows()[-1]
    assert position.ranges[0].range.end == 2
    world.delete_topic()
    world.create_topic()

    with pytest.raises((TopicTruncatedError, TopicRecreatedError)):
        world.run()
