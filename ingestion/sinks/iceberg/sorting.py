"""The sort order of an Iceberg table: rows are sorted before they are written to a file.

A file names the order only if its rows were compared, and are in it: a reader may rely on that, and
would miss rows where it is not so. Where null stands is a key of its own, and floats are ordered as
Iceberg's specification says.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from tempfile import TemporaryDirectory
from typing import Final

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER, NullOrder, SortField, SortOrder
from pyiceberg.table.update import AddSortOrderUpdate, SetDefaultSortOrderUpdate, TableUpdate
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import DoubleType, FloatType

from oncelake.ingestion.declaration.sql import OFFLINE, identifier
from oncelake.ingestion.sinks.iceberg.partitions import COMPUTED
from oncelake.ingestion.tables.arrow_types import cast_rows

_ROWS_AT_ONCE: Final = 1 << 17
# What upkeep sorts in memory; the rest is in a folder meanwhile.
_MEMORY: Final = "1GB"
_SORTED: Final = (*COMPUTED, FloatType, DoubleType)
_ALL_BUT_SIGN: Final = np.int64((1 << 63) - 1)


def specified(schema: Schema, columns: Sequence[str]) -> SortOrder:
    """Return the order by some columns, the lowest value first, and null before it."""
    fields = (SortField(schema.find_field(column).field_id) for column in columns)
    return SortOrder(*fields) if columns else UNSORTED_SORT_ORDER


def declared(schema: Schema, order: SortOrder) -> tuple[str, ...]:
    """Return an order as a declaration has it; for one of others there may be no words in it."""
    named = ((field, schema.find_column_name(field.source_id) or "") for field in order.fields)
    return tuple(
        name
        if field == SortField(field.source_id)
        else f"{field.transform}({name}) {field.direction} {field.null_order}"
        for field, name in named
    )


def sorted_by(order: SortOrder, past: TableMetadata) -> tuple[TableUpdate, ...]:
    """Return what makes an order that of new files; one that was there comes back."""
    ids = {tuple(each.fields): each.order_id for each in past.sort_orders}
    if (known := ids.get((*order.fields,))) is not None:
        return (SetDefaultSortOrderUpdate(sort_order_id=known),)
    id_ = order.order_id and max(ids.values(), default=0) + 1
    added = order.model_copy(update={"order_id": id_})
    return AddSortOrderUpdate(sort_order=added), SetDefaultSortOrderUpdate(sort_order_id=id_)


def sorted_as_of(schema: Schema, past: TableMetadata) -> tuple[TableUpdate, ...]:
    """Return what ends the order of new files, where columns that were there lack one of it."""
    ids = {field.field_id for field in schema.fields}
    is_there = {field.source_id for field in past.sort_order().fields} <= ids
    return () if is_there else sorted_by(UNSORTED_SORT_ORDER, past)


class Sorting:
    """The order in which the rows of a file are.

    Attributes:
        order_id: By which a file names it.
    """

    def __init__(self, order: SortOrder, names: Sequence[str]) -> None:
        """Take the order, and the columns that it is by."""
        self.order_id, self._fields = order.order_id, [*zip(names, order.fields, strict=True)]
        self._by = list[tuple[str, str]]()
        for at, field in enumerate(order.fields):
            direction = f"{field.direction.value}ending"
            self._by += [(f"_place_{at}", "ascending"), (f"_value_{at}", direction)]

    @classmethod
    def of(cls, table: Table) -> Sorting | None:
        """Return the table's; ``None`` where it has none, or one that is not computed here."""
        order, fields = table.sort_order(), table.schema().fields
        able = {each.field_id: each.name for each in fields if isinstance(each.field_type, _SORTED)}
        is_plain = all(isinstance(each.transform, IdentityTransform) for each in order.fields)
        names = [able[each.source_id] for each in order.fields if each.source_id in able]
        return cls(order, names) if is_plain and len(names) == len(order.fields) > 0 else None

    def _keys(self, rows: pa.Table) -> pa.Table:
        """Return what rows are compared by: whether null is above or below, and the value."""
        keys = list[pa.ChunkedArray]()
        for name, field in self._fields:
            values, is_first = rows.column(name), field.null_order == NullOrder.NULLS_FIRST
            keys += (values.is_valid() if is_first else values.is_null(), _comparable(values))
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
        by = ", ".join(f"{name} {direction[:-6]}" for name, direction in self._by)
        names = ", ".join(map(identifier, schema.names))
        with TemporaryDirectory() as folder:
            spill = {"memory_limit": _MEMORY, "temp_directory": folder}
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
