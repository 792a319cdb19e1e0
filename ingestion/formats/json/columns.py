"""Objects, lists and maps that msgspec has decoded become Arrow columns, column by column.

Each counts the colons that its JSON should have. A record with more of them has a name twice, or
one that no column has.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from operator import attrgetter
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import UNSET, Raw, UnsetType
from pyspark.sql import types as sql

from ingestion.formats.arrays import Flags
from ingestion.formats.decoder import arrow_type
from ingestion.formats.json.names import Undeclared, spelt
from ingestion.formats.json.scalars import (
    Column,
    Counts,
    Shape,
    scalar_shape,
    text_column,
    undeclared_column,
    variant_column,
)


class Learned(NamedTuple):
    """Names that are not declared but come often.

    Attributes:
        names: The names, by the prefix of ``Undeclared``.
        is_kept: Whether the values of a record's own are needed as they are written.
    """

    names: Mapping[str, Sequence[str]] = {}
    is_kept: bool = False


def shape_of(type_: sql.DataType, learned: Learned, path: str = "") -> Shape:
    """Return how a type is decoded.

    Args:
        type_: The declared type.
        learned: Names that are not declared but come often.
        path: Where its values are in a record.
    """
    if isinstance(type_, sql.StructType):
        return _Objects(type_, f"{path}." if path else "", learned).shape
    if isinstance(type_, sql.ArrayType):
        return _lists(type_, shape_of(type_.elementType, learned, f"{path}[]"))
    if isinstance(type_, sql.MapType):
        return _maps(type_, shape_of(type_.valueType, learned, f"{path}{{}}"))
    return scalar_shape(type_)


def _lists(type_: sql.ArrayType, item: Shape) -> Shape:
    arrow = arrow_type(type_)

    def column(values: list[Any]) -> Column:
        items = item.column(list(chain.from_iterable(filter(None, values))))
        ends, is_null = _ends(values)
        array = pa.ListArray.from_arrays(ends, items.array, type=arrow, mask=is_null)
        return _gathered(array, items, ends)

    return Shape(list[_optional(item.annotation)], column)  # type: ignore[misc]


def _maps(type_: sql.MapType, item: Shape) -> Shape:
    arrow = arrow_type(type_)

    def column(values: list[Any]) -> Column:
        entries = list(filter(None, values))
        names = text_column(list(chain.from_iterable(entries)))
        items = item.column(list(chain.from_iterable(each.values() for each in entries)))
        ends, is_null = _ends(values)
        array = pa.MapArray.from_arrays(ends, names.array, items.array, type=arrow, mask=is_null)
        return _gathered(array, items._replace(colons=1 + names.colons + items.colons), ends)

    return Shape(dict[str, _optional(item.annotation)], column)  # type: ignore[misc]


def _ends(values: list[Any]) -> tuple[pa.Array, pa.Array]:
    """Return where lists end in all their elements, with a zero before, and which are null."""
    sizes = np.fromiter((len(each) if each else 0 for each in values), np.int32, len(values))
    ends = np.concatenate([np.zeros(1, np.int32), np.cumsum(sizes, dtype=np.int32)])
    return pa.array(ends), pa.array([each is None for each in values], pa.bool_())


def _gathered(array: pa.Array, items: Column, ends: pa.Array) -> Column:
    """Make a column of lists of one of all their elements."""

    def summed(counts: Any) -> Counts:
        every = np.broadcast_to(np.asarray(counts, np.int64), len(items.array))
        sums = np.concatenate([np.zeros(1, np.int64), np.cumsum(every)])[np.asarray(ends)]
        counted: Counts = np.diff(sums)
        return counted

    undeclared = {name: summed(flags) > 0 for name, flags in items.undeclared.items()}
    return Column(array, summed(items.colons), summed(items.doubtful) > 0, undeclared)


class _Field(NamedTuple):
    """One field of an object; one that is not declared has no column."""

    get: Callable[[Any], Any]
    name: str
    annotation: Any
    column: Callable[[list[Any]], Column]
    is_required: bool = False


class _Objects:
    """Objects of a STRUCT, or the records themselves, whose columns may all be null here."""

    def __init__(self, type_: sql.StructType, prefix: str, learned: Learned) -> None:
        self._type = arrow_type(type_)
        self._prefix, others = prefix, learned.names.get(prefix, ())
        attributes = [f"f{at}" for at in range(len(type_) + len(others))]
        get = [attrgetter(attribute) for attribute in attributes]
        self._fields = []
        for field, get_one in zip(type_, get, strict=False):
            annotation, column = shape_of(field.dataType, learned, prefix + spelt(field.name))
            is_required = bool(prefix) and not field.nullable
            self._fields.append(_Field(get_one, field.name, annotation, column, is_required))
        other = (
            (Raw, variant_column) if learned.is_kept and not prefix else (Any, undeclared_column)
        )
        self._others = [
            _Field(get_one, name, *other)
            for name, get_one in zip(others, get[len(type_) :], strict=True)
        ]
        fields = [*self._fields, *self._others]
        kinds = [_optional(field.annotation) | UnsetType for field in fields]
        self.shape = Shape(
            msgspec.defstruct(
                "Fields",
                [(name, kind, UNSET) for name, kind in zip(attributes, kinds, strict=True)],
                rename={n: field.name for n, field in zip(attributes, fields, strict=True)},
                gc=False,
            ),
            self._column,
        )

    def _column(self, values: list[Any]) -> Column:
        is_there = np.fromiter((value is not None for value in values), np.bool_, len(values))
        if is_there.all():
            return self._of_objects(values)
        return _spread(self._of_objects([v for v in values if v is not None]), is_there)

    def _of_objects(self, objects: list[Any]) -> Column:
        colons, doubtful = np.zeros(len(objects), np.int64), np.zeros(len(objects), np.bool_)
        arrays: list[pa.Array] = []
        undeclared: dict[Undeclared, Flags] = {}
        for at, field in enumerate((*self._fields, *self._others)):
            values, are_there = _without_unset(list(map(field.get, objects)))
            column = field.column(values)
            colons += column.colons + (1 + field.name.count(":")) * are_there
            doubtful |= column.doubtful
            if field.is_required:
                doubtful |= _are_missing(column.array, field)
            undeclared.update(column.undeclared)
            if at < len(self._fields):
                arrays.append(column.array)
            else:
                undeclared[Undeclared(self._prefix, field.name)] = are_there
        array = pa.StructArray.from_arrays(arrays, fields=list(self._type))
        return Column(array, colons, doubtful, undeclared)


def _are_missing(array: pa.Array, field: _Field) -> Flags:
    """Tell which are null; to VARIANT, null is a value."""
    is_variant = field.annotation is Raw and array.type == pa.string()
    nulls = pc.equal(array, "null").fill_null(True) if is_variant else array.is_null()
    return np.asarray(nulls)


def _optional(annotation: Any) -> Any:
    """Let null pass, too; what msgspec leaves as it is written, or takes as it comes, has it."""
    return annotation if annotation in (Raw, Any) else annotation | None


def _without_unset(values: list[Any]) -> tuple[list[Any], Flags]:
    """Return values, absent ones null, and which are there."""
    if UNSET not in values:
        return values, np.ones(len(values), np.bool_)
    are_there = [value is not UNSET for value in values]
    return [None if value is UNSET else value for value in values], np.array(are_there)


def _spread(column: Column, is_there: Flags) -> Column:
    """Put nulls between the values of a column."""
    at = pa.array(np.cumsum(is_there) - 1, mask=~is_there)

    def spread(flags: Any) -> Any:
        wide = np.zeros(len(is_there), np.asarray(flags).dtype)
        wide[is_there] = flags
        return wide

    undeclared = {name: spread(flags) for name, flags in column.undeclared.items()}
    return Column(column.array.take(at), spread(column.colons), spread(column.doubtful), undeclared)
