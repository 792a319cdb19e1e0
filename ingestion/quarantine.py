"""Records that could not be applied: raw, with the reason, under the seq of their batch."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from ingestion.audit import rows_of_seq
from ingestion.lake import StreamPaths
from ingestion.side_table import overwrite_seq


def quarantine(bad: DataFrame, paths: StreamPaths, seq: int) -> int:
    """Write the bad records of one batch, replacing what a dead attempt left of the same seq.

    Args:
        bad: Quarantined records as ``ingestion.gate`` returns them.
        paths: The stream's tables.
        seq: Number of the batch to come.

    Returns:
        How many the table holds of this batch now, read back.
    """
    rows = bad.select(
        "_topic",
        "_partition",
        "_offset",
        "_timestamp",
        F.lit(seq).cast("long").alias("_seq"),
        F.col("_key").alias("key"),
        F.col("_value").alias("value"),
        F.col("_headers").alias("headers"),
        F.col("_reason").alias("reason"),
        F.col("_detail").alias("detail"),
        F.lit(None).cast("long").alias("redriven_seq"),
    )
    overwrite_seq(rows, paths.quarantine, seq, stats_on=["_seq", "_offset"])
    return rows_of_seq(paths.quarantine, seq)
