"""The declared steps between value and row: ``where``, ``select``, or a function.

What must stay true: a batch that is written twice gives the same rows twice, each row knows the
record that it comes from, and a record gives one row or none. Spark's analysis of the declared
statements over an empty frame shows whether they can be trusted with that, before anything is read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator
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

from oncelake.ingestion.declaration.ddl import DeclaredColumn
from oncelake.ingestion.declaration.names import plain_name
from oncelake.ingestion.declaration.spec import StreamSpec
from oncelake.ingestion.declaration.sql import quoted
from oncelake.ingestion.declaration.types import SqlType
from oncelake.ingestion.errors import BadFieldError
from oncelake.ingestion.modes.engines.frame_cache import FrameCache, is_local
from oncelake.ingestion.modes.engines.rows import Rows, unchanged
from oncelake.ingestion.pipeline.rules import finding_columns
from oncelake.ingestion.pipeline.schema.types import declared_row, row_type, sentence_of
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


def asked_ddl(spec: StreamSpec) -> str:
    """Return the columns that a statement may read beside the record's, as DDL."""
    return _ddl(spec.in_statements(spec.exploded_columns))


def _ddl(columns: Iterable[DeclaredColumn]) -> str:
    """Return columns as Spark's statements have them, which know VARCHAR in tables alone."""
    return ", ".join(
        replace(c, type=c.type.with_words({"VARCHAR": "STRING"})).as_ddl() for c in columns
    )


def transform(
    decoded: Rows, spec: StreamSpec, frames: FrameCache, by: Transformation | None
) -> Rows:
    """Make a row of each value, and tell whether it is selected.

    What could not be decoded is not asked about, and neither is a delete: filtered out, it would
    leave its row in the table.

    Args:
        decoded: Decoded records; see ``ingestion.pipeline.columns``.
        spec: The declaration.
        frames: Keeps the records where a function needs them twice.
        by: The transformation for workers, where they can evaluate it: see
            ``plan_transformation``.

    Returns:
        ``decoded`` with ``_transformed``, a struct of the table's columns, ``_selected`` and
        ``_misfit``, and ``_left_to`` where a row may leave by ``where``; where nothing is declared,
        ``decoded`` itself.
    """
    if not spec.is_transformed:
        return decoded

    def in_spark() -> Rows:
        made = _transformed(decoded.frame(), spec, frames)
        return Rows(records=_without_unneeded(made, spec), work=unchanged)

    if by is None:
        return in_spark()
    return replace(decoded.then(lambda work: evaluate(work, by)), in_spark=in_spark)


def plan_transformation(spark: SparkSession, spec: StreamSpec) -> Transformation | None:
    """Return the transformation for workers; ``None`` where Spark alone understands it."""
    if not spec.is_transformed:
        return None
    made = _made_columns(spec)
    within = [part.word for column in made for part in column.type.walk() if part != column.type]
    if spec.transform or "VARCHAR" in within:
        return None
    nothing = _nothing(spark, spec)
    columns = [_column(column.name, spec) for column in spec.columns]
    where = [] if spec.where is None else [F.expr(spec.where)]
    statements = translate(nothing, [*columns, *where])
    if statements is None:
        return None
    return Transformation(
        where=statements[-1] if where else None,
        columns=statements[: len(columns)],
        row=pa.struct(list(to_arrow_schema(nothing.select(*columns).schema, timezone="UTC"))),
        longest={c.name: c.type.precision for c in made if c.type.word == "VARCHAR"},
        record=spec.record,
        is_exploded=bool(spec.explode),
        has_ended=bool(spec.moved_by),
        leaving=frozenset(spec.leaving_columns if spec.leaves_by_where else ()),
        stays_if_unknown=spec.ignore_null_updates,
    )


def _without_unneeded(made: DataFrame, spec: StreamSpec) -> DataFrame:
    """Return rows without what no later stage needs, since all columns go to a worker."""
    parts = [*finding_columns(spec).values(), *(["kept"] if spec.extra_fields == "keep" else [])]
    value = [F.col(f"_decoded.{part}") for part in parts]
    if required := spec.required_value_columns:
        row = F.struct(*(F.col(f"_decoded.row.{quoted(name)}") for name in required))
        value.append(row.alias("row"))
    needed = [name for name in made.columns if name not in _UNNEEDED]
    return made.withColumn("_decoded", F.struct(*value)).select(*needed)


def _nothing(spark: SparkSession, spec: StreamSpec) -> DataFrame:
    """Return a frame without rows of what statements may read."""
    of_record = (f"{name} {RECORD[name]}" for name in spec.record_names)
    return spark.createDataFrame([], row_type(", ".join((*of_record, asked_ddl(spec)))))


def _transformed(exploded: DataFrame, spec: StreamSpec, frames: FrameCache) -> DataFrame:
    if not spec.explode:
        # Nothing is asked of the records of another type than the declared ones.
        is_empty = F.lit(False)
        if spec.record:
            is_empty = ~F.coalesce(F.col("_decoded.record").isin(*spec.record), F.lit(True))
        exploded = exploded.withColumns({"_index": F.lit(0), "_is_empty": is_empty})
    is_delete = F.coalesce("_decoded.is_delete", F.lit(False))
    is_good = F.col("_value").isNotNull() & F.col("_decoded.reason").isNull() & ~F.col("_is_empty")
    good = exploded.withColumns(
        {"_good": F.when(is_good, F.col("_decoded.row")), "_is_asked": is_good & ~is_delete}
    )
    if spec.transform:
        return _by_function(frames.keep(good), spec)
    readable, whole = laid_out(good, "_good", spec)
    passes = ~whole["_is_empty"] & (~whole["_is_asked"] | is_selected(spec))
    # What is filtered is not asked for more: a CAST may hold only for what ``where`` lets pass.
    row = F.when(passes & whole["_good"].isNotNull(), selected(spec))
    made = {"_selected": passes}
    if spec.leaves_by_where:
        is_left = whole["_is_asked"] & ~whole["_is_empty"] & has_left(spec)
        row = row.when(is_left, selected(spec, only=spec.leaving_columns))
        by_route = whole["_decoded"]["left_to"] if spec.leaves_by_route else F.lit(None)
        made["_left_to"] = F.when(is_left, F.lit(FILTERED)).otherwise(by_route)
    kept = [whole[name].alias(name) for name in exploded.columns]
    named = [column.alias(name) for name, column in {"_transformed": row, **made}.items()]
    rows = without_misfits(_with_ended(readable.select(*kept, *named), spec), "_transformed", spec)
    # Nobody asks whether a row would fit that is not there.
    return rows.withColumn("_misfit", F.when(F.col("_selected"), F.col("_misfit")))


def laid_out(rows: DataFrame, value: str, spec: StreamSpec) -> tuple[DataFrame, Column]:
    """Return rows as statements read them: what they may of the record, and the value's columns.

    Args:
        rows: Have the value's columns as the struct ``value``.
        spec: The declaration.

    Returns:
        The frame, and in it the row as it was, under a name that no column of the value has.
    """
    whole = plain_name("record", [column.name for column in spec.value_columns])
    frame = rows.select(F.struct("*").alias(whole), *spec.record_names, f"{value}.*")
    return frame, F.col(whole)


def given_to_function(rows: DataFrame, value: str, spec: StreamSpec) -> DataFrame:
    """Return what a declared function gets of rows that have the value as the struct ``value``."""
    given = rows.select(*spec.origin, "_timestamp", "_key", "_headers", f"{value}.*")
    return given.where(is_selected(spec))


def _by_function(good: DataFrame, spec: StreamSpec) -> DataFrame:
    """Apply a function to the values that it is asked about; what it does not return is filtered.

    It may leave rows out, so they are matched by their place in Kafka.
    """
    columns = [quoted(column.name) for column in spec.columns]
    rows = function_of(spec)(given_to_function(good.where("_is_asked"), "_good", spec))
    rows = rows.select(*spec.origin, F.struct(*columns).alias("_returned"))
    given = {c.name: F.col(f"_good.{quoted(c.name)}") for c in spec.exploded_columns}
    of_delete = declared_row(spec, given)
    matched = good.join(rows, on=list(spec.origin), how="left")
    is_returned = F.col("_returned").isNotNull()
    made = matched.withColumns(
        {
            "_transformed": F.when(F.col("_is_asked"), F.col("_returned")).otherwise(of_delete),
            "_selected": ~F.col("_is_empty") & (~F.col("_is_asked") | is_returned),
        }
    )
    return without_misfits(_with_ended(made, spec), "_transformed", spec)


def _with_ended(rows: DataFrame, spec: StreamSpec) -> DataFrame:
    """Add ``_ended``, the row that an update ends, made as that of a delete is.

    Where each element gives a row, nothing is known of it; nor where no table could hold the row.
    """
    if not spec.moved_by:
        return rows
    is_ended, unknown = F.col("_decoded.ended").isNotNull(), declared_row(spec, {})
    if spec.explode or spec.transform:
        given = () if spec.explode else spec.value_columns
        of = {column.name: F.col(f"_decoded.ended.{quoted(column.name)}") for column in given}
        with_ended = rows.withColumn("_ended", F.when(is_ended, declared_row(spec, of)))
    else:
        readable, whole = laid_out(rows, "_decoded.ended", spec)
        kept = [whole[name].alias(name) for name in rows.columns]
        row = F.when(whole["_decoded"]["ended"].isNotNull(), selected(spec))
        with_ended = readable.select(*kept, row.alias("_ended"))
    checked = without_misfits(with_ended, "_ended", spec)
    ended = F.when(is_ended, F.coalesce("_ended", unknown)).alias("_ended")
    return checked.select(*rows.columns, ended)


def is_selected(spec: StreamSpec) -> Column:
    """Tell the records that ``where`` lets pass; an answer of null lets none."""
    return F.lit(True) if spec.where is None else F.coalesce(F.expr(spec.where), F.lit(False))


def has_left(spec: StreamSpec) -> Column:
    """Tell the records whose row ``where`` does not let stay.

    Of a partial update, null columns may be such that it does not say.
    """
    passes = F.lit(True) if spec.where is None else F.expr(spec.where)
    return F.coalesce(~passes, F.lit(not spec.ignore_null_updates))


def selected(spec: StreamSpec, *, only: Collection[str] | None = None) -> Column:
    """Return the row that ``select`` makes of the value's columns; null but for ``only`` some."""
    if only is None:
        return F.struct(*(_column(column.name, spec) for column in spec.columns))
    return declared_row(spec, {name: _column(name, spec) for name in only})


def _column(name: str, spec: StreamSpec) -> Column:
    return F.expr(spec.select.get(name, quoted(name))).alias(name)


def without_misfits(rows: DataFrame, row: str, spec: StreamSpec) -> DataFrame:
    """Replace rows that no table could hold by null.

    Args:
        rows: Rows as Spark has made them, whose texts may be any bytes and whose times any year.
        row: The struct of the table's columns among its columns.
        spec: The declaration.

    Returns:
        The same with ``_misfit``: the reason, and the column as its detail; null of what fits.
    """
    misfit = F.lit(None).cast("struct<reason: string, detail: string>")
    for column in _made_columns(spec):
        reason = _misfit(F.col(row)[column.name], column.type)
        detailed = F.struct(reason.alias("reason"), F.lit(column.name).alias("detail"))
        misfit = F.coalesce(misfit, F.when(reason.isNotNull(), detailed))
    checked = rows.withColumn("_misfit", misfit)
    return checked.withColumn(row, F.when(F.col("_misfit").isNull(), F.col(row)))


def _made_columns(spec: StreamSpec) -> list[DeclaredColumn]:
    """Return the columns that are not as decoding gave them, which fits already."""
    given = {column.name: column.type for column in spec.exploded_columns}
    return [
        column
        for column in spec.columns
        if spec.transform or column.name in spec.select or given[column.name] != column.type
    ]


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


def function_of(spec: StreamSpec) -> Callable[[DataFrame], DataFrame]:
    """Import the declared function.

    Raises:
        BadFieldError: it is not there, or cannot be called.
    """
    assert spec.transform is not None, "asked only of streams that declare one"
    module, _, name = spec.transform.rpartition(".")
    try:
        function = getattr(import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise _wrong(spec, "transform", f"cannot be imported: {error}") from error
    if not callable(function):
        raise _wrong(spec, "transform", f"{spec.transform} is no function")
    return cast("Callable[[DataFrame], DataFrame]", function)


def refuse_bad_transformation(spark: SparkSession, spec: StreamSpec) -> None:
    """Make sure, before anything is read, that Spark understands what is declared.

    Raises:
        BadFieldError: it does not, a type is not the declared one, or the result would not be
            the same each time, or not one row a record.
    """
    if not spec.is_transformed:
        return
    nothing = _nothing(spark, spec)
    with_place = [*spec.origin, *(quoted(column.name) for column in spec.columns)]
    if spec.where is not None:
        _analysed(spec, "where", lambda: nothing.where(F.expr(cast("str", spec.where))))
    if spec.transform is not None:
        function = function_of(spec)
        if not is_local(spark.sparkContext):
            # Executors need not have the user's package: its functions go there whole.
            package = import_module(spec.transform.partition(".")[0])
            register_pickle_by_value(package)  # type: ignore[no-untyped-call]
        made = _analysed(spec, "transform", lambda: function(nothing).select(*with_place))
        _refuse_other_types(spec, "transform", made)
        return
    for name, sql in spec.select.items():
        _analysed(spec, f"select.{name}", partial(nothing.select, F.expr(sql)))
    made = nothing.select(selected(spec).alias("_row")).select("_row.*")
    _refuse_other_types(spec, "select", made)


def _analysed(spec: StreamSpec, field: str, make: Callable[[], DataFrame]) -> DataFrame:
    try:
        made = make()
    except (AnalysisException, ParseException) as error:
        problem = f"Spark cannot apply it to the value's columns: {sentence_of(error)}"
        raise _wrong(spec, field, problem) from error
    plan = made._jdf.queryExecution().analyzed()
    if others := sorted(set(_nodes(plan)) - _ROW_BY_ROW):
        raise _wrong(
            spec,
            field,
            f"it is a {', '.join(others)} to Spark, so that a record may give several rows, or one "
            "row stand for several records; only what gives each record one row or none can be "
            "accounted for",
        )
    if not plan.deterministic() or _UNSTEADY.search(str(plan.toString())):
        raise _wrong(
            spec,
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


def _refuse_other_types(spec: StreamSpec, field: str, made: DataFrame) -> None:
    types = {field.name: field.dataType.simpleString() for field in made.schema}
    for column in row_type(_ddl(spec.in_statements(spec.columns))):
        due = column.dataType.simpleString()
        if types[column.name] != due:
            where = f"select.{column.name}" if column.name in spec.select else field
            raise _wrong(
                spec,
                where,
                f"{column.name} becomes {types[column.name].upper()}, and `schema` declares "
                f"{due.upper()}; write CAST(… AS {due.upper()}), or try_cast where it may fail",
            )


def _wrong(spec: StreamSpec, field: str, problem: str) -> BadFieldError:
    return BadFieldError(spec.name, tuple(field.split(".", 1)), problem)
