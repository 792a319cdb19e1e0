"""JSON documents, one a record, decoded by Spark's own expressions.

Reasons: ``invalid_utf8``, ``malformed_json``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructField, StructType

_CORRUPT = "_corrupt_record"


def decode(records: DataFrame, schema: StructType, options: Mapping[str, Any]) -> DataFrame:
    """Decode each value as one JSON object with the declared fields.

    A field that is absent is null; one that holds another type than declared makes the record
    bad. Fields that the schema does not name are passed over.
    """
    with_corrupt = StructType([*schema.fields, StructField(_CORRUPT, StringType())])
    text = F.col("_value").cast("string")
    parsed = F.from_json(
        text, with_corrupt, {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT}
    )
    reason = (
        F.when(F.col("_value").isNull(), None)
        .when(~F.is_valid_utf8(text), "invalid_utf8")
        .when(F.col("_parsed").isNull() | F.col(f"_parsed.{_CORRUPT}").isNotNull(), "malformed_json")
    )
    return (
        records.withColumn("_parsed", parsed)
        .withColumn("_reason", reason)
        .withColumn("_detail", F.when(F.col("_reason").isNotNull(), _what_was_expected(schema)))
        .withColumn("_row", F.struct(*(F.col(f"_parsed.`{name}`") for name in schema.names)))
        .drop("_parsed")
    )


def _what_was_expected(schema: StructType) -> Any:
    fields = ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in schema)
    return F.lit(f"expected one JSON object with {fields}"[:500])
