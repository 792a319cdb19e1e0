"""A statement of ours is idempotent and explained, and the next one of the session is not."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from oncelake.ingestion.delta.log import DeltaLog
from oncelake.ingestion.kafka.offsets import Offsets
from oncelake.ingestion.modes.engines.engine import Decision
from oncelake.ingestion.modes.engines.idempotent_commit import idempotent
from oncelake.ingestion.modes.engines.spark import SparkEngine
from oncelake.ingestion.modes.engines.spark_writer import SparkWriter
from oncelake.ingestion.storage.location import Location
from oncelake.ingestion.tables.commit_metadata import CommitMetadata, Identity

pytestmark = pytest.mark.spark


def metadata(seq: int) -> CommitMetadata:
    """A commit's metadata of no particular batch."""
    identity = Identity(cluster_id="c", topic_ids={}, keys=(), order=())
    return CommitMetadata(
        kind="ingest",
        seq=seq,
        run_id="r",
        epoch=1,
        identity=identity,
        columns="",
        next=Offsets(),
    )


def table(spark: SparkSession, path: Path) -> DeltaLog:
    """A table of three rows."""
    spark.range(3).write.format("delta").save(str(path))
    return DeltaLog(Location.of(path))


def delete_row(spark: SparkSession, log: DeltaLog, row: int) -> None:
    """Delete a row by SQL, which takes the transaction id from the session."""
    spark.sql(f"DELETE FROM delta.`{log.path}` WHERE id = {row}")


def test_only_the_statement_of_the_block_is_ours(spark: SparkSession, tmp_path: Path) -> None:
    """What comes after the block is neither skipped nor explained by our metadata."""
    log = table(spark, tmp_path / "t")

    with idempotent(spark, "s", metadata(1)):
        delete_row(spark, log, 0)
    delete_row(spark, log, 1)

    ours, others = log.since_our_newest("s")
    assert ours is not None
    assert (ours.metadata, ours.txns) == (metadata(1), {"oncelake:s": 1})
    assert [(each.operation, each.metadata, dict(each.txns)) for each in others] == [
        ("DELETE", None, {})
    ]


def test_a_failed_statement_leaves_no_transaction_id(spark: SparkSession, tmp_path: Path) -> None:
    """After an error, too, the next statement is executed and is nobody's."""
    log = table(spark, tmp_path / "t")
    with idempotent(spark, "s", metadata(1)):
        delete_row(spark, log, 0)
    with pytest.raises(KeyError), idempotent(spark, "s", metadata(1)):
        raise KeyError

    delete_row(spark, log, 1)

    assert log.row_count() == 1


def test_a_seq_that_is_known_is_skipped(spark: SparkSession, tmp_path: Path) -> None:
    """The same seq a second time changes nothing, and says nothing: hence the read-back."""
    log = table(spark, tmp_path / "t")
    with idempotent(spark, "s", metadata(1)):
        delete_row(spark, log, 0)

    with idempotent(spark, "s", metadata(1)):
        delete_row(spark, log, 1)

    assert (log.row_count(), len(log.versions())) == (2, 2)


def test_an_empty_commit_is_idempotent_like_rows(spark: SparkSession, tmp_path: Path) -> None:
    """A batch that changes no row is found again by its seq, and committed once."""
    log = table(spark, tmp_path / "t")

    for _ in range(2):
        writer = SparkWriter(SparkEngine(spark), "s", log.path, log.versions()[0])
        writer.commit(Decision(counts={"stale": 3}, keys=("id",)), metadata(4))

    found = log.find("s", 4)
    assert found is not None
    assert (found.metadata, log.last_seq("s"), len(log.versions())) == (metadata(4), 4, 2)
