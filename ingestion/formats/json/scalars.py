"""Scalar values that msgspec has decoded become Arrow columns, and say what is certain.

A column takes only what cannot be read in another way; everything else is doubtful. It also counts
the colons that the JSON of each value has: a record's colons are its names, and those in texts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import chain
from typing import Annotated, Any, Final, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Meta, Raw
from numpy.typing import NDArray
from pyspark.sql import types as sql

from ingestion.formats.arrays import Flags, are_lost, cast_or_null, converted, within
from ingestion.formats.coerce import FIRST_DAY, FIRST_MOMENT, LAST_DAY, LAST_MOMENT, Convert
from ingestion.formats.decoder import arrow_type
from ingestion.formats.json.names import Undeclared
from ingestion.formats.json.strict import LONGEST_NAME, MOST_DIGITS, bytes_in, timestamp_in

_BITS: Final[dict[type[sql.DataType], int]] = {
    sql.ByteType: 8,
    sql.ShortType: 16,
    sql.IntegerType: 32,
    sql.LongType: 64,
}
_DATE: Final = r"\A\d{4}-\d{2}-\d{2}"
_TIME: Final = r"[T ]\d{2}:\d{2}(?::\d{2}(?:\.\d{1,6})?)?"
_ZONE: Final = r"(?:Z|[+-](?:(?:0\d|1[0-7]):[0-5]\d|18:00))"
_NUMBER: Final = r"\A-?\d+(?:\.\d+)?\z"
_MICROS: Final = pa.timestamp("us")

Counts = NDArray[np.int64]


class Column(NamedTuple):
    """The values of one column, one part of an object, or the elements of all lists of a column.

    Attributes:
        array: The values; where they are doubtful, of no meaning.
        colons: How many colons the JSON of each value has, or of all values.
        doubtful: Which values another reader must judge.
        undeclared: Which values have a name that is not declared, by that name.
    """

    array: pa.Array
    colons: Counts | int = 0
    doubtful: Flags | bool = False
    undeclared: Mapping[Undeclared, Flags] = {}


class Shape(NamedTuple):
    """How one type is decoded.

    Attributes:
        annotation: What msgspec decodes it as, if it is not null.
        column: Makes a column of decoded values, null where they are null.
    """

    annotation: Any
    column: Callable[[list[Any]], Column]


def scalar_shape(type_: sql.DataType) -> Shape:
    """Return how values are decoded that are no objects, lists or maps."""
    arrow = arrow_type(type_)
    if type(type_) in _BITS:
        most = 1 << (_BITS[type(type_)] - 1)
        whole = Annotated[int, Meta(ge=-most, le=most - 1)]
        return Shape(whole, lambda values: Column(pa.array(values, arrow)))
    if isinstance(type_, sql.VarcharType):
        return Shape(Annotated[str, Meta(max_length=type_.length)], text_column)
    if isinstance(type_, sql.DecimalType):
        return Shape(Raw, lambda values: _decimals(values, arrow))
    return _SHAPES[type(type_)]


def text_column(values: list[Any]) -> Column:
    """Return texts as they are."""
    array = pa.array(values, pa.string())
    return Column(array, count_colons(array))


def _singles(values: list[Any]) -> Column:
    """Round to 32 bits; half-way between two of them, the double may have been rounded already."""
    wide = pa.array(values, pa.float64()).to_numpy(zero_copy_only=False)
    with np.errstate(all="ignore"):
        near = wide.astype(np.float32)
        back = near.astype(np.float64)
        other = np.nextafter(near, np.where(wide > back, np.inf, -np.inf).astype(np.float32))
        is_tie = (wide != back) & (wide - back == other.astype(np.float64) - wide)
    is_null = pa.array([value is None for value in values], pa.bool_())
    return Column(pa.array(near, mask=np.asarray(is_null)), 0, is_tie | np.isinf(near))


def _dates(values: list[Any]) -> Column:
    texts = pa.array(values, pa.string())
    days = cast_or_null(_matching(texts, _DATE + r"\z"), pa.date32())
    return _certain(within(days, pa.int32(), FIRST_DAY, LAST_DAY), texts)


def _local(values: list[Any]) -> Column:
    texts = pa.array(values, pa.string())
    moments = cast_or_null(_matching(texts, rf"{_DATE}(?:{_TIME})?\z"), _MICROS)
    return _certain(within(moments, pa.int64(), FIRST_MOMENT, LAST_MOMENT), texts)


def _moments(values: list[Any]) -> Column:
    try:
        texts = pa.array(values, pa.string())
    except pa.ArrowTypeError:
        return _one_by_one(values, timestamp_in, pa.timestamp("us", "UTC"))
    zoned = _matching(texts, rf"{_DATE}{_TIME}{_ZONE}\z")
    moments = cast_or_null(zoned, pa.timestamp("us", "UTC"))
    if moments.null_count > texts.null_count:
        without_zone = cast_or_null(_matching(texts, rf"{_DATE}(?:{_TIME})?\z"), _MICROS)
        moments = pc.coalesce(moments, without_zone.cast(moments.type))
    return _certain(within(moments, pa.int64(), FIRST_MOMENT, LAST_MOMENT), texts)


def _decimals(values: list[Any], type_: pa.DataType) -> Column:
    raws = pa.array(map(_bytes, values), pa.binary(), size=len(values))
    texts = pc.if_else(pc.equal(raws, b"null"), None, raws).cast(pa.string())
    is_short = pc.less_equal(pc.binary_length(texts), MOST_DIGITS)
    numbers = pc.if_else(is_short, _matching(texts, _NUMBER), None)
    return _certain(cast_or_null(numbers, type_), texts)


def variant_column(values: list[Any]) -> Column:
    """Return values as the JSON that they were written in."""
    texts = pa.array(map(_bytes, values), pa.binary(), size=len(values)).cast(pa.string())
    colons = np.array([_colons_of_text(text) for text in texts.to_pylist()], np.int64)
    return Column(texts, colons, colons < 0)


def _bytes(raw: Raw | None) -> bytes | None:
    return None if raw is None else bytes(raw)


def _colons_of_text(text: str | None) -> int:
    """Count the colons that a JSON text should have; -1 if that cannot be said."""
    if text is None or ":" not in text:
        return 0
    if 2 * len(text) > LONGEST_NAME:
        return -1
    try:
        return _colons_within(msgspec.json.decode(text))
    except (msgspec.MsgspecError, RecursionError):
        return -1


def _colons_within(value: Any) -> int:
    """Count the names of a value, and the colons in them and in texts, however deep it is."""
    colons, rest = 0, [value]
    while rest:
        each = rest.pop()
        if type(each) is str:
            colons += each.count(":")
        elif type(each) is dict:
            colons += len(each)
            rest += chain(each, each.values())
        elif type(each) is list:
            rest += each
    return colons


def _one_by_one(values: list[Any], convert: Convert, type_: pa.DataType) -> Column:
    texts = pa.array([None if each is None else str(each) for each in values], pa.string())
    return _certain(converted(values, convert, type_), texts)


def _certain(array: pa.Array, texts: pa.Array) -> Column:
    """Doubt what became null, though it is a text."""
    return Column(array, count_colons(texts), are_lost(array, texts))


def _matching(texts: pa.Array, pattern: str) -> pa.Array:
    return pc.if_else(pc.match_substring_regex(texts, pattern), texts, None)


def count_colons(texts: pa.Array) -> Counts:
    """Count the colons of each text."""
    if len(texts) == texts.null_count:
        return np.zeros(len(texts), np.int64)
    _, offsets, content = texts.buffers()
    ends = np.frombuffer(offsets, np.int32)[texts.offset : texts.offset + len(texts) + 1]
    at = np.flatnonzero(np.frombuffer(content, np.uint8) == ord(":"))
    counts: Counts = np.diff(np.searchsorted(at, ends))
    return counts


def undeclared_column(values: list[Any]) -> Column:
    """Count the colons of values that no column takes."""
    plain = {bool, int, float, type(None)}
    if plain.issuperset(map(type, values)):
        return Column(pa.nulls(len(values)))
    return Column(pa.nulls(len(values)), np.array([_colons_within(v) for v in values], np.int64))


_SHAPES: Final[dict[type[sql.DataType], Shape]] = {
    sql.StringType: Shape(str, text_column),
    sql.BooleanType: Shape(bool, lambda values: Column(pa.array(values, pa.bool_()))),
    sql.DoubleType: Shape(float, lambda values: Column(pa.array(values, pa.float64()))),
    sql.FloatType: Shape(float, _singles),
    sql.BinaryType: Shape(str, lambda values: _one_by_one(values, bytes_in, pa.binary())),
    sql.DateType: Shape(str, _dates),
    sql.TimestampType: Shape(str | int, _moments),
    sql.TimestampNTZType: Shape(str, _local),
    sql.VariantType: Shape(Raw, variant_column),
}
