"""The declared steps between value and row: ``where``, ``select``, or a function.

What must stay true: a batch that is written twice gives the same rows twice, each row knows the
record that it comes from, and a record gives one row or none. Spark's analysis of the declared
statements over an empty frame shows whether they can be trusted with that, before anything is read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from functools import partial
from importlib import import_module
from typing import Any, Final, cast

import pyarrow as pa
from pyspark.cloudpickle import register_pickle_by_value
from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema

from oncelake.ingestion.declaration.names import plain_name
from oncelake.ingestion.declaration.sql import quoted
from oncelake.ingestion.declaration.types import SqlType
from oncelake.ingestion.errors import BadFieldError
from oncelake.ingestion.modes.engines.frame_cache import FrameCache, is_local
from oncelake.ingestion.modes.engines.rows import Rows, unchanged
from oncelake.ingestion.pipeline.plan import RowsPlan
from oncelake.ingestion.pipeline.schema.types import (
    declared_row,
    row_type,
    sentence_of,
    statement_ddl,
)
from oncelake.ingestion.pipeline.statements.evaluate import FILTERED, Transformation, evaluate
from oncelake.ingestion.pipeline.statements.translate import translate

# What a transformation may read beside the value's columns.
RECORD: Final = {
    "_topic": "STRING",
    "_partition": "INT",
    "_offset": "BIGINT",
    "_timestamp": "TIMESTAMP",
    "_key": "BINARY",
    "_headers": "ARRAY<STRUCT<key: STRING, value: BINARY>>",
    "_index": "INT",
}
# Columns that only the evaluation by Spark has.
_UNNEEDED: Final = {"_good", "_is_asked", "_is_empty", "_returned"}
# Logical plans of one row, or none, for each row. Any other may join, multiply or aggregate.
_ROW_BY_ROW: Final = {"Project", "Filter", "LocalRelation", "LogicalRDD", "SubqueryAlias"}
_UNSTEADY: Final = re.compile(
    r"\b(current_timestamp|now|current_date|localtimestamp|current_user|input_file_name"
    r"|current_time)\("
)


def transform(decoded: Rows, plan: RowsPlan, frames: FrameCache, by: Transformation | None) -> Rows:
    """Make a row of each value, and tell whether it is selected.

    What could not be decoded is not asked about, and neither is a delete: filtered out, it would
    leave its row in the table.

    Args:
        decoded: Decoded records; see ``ingestion.pipeline.columns``.
        plan: How values become rows.
        frames: Keeps the records where a function needs them twice.
        by: The transformation for workers, where they can evaluate it: see
            ``plan_transformation``.

    Returns:
        ``decoded`` with ``_transformed``, a struct of the table's columns, ``_selected`` and
        ``_misfit``, and ``_left_to`` where a row may leave by ``where``; where nothing is declared,
        ``decoded`` itself.
    """
    if not plan.is_transformed:
        return decoded

    def in_spark() -> Rows:
        made = _transformed(decoded.frame(), plan, frames)
        return Rows(records=_without_unneeded(made, plan), work=unchanged)

    if by is None:
        return in_spark()
    return replace(decoded.then(lambda work: evaluate(work, by)), in_spark=in_spark)


def plan_transformation(spark: SparkSession, plan: RowsPlan) -> Transformation | None:
    """Return the transformation for workers; ``None`` where Spark alone understands it."""
    if not plan.is_transformed:
        return None
    within = [part.word for c in plan.made for part in c.type.walk() if part != c.type]
    if plan.transform or "VARCHAR" in within:
        return None
    nothing = _nothing(spark, plan)
    columns = [_column(column.name, plan) for column in plan.row]
    where = [] if plan.where is None else [F.expr(plan.where)]
    statements = translate(nothing, [*columns, *where])
    if statements is None:
        return None
    return Transformation(
        where=statements[-1] if where else None,
        columns=statements[: len(columns)],
        row=pa.struct(list(to_arrow_schema(nothing.select(*columns).schema, timezone="UTC"))),
        plan=plan,
    )


def _without_unneeded(made: DataFrame, plan: RowsPlan) -> DataFrame:
    """Return rows without what no later stage needs, since all columns go to a worker."""
    value = [F.col(f"_decoded.{part}") for part in plan.findings.values()]
    if required := plan.required_value_columns:
        row = F.struct(*(F.col(f"_decoded.row.{quoted(name)}") for name in required))
        value.append(row.alias("row"))
    needed = [name for name in made.columns if name not in _UNNEEDED]
    return made.withColumn("_decoded", F.struct(*value)).select(*needed)


def _nothing(spark: SparkSession, plan: RowsPlan) -> DataFrame:
    """Return a frame without rows of what statements may read."""
    of_record = (f"{name} {RECORD[name]}" for name in plan.record_names)
    return spark.createDataFrame([], row_type(", ".join((*of_record, statement_ddl(plan.asked)))))


def _transformed(exploded: DataFrame, plan: RowsPlan, frames: FrameCache) -> DataFrame:
    if not plan.explode:
        # Nothing is asked of the records of another type than the declared ones.
        is_empty = F.lit(False)
        if plan.record:
            is_empty = ~F.coalesce(F.col("_decoded.record").isin(*plan.record), F.lit(True))
        exploded = exploded.withColumns({"_index": F.lit(0), "_is_empty": is_empty})
    is_delete = F.coalesce("_decoded.is_delete", F.lit(False))
    is_good = F.col("_value").isNotNull() & F.col("_decoded.reason").isNull() & ~F.col("_is_empty")
    good = exploded.withColumns(
        {"_good": F.when(is_good, F.col("_decoded.row")), "_is_asked": is_good & ~is_delete}
    )
    if plan.transform:
        return _by_function(frames.keep(good), plan)
    readable, whole = laid_out(good, "_good", plan)
    passes = ~whole["_is_empty"] & (~whole["_is_asked"] | is_selected(plan.where))
    # What is filtered is not asked for more: a CAST may hold only for what ``where`` lets pass.
    row = F.when(passes & whole["_good"].isNotNull(), selected(plan))
    made = {"_selected": passes}
    if plan.leaves_by_where:
        is_left = whole["_is_asked"] & ~whole["_is_empty"] & has_left(plan)
        row = row.when(is_left, selected(plan, only=plan.leaving_columns))
        by_route = whole["_decoded"]["left_to"] if plan.leaves_by_route else F.lit(None)
        made["_left_to"] = F.when(is_left, F.lit(FILTERED)).otherwise(by_route)
    kept = [whole[name].alias(name) for name in exploded.columns]
    named = [column.alias(name) for name, column in {"_transformed": row, **made}.items()]
    rows = without_misfits(_with_ended(readable.select(*kept, *named), plan), "_transformed", plan)
    # Nobody asks whether a row would fit that is not there.
    return rows.withColumn("_misfit", F.when(F.col("_selected"), F.col("_misfit")))


def laid_out(rows: DataFrame, value: str, plan: RowsPlan) -> tuple[DataFrame, Column]:
    """Return rows as statements read them: what they may of the record, and the value's columns.

    Args:
        rows: Have the value's columns as the struct ``value``.
        plan: How values become rows.

    Returns:
        The frame, and in it the row as it was, under a name that no column of the value has.
    """
    whole = plain_name("record", [column.name for column in plan.asked])
    frame = rows.select(F.struct("*").alias(whole), *plan.record_names, f"{value}.*")
    return frame, F.col(whole)


def returned_rows(asked: DataFrame, plan: RowsPlan) -> DataFrame:
    """Return what a declared function makes of rows: their place, and the struct ``_returned``."""
    given = asked.select(*plan.origin, "_timestamp", "_key", "_headers", "_good.*")
    columns = [quoted(column.name) for column in plan.row]
    rows = function_of(plan)(given.where(is_selected(plan.where)))
    return rows.select(*plan.origin, F.struct(*columns).alias("_returned"))


def decoded_row(plan: RowsPlan, value: str) -> Column:
    """Return the table's row of the columns that the struct ``value`` has, as they are."""
    given = {column.name: F.col(f"{value}.{quoted(column.name)}") for column in plan.asked}
    return declared_row(plan.row, given)


def _by_function(good: DataFrame, plan: RowsPlan) -> DataFrame:
    """Apply a function to the values that it is asked about; what it does not return is filtered.

    It may leave rows out, so they are matched by their place in Kafka.
    """
    rows, of_delete = returned_rows(good.where("_is_asked"), plan), decoded_row(plan, "_good")
    matched = good.join(rows, on=list(plan.origin), how="left")
    is_returned = F.col("_returned").isNotNull()
    made = matched.withColumns(
        {
            "_transformed": F.when(F.col("_is_asked"), F.col("_returned")).otherwise(of_delete),
            "_selected": ~F.col("_is_empty") & (~F.col("_is_asked") | is_returned),
        }
    )
    return without_misfits(_with_ended(made, plan), "_transformed", plan)


def _with_ended(rows: DataFrame, plan: RowsPlan) -> DataFrame:
    """Add ``_ended``, the row that an update ends, made as that of a delete is.

    Where each element gives a row, nothing is known of it; nor where no table could hold the row.
    """
    if not plan.moved_by:
        return rows
    is_ended, unknown = F.col("_decoded.ended").isNotNull(), declared_row(plan.row, {})
    if plan.explode or plan.transform:
        row = unknown if plan.explode else decoded_row(plan, "_decoded.ended")
        with_ended = rows.withColumn("_ended", F.when(is_ended, row))
    else:
        readable, whole = laid_out(rows, "_decoded.ended", plan)
        kept = [whole[name].alias(name) for name in rows.columns]
        row = F.when(whole["_decoded"]["ended"].isNotNull(), selected(plan))
        with_ended = readable.select(*kept, row.alias("_ended"))
    checked = without_misfits(with_ended, "_ended", plan)
    ended = F.when(is_ended, F.coalesce("_ended", unknown)).alias("_ended")
    return checked.select(*rows.columns, ended)


def is_selected(where: str | None) -> Column:
    """Tell the records that ``where`` lets pass; an answer of null lets none."""
    return F.lit(True) if where is None else F.coalesce(F.expr(where), F.lit(False))


def has_left(plan: RowsPlan) -> Column:
    """Tell the records whose row ``where`` does not let stay.

    Of a partial update, null columns may be such that it does not say.
    """
    return F.coalesce(~F.expr(plan.where or "TRUE"), F.lit(not plan.ignore_null_updates))


def selected(plan: RowsPlan, *, only: Collection[str] | None = None) -> Column:
    """Return the row that ``select`` makes of the value's columns; null but for ``only`` some."""
    if only is None:
        return F.struct(*(_column(column.name, plan) for column in plan.row))
    return declared_row(plan.row, {name: _column(name, plan) for name in only})


def _column(name: str, plan: RowsPlan) -> Column:
    return F.expr(plan.select.get(name, quoted(name))).alias(name)


def without_misfits(rows: DataFrame, row: str, plan: RowsPlan) -> DataFrame:
    """Replace rows that no table could hold by null.

    Args:
        rows: Rows as Spark has made them, whose texts may be any bytes and whose times any year.
        row: The struct of the table's columns among its columns.
        plan: How values become rows.

    Returns:
        The same with ``_misfit``: the reason, and the column as its detail; null of what fits.
    """
    misfit = F.lit(None).cast("struct<reason: string, detail: string>")
    for column in plan.made:
        reason = _misfit(F.col(row)[column.name], column.type)
        detailed = F.struct(reason.alias("reason"), F.lit(column.name).alias("detail"))
        misfit = F.coalesce(misfit, F.when(reason.isNotNull(), detailed))
    checked = rows.withColumn("_misfit", misfit)
    return checked.withColumn(row, F.when(F.col("_misfit").isNull(), F.col(row)))


def _misfit(value: Column, type_: SqlType) -> Column:
    """Say why no table could hold a value, or one within it; null where it could."""
    parts = type_.parts
    if type_.word in ("STRING", "VARCHAR"):
        reason = F.when(~F.is_valid_utf8(value), "invalid_utf8")
        length = type_.precision
        return reason.when(F.length(value) > length, "too_long") if length else reason
    if type_.word in ("DATE", "TIMESTAMP", "TIMESTAMP_NTZ"):
        return F.when(~F.year(value).between(1, 9999), "bad_time")
    if type_.word == "ARRAY":
        return _misfit_among(value, parts["element"])
    if type_.word == "MAP":
        among_keys = _misfit_among(F.map_keys(value), parts["key"])
        return F.coalesce(among_keys, _misfit_among(F.map_values(value), parts["value"]))
    of_fields = (_misfit(value[name], part) for name, part in parts.items())
    return F.coalesce(F.lit(None).cast("string"), *of_fields)


def _misfit_among(values: Column, type_: SqlType) -> Column:
    return F.array_max(F.transform(values, lambda value: _misfit(value, type_)))


def function_of(plan: RowsPlan) -> Callable[[DataFrame], DataFrame]:
    """Import the declared function.

    Raises:
        BadFieldError: it is not there, or cannot be called.
    """
    assert plan.transform is not None, "asked only of streams that declare one"
    module, _, name = plan.transform.rpartition(".")
    try:
        function = getattr(import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise _wrong(plan.name, "transform", f"cannot be imported: {error}") from error
    if not callable(function):
        raise _wrong(plan.name, "transform", f"{plan.transform} is no function")
    return cast("Callable[[DataFrame], DataFrame]", function)


def refuse_bad_transformation(spark: SparkSession, plan: RowsPlan) -> None:
    """Make sure, before anything is read, that Spark understands what is declared.

    Raises:
        BadFieldError: it does not, a type is not the declared one, or the result would not be
            the same each time, or not one row a record.
    """
    if not plan.is_transformed:
        return
    nothing = _nothing(spark, plan)
    with_place = [*plan.origin, *(quoted(column.name) for column in plan.row)]
    if plan.where is not None:
        _analysed(plan.name, "where", lambda: nothing.where(F.expr(cast("str", plan.where))))
    if plan.transform is not None:
        function = function_of(plan)
        if not is_local(spark.sparkContext):
            # Executors need not have the user's package: its functions go there whole.
            package = import_module(plan.transform.partition(".")[0])
            register_pickle_by_value(package)  # type: ignore[no-untyped-call]
        made = _analysed(plan.name, "transform", lambda: function(nothing).select(*with_place))
        _refuse_other_types(plan, "transform", made)
        return
    for name, sql in plan.select.items():
        _analysed(plan.name, f"select.{name}", partial(nothing.select, F.expr(sql)))
    made = nothing.select(selected(plan).alias("_row")).select("_row.*")
    _refuse_other_types(plan, "select", made)


def _analysed(stream: str, field: str, make: Callable[[], DataFrame]) -> DataFrame:
    try:
        made = make()
    except (AnalysisException, ParseException) as error:
        problem = f"Spark cannot apply it to the value's columns: {sentence_of(error)}"
        raise _wrong(stream, field, problem) from error
    plan = made._jdf.queryExecution().analyzed()
    if others := sorted(set(_nodes(plan)) - _ROW_BY_ROW):
        raise _wrong(
            stream,
            field,
            f"it is a {', '.join(others)} to Spark, so that a record may give several rows, or one "
            "row stand for several records; only what gives each record one row or none can be "
            "accounted for",
        )
    if not plan.deterministic() or _UNSTEADY.search(str(plan.toString())):
        raise _wrong(
            stream,
            field,
            "its result differs each time it is asked for; a batch that is written again must give "
            "the same rows: take a column of the record, such as _timestamp",
        )
    return made


def _nodes(plan: Any) -> Iterator[str]:
    yield str(plan.nodeName())
    children = plan.children()
    for at in range(children.size()):
        yield from _nodes(children.apply(at))


def _refuse_other_types(plan: RowsPlan, field: str, made: DataFrame) -> None:
    types = {field.name: field.dataType.simpleString() for field in made.schema}
    for column in row_type(statement_ddl(plan.row)):
        due = column.dataType.simpleString()
        if types[column.name] != due:
            where = f"select.{column.name}" if column.name in plan.select else field
            raise _wrong(
                plan.name,
                where,
                f"{column.name} becomes {types[column.name].upper()}, and `schema` declares "
                f"{due.upper()}; write CAST(… AS {due.upper()}), or try_cast where it may fail",
            )


def _wrong(stream: str, field: str, problem: str) -> BadFieldError:
    return BadFieldError(stream, tuple(field.split(".", 1)), problem)
