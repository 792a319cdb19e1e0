"""Conversion of whole columns: a value that would lose something becomes null, and is reported."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from oncelake.ingestion.formats.decoder import UNFORESEEN

Flags = NDArray[np.bool_]
Numbers = NDArray[np.int64]
Bytes = NDArray[np.uint8]
# More zeros than any reader looks at behind the last byte.
_PADDING: Final = 32


def spans(values: pa.Array) -> tuple[Bytes, Numbers, Numbers]:
    """Return the bytes of all values, zeros behind them, and where each value begins and ends."""
    _, offsets, content = values.buffers()
    zeros = np.zeros(_PADDING, np.uint8)
    if content is None:
        return zeros, np.zeros(len(values), np.int64), np.zeros(len(values), np.int64)
    window = slice(values.offset, values.offset + len(values) + 1)
    ends: Numbers = np.frombuffer(offsets, np.int32)[window].astype(np.int64)
    return np.concatenate([np.frombuffer(content, np.uint8), zeros]), ends[:-1], ends[1:]


def last_of(headers: pa.Array, names: Collection[str]) -> pa.Array:
    """Return for each record where, among all headers, its last one of some names is, if any."""
    last = np.full(len(headers), -1)
    at = np.flatnonzero(pc.is_in(headers.flatten().field("key"), pa.array(names, pa.string())))
    lengths = np.asarray(headers.value_lengths().fill_null(0))
    # Of places that are repeated numpy keeps what is assigned last.
    last[np.repeat(np.arange(len(headers)), lengths)[at]] = at
    return pa.array(last, mask=last < 0)


def cast_or_null(values: pa.Array, type_: pa.DataType) -> pa.Array:
    """Cast values; those that do not fit become null."""
    try:
        return values.cast(type_)
    except pa.ArrowInvalid:
        if len(values) == 1:
            return pa.nulls(1, type_)
    half = len(values) // 2
    return pa.concat_arrays([cast_or_null(each, type_) for each in (values[:half], values[half:])])


def within(values: pa.Array, ticks: pa.DataType, first: int, last: int) -> pa.Array:
    """Return values whose number of ticks is not in a range as null."""
    numbers = values.cast(ticks)
    ends = pc.min_max(numbers).as_py()
    if ends["min"] is None or first <= ends["min"] <= ends["max"] <= last:
        return values
    is_within = pc.and_(pc.greater_equal(numbers, first), pc.less_equal(numbers, last))
    return pc.if_else(is_within, values, None)


def converted(
    values: Collection[Any], convert: Callable[[Any], Any], type_: pa.DataType
) -> pa.Array:
    """Convert values one by one; those that do not fit become null."""

    def attempt(value: Any) -> Any:
        try:
            return None if value is None else convert(value)
        except UNFORESEEN:
            return None

    return pa.array(map(attempt, values), type_, size=len(values))


def are_lost(converted: pa.Array, values: pa.Array) -> Flags | bool:
    """Tell which values became null that were not."""
    if converted.null_count == values.null_count:
        return False
    lost: Flags = np.asarray(converted.is_null()) & np.asarray(values.is_valid())
    return lost
