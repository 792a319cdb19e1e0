"""Records that could not be applied: raw, with the reason, under the seq of their batch."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pyarrow.compute as pc
from delta.tables import DeltaTable as SparkTable
from deltalake import DeltaTable, Field
from deltalake.schema import PrimitiveType
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from ingestion.declaration.modes import COORDINATES
from ingestion.declaration.spec import StreamSpec, engine_version, fingerprint
from ingestion.lake.commit_metadata import CommitMetadata
from ingestion.lake.paths import StreamPaths
from ingestion.lake.side_tables import count_rows, overwrite_seq, rows_of_seq


def mark_redriven(sent: DataFrame, quarantine: Path, seq: int, *, within: Column) -> int:
    """Mark the rows of the records that a redrive sends in; return how many bear the mark now.

    By Spark: the JVM that holds the lock is what writes.

    Args:
        sent: The records; each place comes once.
        within: Which rows of the quarantine, ``t``, may be meant: those of one epoch, in which a
            place is one record's.
    """
    same = within & F.col("t.redriven_seq").isNull()
    for name in COORDINATES:
        same = same & (F.col(f"t.{name}") == F.col(f"s.{name}"))
    (
        SparkTable.forPath(sent.sparkSession, str(quarantine))
        .alias("t")
        .merge(sent.select(*COORDINATES).alias("s"), same)
        .whenMatchedUpdate(set={"redriven_seq": F.lit(seq).cast("long")})
        .execute()
    )
    return redrive_marks(quarantine, seq)


def redrive_marks(quarantine: Path, seq: int) -> int:
    """Count the records that a redrive has marked."""
    return count_rows(quarantine, pc.field("redriven_seq") == seq)


def clear_marks_beyond(quarantine: Path, seq: int) -> int:
    """Remove the marks of redrives that died before their commit; return how many there were."""
    if not DeltaTable.is_deltatable(str(quarantine)):
        return 0
    left_over = count_rows(quarantine, pc.field("redriven_seq") > seq)
    if left_over:
        DeltaTable(quarantine).update(
            updates={"redriven_seq": "CAST(NULL AS BIGINT)"}, predicate=f"redriven_seq > {seq}"
        )
    return left_over


_RAW: Final = ("key", "value", "headers")
# A format that knows the id of a record's schema begins its detail with it.
_SCHEMA_ID: Final = r"^schema id (\d+):"
# What tables of an earlier version do not have.
_ADDED: Final = {
    "schema_id": "integer",
    "engine_version": "string",
    "run_id": "string",
    "declaration": "string",
}


def write_quarantine(
    bad: DataFrame, paths: StreamPaths, metadata: CommitMetadata, spec: StreamSpec
) -> int:
    """Write the bad records of one batch, replacing what a dead attempt left of the same seq.

    Args:
        bad: Quarantined records as ``ingestion.pipeline.validate`` returns them.

    Returns:
        How many the table holds of this batch now, read back.
    """
    rows = bad.select(
        *COORDINATES,
        "_timestamp",
        F.lit(metadata.seq).cast("long").alias("_seq"),
        *(F.col(f"_{name}").alias(name) for name in (*_RAW, "reason", "detail")),
        F.lit(None).cast("long").alias("redriven_seq"),
        F.regexp_extract("_detail", _SCHEMA_ID, 1).try_cast("int").alias("schema_id"),
        F.lit(engine_version()).alias("engine_version"),
        F.lit(metadata.run_id).alias("run_id"),
        F.lit(fingerprint(spec)).alias("declaration"),
    )
    add_missing_columns(paths.quarantine)
    overwrite_seq(
        rows, paths.quarantine, metadata.seq, stats_on=["_seq", "_offset", "redriven_seq"]
    )
    return rows_of_seq(paths.quarantine, metadata.seq)


def add_missing_columns(path: Path) -> None:
    """Give a table of an earlier version the columns that it does not have."""
    if not DeltaTable.is_deltatable(str(path)):
        return
    table = DeltaTable(path)
    there = {field.name for field in table.schema().fields}
    missing = [
        Field(name, PrimitiveType(type_)) for name, type_ in _ADDED.items() if name not in there
    ]
    if missing:
        table.alter.add_columns(missing)


def waiting_records(spark: SparkSession, path: Path, reason: str | None) -> DataFrame:
    """Return the records that no redrive has sent in yet, as validation takes them, with ``_seq``.

    With a ``reason``, only those that were refused for it.
    """
    rows = spark.read.format("delta").load(str(path)).where("redriven_seq IS NULL")
    if reason is not None:
        rows = rows.where(F.col("reason") == reason)
    raw = (F.col(name).alias(f"_{name}") for name in _RAW)
    return rows.select(*COORDINATES, "_timestamp", *raw, "_seq")
