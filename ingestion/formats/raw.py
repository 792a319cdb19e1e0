"""Bytes as they are, into one BINARY column."""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from ingestion.formats.decoder import Encoded, decoded

REASONS: Final[dict[str, str]] = {}


def decode(records: DataFrame, encoded: Encoded) -> DataFrame:
    """Take the bytes; there are none that would be bad."""
    return one_column(records, encoded, F.col(encoded.column), reason=F.lit(None))


def one_column(records: DataFrame, encoded: Encoded, value: Column, *, reason: Column) -> DataFrame:
    """Add what the bytes say, where that is one value."""
    (column,) = encoded.schema
    row = F.struct(value.alias(column.name))
    return records.withColumn(encoded.into, decoded(encoded, row=row, reason=reason.cast("string")))
