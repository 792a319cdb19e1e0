"""The rows of a Delta table as delta-rs reads them, deletion vectors heeded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder


def rows_by_delta_rs(table: DeltaTable, columns: Sequence[str] | None = None) -> list[Any]:
    """Return some columns of every row; all of them without any."""
    names = columns or [field.name for field in table.schema().fields]
    shown = ", ".join(f'"{name}"' for name in names)
    query = QueryBuilder().register("rows", table).execute(f"SELECT {shown} FROM rows")
    return pa.table(query.read_all()).to_pylist(maps_as_pydicts="lossy")
