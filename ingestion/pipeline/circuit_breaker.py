"""The breaker: a batch of which too much is bad is not written at all.

A few bad records belong in quarantine; when most of a batch is bad, it is the declaration that is
wrong, or the topic, and quarantining a topic would only move it. So the run stops before anything
is written, and no offset moves.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F

from ingestion.declaration.messages import printable
from ingestion.declaration.spec import StreamSpec
from ingestion.errors import TooManyBadRecordsError
from ingestion.pipeline.counts import BatchCounts

# Where nothing is declared: most of a batch, unless the batch is too small to say anything.
STOP_ABOVE: Final = 0.5
_FEWEST: Final = 100
_SAMPLE_BYTES: Final = 512


def refuse_too_many_bad(copy: DataFrame, tally: BatchCounts, spec: StreamSpec) -> None:
    """Make sure that the share of bad records in a batch is one that may go to quarantine.

    One Spark job more, and only when it is not.

    Args:
        copy: The validated batch, materialised.
        tally: What was counted of it.
        spec: The declaration, which may set the share.

    Raises:
        TooManyBadRecordsError: there are more; names the reasons.
    """
    bad = tally.dispositions.get("quarantined", 0)
    new = tally.read - tally.dispositions.get("overlap", 0)
    declared = spec.quarantine_rate.stop_above
    if not bad or (declared is None and new < _FEWEST):
        return
    above = STOP_ABOVE if declared is None else declared
    if bad <= above * new:
        return
    raise TooManyBadRecordsError(
        spec.name,
        f"{bad:,} of the {new:,} records of a batch are bad, which is more than "
        f"{above:.0%}: {'; '.join(map(_said, _reasons(copy)))}. Nothing was written, and no "
        "offset moved.",
        remedy=f"correct `schema` or `format` in {spec.name}.yaml, or the producer, and run again; "
        "or, if these records are meant to go to quarantine, declare "
        "`quarantine_rate: {stop_above: 1}` there",
    )


def _reasons(copy: DataFrame) -> list[Row]:
    """Ask for each reason: how often, the first place, and what that record looks like."""
    sample = F.struct(
        "_topic",
        "_partition",
        "_offset",
        F.substring("_value", 1, _SAMPLE_BYTES).alias("_value"),
        F.length("_value").alias("_size"),
        "_detail",
    )
    grouped = (
        copy.where("_disposition = 'quarantined'")
        .groupBy("_reason")
        .agg(F.count(F.lit(1)).alias("count"), F.min(sample).alias("first"))
    )
    return list(grouped.orderBy(F.desc("count"), "_reason").collect())


def _said(row: Row) -> str:
    first = row["first"]
    at = f"{first['_topic']}-{first['_partition']} offset {first['_offset']}"
    value = None if first["_value"] is None else bytes(first["_value"])
    detail = f" ({printable(first['_detail'])})" if first["_detail"] else ""
    return f"{row['count']:,} {row['_reason']}, first at {at}{detail}: {printable(value)}"
