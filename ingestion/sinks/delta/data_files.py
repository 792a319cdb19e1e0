"""The data files of a Delta table: how they are written, marked, and described in the log."""

from __future__ import annotations

import datetime as dt
import json
import tempfile
import uuid
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import types

from oncelake.ingestion.sinks.delta.files import EXACT_DIGITS
from oncelake.ingestion.sinks.delta.vectors import (
    Action,
    Vector,
    VectorWriter,
)
from oncelake.ingestion.sinks.files import (
    TARGET_BYTES,
    FileWriter,
    Mask,
)
from oncelake.ingestion.storage.checksums import has_seal, matches_checksum
from oncelake.ingestion.storage.location import Location

# Longer texts have no bounds.
_LONGEST_BOUND: Final = 256
# A file on its way into a store is on this machine from here on.
_IN_MEMORY: Final = 32 << 20
# Beyond this share of its rows a file is written anew, and not marked.
_MOST_GONE: Final = 0.5


@dataclass(frozen=True, kw_only=True, slots=True)
class AddedFile:
    """A data file of the table.

    Attributes:
        number: Its place in the version that was read; -1 of a new one.
        path: As the log has it: quoted, and relative to the table.
        rows: Those that are marked as gone among them.
        stats: As the log has them; of a new one, and in a table with vectors, alone.
        vector: Marks rows as gone.
        more: What else its ``add`` said, where that is known.
    """

    number: int
    path: str
    rows: int
    size_bytes: int
    stats: str = ""
    vector: Vector | None = None
    more: Action = field(default_factory=dict)

    @property
    def living(self) -> int:
        """How many rows are not marked as gone."""
        return self.rows - (self.vector.rows if self.vector else 0)

    def as_add(self, now: int) -> dict[str, Any]:
        """Return what its ``add`` says, at a time in milliseconds."""
        return {
            "path": self.path,
            "partitionValues": {},
            "size": self.size_bytes,
            "modificationTime": now,
            **self.more,
            "stats": self.stats,
            **({"deletionVector": self.vector.as_field()} if self.vector else {}),
        }


class DeltaFileWriter(FileWriter[AddedFile]):
    """Writes rows to new data files of a table.

    Attributes:
        file_id: Names a file; by default, each has another.
    """

    compression = "snappy"
    file_id: uuid.UUID | None = None

    def __init__(
        self,
        table: Location,
        schema: pa.Schema,
        statistics: Collection[str],
        *,
        marks: bool = False,
        target_bytes: int = TARGET_BYTES,
    ) -> None:
        """Take the folder, the columns, and of which of them statistics are kept.

        Args:
            marks: Whether rows may be marked as gone.
            target_bytes: What a file grows to.
        """
        super().__init__(schema, target_bytes)
        self._table, self._statistics = table, statistics
        self._vectors = VectorWriter(table) if marks else None

    def resume(self) -> bool:
        """Take the file of that id for written, if it is there whole.

        On this machine its seal says so; a store has no parts of files.
        """
        file = self._table / self._name()
        if (content := file.read_if_there()) is None:
            return False
        if file.is_local and not (has_seal(file) and matches_checksum(file, content)):
            return False
        metadata = pq.read_metadata(pa.BufferReader(content))
        self.files.append(self._describe(file.name, metadata, len(content)))
        return True

    def mark(self, file: AddedFile, is_gone: Mask) -> bool:
        """Give a file another vector, unless most of its rows are gone then."""
        stats = json.loads(file.stats or "{}")
        is_fit = "numRecords" in stats and is_gone.mean() <= _MOST_GONE
        if self._vectors is None or not is_fit:
            return False
        vector = self._vectors.add(np.flatnonzero(is_gone))
        # The row with the lowest value may be gone.
        loose = json.dumps({**stats, "tightBounds": False})
        self.files.append(replace(file, number=-1, stats=loose, vector=vector))
        return True

    def close(self) -> None:
        """Complete what is being written."""
        super().close()
        if self._vectors is not None:
            self._vectors.close()

    def discard(self) -> None:
        """Delete what was written."""
        super().discard()
        if self._vectors is not None:
            with suppress(OSError):
                self._vectors.discard()

    def _name(self) -> str:
        return f"part-00000-{self.file_id or uuid.uuid4()}-c000.{self.compression}.parquet"

    def _begin(self) -> tuple[str, Any]:
        name = self._name()
        if self._table.is_local:
            return name, (self._table / name).path.open("wb")
        # Arrow would put each file in parts, by four requests.
        return name, tempfile.SpooledTemporaryFile(_IN_MEMORY)

    def _end(self, path: str, stream: Any) -> None:
        if not self._table.is_local:
            (self._table / path).upload(stream)
        stream.close()

    def _describe(self, path: str, metadata: pq.FileMetaData, size: int) -> AddedFile:
        there = {*self._schema.names} & {*self._statistics}
        return describe_file(path, metadata, size, [self._schema.field(name) for name in there])

    def _delete(self, paths: Sequence[str]) -> None:
        for path in paths:
            with suppress(OSError):
                (self._table / path).delete()


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
