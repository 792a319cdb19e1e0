"""A format as somebody would add it: `id=1;name=a`, every value a text or a whole number."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from ingestion.formats.decoder import Encoded

REASONS = {"not_pairs": "no list of pairs", "wrong_number": "no whole number"}


def decode(records: DataFrame, encoded: Encoded) -> DataFrame:
    """Take each column from the pair of its name."""
    text = F.col(encoded.column).cast("string")
    pairs = F.when(
        text.rlike("^(\\w+=[^;=]*)(;\\w+=[^;=]*)*$"), F.str_to_map(text, F.lit(";"), F.lit("="))
    )
    with_pairs = records.withColumn("_pairs", pairs)
    told = {
        field.name: F.col("_pairs")[field.name].try_cast(field.dataType) for field in encoded.schema
    }
    failed = [F.col("_pairs")[name].isNotNull() & value.isNull() for name, value in told.items()]
    reason = F.when(F.col(encoded.column).isNotNull() & F.col("_pairs").isNull(), "not_pairs").when(
        F.array_contains(F.array(*failed), True), "wrong_number"
    )
    said = F.struct(
        F.struct(*(value.alias(name) for name, value in told.items())).alias("row"),
        reason.alias("reason"),
        F.lit(None).cast("string").alias("detail"),
        F.array_except(F.map_keys("_pairs"), F.array(*map(F.lit, encoded.schema.names))).alias(
            "extra"
        ),
        F.lit(None).cast("boolean").alias("is_delete"),
    )
    return with_pairs.withColumn(encoded.into, said).drop("_pairs")
