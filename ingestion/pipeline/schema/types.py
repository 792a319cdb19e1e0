"""Spark's own reading of a declaration, which has the last word on types and conditions."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

import pyarrow as pa
from pyspark import SparkContext
from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import Column, DataFrame, SparkSession, types
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import ArrayType, DataType, MapType, StructField, StructType

from oncelake.ingestion.declaration.ddl import DeclaredColumn, parse_columns, system_columns
from oncelake.ingestion.declaration.derived import as_ddl
from oncelake.ingestion.declaration.gate import rule_of
from oncelake.ingestion.declaration.spec import StreamSpec
from oncelake.ingestion.declaration.types import SqlType
from oncelake.ingestion.errors import BadFieldError, TableSettingsError, reset

_SENTENCE: Final = re.compile(r"\[[A-Z][A-Z_.]+\][^\n]*")
# Spark's codes, and its advice to have failures ignored.
_FOR_PROGRAMS: Final = re.compile(
    r"^\[[A-Z_.]+\]\s*| If necessary set .* this error[^.]*\.| SQLSTATE: .*$"
)

_SCALARS: Final[Mapping[str, type[DataType]]] = {
    "TINYINT": types.ByteType,
    "SMALLINT": types.ShortType,
    "INT": types.IntegerType,
    "BIGINT": types.LongType,
    "FLOAT": types.FloatType,
    "DOUBLE": types.DoubleType,
    "BOOLEAN": types.BooleanType,
    "STRING": types.StringType,
    "BINARY": types.BinaryType,
    "DATE": types.DateType,
    "TIMESTAMP": types.TimestampType,
    "TIMESTAMP_NTZ": types.TimestampNTZType,
    "VARIANT": types.VariantType,
}


def row_type(ddl: str) -> StructType:
    """Return the type of a row that Spark DDL declares, by Spark's own reading where it runs."""
    if SparkContext._active_spark_context is None:
        return type_of_columns(parse_columns(ddl))
    parsed = StructType.fromDDL(ddl)
    if not isinstance(parsed, StructType):
        raise TypeError(f"not the columns of a row: {ddl}")
    return parsed


def type_of_columns(columns: Iterable[DeclaredColumn]) -> StructType:
    """Return the type of a row of declared columns as ``row_type`` does, without a running Spark.

    For what reads records in this process alone; of a run, Spark's own reading decides.
    """
    return StructType([StructField(c.name, _spark_type(c.type), c.nullable) for c in columns])


def _spark_type(type_: SqlType) -> DataType:
    parts = {name: _spark_type(part) for name, part in type_.parts.items()}
    if type_.word == "DECIMAL":
        return types.DecimalType(type_.precision, type_.scale)
    if type_.word == "VARCHAR":
        return types.VarcharType(type_.precision)
    if type_.word == "ARRAY":
        return ArrayType(parts["element"])
    if type_.word == "MAP":
        return MapType(parts["key"], parts["value"])
    if type_.word == "STRUCT":
        required = type_.required
        return StructType([StructField(n, part, n not in required) for n, part in parts.items()])
    return _SCALARS[type_.word]()


def frame_of(spark: SparkSession, rows: pa.Table) -> DataFrame:
    """Return rows as a frame, in which a moment without a zone stays one without."""
    schema = from_arrow_schema(rows.schema, prefer_timestamp_ntz=True)
    return spark.createDataFrame(rows, schema)


def judged_columns(spec: StreamSpec) -> tuple[DeclaredColumn, ...]:
    """Return the columns of a row that is about to be written, as statements read them."""
    return (*spec.in_statements(spec.table_columns), *system_columns())


def statement_ddl(columns: Iterable[DeclaredColumn]) -> str:
    """Return columns as Spark's statements have them, which know VARCHAR in tables alone."""
    return ", ".join(
        replace(c, type=c.type.with_words({"VARCHAR": "STRING"})).as_ddl() for c in columns
    )


def nothing_of(spark: SparkSession, row: Iterable[DeclaredColumn]) -> DataFrame:
    """Return a frame without rows that has some columns, as statements read them."""
    return spark.createDataFrame([], row_type(statement_ddl(row)))


def declared_row(row: Iterable[DeclaredColumn], given: Mapping[str, Column]) -> Column:
    """Return a row of columns as statements have them: those that are given, and else null."""
    made = {f.name: given.get(f.name, F.lit(None)).cast(f.dataType) for f in row_type(as_ddl(row))}
    return F.struct(*(column.alias(name) for name, column in made.items()))


def refuse_bad_condition(spark: SparkSession, spec: StreamSpec) -> None:
    """Make sure, before anything is read, that Spark understands columns and conditions over them.

    Raises:
        BadFieldError: the columns are none to Spark, or ``apply_as_deletes`` or a rule of
            ``expect`` is no condition over them; Spark's word says why.
    """
    for field, ddl in (("schema", spec.ddl), ("value_schema", spec.value_ddl)):
        try:
            row_type(ddl or spec.ddl)
        except (AnalysisException, ParseException) as error:
            problem = f"Spark does not read it as columns: {sentence_of(error)}"
            raise BadFieldError(spec.name, (field,), problem) from error
    deletes = {} if spec.apply_as_deletes is None else {"apply_as_deletes": spec.apply_as_deletes}
    for field, said in _no_conditions(spark, spec.in_statements(spec.columns), deletes):
        raise _no_condition(spec.name, (field,), deletes[field], said)
    rules = {n: each.rule for n, each in spec.expect.items() if each.on_miss != "quarantine"}
    for name, said in _no_conditions(spark, judged_columns(spec), rules):
        raise _no_condition(spec.name, ("expect", name, "rule"), rules[name], said)


def refuse_bad_constraints(
    spark: SparkSession, stream: str, row: Sequence[DeclaredColumn], asked: Mapping[str, str]
) -> None:
    """Make sure, before anything is read, that Spark understands what the table asks of a row.

    Raises:
        TableSettingsError: a constraint is none to Spark, as that of another tool may be.
    """
    for name, said in _no_conditions(spark, row, asked):
        if rule := rule_of(name):
            raise _no_condition(stream, ("expect", rule, "rule"), asked[name], said)
        raise TableSettingsError(
            stream,
            f"Spark does not read constraint {name} of the table, {asked[name]}: {said}",
            remedy=f"drop it, or {reset(stream)}",
        )


def _no_condition(stream: str, field: tuple[str, ...], sql: str, said: str) -> BadFieldError:
    problem = f"{sql!r} is no condition over the declared columns"
    return BadFieldError(stream, field, f"{problem}: {said}")


def _no_conditions(
    spark: SparkSession, row: Iterable[DeclaredColumn], conditions: Mapping[str, str]
) -> Iterator[tuple[str, str]]:
    """Yield what is no condition over some columns, by its name, and why."""
    nothing = nothing_of(spark, row) if conditions else None
    for name, sql in conditions.items():
        assert nothing is not None, "there is a condition"
        try:
            nothing.where(F.expr(sql)).schema  # noqa: B018
        except (AnalysisException, ParseException) as error:
            yield name, sentence_of(error)


def sentence_of(error: Exception) -> str:
    """Return the sentence in which Spark says what is wrong, without what is for programs."""
    sentence = _SENTENCE.search(str(error))
    text = sentence[0] if sentence else (str(error).strip().splitlines() or [""])[0]
    return _FOR_PROGRAMS.sub("", text).strip(" .") + "."
