"""The guards that stand between a fault and the table: each test fails when its guard is gone."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import oncelake.ingestion.operations.run
import oncelake.ingestion.pipeline.batch
from oncelake.ingestion.errors import (
    CommitConflictError,
    OffsetHoleError,
    RecordsMissedError,
    TopicRecreatedError,
    UnbalancedBatchError,
)
from oncelake.ingestion.kafka.offsets import Offsets
from oncelake.ingestion.modes.engines.engine import Engine
from oncelake.ingestion.modes.engines.rows import Rows
from oncelake.ingestion.modes.upsert import UpsertMode
from oncelake.ingestion.operations.decisions import accept
from oncelake.ingestion.recovery.position import read_position
from oncelake.ingestion.tables.commit_metadata import CommitMetadata
from tests.support.faulty_sink import ID_1_TWICE, WITHOUT_ID_2, merging
from tests.support.world import World, row, transactional


@pytest.mark.kafka
@pytest.mark.spark
def test_aborted_transactions_leave_proven_gaps(world: World) -> None:
    """Markers and aborted records are gaps, asked again of a second client; no row is theirs."""
    producer = transactional(world)
    for number in range(6):
        producer.begin_transaction()
        producer.produce(world.topic, b'{"id": %d}' % number, partition=0)
        producer.flush(30)
        (producer.commit_transaction if number % 2 else producer.abort_transaction)(30)
    world.send(row(9, "plain"), partition=1)
    world.wait_for_end(12)

    report = world.run()

    assert [found["id"] for found in world.rows()] == [1, 3, 5, 9]
    (batch,) = report.batches
    assert (batch.counts["offsets"], batch.counts["read"], batch.counts["gaps"]) == (13, 4, 9)
    assert "gaps_unproven" not in batch.counts
    assert batch.balanced
    assert report.lag == 0


@pytest.mark.kafka
@pytest.mark.spark
def test_a_topic_of_nothing_but_aborted_records_ends(world: World) -> None:
    """A tail without a single record is read to its end, and not read again."""
    producer = transactional(world)
    producer.begin_transaction()
    producer.produce(world.topic, b'{"id": 1}', partition=0)
    producer.flush(30)
    producer.abort_transaction(30)
    world.wait_for_end(2)

    first = world.run()
    second = world.run()

    assert (first.row_count, first.lag, first.total("gaps")) == (0, 0, 2)
    assert second.batches == ()


def test_unproven_gaps_are_marked(world: World) -> None:
    """With ``gaps: never`` the books balance, and say that the gaps are unproven."""
    world.declare(gaps="never")
    producer = transactional(world)
    producer.begin_transaction()
    producer.produce(world.topic, b'{"id": 1}', partition=0)
    producer.commit_transaction(30)
    world.wait_for_end(2)

    report = world.run()

    assert report.batches[0].counts["gaps_unproven"] == 1
    assert report.is_balanced


def test_a_record_that_spark_passed_over_stops_the_run(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A missing offset that holds a record is found by the second client, before any commit."""
    world.send(*(row(i, "a") for i in range(6)))
    honest = oncelake.ingestion.pipeline.batch.decode

    def lossy(records: pa.Table, *given: Any) -> Rows:
        return honest(records.filter(pc.field("_offset") != 3), *given)

    monkeypatch.setattr(oncelake.ingestion.pipeline.batch, "decode", lossy)

    with pytest.raises(RecordsMissedError, match=f"{world.topic}-0 offset 3"):
        world.run()

    assert world.log.last_seq(world.topic) == 0


def test_a_record_delivered_twice_turns_the_books_red(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A source that doubles a record cannot balance: there are more records than offsets."""
    world.send(row(1, "a"), row(2, "b"))
    honest = oncelake.ingestion.pipeline.batch.decode

    def doubling(records: pa.Table, *given: Any) -> Rows:
        second = records.filter(pc.field("_offset") == 1)
        return honest(pa.concat_tables([records, second]), *given)

    monkeypatch.setattr(oncelake.ingestion.pipeline.batch, "decode", doubling)

    report = world.run()

    assert not report.is_balanced
    assert "offsets in ranges 2 ≠ records read 3 + gaps 0" in report.batches[0].problems


def test_a_lost_winner_is_red_until_somebody_accepts_it(world: World) -> None:
    """A record that the sink drops turns the batch red; red is refused until it is accepted."""
    world.send(row(1, "a"), row(2, "dropped"), row(3, "c"))

    with merging(WITHOUT_ID_2):
        red = world.run()
    with pytest.raises(UnbalancedBatchError, match=f"oncelake accept {world.topic}"):
        world.run()
    accept(world.spec, world.settings, reason="a drill", run_id="me")
    world.send(row(4, "d"))
    world.run()

    assert not red.is_balanced
    assert red.batches[0].problems == (
        "3 rows should be inserted, the commit counts 2",
        "the table holds 2 rows of this batch, expected 3",
    )
    assert [(each.seq, each.balanced, each.accepted) for each in world.ledger] == [
        (1, False, "a drill"),
        (2, True, "a drill"),
        (3, True, None),
    ]


def test_a_delete_that_is_not_carried_out_is_red(world: World) -> None:
    """No row carries the seq of a delete, so what the commit counts is compared."""
    world.send(row(1, "a"), row(2, "b"))
    world.run()
    world.send(None, id=1)

    with merging("SELECT * FROM decided WHERE _what <> 'deleted'"):
        red = world.run()

    assert red.batches[0].problems == ("1 row should be deleted, the commit counts 0",)


def test_red_survives_the_loss_of_the_ledger(world: World) -> None:
    """The verdict is made again from the commit, and an acceptance is not forgotten."""
    world.send(row(1, "a"), row(2, "b"))
    with merging(ID_1_TWICE):
        world.run()
    shutil.rmtree(world.paths.ledger)

    with pytest.raises(UnbalancedBatchError):
        world.run()
    accept(world.spec, world.settings, reason="a drill", run_id="me")
    shutil.rmtree(world.paths.ledger)

    assert world.run().is_balanced


@pytest.fixture(scope="module")
def ingested(module_world: World) -> World:
    """A stream that has read two of the three records of its topic."""
    module_world.send(row(1, "a"), row(2, "b"))
    module_world.run()
    module_world.send(row(3, "c"))
    return module_world


@pytest.fixture
def behind(ingested: World, tmp_path: Path) -> World:
    """A copy of it, one record behind."""
    return ingested.copied_to(tmp_path / "lake", state=tmp_path / "state")


def test_an_overlap_is_dropped_and_counted(behind: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Records that the table holds already are not applied again, and are in the books."""
    _start_at(monkeypatch, behind, 1)

    report = behind.run()

    (batch,) = report.batches
    assert (batch.counts["overlap"], batch.counts["inserted"]) == (1, 1)
    assert [str(c.range) for c in batch.ranges if c.records] == [f"{behind.topic}-0 [2, 3)"]
    assert batch.balanced


def test_a_plan_wholly_below_the_table_commits_nothing(
    behind: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch that the table holds already leaves no commit; the next one counts no overlap."""
    behind.declare(max_offsets_per_trigger=2)
    before = behind.log.versions()[0]
    _start_at(monkeypatch, behind, 0)

    report = behind.run()

    (batch,) = report.batches
    assert (batch.seq, batch.counts["read"], batch.counts.get("overlap", 0)) == (2, 1, 0)
    assert report.delta_version == before + 1


def test_a_hole_stops_the_run(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan that begins beyond the table's offset would skip records."""
    world.send(row(1, "a"), row(2, "b"), row(3, "c"))
    world.declare(max_offsets_per_trigger=1)
    _start_at(monkeypatch, world, 2)

    with pytest.raises(OffsetHoleError, match=rf"{world.topic}-0 \[0, 2\)"):
        world.run()


def test_a_topic_recreated_during_a_batch_is_noticed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The topic's id is asked once more after the batch was read, before anything is committed."""
    world.send(row(1, "a"))
    honest = oncelake.ingestion.pipeline.batch.count_records

    def recreating(engine: Engine) -> Any:
        tally = honest(engine)
        world.delete_topic()
        world.create_topic()
        return tally

    monkeypatch.setattr(oncelake.ingestion.pipeline.batch, "count_records", recreating)

    with pytest.raises(TopicRecreatedError):
        world.run()

    assert world.log.last_seq(world.topic) == 0


@pytest.mark.parametrize(
    "engine",
    [pytest.param("spark", marks=[pytest.mark.spark, pytest.mark.kafka]), "local"],
)
def test_a_seq_that_is_there_already_is_no_success(
    world: World, monkeypatch: pytest.MonkeyPatch, engine: str
) -> None:
    """When our seq is in the log with other ranges, nothing is merged, and the run stops."""
    world.settings = world.settings.model_copy(update={"merge_engine": engine})
    world.send(row(1, "a"), row(2, "b"))
    world.run()
    world.send(row(3, "c"))
    honest = UpsertMode.commit

    def overtaken(mode: UpsertMode, metadata: CommitMetadata) -> None:
        position = read_position(world.paths)
        assert position is not None
        late = replace(position.next_metadata("a zombie"), reason="x")
        world.paths.table.commit_note(late)
        honest(mode, metadata)

    monkeypatch.setattr(UpsertMode, "commit", overtaken)

    with pytest.raises(CommitConflictError, match="of run a zombie"):
        world.run()

    assert world.rows() == [row(1, "a"), row(2, "b")]


def _start_at(monkeypatch: pytest.MonkeyPatch, world: World, offset: int) -> None:
    """Let the query begin at an offset of our choice, as a wrong checkpoint would."""
    read = oncelake.ingestion.operations.run.read_stream

    def reading(*given: Any, starting: Offsets, lag: int) -> Any:
        moved = Offsets({at: offset if at.partition == 0 else n for at, n in starting.items()})
        return read(*given, starting=moved, lag=lag)

    monkeypatch.setattr(oncelake.ingestion.operations.run, "read_stream", reading)
    shutil.rmtree(world.paths.checkpoints, ignore_errors=True)
