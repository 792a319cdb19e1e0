"""Which quarantined records a redrive has sent in: its seq is written beside them.

The mark is written before the redrive's commit, like every other side row. One above the table's
last seq is of a redrive that died: it did not happen, and the start of every run takes it away.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow.compute as pc
from delta.tables import DeltaTable as SparkTable
from deltalake import DeltaTable
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from ingestion.audit import count_rows
from ingestion.declaration.spec import COORDINATES


def mark(sent: DataFrame, quarantine: Path, seq: int, *, within: Column) -> int:
    """Mark the rows of the records that a redrive sends in.

    By Spark: the JVM that holds the lock is what writes.

    Args:
        sent: The records; each place comes once.
        quarantine: The table's folder.
        seq: Number of the redrive to come.
        within: Which rows of the quarantine, ``t``, may be meant: those of one epoch, in which a
            place is one record's.

    Returns:
        How many rows bear this mark now, read back.
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
    return marks_of(quarantine, seq)


def marks_of(quarantine: Path, seq: int) -> int:
    """Count the records that a redrive has marked."""
    return count_rows(quarantine, pc.field("redriven_seq") == seq)


def unmark_beyond(quarantine: Path, seq: int) -> int:
    """Take away the marks of redrives that died before their commit.

    Returns:
        How many records had one.
    """
    if not DeltaTable.is_deltatable(str(quarantine)):
        return 0
    left_over = count_rows(quarantine, pc.field("redriven_seq") > seq)
    if left_over:
        DeltaTable(quarantine).update(
            updates={"redriven_seq": "CAST(NULL AS BIGINT)"}, predicate=f"redriven_seq > {seq}"
        )
    return left_over
