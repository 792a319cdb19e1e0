"""The data files of a Delta table: how the log describes them."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import types

from oncelake.ingestion.delta.files import EXACT_DIGITS
from oncelake.ingestion.delta.vectors import Action, Vector

# Longer texts have no bounds.
_LONGEST_BOUND: Final = 256


@dataclass(frozen=True, kw_only=True, slots=True)
class AddedFile:
    """A data file of the table.

    Attributes:
        number: Its place in the version that was read; -1 of a new one.
        path: As the log has it: quoted, and relative to the table.
        rows: Those that are marked as gone among them.
        stats: As the log has them; of a new one, and in a table with vectors, alone.
        vector: Marks rows as gone.
        partition: Its values, as text, by the columns that the table is partitioned by.
        more: What else its ``add`` said, where that is known.
    """

    number: int
    path: str
    rows: int
    size_bytes: int
    stats: str = ""
    vector: Vector | None = None
    partition: Mapping[str, str | None] = field(default_factory=dict)
    more: Action = field(default_factory=dict)

    @property
    def living(self) -> int:
        """How many rows are not marked as gone."""
        return self.rows - (self.vector.rows if self.vector else 0)

    def as_add(self, now: int) -> dict[str, Any]:
        """Return what its ``add`` says, at a time in milliseconds."""
        return {
            "path": self.path,
            "partitionValues": self.partition,
            "size": self.size_bytes,
            "modificationTime": now,
            **self.more,
            "stats": self.stats,
            **({"deletionVector": self.vector.as_field()} if self.vector else {}),
        }


def describe_file(
    path: str, metadata: pq.FileMetaData, size: int, fields: Iterable[pa.Field]
) -> AddedFile:
    """Describe a new file for the log, with statistics of some of its columns."""
    rows = metadata.num_rows
    stats = json.dumps({"numRecords": rows, **_statistics(metadata, fields)})
    return AddedFile(number=-1, path=quote(path), rows=rows, size_bytes=size, stats=stats)


def is_ordered(type_: pa.DataType) -> bool:
    """Tell whether bounds are kept as exact values, ordered as Python orders them."""
    if types.is_decimal(type_):
        return bool(type_.precision <= EXACT_DIGITS)
    kinds = (types.is_integer, types.is_string, types.is_date, types.is_timestamp)
    return any(is_of(type_) for is_of in kinds)


def _statistics(metadata: pq.FileMetaData, fields: Iterable[pa.Field]) -> dict[str, Any]:
    """Return what the log keeps of columns: nulls, and lowest and highest values."""
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    at = {groups[0].column(n).path_in_schema: n for n in range(metadata.num_columns)}
    found: dict[str, dict[str, Any]] = {"minValues": {}, "maxValues": {}, "nullCount": {}}
    for column in (each for each in fields if each.name in at):
        of_groups = [group.column(at[column.name]).statistics for group in groups]
        if not all(of_groups):
            continue
        if all(each.has_null_count for each in of_groups):
            found["nullCount"][column.name] = sum(each.null_count for each in of_groups)
        if bounds := _bounds(of_groups, column.type):
            found["minValues"][column.name], found["maxValues"][column.name] = bounds
    return found


def _bounds(of_groups: Sequence[pq.Statistics], type_: pa.DataType) -> tuple[Any, Any] | None:
    filled = [each for each in of_groups if each.num_values]
    if not (filled and is_ordered(type_) and all(each.has_min_max for each in filled)):
        return None
    try:
        lowest, highest = min(each.min for each in filled), max(each.max for each in filled)
    except OverflowError:
        return None  # A day or a moment that Python does not have.
    bounds = _as_json(lowest), _as_json(highest)
    return None if None in bounds else bounds


def _as_json(value: Any) -> Any:
    """Write a bound as delta-rs does; ``None`` for one that not every reader takes as it is."""
    if isinstance(value, str):
        return value if len(value) <= _LONGEST_BOUND else None
    if isinstance(value, dt.date) and value.year == dt.MAXYEAR:
        return None
    if isinstance(value, dt.datetime):
        if value.tzinfo is None:
            return value.isoformat(sep=" ", timespec="milliseconds")
        return value.astimezone(dt.UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    if isinstance(value, dt.date):
        return value.isoformat()
    return value if isinstance(value, int) else float(value)
