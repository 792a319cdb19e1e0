"""Text, into one STRING column."""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from ingestion.formats.decoder import Encoded
from ingestion.formats.raw import one_column

REASONS: Final[dict[str, str]] = {"invalid_utf8": "the bytes are not UTF-8"}


def decode(records: DataFrame, encoded: Encoded) -> DataFrame:
    """Take the text; bytes that are none are bad, and never mended."""
    text = F.col(encoded.column).cast("string")
    reason = F.when(~F.is_valid_utf8(text), "invalid_utf8")
    return one_column(records, encoded, text, reason=reason)
