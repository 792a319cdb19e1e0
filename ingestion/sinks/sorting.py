"""The order of rows in files, and which files upkeep sorts together.

Where null stands is a key of its own, and floats are ordered as Iceberg's specification says.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import compress, groupby
from tempfile import TemporaryDirectory
from typing import Any, Final, Generic, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from oncelake.ingestion.declaration.sql import OFFLINE, identifier
from oncelake.ingestion.tables.arrow_types import cast_rows

File = TypeVar("File")
# What a range begins or ends with, in an order of its own.
Values = tuple[tuple[Any, ...], ...]
_ROWS_AT_ONCE: Final = 1 << 17
# What upkeep sorts in memory; the rest is in a folder meanwhile.
_MEMORY: Final = "1GB"
_THREADS: Final = 4
_ALL_BUT_SIGN: Final = np.int64((1 << 63) - 1)
# Files whose ranges lie apart are written anew for others with at least this share of their bytes.
_WORTHWHILE: Final = 0.25


@dataclass(frozen=True, kw_only=True, slots=True)
class SortedColumn:
    """A column that rows are sorted by."""

    name: str
    is_descending: bool = False
    is_null_first: bool = True


class Sorting:
    """The order in which the rows of a file are."""

    def __init__(self, columns: Sequence[SortedColumn]) -> None:
        """Take the columns, the one that decides first before the others."""
        self._columns, self._by = columns, list[tuple[str, str]]()
        for at, column in enumerate(columns):
            direction = "descending" if column.is_descending else "ascending"
            self._by += [(f"_place_{at}", "ascending"), (f"_value_{at}", direction)]

    def _keys(self, rows: pa.Table) -> pa.Table:
        """Return what rows are compared by: whether null is above or below, and the value."""
        keys = list[pa.ChunkedArray]()
        for column in self._columns:
            values = rows.column(column.name)
            place = values.is_valid() if column.is_null_first else values.is_null()
            keys += (place, _comparable(values))
        return pa.table(keys, names=[name for name, _ in self._by])

    def sorted(self, rows: pa.Table) -> tuple[pa.Table, pa.Table]:
        """Sort rows; return them, and what they were compared by."""
        keys = self._keys(rows)
        order = pc.sort_indices(keys, sort_keys=self._by)
        return rows.take(order), keys.take(order)

    def follows(self, keys: pa.Table, before: pa.Table) -> bool:
        """Tell whether the first of some rows may come behind another."""
        both = pa.concat_tables([before, keys.slice(0, 1)])
        return bool(pc.sort_indices(both, sort_keys=self._by)[0].as_py() == 0)

    def sorted_apart(
        self, batches: Iterable[pa.RecordBatch], schema: pa.Schema
    ) -> Iterator[pa.RecordBatch]:
        """Sort rows of which there may be more than there is memory."""
        import duckdb

        by = ", ".join(f"{name} {direction[:-6]}" for name, direction in self._by)
        names = ", ".join(map(identifier, schema.names))
        with TemporaryDirectory() as folder:
            spill: dict[str, Any] = {
                "memory_limit": _MEMORY,
                "temp_directory": folder,
                "threads": _THREADS,
            }
            with duckdb.connect(config={**OFFLINE, **spill}) as tables:
                tables.execute("SET TimeZone = 'UTC'")
                tables.register("more", self._with_keys(schema.empty_table()))
                tables.execute("CREATE TABLE rows AS FROM more")
                for batch in batches:
                    tables.register("more", self._with_keys(pa.Table.from_batches([batch])))
                    tables.execute("INSERT INTO rows FROM more")
                found = tables.sql(f"SELECT {names} FROM rows ORDER BY {by}")
                for batch in found.to_arrow_reader(_ROWS_AT_ONCE):
                    yield from cast_rows(pa.Table.from_batches([batch]), schema).to_batches()

    def _with_keys(self, rows: pa.Table) -> pa.Table:
        keys = self._keys(rows)
        return pa.table([*rows.columns, *keys.columns], [*rows.column_names, *keys.column_names])


def _comparable(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return floats as numbers that are ordered as the format says: -NaN, -0, 0, infinity, NaN."""
    if not pa.types.is_floating(values.type):
        return values
    bits = values.cast(pa.float64()).combine_chunks().fill_null(0).to_numpy().view(np.int64)
    numbers = pa.array(bits ^ (bits >> 63 & _ALL_BUT_SIGN), mask=values.is_null().to_numpy())
    return pa.chunked_array([numbers])


@dataclass(frozen=True, kw_only=True, slots=True)
class Extent(Generic[File]):
    """The range of a file's rows, in the order of a table.

    Attributes:
        low: Before it no row of the file is, as the values of the columns that decide it; empty
            where it is not known.
        high: Behind it there is none. A range that touches another does not overlap it.
        size: In bytes.
        is_due: Whether the file is to be written anew in any case.
    """

    file: File
    low: Values
    high: Values
    size: int
    is_due: bool

    @classmethod
    def of(
        cls, file: File, bounds: Iterable[tuple[Any, Any]], size: int, *, is_due: bool
    ) -> Extent[File]:
        """Take the lowest and highest value of each column.

        One decides where every one before it has a single value.
        """
        low, high = list[tuple[Any, ...]](), list[tuple[Any, ...]]()
        for lowest, highest in bounds:
            if lowest is None or highest is None:
                break
            low.append((0, lowest))
            high.append((0, highest))
            if lowest != highest:
                # Of the rows with the lowest value, the file has the last.
                low.append((1,))
                break
        return cls(file=file, low=(*low,), high=(*high,), size=size, is_due=is_due)


def groups_to_sort(extents: Iterable[Extent[File]], target_bytes: int) -> list[list[File]]:
    """Return the files whose rows are to be sorted together, so that few ranges overlap then.

    Ranges that lie apart stay, unless others that overlap them are worth it: so a row is seldom
    written anew, whether new rows come at one end or all over the table.

    Args:
        extents: All files of a partition.
        target_bytes: What a file grows to.
    """
    apart, loose = _apart(extents, target_bytes)
    lows, highs = [each.low for each in apart], [each.high for each in apart]
    spans = [slice(bisect_right(highs, e.low), bisect_left(lows, e.high)) for e in loose]
    sizes, is_taken = np.array([each.size for each in apart]), np.zeros(len(apart), np.bool_)
    ranked = sorted(range(len(loose)), key=lambda at: int(sizes[spans[at]].sum()))
    best, is_chosen, size = 0, is_taken.copy(), 0
    for count, at in enumerate(ranked, start=1):
        size, is_taken[spans[at]] = size + loose[at].size, True
        if size >= _WORTHWHILE * sizes[is_taken].sum():
            best, is_chosen = count, is_taken.copy()
    chosen = [loose[at] for at in ranked[:best]] + [*compress(apart, is_chosen)]
    stay = [each.low for each in compress(apart, ~is_chosen)]
    # Nothing that is chosen overlaps what stays between two islands, and no new file shall.
    islands = groupby(sorted(chosen, key=_by_range), lambda each: bisect_left(stay, each.low))
    groups = [list(island) for _, island in islands]
    groups = [island for island in groups if len(island) > 1 or island[0].is_due]
    rest = [loose[at] for at in ranked[best:]]
    small = [each for each in rest if _is_small(each, target_bytes)]
    small = small if _is_mergeable(small, target_bytes) else []
    alone = (e for e in rest if e.is_due and not (small and _is_small(e, target_bytes)))
    groups += [small, *([each] for each in alone)]
    return [[each.file for each in group] for group in groups if group]


def _apart(
    extents: Iterable[Extent[File]], target_bytes: int
) -> tuple[list[Extent[File]], list[Extent[File]]]:
    """Return files whose ranges do not overlap, in their order, and the others.

    Small files that follow one another are among the others, where fewer can hold them.
    """
    by_end = sorted(extents, key=lambda each: (each.high, each.low, each.size))
    loose = [each for each in by_end if each.is_due]
    apart, others = _most_apart([each for each in by_end if not each.is_due])
    kept, loose = list[Extent[File]](), [*loose, *others]
    for is_small, run in groupby(apart, lambda each: _is_small(each, target_bytes)):
        alike = [*run]
        (loose if is_small and _is_mergeable(alike, target_bytes) else kept).extend(alike)
    return kept, loose


def _most_apart(
    extents: Sequence[Extent[File]],
) -> tuple[list[Extent[File]], list[Extent[File]]]:
    """Return the most bytes of files that do not overlap, and the other files.

    Args:
        extents: By the ends of their ranges.
    """
    highs, total, before = [each.high for each in extents], [0], list[int]()
    for at, each in enumerate(extents):
        before.append(bisect_right(highs, each.low, hi=at))
        total.append(max(total[at], total[before[at]] + each.size))
    is_apart, at = [False] * len(extents), len(extents)
    while at:
        is_apart[at - 1] = total[at] != total[at - 1]
        at = before[at - 1] if is_apart[at - 1] else at - 1
    others = compress(extents, (not each for each in is_apart))
    return [*compress(extents, is_apart)], [*others]


def _by_range(extent: Extent[File]) -> tuple[Values, Values, int]:
    return extent.low, extent.high, extent.size


def _is_small(extent: Extent[File], target_bytes: int) -> bool:
    return extent.size < target_bytes * 3 // 4


def would_be_fewer(sizes: Sequence[int], target_bytes: int) -> bool:
    """Tell whether files of some sizes would be fewer, if they were put together."""
    return len(sizes) > -(-sum(sizes) // target_bytes)


def _is_mergeable(extents: Sequence[Extent[File]], target_bytes: int) -> bool:
    return would_be_fewer([each.size for each in extents], target_bytes)
