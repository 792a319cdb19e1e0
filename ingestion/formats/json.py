"""JSON documents, one a record, decoded by Spark's own expressions.

Reasons: ``invalid_utf8``, ``malformed_json``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructField, StructType

_SPACE = " \t\r\n"
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
        .when(
            F.col("_parsed").isNull() | F.col(f"_parsed.{_CORRUPT}").isNotNull(), "malformed_json"
        )
        .when(~_is_one_document(text), "malformed_json")
    )
    return (
        records.withColumn("_parsed", parsed)
        .withColumn("_reason", reason)
        .withColumn("_detail", F.when(F.col("_reason").isNotNull(), _what_was_expected(schema)))
        .withColumn("_row", F.struct(*(F.col(f"_parsed.`{name}`") for name in schema.names)))
        .drop("_parsed")
    )


def _is_one_document(text: Column) -> Column:
    """Tell one document from several: ``from_json`` takes the first and drops the rest unsaid."""
    elements = F.json_array_length(F.concat(F.lit("["), text, F.lit("]")))
    return F.coalesce(elements == 1, F.lit(False)) & F.rtrim(text, F.lit(_SPACE)).endswith("}")


def _what_was_expected(schema: StructType) -> Column:
    fields = ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in schema)
    return F.lit(f"expected one JSON object with {fields}"[:500])
