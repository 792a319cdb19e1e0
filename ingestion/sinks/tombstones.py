"""The memory of deletes: the order of each, so that a late update cannot resurrect a deleted key.

A companion table, append-only by seq; the data table stays free of dead rows. Written before the
data commit, by overwriting the rows of the seq to come, so that an attempt that died leaves nothing
that the next does not replace; rows of a seq that was never committed are not read.
"""

from __future__ import annotations

from delta.tables import DeltaTable
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from ingestion.declaration.sql import quoted
from ingestion.lake.side_tables import overwrite_seq
from ingestion.sinks.ordering import sort_key
from ingestion.sinks.sink import Target


def remember_deletes(target: Target, deletes: DataFrame) -> None:
    """Write the place of each delete of this batch."""
    spec = target.spec
    names = dict.fromkeys([*spec.keys, *spec.order_columns, "_timestamp", "_epoch", "_seq"])
    remembered = deletes.select(*map(quoted, names))
    overwrite_seq(remembered, target.paths.tombstones, target.seq, stats_on=["_seq"])


def latest_deletes(target: Target) -> DataFrame | None:
    """Return the newest committed delete of each key as ``_dead``, or ``None`` without any."""
    spec, committed = target.spec, all_deletes(target)
    if committed is None:
        return None
    return (
        committed.alias("d")
        .groupBy(*(F.col(f"d.{quoted(key)}") for key in spec.keys))
        .agg(F.max(sort_key("d", spec.order_columns)).alias("_dead"))
    )


def all_deletes(target: Target) -> DataFrame | None:
    """Return every committed delete, or ``None`` without any."""
    path = str(target.paths.tombstones)
    if not DeltaTable.isDeltaTable(target.spark, path):
        return None
    return target.spark.read.format("delta").load(path).where(F.col("_seq") < target.seq)
