"""What a user may declare as ``transform``: executors have no such package."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StringType


def place_of_code(_: int) -> str:
    """Tell which copy of the engine's code decodes where this runs."""
    import oncelake.ingestion

    return oncelake.ingestion.__file__ or ""


def with_place_of_code(values: DataFrame) -> DataFrame:
    """Put into ``name`` where the code lies that made the row."""
    place: Column = F.udf(place_of_code, StringType())("id")
    return values.withColumn("name", place)
