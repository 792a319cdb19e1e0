"""The SQL of the pairs, and what it means in plain Python.

Without Spark a statement is evaluated twice all the same: by DuckDB in the batch, where sqlglot
stands for Spark's analysis, and here for the oracle and for the proof.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Final
from unittest.mock import patch

import pyarrow as pa
import sqlglot
from pyspark.sql.pandas.types import to_arrow_schema
from sqlglot.expressions import Column

import oncelake.ingestion.operations.run
import oncelake.ingestion.pipeline.batch
import oncelake.ingestion.pipeline.transform
from oncelake.ingestion.declaration.spec import StreamSpec
from oncelake.ingestion.pipeline.schema import type_of_columns
from oncelake.ingestion.pipeline.transform import plan_transformation, refuse_bad_transformation
from oncelake.ingestion.pipeline.translate import Statement
from oncelake.ingestion.settings import Settings
from tests.support.arrow_source import ArrowSession

Row = dict[str, Any]

WHERE: Final = "amount > 2"
SELECTED: Final = {"name": "upper(label)"}
_MEANING: Final[Mapping[str, Callable[[Row], Any]]] = {
    WHERE: lambda row: None if row.get("amount") is None else row["amount"] > 2,
    SELECTED["name"]: lambda row: row["label"] and row["label"].upper(),
}


def evaluate(sql: str, row: Row) -> Any:
    """Return what a statement gives for a row."""
    return _MEANING[sql](row)


class _Sql(str):
    """A statement, where Spark has a ``Column``."""

    def alias(self, name: str) -> _Sql:
        del name
        return self


class _Functions:
    """Takes the place of ``pyspark.sql.functions`` where a transformation is planned."""

    @staticmethod
    def expr(sql: str) -> _Sql:
        return _Sql(sql)


class _Nothing:
    """Takes the place of the empty frame over which Spark analyses statements."""

    def __init__(self, spec: StreamSpec) -> None:
        self._spec = spec

    def select(self, *columns: _Sql) -> Any:
        del columns
        return self

    @property
    def schema(self) -> Any:
        return type_of_columns(self._spec.columns)


def _translate(nothing: _Nothing, statements: Sequence[str]) -> tuple[Statement, ...]:
    """Translate by sqlglot what both engines understand in the same way."""
    del nothing
    return tuple(map(_statement, statements))


def _statement(text: str) -> Statement:
    parsed = sqlglot.parse_one(text, read="spark")
    names = dict.fromkeys(column.name for column in parsed.find_all(Column))
    for column in parsed.find_all(Column):
        column.set("table", sqlglot.exp.to_identifier("value"))
    sql = parsed.sql(dialect="duckdb", identify=True)
    return Statement(sql=sql, columns=tuple(names), is_column=isinstance(parsed, Column))


def _plan(spark: Any, spec: StreamSpec) -> Any:
    if not isinstance(spark, ArrowSession):
        return plan_transformation(spark, spec)
    module = oncelake.ingestion.pipeline.transform
    with ExitStack() as stack:
        of_spark = {"F": _Functions, "_nothing": lambda _, spec: _Nothing(spec)}
        for name, replacement in {**of_spark, "translate": _translate}.items():
            stack.enter_context(patch.object(module, name, replacement))
        return plan_transformation(spark, spec)


def _refuse(spark: Any, spec: StreamSpec) -> None:
    if not isinstance(spark, ArrowSession):
        refuse_bad_transformation(spark, spec)


@contextmanager
def statements_without_spark() -> Iterator[None]:
    """Let streams without Spark have ``where`` and ``select`` of the pairs."""
    with ExitStack() as stack:
        batch, run = oncelake.ingestion.pipeline.batch, oncelake.ingestion.operations.run
        stack.enter_context(patch.object(batch, "plan_transformation", _plan))
        stack.enter_context(patch.object(run, "refuse_bad_transformation", _refuse))
        yield


def in_python(
    spec: StreamSpec, settings: Settings
) -> Callable[[Sequence[dict[str, Any]]], pa.Table]:
    """Return what makes rows of decoded values for the proof, in Spark's place."""
    del settings
    columns = to_arrow_schema(type_of_columns(spec.columns), timezone="UTC")
    ends = [("_is_gone", pa.bool_()), ("_misfit", pa.string())]
    schema = pa.schema([("_at", pa.int32()), *columns, *ends])

    def apply(values: Sequence[dict[str, Any]]) -> pa.Table:
        made = []
        for value in values:
            row = value["_good"]
            is_asked = spec.where and not value["_is_delete"]
            answer = evaluate(spec.where, row) if is_asked else True
            stays = answer is None and spec.ignore_null_updates
            if answer is not True and (stays or not spec.leaves_by_where):
                continue
            names = spec.leaving_columns if answer is not True else spec.types
            computed = {n: evaluate(sql, row) for n, sql in spec.select.items() if n in names}
            of_row = {n: row.get(n) for n in names}
            ends = {"_at": value["_at"], "_is_gone": answer is not True}
            made.append({**ends, **of_row, **computed})
        return pa.Table.from_pylist(made, schema=schema)

    return apply
