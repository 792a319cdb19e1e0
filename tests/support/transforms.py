"""Functions that a stream may declare, and some that it may not."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F


def clean(values: DataFrame) -> DataFrame:
    """Leave out the tests, and put the names together."""
    return values.where("status <> 'test'").select(
        "_topic",
        "_partition",
        "_offset",
        "id",
        F.concat_ws(" ", "first", "last").alias("name"),
        (F.col("cents") / 100).cast("decimal(12, 2)").alias("total"),
        F.lit(None).cast("string").alias("tenant"),
        F.col("_timestamp").alias("sent_at"),
    )


def lines(elements: DataFrame) -> DataFrame:
    """Make a row of each line of an order, but of those taken back."""
    place = ("_topic", "_partition", "_offset", "_index")
    return elements.where("items.qty > 0").select(*place, "id", "at", "items.sku", "items.qty")


def unchecked(values: DataFrame) -> DataFrame:
    """Take bytes for text, and a number for a time, whatever they are."""
    text = F.expr("CAST(_headers[0].value AS STRING)")
    return values.select(
        *("_topic", "_partition", "_offset", "id", "code"),
        F.create_map(F.lit("h"), F.array(F.lit(None), text)).alias("tags"),
        F.timestamp_millis("ms").alias("at"),
    )


def unchanged(values: DataFrame) -> DataFrame:
    """Take all as it is."""
    return values


def same(values: DataFrame) -> DataFrame:
    """Take id and code as they are."""
    return values.select("_topic", "_partition", "_offset", "id", "code")


def without_place(values: DataFrame) -> DataFrame:
    """Forget which record a row comes from."""
    return clean(values).drop("_offset")


def doubling(values: DataFrame) -> DataFrame:
    """Give every record two rows."""
    return clean(values).union(clean(values))


def by_chance(values: DataFrame) -> DataFrame:
    """Give other rows each time."""
    return clean(values).where(F.rand() > 0)


def failing(values: DataFrame) -> DataFrame:
    """Divide by what may be zero, in Python."""
    share = F.udf(lambda cents: 100 // cents, "bigint", useArrow=False)
    tenant = F.lit("t").alias("tenant")
    return values.select(
        "_topic", "_partition", "_offset", "id", share("cents").alias("cents"), tenant
    )
