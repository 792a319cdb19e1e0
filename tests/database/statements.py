"""Declared statements without Spark: it analyses none, and DuckDB evaluates all of them.

Those of histories are so plain that they mean the same to both; that the product translates what
Spark has analysed is tried where Spark is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Final
from unittest.mock import patch

import duckdb
import pyarrow as pa
import sqlglot
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType
from sqlglot import exp

import oncelake.ingestion.operations.run
from oncelake.ingestion.declaration.spec import StreamSpec
from oncelake.ingestion.pipeline import decode, follow_schema, transform
from oncelake.ingestion.pipeline.schema import type_of_columns
from oncelake.ingestion.pipeline.translate import Statement
from oncelake.ingestion.settings import Settings
from oncelake.ingestion.verify.fold.transform import Apply
from tests.support.arrow_source import ArrowFrame, ArrowSession

# What the product does where Spark is.
_MOVED: Final = decode.refuse_moved_embedded
_KEYED: Final = decode._with_tombstone_keys
_PAYLOAD: Final = ',"payload":'
_MISFIT: Final = "CAST(NULL AS VARCHAR)"


@dataclass(frozen=True, slots=True)
class _Expression:
    sql: str

    def alias(self, _name: str) -> _Expression:
        """Have any name."""
        return self


@dataclass(frozen=True, slots=True)
class _Nothing:
    """Takes the place of a frame without rows, of which the types alone are asked."""

    spec: StreamSpec

    def select(self, *_columns: _Expression) -> Any:
        """Return a frame of the table's columns."""
        return SimpleNamespace(schema=_types_of(self.spec))


def _types_of(spec: StreamSpec) -> StructType:
    return type_of_columns(spec.in_statements(spec.columns))


def _arrow(types: StructType) -> pa.Schema:
    return to_arrow_schema(types, timezone="UTC")


def _in_duckdb(sql: str, of: str | None = None) -> tuple[str, tuple[str, ...]]:
    """Return an expression in DuckDB's words, and the columns that it reads."""
    parsed = sqlglot.parse_one(sql, read="spark")
    columns = list(parsed.find_all(exp.Column))
    names = tuple(dict.fromkeys(column.name for column in columns))
    for column in columns:
        column.set("table", exp.to_identifier(of) if of else None)
    return parsed.sql(dialect="duckdb", identify=True), names


def _translate(_nothing: Any, expressions: Sequence[_Expression]) -> tuple[Statement, ...]:
    statements = []
    for expression in expressions:
        sql, columns = _in_duckdb(expression.sql, of="value")
        is_column = isinstance(sqlglot.parse_one(expression.sql, read="spark"), exp.Column)
        statements.append(Statement(sql=sql, columns=columns, is_column=is_column))
    return tuple(statements)


def apply_here(spec: StreamSpec, _settings: Settings) -> Apply:
    """Return what makes rows of decoded values, for a proof: see ``spark_transformation``."""
    given = _arrow(type_of_columns(spec.in_statements(spec.exploded_columns)))
    made = _arrow(_types_of(spec))
    where = _in_duckdb(spec.where)[0] if spec.where else "TRUE"
    passes = f"(_is_delete OR coalesce({where}, FALSE))"
    selected = [
        f"CAST(CASE WHEN {passes} OR {name in spec.leaving_columns} "
        f'THEN {_in_duckdb(spec.select.get(name, f"`{name}`"))[0]} END AS {type_}) AS "{name}"'
        for name, type_ in ((field.name, _duckdb(field.type)) for field in made)
    ]
    leaves = spec.leaves_by_where and not spec.ignore_null_updates
    query = (
        f"SELECT _at, {', '.join(selected)}, NOT {passes} AS _is_gone, {_MISFIT} AS _misfit "
        f"FROM given WHERE {leaves} OR {passes} ORDER BY _at"
    )
    marks = [("_at", pa.int32()), ("_is_delete", pa.bool_())]
    schema = pa.schema([*marks, *((field.name, field.type) for field in given)])

    def apply(values: Sequence[dict[str, Any]]) -> pa.Table:
        rows = [{**v["_good"], "_at": v["_at"], "_is_delete": v["_is_delete"]} for v in values]
        with duckdb.connect() as connection:
            connection.register("given", pa.Table.from_pylist(rows, schema=schema))
            return connection.sql(query).to_arrow_table()

    return apply


def _duckdb(type_: pa.DataType) -> str:
    return str(duckdb.from_arrow(pa.table({"c": pa.nulls(0, type_)})).types[0])


def _refuse_moved_embedded(stream: Any, records: Any) -> None:
    """Find the schemas in records as Spark's job does."""
    if not isinstance(records, ArrowFrame):
        _MOVED(stream, records)
        return
    source = stream.spec.schema_from
    if stream.spec.follows_schema and source is not None and source.kind == "embedded":
        values = (value for value in records.table["_value"].to_pylist() if value)
        fronts = dict.fromkeys(value.decode().partition(_PAYLOAD)[0] for value in values)
        follow_schema._refuse_moved(stream, map(follow_schema._embedded_types, fronts))


def _with_tombstone_keys(records: Any) -> Any:
    if not isinstance(records, ArrowFrame):
        return _KEYED(records)
    batches = map(decode._with_tombstone_key, records.table.to_batches())
    return ArrowFrame(pa.Table.from_batches(batches)) if len(records.table) else records


@contextmanager
def evaluated_here() -> Iterator[None]:
    """Let declared statements be evaluated where there is no Spark."""
    batch, run = oncelake.ingestion.pipeline.batch, oncelake.ingestion.operations.run
    plan, refuse = batch.plan_transformation, run.refuse_bad_transformation

    def plan_here(spark: Any, spec: StreamSpec) -> Any:
        if not isinstance(spark, ArrowSession):
            return plan(spark, spec)
        with ExitStack() as stack:
            here = {"F": _Functions, "_nothing": lambda _, spec: _Nothing(spec)}
            for name, replacement in {**here, "translate": _translate}.items():
                stack.enter_context(patch.object(transform, name, replacement))
            return plan(spark, spec)

    def refuse_bad(spark: Any, spec: StreamSpec) -> None:
        if not isinstance(spark, ArrowSession):
            refuse(spark, spec)

    with ExitStack() as stack:
        for owner, name, replacement in (
            (batch, "plan_transformation", plan_here),
            (run, "refuse_bad_transformation", refuse_bad),
            (decode, "refuse_moved_embedded", _refuse_moved_embedded),
            (decode, "_with_tombstone_keys", _with_tombstone_keys),
        ):
            stack.enter_context(patch.object(owner, name, replacement))
        yield


class _Functions:
    """Takes the place of Spark's functions where a transformation is planned."""

    @staticmethod
    def expr(sql: str) -> _Expression:
        """Keep an expression."""
        return _Expression(sql)
