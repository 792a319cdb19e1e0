"""Transactions that are open, aborted, or left hanging, and the offsets behind them."""

from __future__ import annotations

import datetime as dt
import shutil
from pathlib import Path

import pytest
from confluent_kafka import Producer

import oncelake.ingestion.kafka.transactions
from oncelake.assets.checks.checks import WARN, freshness
from oncelake.assets.checks.evidence import Evidence
from oncelake.assets.history import UnreportedBatches
from oncelake.ingestion.declaration.files.loader import DeclaredStream
from oncelake.ingestion.errors import SetupError
from oncelake.ingestion.kafka.offsets import TopicPartition
from oncelake.ingestion.kafka.transactions import java_admin
from oncelake.ingestion.operations.status.lag import LagReader
from oncelake.ingestion.operations.status.status import StatusReader
from oncelake.ingestion.pipeline.report import RunReport
from tests.support.frail_broker import FrailBroker
from tests.support.long import only_long
from tests.support.world import World, row, transactional

pytestmark = [pytest.mark.kafka, pytest.mark.spark]


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Call a transaction stalled as soon as it is open."""
    monkeypatch.setattr(oncelake.ingestion.kafka.transactions, "STALLED_AFTER", dt.timedelta(0))


def left_open(world: World, *, timestamp_ms: int = 0) -> Producer:
    """Begin a transaction with one record at the next offset of partition 0."""
    producer = transactional(world)
    producer.begin_transaction()
    producer.produce(world.topic, b'{"id": 1}', partition=0, timestamp=timestamp_ms)
    assert producer.flush(30) == 0
    return producer


def test_what_lies_behind_an_open_transaction_waits_for_its_end(world: World) -> None:
    """Lag is counted up to the last stable offset; when the transaction ends, all of it is read."""
    producer = left_open(world)
    world.send(row(2, "behind it"))
    world.send(row(3, "beside it"), partition=1)

    during = world.run()
    producer.commit_transaction(30)
    world.wait_for_end(3)
    after = world.run()

    assert (during.row_count, during.lag, during.stalls) == (1, 0, ())
    assert world.rows() == [row(1, None), row(2, "behind it"), row(3, "beside it")]
    assert (after.lag, after.total("read"), after.total("gaps")) == (0, 2, 1)
    assert after.is_balanced


def test_a_batch_of_nothing_but_a_marker_is_a_batch(world: World) -> None:
    """With one offset a batch, markers and aborted records each make one without any record."""
    world.declare(max_offsets_per_trigger=1)
    producer = left_open(world)
    producer.abort_transaction(30)
    world.wait_for_end(2)
    world.send(row(2, "plain"))

    report = world.run()

    assert [batch.counts["gaps"] for batch in report.batches] == [1, 1, 0]
    assert (report.lag, report.is_balanced, world.rows()) == (0, True, [row(2, "plain")])


@pytest.mark.usefixtures("impatient")
def test_a_stalled_transaction_is_named_by_run_check_and_status(
    world: World, tmp_path: Path
) -> None:
    """A run that finds nothing new says what holds it back, and so do its check and the status."""
    world.send(row(0, "before it"))
    producer = left_open(world)
    world.send(row(2, "hidden"))

    report = world.run()
    status = StatusReader(world.settings).read_status(
        DeclaredStream(name=world.topic, path=tmp_path, spec=world.spec, error=None)
    )
    check = freshness(evidence(world, report))
    reader = LagReader(world.settings)
    held_back = reader.stalls(reader.read([world.spec]))
    producer.abort_transaction(30)
    world.wait_for_end(4)
    mended = world.run()

    (stall,) = report.stalls
    assert (stall.at, stall.offset) == (TopicPartition(world.topic, 0), 1)
    for part in (f"{world.topic}-0", "offset 1", "producer id", f"transactional.id {world.topic}"):
        assert part in str(stall)
    assert "its coordinator says Ongoing" in stall.holder
    assert str(stall) in report.notices
    assert (check.passed, check.severity) == (False, WARN)
    assert str(stall) in str(check.description)
    assert status.stalls == report.stalls
    assert held_back == {world.topic: [stall]}
    assert (status.lag, status.exit_code) == (0, 0)
    assert (mended.stalls, freshness(evidence(world, mended)).passed) == ((), True)
    assert world.rows() == [row(0, "before it"), row(2, "hidden")]


def test_a_young_transaction_of_old_records_is_no_stall(world: World) -> None:
    """Records dated years ago only raise the suspicion: the coordinator knows when it began."""
    producer = left_open(world, timestamp_ms=1_356_998_400_000)

    report = world.run()
    producer.abort_transaction(30)

    assert report.stalls == ()


@pytest.mark.usefixtures("impatient")
def test_a_stall_is_explained_without_java_too(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the producer cannot be asked for, the offset is named, and why that is all."""
    world.run()
    producer = left_open(world)

    def no_java() -> str:
        raise SetupError("no java in the PATH")

    monkeypatch.setattr("oncelake.ingestion.kafka.transactions.find_java", no_java)

    report = world.run()
    producer.abort_transaction(30)

    (stall,) = report.stalls
    assert "no java in the PATH" in stall.holder
    assert f"abort --topic {world.topic} --partition 0 --start-offset 0" in stall.remedy


@pytest.mark.usefixtures("impatient")
@only_long
def test_a_hanging_transaction_says_how_to_end_it(frail: FrailBroker, frail_world: World) -> None:
    """A transaction that its coordinator has forgotten is told apart, and the remedy ends it."""
    world = frail_world
    # Nothing is slow here but a cold JVM's first question: more patience than faults need.
    world.settings = world.settings.model_copy(update={"kafka_timeout_seconds": 60})
    world.run()
    left_open(world)
    world.send(row(2, "hidden"))
    frail.stop()
    shutil.rmtree(frail.folder / "data" / "__transaction_state-0")
    frail.start()

    (stall,) = world.run().stalls
    abort(world, stall.at, stall.offset)
    world.wait_for_end(3)
    mended = world.run()

    assert "no coordinator knows the transaction, so it hangs" in stall.holder
    assert f"--topic {world.topic} --partition 0 --start-offset 0" in stall.remedy
    assert (mended.stalls, mended.is_balanced, world.rows()) == ((), True, [row(2, "hidden")])


def abort(world: World, at: TopicPartition, offset: int) -> None:
    """Do what ``kafka-transactions.sh abort`` does: that tool is not among the test's jars."""
    with java_admin(world.settings) as admin:
        producer = admin.producer_at(at, offset)
        assert producer is not None
        java = admin._kafka
        place = java.common.TopicPartition(at.topic, at.partition)
        spec = java.clients.admin.AbortTransactionSpec(place, producer.id, producer.epoch, 0)
        admin._answer(admin._admin.abortTransaction(spec).all())


def evidence(world: World, report: RunReport) -> Evidence:
    """What the checks are given after a run."""
    return Evidence(
        spec=world.spec,
        paths=world.paths,
        report=report,
        table_id=world.log.table_id(),
        ledger=world.ledger,
        unreported=UnreportedBatches(),
        refused=(),
        outcomes=None,
        now=dt.datetime.now(dt.UTC),
    )
