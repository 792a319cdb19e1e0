"""The gate every record passes: decoded, judged, and given one fate.

The fate is what the books count by, so each record has exactly one:

    overlap      read again, though the table holds it already
    quarantined  it cannot be applied; the reason says why
    ignored      a tombstone that the stream ignores
    row          it says what a row should be
    delete       it says that a row should be gone

Reasons, beside those of the format: ``missing_key``, ``missing_order``, ``missing_required``,
``tombstone_without_key``, ``tombstone_without_order``.
"""

from __future__ import annotations

from collections.abc import Iterable

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructType

from ingestion.formats.protocol import decoder
from ingestion.latest import quoted
from ingestion.offsets import Offsets
from ingestion.spec import StreamSpec

PLACE = ("_topic", "_partition", "_offset", "_timestamp")
RAW = ("_key", "_value", "_headers")
GOOD = ("row", "delete")


def judge(records: DataFrame, spec: StreamSpec, schema: StructType, reached: Offsets) -> DataFrame:
    """Decode a batch and give each record its fate.

    Args:
        records: ``_topic, _partition, _offset, _timestamp, _key, _value, _headers``.
        spec: The declared stream.
        schema: The declared columns.
        reached: Next offsets of the table; records below them are overlap. Empty when the plan
            overlaps nothing: literals that change with every batch would make Spark compile anew.

    Returns:
        The place, the declared columns, ``_fate``, ``_reason``, ``_detail``, ``_bytes`` (size of
        the value), and the raw key, value and headers, which are null unless quarantined.
    """
    decoded = decoder(spec.format.type)(records, schema, spec.format.model_extra or {})
    columns = _row_or_key(spec, schema)
    typed = decoded.select(*PLACE, *RAW, "_reason", "_detail", columns.alias("_row")).select(
        *PLACE, *RAW, "_reason", "_detail", "_row.*"
    )
    fated = (
        typed.withColumn("_delete", _is_delete(spec))
        .withColumn("_detail", F.coalesce("_detail", _missing(spec)))
        .withColumn("_reason", F.coalesce("_reason", _reason(spec)))
        .withColumn("_fate", _fate(spec, reached))
    )
    is_bad = F.col("_fate") == "quarantined"
    return fated.select(
        *PLACE,
        *map(quoted, schema.names),
        "_fate",
        F.coalesce(F.octet_length("_value"), F.lit(0)).alias("_bytes"),
        *(F.when(is_bad, F.col(name)).alias(name) for name in ("_reason", "_detail", *RAW)),
    )


def _row_or_key(spec: StreamSpec, schema: StructType) -> Column:
    """Take the columns from the value; for a tombstone, the key columns from the Kafka key."""
    from_key = _key_columns(spec, schema)
    of_tombstone = F.struct(
        *(from_key.get(f.name, F.lit(None)).cast(f.dataType).alias(f.name) for f in schema)
    )
    return F.when(F.col("_value").isNull(), of_tombstone).otherwise(F.col("_row"))


def _key_columns(spec: StreamSpec, schema: StructType) -> dict[str, Column]:
    """Read key columns from a Kafka key: a JSON object, or a bare scalar for a single column."""
    wanted = StructType([schema[name] for name in spec.keys])
    text = F.col("_key").cast("string")
    is_object = F.ltrim(text).startswith("{")
    if len(spec.keys) != 1:
        parsed = F.from_json(F.when(is_object, text), wanted)
        return {name: parsed[name] for name in spec.keys}
    (name,) = spec.keys
    wrapped = F.concat(F.lit(f'{{"{name}":'), text, F.lit("}"))
    scalar = F.from_json(F.when(is_object, text).otherwise(wrapped), wanted)[name]
    if isinstance(schema[name].dataType, StringType):
        scalar = F.coalesce(F.when(~is_object & ~text.startswith('"'), text), scalar)
    return {name: scalar}


def _is_delete(spec: StreamSpec) -> Column:
    """Tell deletes: null values, and records that ``apply_as_deletes`` selects."""
    is_tombstone = F.col("_value").isNull()
    if spec.apply_as_deletes is None:
        return is_tombstone
    return is_tombstone | F.coalesce(F.expr(spec.apply_as_deletes), F.lit(False))


def _reason(spec: StreamSpec) -> Column:
    """Say why a record that could be decoded cannot be applied; null when it can."""
    is_tombstone = F.col("_value").isNull()
    policy = F.lit(spec.tombstone_policy)
    return (
        F.when(is_tombstone & (policy == "ignore"), None)
        .when(is_tombstone & (policy == "quarantine"), "tombstone_without_order")
        .when(is_tombstone & _any_null(spec.keys), "tombstone_without_key")
        .when(_any_null(spec.keys), "missing_key")
        .when(_any_null(spec.sequence_by), "missing_order")
        .when(~F.col("_delete") & _any_null(_required(spec)), "missing_required")
    )


def _missing(spec: StreamSpec) -> Column:
    """Name the columns that are null and may not be."""
    needed = dict.fromkeys([*spec.keys, *spec.sequence_by, *_required(spec)])
    nulls = (F.when(F.col(quoted(name)).isNull(), F.lit(name)) for name in needed)
    reason = _reason(spec)
    return F.when(reason.isNotNull(), F.concat(F.lit("null: "), F.concat_ws(", ", *nulls)))


def _required(spec: StreamSpec) -> list[str]:
    return [column.name for column in spec.columns if not column.nullable]


def _any_null(names: Iterable[str]) -> Column:
    condition = F.lit(False)
    for name in names:
        condition = condition | F.col(quoted(name)).isNull()
    return condition


def _fate(spec: StreamSpec, reached: Offsets) -> Column:
    is_ignored = F.col("_value").isNull() & F.lit(spec.tombstone_policy == "ignore")
    return (
        F.when(_is_overlap(reached), "overlap")
        .when(F.col("_reason").isNotNull(), "quarantined")
        .when(is_ignored, "ignored")
        .when(F.col("_delete"), "delete")
        .otherwise("row")
    )


def _is_overlap(reached: Offsets) -> Column:
    condition = F.lit(False)
    for (topic, partition), at in reached.items():
        here = (F.col("_topic") == topic) & (F.col("_partition") == partition)
        condition = condition | (here & (F.col("_offset") < at))
    return condition
