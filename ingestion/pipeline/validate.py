"""Every row of a batch is given one disposition.

The disposition is what the books count by, so each record has exactly one:

    overlap      read again, though the table holds it already
    quarantined  it cannot be applied; the reason says why
    ignored      a tombstone that the stream ignores
    filtered     ``where``, or the declared function, leaves it out
    row          it says what a row should be
    delete       it says that a row should be gone

Reasons, beside those of the format: see ``REASONS``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from ingestion.declaration.modes import EXTRA_COLUMN
from ingestion.declaration.spec import StreamSpec
from ingestion.declaration.sql import quoted
from ingestion.kafka.offsets import Offsets
from ingestion.pipeline.columns import PLACE, RAW
from ingestion.pipeline.explode import rejoin
from ingestion.pipeline.schema import row_type

GOOD = ("row", "delete")
REASONS: Final = {
    "missing_key": "a key column, or the column of `window`, is null or absent",
    "missing_order": "a column of `sequence_by` is null or absent",
    "missing_required": "a `NOT NULL` column is null or absent",
    "tombstone_without_key": "a null value whose Kafka key does not give the key columns",
    "tombstone_without_order": "a null value that `sequence_by` cannot place",
    "tombstone_quarantined": "a null value, and the stream says `tombstones: quarantine`",
    "unexpected_tombstone": "a null value, in a mode that deletes nothing",
    "unexpected_delete": "the record is a delete, in a mode that deletes nothing",
}


def validate(transformed: DataFrame, spec: StreamSpec, reached: Offsets) -> DataFrame:
    """Give each row its disposition, and the reason where it cannot be applied.

    Args:
        transformed: Rows as declared; see ``ingestion.pipeline.columns``.
        spec: The declaration.
        reached: Next offsets of the table; records below them are overlap. Empty when the plan
            overlaps nothing: literals that change with every batch would make Spark compile anew.

    Returns:
        The judged batch, with the table's columns as far as the record says them; ``_extra`` has
        the names that the declaration does not have. Raw key, value and headers, and everything
        that only a record in quarantine needs, are null in the others.
    """
    schema = row_type(spec.ddl)
    reason = F.when(F.col("_selected"), _reason(spec))
    rows = (
        _typed(transformed, spec, schema)
        .withColumn("_is_delete", _is_delete(spec))
        .withColumn("_detail", F.coalesce("_problem.detail", _missing(spec)))
        .withColumn("_reason", F.coalesce("_problem.reason", reason))
        .withColumn("_disposition", _disposition(spec, reached))
    )
    is_bad = F.col("_disposition") == "quarantined"
    return rejoin(rows, spec).select(
        *PLACE,
        "_index",
        *map(quoted, schema.names),
        *_kept_name(spec),
        "_disposition",
        "_extra",
        F.coalesce(F.octet_length("_value"), F.lit(0)).alias("_bytes"),
        *(F.when(is_bad, F.col(name)).alias(name) for name in ("_reason", "_detail", *RAW)),
    )


def _typed(transformed: DataFrame, spec: StreamSpec, schema: StructType) -> DataFrame:
    """Take the row that a value gives, or the key of a tombstone, and what decoding found wrong."""
    row = _row(spec, schema, F.col("_transformed")).alias("_row")
    problem = F.struct(
        "_decoded.reason", _detail(spec).alias("detail"), _lacking(spec).alias("lacks")
    ).alias("_problem")
    kept = [F.col("_decoded.kept").alias(name) for name in _kept_name(spec)]
    extra = F.col("_decoded.extra").alias("_extra")
    is_delete = F.col("_decoded.is_delete").alias("_says_delete")
    of_record = (*PLACE, "_index", *RAW, "_selected")
    return transformed.select(*of_record, problem, extra, is_delete, row, *kept).select(
        *of_record, "_problem", "_extra", "_says_delete", "_row.*", *_kept_name(spec)
    )


def _detail(spec: StreamSpec) -> Column:
    """Return what the format says of a bad value or, where there is none, of a bad key."""
    if spec.tombstone_policy != "delete":
        return F.col("_decoded.detail")
    of_key = F.concat_ws(": ", "_decoded_key.reason", "_decoded_key.detail")
    return F.coalesce("_decoded.detail", F.when(F.col("_decoded_key.reason").isNotNull(), of_key))


def _lacking(spec: StreamSpec) -> Column:
    """Name the columns of `value_schema` that are null and may not be, whatever is made of them."""
    names = spec.required_value_columns
    nulls = (F.when(F.col(f"_decoded.row.{quoted(name)}").isNull(), F.lit(name)) for name in names)
    return F.array_compact(F.array(*nulls)) if names else F.lit(None).cast("array<string>")


def _row(spec: StreamSpec, schema: StructType, row: Column) -> Column:
    """Take the columns from the value; for a tombstone, the key columns from the Kafka key."""
    if spec.tombstone_policy != "delete":
        return row
    by_key = {name: F.col(f"_decoded_key.row.{quoted(name)}") for name in spec.keys}
    of_tombstone = F.struct(
        *(by_key.get(f.name, F.lit(None)).cast(f.dataType).alias(f.name) for f in schema)
    )
    return F.when(F.col("_value").isNull(), of_tombstone).otherwise(row)


def _kept_name(spec: StreamSpec) -> list[str]:
    return [EXTRA_COLUMN] if spec.extra_fields == "keep" else []


def _is_delete(spec: StreamSpec) -> Column:
    """Tell deletes: null values, those the format knows, and what ``apply_as_deletes`` selects."""
    is_delete = F.col("_value").isNull() | F.coalesce("_says_delete", F.lit(False))
    if spec.apply_as_deletes is None:
        return is_delete
    return is_delete | F.coalesce(F.expr(spec.apply_as_deletes), F.lit(False))


def _reason(spec: StreamSpec) -> Column:
    """Say why a record that could be decoded cannot be applied; null when it can."""
    is_tombstone = F.col("_value").isNull()
    policy = F.lit(spec.tombstone_policy)
    lacks = F.coalesce(F.size("_problem.lacks") > 0, F.lit(False))
    return (
        F.when(is_tombstone & (policy == "ignore"), None)
        .when(is_tombstone & (policy == "quarantine"), _why_no_tombstone(spec))
        .when(F.col("_is_delete") & F.lit(not spec.write_mode.has_deletes), "unexpected_delete")
        .when(is_tombstone & _any_null(spec.never_null), "tombstone_without_key")
        .when(_any_null(spec.never_null), "missing_key")
        .when(_any_null(spec.sequence_by), "missing_order")
        .when(~F.col("_is_delete") & (_any_null(_required(spec)) | lacks), "missing_required")
    )


def _why_no_tombstone(spec: StreamSpec) -> str:
    if not spec.write_mode.has_deletes:
        return "unexpected_tombstone"
    return "tombstone_quarantined" if spec.tombstones_have_an_order else "tombstone_without_order"


def _missing(spec: StreamSpec) -> Column:
    """Name the columns that are null and may not be."""
    needed = dict.fromkeys([*spec.never_null, *spec.sequence_by, *_required(spec)])
    nulls = (F.when(F.col(quoted(name)).isNull(), F.lit(name)) for name in needed)
    where = F.lit("")
    if spec.explode:
        nth = F.format_string("element %d: ", F.col("_index"))
        where = F.when(F.col("_value").isNull(), "").otherwise(nth)
    described = F.concat(where, F.lit("null: "), F.concat_ws(", ", *nulls, "_problem.lacks"))
    return F.when(_reason(spec).isNotNull(), described)


def _required(spec: StreamSpec) -> list[str]:
    return [column.name for column in spec.columns if not column.nullable]


def _any_null(names: Iterable[str]) -> Column:
    condition = F.lit(False)
    for name in names:
        condition = condition | F.col(quoted(name)).isNull()
    return condition


def _disposition(spec: StreamSpec, reached: Offsets) -> Column:
    is_ignored = F.col("_value").isNull() & F.lit(spec.tombstone_policy == "ignore")
    return (
        F.when(_is_overlap(reached), "overlap")
        .when(F.col("_reason").isNotNull(), "quarantined")
        .when(is_ignored, "ignored")
        .when(~F.col("_selected"), "filtered")
        .when(F.col("_is_delete"), "delete")
        .otherwise("row")
    )


def _is_overlap(reached: Offsets) -> Column:
    condition = F.lit(False)
    for (topic, partition), at in reached.items():
        here = (F.col("_topic") == topic) & (F.col("_partition") == partition)
        condition = condition | (here & (F.col("_offset") < at))
    return condition
