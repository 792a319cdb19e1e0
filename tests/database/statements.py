"""Declared statements without Spark: it analyses none, and DuckDB evaluates all of them.

Those of histories are so plain that they mean the same to both; that the product translates what
Spark has analysed is tried where Spark is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import duckdb
import pyarrow as pa
import sqlglot
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType
from sqlglot import exp

from oncelake.ingestion.declaration.spec import StreamSpec
from oncelake.ingestion.pipeline.schema.types import type_of_columns
from oncelake.ingestion.settings import Settings
from oncelake.ingestion.verify.fold.transform import Apply
from tests.support.statements import statements_without_spark

_MISFIT: Final = "CAST(NULL AS VARCHAR)"


def _arrow(types: StructType) -> pa.Schema:
    return to_arrow_schema(types, timezone="UTC")


def _in_duckdb(sql: str) -> str:
    parsed = sqlglot.parse_one(sql, read="spark")
    for column in parsed.find_all(exp.Column):
        column.set("table", None)
    return parsed.sql(dialect="duckdb", identify=True)


def apply_here(spec: StreamSpec, _settings: Settings) -> Apply:
    """Return what makes rows of decoded values, for a proof: see ``spark_transformation``."""
    given = _arrow(type_of_columns(spec.in_statements(spec.exploded_columns)))
    made = _arrow(type_of_columns(spec.in_statements(spec.columns)))
    where = _in_duckdb(spec.where) if spec.where else "TRUE"
    passes = f"(_is_delete OR coalesce({where}, FALSE))"
    selected = [
        f"CAST(CASE WHEN {passes} OR {name in spec.leaving_columns} "
        f'THEN {_in_duckdb(spec.select.get(name, f"`{name}`"))} END AS {type_}) AS "{name}"'
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


@contextmanager
def evaluated_here() -> Iterator[None]:
    """Let declared statements be evaluated where there is no Spark."""
    with statements_without_spark():
        yield
