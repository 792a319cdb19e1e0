"""A table held against what its topic says: every difference is evidence, and none is success."""

from __future__ import annotations

import datetime as dt
import hashlib
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

from deltalake import DeltaTable

from ingestion.local.fold import COORDINATES, Folded, Row
from ingestion.local.strict_json import Value
from ingestion.spec import StreamSpec


def table_rows(path: Path, spec: StreamSpec) -> list[Row]:
    """Read a table by delta-rs: the declared columns, then topic, partition and offset."""
    names = [*(column.name for column in spec.columns), *COORDINATES]
    table = DeltaTable(path).to_pyarrow_table(columns=names)
    columns = (map(_in_utc, table.column(name).to_pylist()) for name in names)
    return list(zip(*columns, strict=True))


def differences(
    folded: Folded, spec: StreamSpec, rows: Iterable[Row], *, limit: int = 20
) -> tuple[str, ...]:
    """Return the first differences, a sentence each, between a table and what its topic says.

    Args:
        folded: What the topic says.
        spec: The declared stream.
        rows: The table's rows, as ``table_rows`` reads them.
        limit: How much evidence is enough.

    Returns:
        Nothing when the table holds exactly what it must.
    """
    return tuple(islice(_differences(folded, spec, rows), limit))


def digest(rows: Iterable[Row]) -> str:
    """Return one hash of rows, whatever their order."""
    total = hashlib.sha256()
    for text in sorted(map(repr, rows)):
        total.update(text.encode())
    return total.hexdigest()


def _differences(folded: Folded, spec: StreamSpec, rows: Iterable[Row]) -> Iterator[str]:
    for key in folded.incomparable:
        yield f"key {key} came from two partitions, and no declared order says which is newer"
    names = (*(column.name for column in spec.columns), *COORDINATES)
    at = [names.index(key) for key in spec.keys]
    seen: set[Row] = set()
    for row in rows:
        key = tuple(row[i] for i in at)
        expected = folded.rows.get(key)
        if key in seen:
            yield f"key {key} is in the table twice; again from {_where(row)}"
        elif expected is None:
            yield f"key {key} is in the table, from {_where(row)}, and should not be"
        elif row != expected:
            yield f"key {key} from {_where(row)}: {_columns_that_differ(names, row, expected)}"
        seen.add(key)
    for key, row in folded.rows.items():
        if key not in seen:
            yield f"key {key} is missing from the table; the topic has it at {_where(row)}"


def _in_utc(value: Value) -> Value:
    return value.astimezone(dt.UTC) if isinstance(value, dt.datetime) else value


def _where(row: Row) -> str:
    topic, partition, offset = row[-3:]
    return f"{topic}-{partition} at {offset}"


def _columns_that_differ(names: tuple[str, ...], row: Row, expected: Row) -> str:
    triples = zip(names, row, expected, strict=True)
    return ", ".join(f"{name} is {is_!r}, not {due!r}" for name, is_, due in triples if is_ != due)
