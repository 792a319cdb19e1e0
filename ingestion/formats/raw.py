"""The formats ``raw`` and ``string``: a record's bytes into one BINARY or STRING column."""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StringType

from ingestion.formats.decoder import Encoded, decoded

REASONS: Final[dict[str, str]] = {"invalid_utf8": "the bytes are not UTF-8"}


def decode(records: DataFrame, encoded: Encoded) -> DataFrame:
    """Take the bytes unchanged; as a STRING they must be UTF-8, and are never repaired."""
    (column,) = encoded.schema
    value, reason = F.col(encoded.column), F.lit(None)
    if isinstance(column.dataType, StringType):
        value = value.cast("string")
        reason = F.when(~F.is_valid_utf8(value), "invalid_utf8")
    row = F.struct(value.alias(column.name))
    return records.withColumn(encoded.into, decoded(encoded, row=row, reason=reason.cast("string")))
