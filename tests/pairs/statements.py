"""The SQL of the pairs, and what it means in plain Python.

Without Spark a statement is evaluated twice all the same: by DuckDB in the batch, where sqlglot
stands for Spark's analysis, and here for the oracle and for the proof.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema

from oncelake.ingestion.declaration.spec import StreamSpec
from oncelake.ingestion.pipeline.schema.types import type_of_columns
from oncelake.ingestion.settings import Settings

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
