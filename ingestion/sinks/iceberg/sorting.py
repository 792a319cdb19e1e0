"""The sort order of an Iceberg table: rows are sorted before they are written to a file.

A file names the order only if its rows were compared, and are in it: a reader may rely on that, and
would miss rows where it is not so.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.sorting import (
    UNSORTED_SORT_ORDER,
    NullOrder,
    SortDirection,
    SortField,
    SortOrder,
)
from pyiceberg.table.update import AddSortOrderUpdate, SetDefaultSortOrderUpdate, TableUpdate
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import DoubleType, FloatType

from oncelake.ingestion.sinks.iceberg.partitions import COMPUTED
from oncelake.ingestion.sinks.sorting import SortedColumn, Sorting

_SORTED: Final = (*COMPUTED, FloatType, DoubleType)


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


def sorting_of(table: Table) -> Sorting | None:
    """Return the order of a table; ``None`` where it has none, or one that is not computed here."""
    order, fields = table.sort_order(), table.schema().fields
    able = {each.field_id: each.name for each in fields if isinstance(each.field_type, _SORTED)}
    if not all(isinstance(each.transform, IdentityTransform) for each in order.fields):
        return None
    columns = [
        SortedColumn(
            name=able[each.source_id],
            is_descending=each.direction == SortDirection.DESC,
            is_null_first=each.null_order == NullOrder.NULLS_FIRST,
        )
        for each in order.fields
        if each.source_id in able
    ]
    return Sorting(columns) if len(columns) == len(order.fields) > 0 else None
