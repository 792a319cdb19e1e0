"""What the next run does about what the last one, or somebody else, left behind."""

from __future__ import annotations

import shutil

import pytest
from deltalake import DeltaTable, write_deltalake

from ingestion.errors import (
    ForeignTableError,
    IdentityChangedError,
    OffsetsExpiredError,
    SchemaChangedError,
    TableReplacedError,
    TableRestoredError,
    TopicMissingError,
    TopicRecreatedError,
    TopicTruncatedError,
)
from ingestion.lake.ledger import Ledger
from ingestion.operations.accept import accept
from ingestion.operations.adopt_topic import adopt_topic
from ingestion.operations.reset import reset
from tests.support.long import twins
from tests.support.world import World, row

pytestmark = [pytest.mark.kafka, pytest.mark.spark]


def test_a_deleted_checkpoint_does_not_matter(world: World) -> None:
    """Without its checkpoint, a run goes on at the table's offsets."""
    world.send(row(1, "a"))
    world.run()
    shutil.rmtree(world.paths.checkpoints)
    unchanged = world.run()
    world.send(row(2, "b"))

    report = world.run()

    assert unchanged.batches == ()
    assert [batch.counts["read"] for batch in report.batches] == [1]
    assert world.rows() == [row(1, "a"), row(2, "b")]


def test_a_checkpoint_rolled_back_is_discarded(world: World) -> None:
    """An older copy of the checkpoint is not believed, and the run says so."""
    world.send(row(1, "a"))
    world.run()
    older = world.paths.checkpoints.with_name("older")
    shutil.copytree(world.paths.checkpoints, older)
    world.send(row(1, "b"))
    world.run()
    shutil.rmtree(world.paths.checkpoints)
    older.rename(world.paths.checkpoints)
    world.send(row(2, "c"))

    report = world.run()

    assert "the last Spark checkpoint was not as the table says" in report.notices[0]
    assert [batch.counts["read"] for batch in report.batches] == [1]
    assert world.rows() == [row(1, "b"), row(2, "c")]


@pytest.mark.parametrize(
    ("kind", "damage"),
    [
        ("metadata", "garbage"),
        *twins(("offsets/0", "gone"), ("commits/0", "empty"), ("sources/0/0", "garbage")),
    ],
    ids=lambda part: part,
)
def test_a_damaged_checkpoint_does_not_matter(world: World, kind: str, damage: str) -> None:
    """Whichever file of the checkpoint is damaged, the run reads what is new, once."""
    world.send(row(1, "a"))
    world.run()
    (generation,) = world.paths.checkpoints.iterdir()
    file = generation / kind
    file.unlink()
    if damage != "gone":
        file.write_text("" if damage == "empty" else "v1\n{garbage")
    world.send(row(2, "b"))

    report = world.run()

    assert [batch.counts["read"] for batch in report.batches] == [1]
    assert world.rows() == [row(1, "a"), row(2, "b")]


def test_each_run_begins_a_generation_of_its_own(world: World) -> None:
    """No checkpoint outlives its run; one that agreed with the table is not worth a word."""
    world.send(row(1, "a"))
    world.run()
    world.send(row(2, "b"))

    report = world.run()

    assert report.notices == ()
    assert [at.name for at in world.paths.checkpoints.iterdir()] == ["2"]


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
    """A topic with another id is refused; adopting it reads it from its start, and it wins."""
    world.send(row(1, "a"), row(2, "b"))
    world.run()
    world.delete_topic()
    world.create_topic()
    world.send(row(1, "new"), *(row(9, "x") for _ in range(5 if longer else 0)))

    with pytest.raises(TopicRecreatedError, match=f"oncelake adopt-topic {world.topic}"):
        world.run()
    adopted = adopt_topic(world.spec, world.settings, run_id="me")
    world.run()

    assert (adopted.kind, adopted.epoch, adopted.seq) == ("accept", 2, 2)
    expected = [row(1, "new"), row(2, "b")]
    assert world.rows() == ([*expected, row(9, "x")] if longer else expected)


def test_a_missing_topic_is_refused(world: World) -> None:
    """A topic that does not exist is named, with what to correct."""
    world.declare(topic="nosuchtopic")

    with pytest.raises(TopicMissingError, match="nosuchtopic"):
        world.run()


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


def test_an_expired_new_partition_is_refused(world: World) -> None:
    """A partition that was added and lost its first records before we saw it is a loss too."""
    world.send(row(1, "a"))
    world.run()
    world.add_partitions(3)
    world.send(row(2, "lost"), row(3, "kept"), partition=2)
    world.forget_before(2, 1)

    with pytest.raises(OffsetsExpiredError, match=r"-2 \[0, 1\)"):
        world.run()


def test_the_first_run_begins_at_what_retention_has_left(world: World) -> None:
    """What expired before the stream began was never promised."""
    world.send(row(1, "gone"), row(2, "kept"))
    world.forget_before(0, 1)

    report = world.run()

    assert world.rows() == [row(2, "kept")]
    assert report.is_balanced


def test_a_table_gone_beside_its_ledger_is_refused_until_reset(world: World) -> None:
    """A table that vanished is never taken for a new stream."""
    world.send(row(1, "a"))
    world.run()
    shutil.rmtree(world.paths.data)

    with pytest.raises(TableReplacedError, match=f"oncelake reset {world.topic}"):
        world.run()
    moved = reset(world.topic, world.settings, run_id="me")
    world.run()

    assert [at.name for at in moved] == [f"{world.topic}__ledger"]
    assert world.rows() == [row(1, "a")]


def test_another_table_beside_the_ledger_is_refused(world: World) -> None:
    """A table that was made again by somebody is not the one the offsets belong to."""
    world.send(row(1, "a"))
    world.run()
    copy = DeltaTable(world.paths.data).to_pyarrow_table()
    shutil.rmtree(world.paths.data)
    write_deltalake(world.paths.data, copy)

    with pytest.raises(TableReplacedError):
        world.run()


def test_a_foreign_table_is_refused(world: World) -> None:
    """A table with rows and no commit of ours is left alone."""
    world.send(row(1, "a"))
    world.run()
    copy = DeltaTable(world.paths.data).to_pyarrow_table()
    reset(world.topic, world.settings, run_id="me")
    write_deltalake(world.paths.data, copy)

    with pytest.raises(ForeignTableError):
        world.run()


def test_a_restored_table_is_refused_until_accepted(world: World) -> None:
    """After somebody's RESTORE the offsets say more than the rows; a person must decide."""
    world.send(row(1, "a"))
    world.run()
    world.send(row(2, "b"))
    world.run()
    world.spark.sql(f"RESTORE TABLE delta.`{world.paths.data}` TO VERSION AS OF 2")

    with pytest.raises(TableRestoredError):
        world.run()
    accept(world.spec, world.settings, reason="meant to", run_id="me")
    world.send(row(3, "c"))
    world.run()

    assert world.rows() == [row(1, "a"), row(3, "c")]


def test_changed_keys_are_refused(world: World) -> None:
    """Keys that differ from those the table was written with need a new table."""
    world.send(row(1, "a"))
    world.run()
    world.declare(keys=["id", "name"])

    with pytest.raises(IdentityChangedError, match="oncelake rebuild"):
        world.run()


def test_changed_columns_are_refused(world: World) -> None:
    """A declared column that the table does not have is named."""
    world.send(row(1, "a"))
    world.run()
    world.declare(schema="id INT NOT NULL, name STRING, at BIGINT, more INT")

    says = "at is INT in the table, declared BIGINT; more INT is new"
    with pytest.raises(SchemaChangedError, match=says):
        world.run()


def test_a_lost_ledger_is_made_again_from_the_log(world: World) -> None:
    """Rows that a crash, or a hand, took from the ledger come back from the commits."""
    world.send(row(1, "a"), row(2, "b"))
    world.run()
    world.send(row(1, "c"))
    world.run()
    before = world.ledger
    shutil.rmtree(world.paths.ledger)

    report = world.run()

    assert [each.seq for each in report.recovered] == [1, 2]
    for healed, original in zip(world.ledger, before, strict=True):
        assert (healed.ranges, healed.balanced) == (original.ranges, True)
        assert {n: c for n, c in healed.counts.items() if c} == {
            n: c for n, c in original.counts.items() if c
        }


def test_commits_that_aged_out_are_remembered_by_the_ledger(world: World) -> None:
    """When Delta's log no longer holds our commits, the ledger tells the offsets."""
    world.send(row(1, "a"))
    world.run()
    world.spark.sql(f"OPTIMIZE delta.`{world.paths.data}`")
    for _ in range(12):
        write_deltalake(
            world.paths.data, DeltaTable(world.paths.data).to_pyarrow_table()[:0], mode="append"
        )
    DeltaTable(world.paths.data).create_checkpoint()
    for version in world.log.versions()[3:]:
        (world.paths.data / "_delta_log" / f"{version:020d}.json").unlink()
    world.send(row(2, "b"))

    report = world.run()

    assert "the ledger gave the offsets" in report.notices[0]
    assert (report.seq, world.rows()) == (2, [row(1, "a"), row(2, "b")])


def test_side_rows_of_a_dead_attempt_are_removed(world: World) -> None:
    """Quarantine rows of a seq that was never committed are not evidence of anything."""
    world.send(b"bad")
    world.run()
    left_over = DeltaTable(world.paths.quarantine).to_pyarrow_table().to_pylist()
    write_deltalake(
        world.paths.quarantine,
        _like(world, [{**left_over[0], "_seq": 7, "_offset": 99}]),
        mode="append",
    )

    world.run()

    assert [bad["_seq"] for bad in world.quarantined()] == [1]


def _like(world: World, rows: list[dict[str, object]]) -> object:
    import pyarrow as pa

    return pa.Table.from_pylist(
        rows, schema=DeltaTable(world.paths.quarantine).to_pyarrow_table().schema
    )


def test_an_idle_stream_keeps_its_place(world: World) -> None:
    """Somebody's OPTIMIZE after our commit changes nothing."""
    world.send(row(1, "a"))
    world.run()
    world.spark.sql(f"OPTIMIZE delta.`{world.paths.data}`")
    world.send(row(2, "b"))

    report = world.run()

    assert (report.seq, world.rows()) == (2, [row(1, "a"), row(2, "b")])


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
