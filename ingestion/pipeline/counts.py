"""The one materialised copy of a batch, and the one aggregation that counts it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F

from ingestion.kafka.offsets import Range, TopicPartition
from ingestion.pipeline.validate import GOOD

_NAMES_TOLD = 20
_NAME_LENGTH = 100


@dataclass(frozen=True, kw_only=True, slots=True)
class PartitionCounts:
    """What the copy holds of one partition.

    Attributes:
        overlap: How many of them the table holds already.
        offset_sum: Sum of the offsets, which gives away a record delivered twice.
    """

    records: int
    overlap: int
    first: int
    last: int
    offset_sum: int

    def fills(self, planned: Range) -> bool:
        """Tell whether every offset of ``planned`` holds exactly one record."""
        span = len(planned)
        return (self.records, self.first, self.last, self.offset_sum) == (
            span,
            planned.start,
            planned.end - 1,
            span * (planned.start + planned.end - 1) // 2,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchCounts:
    """What one aggregation over the copy counted.

    Attributes:
        dispositions: Rows of each disposition; a record is one row, but where records are exploded.
        partitions: What there is of each partition that has any record.
        good_bytes: Size of the good records' values.
        with_extra: Records applied that have fields which the schema does not name.
        exploded: Rows beyond the first of their record.
    """

    dispositions: Mapping[str, int]
    partitions: Mapping[TopicPartition, PartitionCounts]
    good_bytes: int
    with_extra: int = 0
    exploded: int = 0

    @property
    def read(self) -> int:
        """Records read, whatever became of them."""
        return sum(self.dispositions.values()) - self.exploded

    @property
    def good(self) -> int:
        """Rows that can be applied."""
        return sum(self.dispositions.get(disposition, 0) for disposition in GOOD)


def count_records(copy: DataFrame) -> BatchCounts:
    """Count a batch by disposition and by partition, in one job."""
    is_record = F.col("_index") == 0
    rows = (
        copy.groupBy("_topic", "_partition", "_disposition")
        .agg(
            F.count(F.lit(1)).alias("rows"),
            F.count_if(is_record).alias("records"),
            F.min("_offset").alias("first"),
            F.max("_offset").alias("last"),
            F.sum(F.when(is_record, F.col("_offset")).otherwise(0)).alias("offset_sum"),
            F.sum("_bytes").alias("bytes"),
            F.count_if(is_record & (F.size("_extra") > 0)).alias("with_extra"),
        )
        .collect()
    )
    dispositions: dict[str, int] = {}
    for row in rows:
        dispositions[row["_disposition"]] = dispositions.get(row["_disposition"], 0) + row["rows"]
    at = {TopicPartition(row["_topic"], row["_partition"]) for row in rows}
    return BatchCounts(
        dispositions=dispositions,
        partitions={
            each: _sum_up([row for row in rows if (row["_topic"], row["_partition"]) == each])
            for each in at
        },
        good_bytes=sum(row["bytes"] for row in rows if row["_disposition"] in GOOD),
        with_extra=sum(row["with_extra"] for row in rows if row["_disposition"] in GOOD),
        exploded=sum(row["rows"] - row["records"] for row in rows),
    )


def extra_counts(copy: DataFrame, tally: BatchCounts) -> dict[str, int]:
    """Count the fields that the schema does not name: the records that have any, and each name.

    Only of records that were applied: a quarantined one is kept whole. One job more, and only when
    there are any.

    Returns:
        ``extra_fields``, and ``extra_fields.<name>`` of the most frequent names; nothing when
        there are none.
    """
    if not tally.with_extra:
        return {}
    named = (
        copy.where(F.col("_disposition").isin(*GOOD) & (F.col("_index") == 0))
        .select(F.explode(F.array_distinct("_extra")).alias("name"))
        .groupBy("name")
        .count()
        .orderBy(F.desc("count"), "name")
        .limit(_NAMES_TOLD)
    )
    told = {f"extra_fields.{row['name'][:_NAME_LENGTH]}": row["count"] for row in named.collect()}
    return {"extra_fields": tally.with_extra, **told}


def _sum_up(rows: list[Row]) -> PartitionCounts:
    return PartitionCounts(
        records=sum(row["records"] for row in rows),
        overlap=sum(row["records"] for row in rows if row["_disposition"] == "overlap"),
        first=min(row["first"] for row in rows),
        last=max(row["last"] for row in rows),
        offset_sum=sum(row["offset_sum"] for row in rows),
    )
