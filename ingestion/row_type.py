"""Spark's own reading of a stream's columns, which has the last word on types."""

from __future__ import annotations

from pyspark.sql.types import StructType


def row_type(ddl: str) -> StructType:
    """Return the type of a row that Spark DDL declares; needs a running Spark."""
    parsed = StructType.fromDDL(ddl)
    if not isinstance(parsed, StructType):
        raise TypeError(f"not the columns of a row: {ddl}")
    return parsed
