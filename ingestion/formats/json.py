"""JSON documents, one a record, decoded by Spark's own expressions.

Reasons: ``invalid_utf8``, ``malformed_json``.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructField, StructType

from ingestion.formats.protocol import Encoded
from ingestion.latest import quoted

_SPACE = " \t\r\n"
_CORRUPT = "_corrupt_record"


def decode(records: DataFrame, encoded: Encoded) -> DataFrame:
    """Decode each value as one JSON object with the declared fields.

    A field that is absent is null; one that holds another type than declared makes the record
    bad. A key that is a single column may be a bare value.
    """
    raw, schema = F.col(encoded.column), encoded.schema
    with_corrupt = StructType([*schema.fields, StructField(_CORRUPT, StringType())])
    text = raw.cast("string")
    if encoded.is_key and len(schema) == 1:
        text = _wrapped(text, schema)
    parsed = F.from_json(
        text, with_corrupt, {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT}
    )
    reason = (
        F.when(raw.isNull(), None)
        .when(~F.is_valid_utf8(text), "invalid_utf8")
        .when(
            F.col("_parsed").isNull() | F.col(f"_parsed.{_CORRUPT}").isNotNull(), "malformed_json"
        )
        .when(~_is_one_document(text), "malformed_json")
    )
    return (
        records.withColumn("_parsed", parsed)
        .withColumn(
            encoded.into,
            F.struct(
                F.struct(*(F.col(f"_parsed.{quoted(name)}") for name in schema.names)).alias("row"),
                reason.alias("reason"),
                F.when(reason.isNotNull(), _what_was_expected(schema)).alias("detail"),
                F.lit(None).cast("array<string>").alias("extra"),
                F.lit(None).cast("boolean").alias("is_delete"),
            ),
        )
        .drop("_parsed")
    )


def _wrapped(text: Column, schema: StructType) -> Column:
    """Make an object of a bare key: JSON, or for a STRING column plain text."""
    (field,) = schema
    prefix = F.lit(f'{{"{field.name}":')
    bare = F.concat(prefix, text, F.lit("}"))
    if isinstance(field.dataType, StringType):
        plain = F.to_json(F.struct(text.alias(field.name)))
        bare = F.when(text.startswith('"'), bare).otherwise(plain)
    return F.when(F.ltrim(text).startswith("{"), text).otherwise(bare)


def _is_one_document(text: Column) -> Column:
    """Tell one document from several: ``from_json`` takes the first and drops the rest unsaid."""
    elements = F.json_array_length(F.concat(F.lit("["), text, F.lit("]")))
    return F.coalesce(elements == 1, F.lit(False)) & F.rtrim(text, F.lit(_SPACE)).endswith("}")


def _what_was_expected(schema: StructType) -> Column:
    fields = ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in schema)
    return F.lit(f"expected one JSON object with {fields}"[:500])
