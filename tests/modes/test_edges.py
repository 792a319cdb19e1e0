"""Where the write modes differ from an upsert in what they refuse, repeat and remember."""

from __future__ import annotations

import datetime as dt
import json
from dataclasses import replace
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import functions as F

from oncelake.ingestion.errors import (
    IdentityChangedError,
    KeyInTwoPartitionsError,
    NotReplayableError,
    RefusedError,
)
from oncelake.ingestion.modes.aggregate import AggregateMode
from oncelake.ingestion.modes.append import AppendMode
from oncelake.ingestion.modes.engines.spark import SparkEngine
from oncelake.ingestion.modes.engines.spark_writer import SparkWriter
from oncelake.ingestion.modes.mode import Good, Target, WriteMode, audit
from oncelake.ingestion.operations.history.rewind import rewind
from oncelake.ingestion.recovery.position import read_position
from oncelake.ingestion.tables.commit_metadata import CommitMetadata
from tests.support.long import only_long
from tests.support.proof import find_problems
from tests.support.world import World, row


def again(world: World, sink: type[WriteMode], **good: Any) -> tuple[WriteMode, CommitMetadata]:
    """Return a sink that is to write rows of the table again, and the metadata of a replay."""
    position = read_position(world.paths)
    assert position is not None
    rows = world.spark.read.format("delta").load(str(world.paths.data)).drop("_epoch", "_seq")
    records = rows.withColumns({"_disposition": F.lit("row"), "_bytes": F.lit(1)})
    moved = records.where("id = 2").withColumn("_offset", F.col("_offset") + 100)
    engine = SparkEngine(world.spark)
    engine.hold(records.union(moved))
    engine.define("good", "SELECT * FROM batch")
    told = {"count": records.count() + 1}
    metadata = position.next_metadata("me", kind="replay")
    target = Target(
        engine=engine,
        spec=world.spec,
        paths=world.paths,
        epoch=1,
        seq=metadata.seq,
        table=SparkWriter(engine, world.spec.name, world.paths.data, world.log.versions()[0]),
    )
    return sink(target, Good(**{**told, "deletes": 0, "size_bytes": 9, **good})), metadata


@pytest.mark.spark
def test_a_replay_adds_to_an_append_only_what_is_missing(world: World) -> None:
    """Equal records are rows of their own, and a record that is there is not added again."""
    world.declare(mode="append", keys=[])
    world.send(row(1, "a"), row(1, "a"), row(2, "b"), None, {"id": "?"})
    report = world.run()
    assert (report.total("inserted"), report.total("quarantined")) == (3, 2)
    assert find_problems(world) == ()
    sink, metadata = again(world, AppendMode)

    decided = sink.decide(metadata.kind)
    counts = {"offsets": 4, "read": 4, **decided}
    sink.commit(replace(metadata, counts=counts))

    assert decided == {"inserted": 1, "unchanged": 3}
    commit = world.log.find(world.topic, metadata.seq)
    assert commit is not None
    assert audit(AppendMode, commit, rows_of_seq=1) == ()
    assert len(audit(AppendMode, commit, rows_of_seq=2)) == 1
    offsets = DeltaTable(world.paths.data.path).to_pyarrow_table()["_offset"].to_pylist()
    assert sorted(offsets) == [0, 1, 2, 102]


@pytest.mark.kafka
@pytest.mark.spark
@only_long
def test_a_group_is_not_replayed_and_not_continued_by_another_fold(world: World) -> None:
    """What would count a record again, or fold another column into a total, is refused."""
    world.declare(mode="aggregate", aggregates={"total": "sum(at)"})
    world.send(row(1, "a", at=1), row(2, "b", at=5))
    world.run()
    sink, metadata = again(world, AggregateMode)

    with pytest.raises(NotReplayableError, match=f"oncelake rebuild {world.topic}"):
        sink.decide(metadata.kind)
    world.declare(aggregates={"total": "sum(id)"})
    with pytest.raises(IdentityChangedError, match=r"sum\(at\); the file declares .*sum\(id\)"):
        world.run()


def test_a_sum_that_overflows_names_the_stream_and_what_to_declare(world: World) -> None:
    """In a batch, and in the fold; nothing is committed."""
    most = 2**63 - 1
    world.declare(mode="aggregate", schema="id INT NOT NULL, n BIGINT", aggregates={"s": "sum(n)"})
    world.send({"id": 1, "n": most})
    world.run()
    for _ in range(2):
        world.send({"id": 1, "n": most})

        with pytest.raises(RefusedError, match="has more digits") as refused:
            world.run()

        assert f"oncelake rebuild {world.topic}" in refused.value.remedy
        assert world.log.last_seq(world.topic) == 1


def test_a_row_that_comes_again_keeps_nothing_of_the_deleted(world: World) -> None:
    """Deleted and sent again in one batch, its nulls are not filled from what was there before."""
    world.declare(ignore_null_updates=True)
    world.send(row(1, "a", at=1), row(2, "b", at=1))
    world.run()
    world.send(None, id=1)
    world.send(row(1, None, at=2), row(2, None, at=2))
    world.run()

    assert world.rows() == [row(1, None, at=2), row(2, "b", at=2)]
    assert find_problems(world) == ()


@pytest.mark.kafka
def test_a_window_beyond_the_years_of_readers_is_not_made(world: World) -> None:
    """A time is quarantined whose week begins before the year 1, or ends after 9999."""
    world.declare(
        schema="id INT NOT NULL, seen TIMESTAMP",
        mode="aggregate",
        aggregates={"n": "count(*)"},
        window={"column": "seen", "every": "7 days"},
    )
    days = ("0001-01-01", "0001-01-04", "9999-12-29", "9999-12-30")
    world.send(*({"id": 1, "seen": f"{day}T00:00:00Z"} for day in days))
    world.run()

    found = [(row["_offset"], row["reason"], row["detail"]) for row in world.quarantined()]
    assert sorted(found) == [(0, "bad_time", "seen"), (3, "bad_time", "seen")]
    assert world.ledger[-1].counts["groups"] == 2
    assert find_problems(world) == ()


@pytest.mark.kafka
@pytest.mark.spark
@only_long
def test_a_window_over_the_time_of_a_record_ends_before_the_year_10000(world: World) -> None:
    """Kafka takes any time stamp; the last one that a table takes may begin a window beyond."""
    world.delete_topic()
    world.create_topic(**{"message.timestamp.after.max.ms": str(2**63 - 1)})
    world.declare(mode="aggregate", aggregates={"n": "count(*)"}, tombstones="ignore")
    world.declare(window={"column": "_timestamp", "every": "730 days"})
    for offset, milliseconds in enumerate((0, 1_800_000_000_000_000)):
        raw = json.dumps(row(offset, "a")).encode()
        world.producer.produce(world.topic, raw, partition=0, timestamp=milliseconds)
    assert world.producer.flush(30) == 0
    world.run()

    assert [bad["reason"] for bad in world.quarantined()] == ["bad_time"]
    assert find_problems(world) == ()


@pytest.mark.kafka
@pytest.mark.spark
@only_long
def test_the_clock_is_that_of_the_slowest_partition(world: World) -> None:
    """It waits until every partition has spoken, and then goes by the one that is behind."""
    world.declare(
        schema="id INT NOT NULL, seen TIMESTAMP",
        mode="aggregate",
        aggregates={"n": "count(*)"},
        window={"column": "seen", "every": "1 hour", "allowed_delay": "10 minutes"},
    )
    world.send({"id": 1, "seen": "2024-01-01T12:00:00Z"}, partition=1)
    world.run()
    alone = dict(world.ledger[-1].counts)
    world.send({"id": 1, "seen": "2024-01-01T10:00:00Z"}, partition=0)
    world.run()

    ten = int(dt.datetime(2024, 1, 1, 10, tzinfo=dt.UTC).timestamp() * 1_000)
    assert "clock_ms" not in alone
    assert world.ledger[-1].counts["clock_ms"] == ten - 10 * 60 * 1_000


@pytest.mark.kafka
@pytest.mark.spark
@only_long
def test_the_clock_goes_back_with_a_rewind(world: World) -> None:
    """What an undone batch has seen of the future makes no later window final."""
    world.declare(
        schema="id INT NOT NULL, seen TIMESTAMP",
        mode="aggregate",
        aggregates={"n": "count(*)"},
        window={"column": "seen", "every": "1 hour"},
    )
    world.send({"id": 1, "seen": "2024-01-01T10:00:00Z"})
    world.run()
    clocks = {name: at for name, at in world.ledger[-1].counts.items() if "clock_ms" in name}
    world.send({"id": 1, "seen": "2099-01-01T00:00:00Z"})
    world.run()
    rewind(world.spec, world.settings, to="seq:1", reason="a test", run_id="r")
    world.declare(where="seen < TIMESTAMP '2030-01-01'")
    world.run()

    assert {name: at for name, at in world.ledger[-1].counts.items() if name in clocks} == clocks
    assert find_problems(world) == ()
    assert find_problems(world) == ()


def test_without_an_order_the_first_of_two_partitions_is_not_guessed(world: World) -> None:
    """One key in two partitions has no first record; in one, the lowest offset is it for good."""
    world.declare(mode="insert_only")
    world.send(row(1, "first"), row(1, "second"), row(2, "b"))
    world.run()
    world.send(row(1, "third"))
    world.run()

    assert world.rows() == [row(1, "first"), row(2, "b")]
    assert [(each.counts["superseded"], each.counts["stale"]) for each in world.ledger] == [
        (1, 0),
        (0, 1),
    ]
    assert find_problems(world) == ()
    world.send(row(2, "elsewhere"), partition=1)
    with pytest.raises(KeyInTwoPartitionsError, match="id=2"):
        world.run()


def test_a_null_value_ends_a_version_by_the_time_of_kafka(world: World) -> None:
    """With `_timestamp` as the order, a tombstone has one, and closes the version before it."""
    world.declare(mode="scd2", sequence_by=["_timestamp"])
    world.send(row(1, "a"), row(2, "b"))
    world.run()
    world.send(None, id=1)
    world.send(None, id=3)
    world.send(row(1, "back"))
    report = world.run()

    names = ["id", "name", "valid_from", "valid_to", "current", "_timestamp"]
    rows = DeltaTable(world.paths.data.path).to_pyarrow_table(columns=names).to_pylist()
    told = {each["name"]: each for each in rows}
    assert all(each["valid_from"] == each["_timestamp"] for each in rows)
    assert {name: each["current"] for name, each in told.items()} == {
        "a": False,
        "b": True,
        "back": True,
    }
    assert told["a"]["valid_from"] <= told["a"]["valid_to"] <= told["back"]["valid_from"]
    expected = {"inserted": 1, "deleted": 1, "deleted_absent": 1, "closed": 1}
    assert {name: report.total(name) for name in expected} == expected
    assert find_problems(world) == ()
