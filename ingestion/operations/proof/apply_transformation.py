"""A declared transformation, applied once more outside of a batch: the proof asks Spark for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from oncelake.ingestion.declaration.spec import StreamSpec
from oncelake.ingestion.settings import Settings

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType

    from oncelake.ingestion.pipeline.plan import RowsPlan


def spark_transformation(
    spec: StreamSpec, settings: Settings
) -> Callable[[Sequence[dict[str, Any]]], pa.Table]:
    """Start Spark, and return what makes rows of decoded values as a batch does.

    A value has its number as ``_at``, whether it is a delete as ``_is_delete``, what a statement
    may read of its record, and its columns as ``_good``, a VARIANT as the text of its JSON. The
    rows begin with those numbers, without the values that are filtered out; each ends with whether
    it is one that ``where`` does not let stay, and the reason why no table could hold it, or null.

    Raises:
        InvalidSpecError: Spark does not understand what is declared.
    """
    from pyspark.sql import functions as F
    from pyspark.sql.types import StructField, StructType

    from oncelake.ingestion.declaration.files.loader import locating_problems
    from oncelake.ingestion.formats.decoder import arrow_type
    from oncelake.ingestion.pipeline.plan import compile_plan
    from oncelake.ingestion.pipeline.schema.types import frame_of, row_type, statement_ddl
    from oncelake.ingestion.pipeline.spark.session import start_session
    from oncelake.ingestion.pipeline.statements.transform import RECORD, refuse_bad_transformation

    # Values come from this process and go back to it: no cluster is worth the way.
    here = settings.model_copy(update={"spark_master": "local[*]"})
    spark = start_session(here if settings.on_cluster else settings)
    plan = compile_plan(spec).rows
    with locating_problems(settings.streams):
        refuse_bad_transformation(spark, plan)
    of_record = ", ".join(f"{name} {type_}" for name, type_ in RECORD.items())
    # A record without a required column may still be filtered out, so null is allowed anywhere.
    asked = row_type(statement_ddl(plan.asked))
    value = StructType([StructField(each.name, each.dataType) for each in asked])
    columns = row_type(f"_at INT, _is_delete BOOLEAN, {of_record}").add("_good", value)
    schema = pa.schema(list(arrow_type(columns)))

    def apply(values: Sequence[dict[str, Any]]) -> pa.Table:
        frame = frame_of(spark, pa.Table.from_pylist(list(values), schema=schema))
        frame = frame.withColumn("_good", _parsed(F.col("_good"), value))
        made: Any = _transformed(frame, plan)
        # ``toArrow`` casts what this returns, and fails at a VARIANT that is null in a STRUCT.
        return pa.Table.from_batches(made._collect_as_arrow(empty_list_if_zero_records=False))

    return apply


def _transformed(values: DataFrame, plan: RowsPlan) -> DataFrame:
    from pyspark.sql import functions as F

    from oncelake.ingestion.pipeline.statements.transform import (
        decoded_row,
        has_left,
        is_selected,
        laid_out,
        returned_rows,
        selected,
        without_misfits,
    )

    ends = F.col("_is_gone"), F.col("_misfit.reason").alias("_misfit")
    if not plan.transform:
        asked, whole = laid_out(values, "_good", plan)
        passes, leaves = whole["_is_delete"] | is_selected(plan.where), F.lit(False)
        row = F.when(passes, selected(plan))
        if plan.leaves_by_where:
            leaves = ~passes & has_left(plan)
            row = row.when(leaves, selected(plan, only=plan.leaving_columns))
        made = asked.where(passes | leaves).select(
            whole["_at"].alias("_at"), row.alias("_row"), leaves.alias("_is_gone")
        )
        return without_misfits(made, "_row", plan).select("_at", "_row.*", *ends)
    # A function keeps the place of a record, and nothing else that it was given.
    asked = values.where("NOT _is_delete")
    rows = returned_rows(asked, plan).withColumnRenamed("_returned", "_row")
    made = rows.join(asked.select("_at", *plan.origin), list(plan.origin))
    # It is not asked about a delete, whose columns are taken as they are.
    deletes = values.where("_is_delete").select("_at", decoded_row(plan, "_good").alias("_row"))
    made = made.select("_at", "_row").union(deletes).withColumn("_is_gone", F.lit(False))
    return without_misfits(made, "_row", plan).select("_at", "_row.*", *ends)


def _parsed(value: Column, type_: DataType) -> Column:
    """Make VARIANTs of the JSON that stands for them, at any depth."""
    from pyspark.sql import functions as F
    from pyspark.sql.types import ArrayType, MapType, StructType

    from oncelake.ingestion.formats.variant import has_variants

    if not has_variants(type_):
        return value
    if isinstance(type_, StructType):
        fields = (_parsed(value.getField(f.name), f.dataType).alias(f.name) for f in type_)
        return F.when(value.isNotNull(), F.struct(*fields))
    if isinstance(type_, ArrayType):
        element = type_.elementType
        return F.transform(value, lambda each: _parsed(each, element))
    if isinstance(type_, MapType):
        item = type_.valueType
        return F.transform_values(value, lambda _, each: _parsed(each, item))
    return F.parse_json(value)
