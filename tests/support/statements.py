"""Declared statements of streams without Spark, where sqlglot stands for Spark's analysis.

Only what means the same to Spark and to DuckDB; that the product translates what Spark has analysed
is tried where Spark is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import oncelake.ingestion.operations.run
import oncelake.ingestion.pipeline.batch
import oncelake.ingestion.pipeline.statements.transform
from oncelake.ingestion.pipeline.plan import RowsPlan
from oncelake.ingestion.pipeline.schema.types import type_of_columns
from oncelake.ingestion.pipeline.statements.transform import (
    plan_transformation,
    refuse_bad_transformation,
)
from oncelake.ingestion.pipeline.statements.translate import Statement
from tests.support.arrow_source import ArrowSession, statement_of


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

    def __init__(self, plan: RowsPlan) -> None:
        self._plan = plan

    def select(self, *columns: _Sql) -> Any:
        del columns
        return self

    @property
    def schema(self) -> Any:
        return type_of_columns(self._plan.row)


def _translate(nothing: _Nothing, statements: Sequence[str]) -> tuple[Statement, ...]:
    """Translate by sqlglot what both engines understand in the same way."""
    del nothing
    return tuple(map(statement_of, statements))


def _plan(spark: Any, plan: RowsPlan) -> Any:
    if not isinstance(spark, ArrowSession):
        return plan_transformation(spark, plan)
    module = oncelake.ingestion.pipeline.statements.transform
    with ExitStack() as stack:
        of_spark = {"F": _Functions, "_nothing": lambda _, plan: _Nothing(plan)}
        for name, replacement in {**of_spark, "translate": _translate}.items():
            stack.enter_context(patch.object(module, name, replacement))
        return plan_transformation(spark, plan)


def _refuse(spark: Any, plan: RowsPlan) -> None:
    if not isinstance(spark, ArrowSession):
        refuse_bad_transformation(spark, plan)


@contextmanager
def statements_without_spark() -> Iterator[None]:
    """Let streams without Spark have ``where`` and ``select``."""
    with ExitStack() as stack:
        batch, run = oncelake.ingestion.pipeline.batch, oncelake.ingestion.operations.run
        stack.enter_context(patch.object(batch, "plan_transformation", _plan))
        stack.enter_context(patch.object(run, "refuse_bad_transformation", _refuse))
        yield
