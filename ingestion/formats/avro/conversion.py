"""Conversion of whole columns of Avro's values to declared ones, what holds others included.

A value that would lose something makes its record doubtful, and is null. Records are structs here,
arrays and maps are lists, and a union of several types is a struct with one field for each.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types as sql

from oncelake.ingestion.formats.arrays import (
    Flags,
    are_lost,
    cast_or_null,
    converted,
    within,
)
from oncelake.ingestion.formats.avro.types import converter, fields, kind, source
from oncelake.ingestion.formats.coerce import FIRST_DAY, FIRST_MOMENT, LAST_DAY, LAST_MOMENT
from oncelake.ingestion.formats.decoder import arrow_type

_MICROS: Final = 10**6
_AS_THEY_ARE: Final = {
    *(("integer", t) for t in (sql.ByteType, sql.ShortType, sql.IntegerType, sql.LongType)),
    *(("float", sql.FloatType), ("float", sql.DoubleType), ("double", sql.DoubleType)),
    *(("boolean", sql.BooleanType), ("string", sql.StringType), ("bytes", sql.BinaryType)),
}
_MOMENTS: Final = {("timestamp", sql.TimestampType), ("local_timestamp", sql.TimestampNTZType)}

# Converts values; tells which of them would lose something.
ConvertColumn = Callable[[pa.Array], tuple[pa.Array, Flags | bool]]


def conversion(node: Any, target: sql.DataType) -> ConvertColumn:
    """Return the conversion of a type's values to the declared type."""
    word, found = kind(node)
    if word == "union":
        return _union([each for each in node if each != "null"], target)
    if word == "record" and isinstance(target, sql.StructType):
        return _struct(fields(node), target)
    if word == "array" and isinstance(target, sql.ArrayType):
        return _array(conversion(found["items"], target.elementType), arrow_type(target))
    if (
        word == "map"
        and isinstance(target, sql.MapType)
        and isinstance(target.keyType, sql.StringType)
    ):
        return _map(conversion(found["values"], target.valueType), arrow_type(target))
    convert = _scalar(node, target)

    def convert_scalars(values: pa.Array) -> tuple[pa.Array, Flags | bool]:
        if values.null_count == len(values):
            return pa.nulls(len(values), arrow_type(target)), False
        array = convert(values)
        return array, are_lost(array, values)

    return convert_scalars


def _union(branches: list[Any], target: sql.DataType) -> ConvertColumn:
    converts = [conversion(each, target) for each in branches]
    if len(converts) == 1:
        return converts[0]

    def convert(values: pa.StructArray) -> tuple[pa.Array, Flags | bool]:
        found = [each(values.field(at)) for at, each in enumerate(converts)]
        lost = reduce(np.logical_or, (each for _, each in found))
        return pc.coalesce(*(array for array, _ in found)), lost

    return convert


def _struct(nodes: dict[str, Any], target: sql.StructType) -> ConvertColumn:
    columns = list(zip(target, arrow_type(target), strict=True))
    converts = {
        column.name: conversion(nodes[column.name], column.dataType)
        for column in target
        if column.name in nodes
    }

    def convert(values: pa.StructArray) -> tuple[pa.Array, Flags]:
        arrays, lost = [], np.zeros(len(values), np.bool_)
        for column, part in columns:
            array = pa.nulls(len(values), part.type)
            if convert_part := converts.get(column.name):
                array, are_lost = convert_part(values.field(column.name))
                lost |= are_lost
            arrays.append(array)
            if not column.nullable:
                lost |= np.asarray(array.is_null()) & np.asarray(values.is_valid())
        parts, is_null = [part for _, part in columns], values.is_null()
        return pa.StructArray.from_arrays(arrays, fields=parts, mask=is_null), lost

    return convert


def _array(convert_items: ConvertColumn, type_: pa.ListType) -> ConvertColumn:
    def convert(values: pa.ListArray) -> tuple[pa.Array, Flags | bool]:
        items, lost = convert_items(values.values)
        is_null = values.is_null()
        array = pa.ListArray.from_arrays(values.offsets, items, type=type_, mask=is_null)
        return array, _any_in(values, lost)

    return convert


def _map(convert_values: ConvertColumn, type_: pa.MapType) -> ConvertColumn:
    def convert(values: pa.ListArray) -> tuple[pa.Array, Flags | bool]:
        keys = values.values.field("key")
        items, lost = convert_values(values.values.field("value"))
        is_null = values.is_null()
        array = pa.MapArray.from_arrays(values.offsets, keys, items, type=type_, mask=is_null)
        return array, _any_in(values, lost | _are_repeated(values, keys))

    return convert


def _any_in(lists: pa.ListArray, flags: Flags | bool) -> Flags | bool:
    """Tell which lists have an item of which something is true."""
    if not np.any(flags):
        return False
    before = np.concatenate([np.zeros(1, np.int64), np.cumsum(flags)])
    offsets = np.asarray(lists.offsets)
    are_in: Flags = before[offsets[1:]] > before[offsets[:-1]]
    return are_in


def _are_repeated(maps: pa.ListArray, keys: pa.Array) -> Flags:
    """Tell which keys stand in their map before: the last one counts."""
    rows = np.repeat(np.arange(len(maps)), np.diff(np.asarray(maps.offsets)))
    encoded = keys.dictionary_encode()
    entries = rows * len(encoded.dictionary) + np.asarray(encoded.indices)
    repeated = np.ones(len(keys), np.bool_)
    repeated[np.unique(entries, return_index=True)[1]] = False
    return repeated


def _scalar(node: Any, target: sql.DataType) -> Callable[[pa.Array], Any]:
    """Return the conversion to the declared type; what does not fit becomes null."""
    found, type_ = source(node, target), arrow_type(target)
    way = (found.kind, type(target)) if found else None
    if way in _AS_THEY_ARE:
        return lambda values: cast_or_null(values, type_)
    if way == ("date", sql.DateType):
        return lambda values: _days(values, type_)
    if found and way in _MOMENTS and _MICROS % found.unit == 0:
        micros = _MICROS // found.unit
        return lambda values: _moments(values, micros, type_)
    convert = converter(node, target)
    return lambda values: converted(values.to_pylist(), convert, type_)


def _days(values: pa.Array, type_: pa.DataType) -> pa.Array:
    return within(values, pa.int64(), FIRST_DAY, LAST_DAY).cast(pa.int32()).cast(type_)


def _moments(values: pa.Array, micros: int, type_: pa.DataType) -> pa.Array:
    sane = within(values, pa.int64(), -(-FIRST_MOMENT // micros), LAST_MOMENT // micros)
    return pc.multiply(sane, micros).cast(type_)
