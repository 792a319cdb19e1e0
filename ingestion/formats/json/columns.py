"""Values that msgspec has decoded become Arrow columns, column by column.

A column takes only what cannot be read in another way; everything else is doubtful. It also counts
the colons that the JSON of each value should have: one for each name, and those in names and texts.
A record with more of them has a name twice, or one that no column has.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from itertools import chain
from operator import attrgetter
from typing import Annotated, Any, Final, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import UNSET, Meta, Raw, UnsetType
from numpy.typing import NDArray
from pyspark.sql import types as sql

from oncelake.ingestion.formats.arrays import Flags, are_lost, cast_or_null, converted, within
from oncelake.ingestion.formats.coerce import (
    BITS,
    FIRST_DAY,
    FIRST_MOMENT,
    LAST_DAY,
    LAST_MOMENT,
    MOST_DIGITS,
    Convert,
)
from oncelake.ingestion.formats.decoder import arrow_type
from oncelake.ingestion.formats.json import strict
from oncelake.ingestion.formats.spelling import Undeclared, spelt
from oncelake.ingestion.formats.variant import LONGEST_NAME, holds_numbers

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


class Learned(NamedTuple):
    """Names that are not declared but come often; of the record's own, values may be kept."""

    names: Collection[Undeclared] = ()
    is_kept: bool = False


def shape_of(type_: sql.DataType, learned: Learned, path: str = "") -> Shape:
    """Return how a type is decoded whose values are at a path of a record."""
    if isinstance(type_, sql.StructType):
        return _Objects(type_, f"{path}." if path else "", learned).shape
    if isinstance(type_, sql.ArrayType):
        return _lists(type_, shape_of(type_.elementType, learned, f"{path}[]"))
    if isinstance(type_, sql.MapType):
        return _maps(type_, shape_of(type_.valueType, learned, f"{path}{{}}"))
    return _scalars(type_)


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
        names = _texts(list(chain.from_iterable(entries)))
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


def _scalars(type_: sql.DataType) -> Shape:
    arrow = arrow_type(type_)
    if type(type_) in BITS:
        most = 1 << (BITS[type(type_)] - 1)
        whole = Annotated[int, Meta(ge=-most, le=most - 1)]
        return Shape(whole, lambda values: Column(pa.array(values, arrow)))
    if isinstance(type_, sql.VarcharType):
        return Shape(Annotated[str, Meta(max_length=type_.length)], _texts)
    if isinstance(type_, sql.DecimalType):
        return Shape(Raw, lambda values: _decimals(values, arrow))
    return _SHAPES[type(type_)]


class _Objects:
    """Objects of a STRUCT, or the records themselves, whose columns may all be null here."""

    def __init__(self, type_: sql.StructType, prefix: str, learned: Learned) -> None:
        others = [each.name for each in learned.names if each.prefix == prefix]
        is_kept = learned.is_kept and not prefix
        other = Shape(Raw, _variants) if is_kept else Shape(Any, _undeclared)
        declared = [shape_of(f.dataType, learned, prefix + spelt(f.name)) for f in type_]
        self._type, self._prefix = arrow_type(type_), prefix
        self._required = {f.name for f in type_ if prefix and not f.nullable}
        self._names, self._shapes = [*type_.names, *others], [*declared, *(other for _ in others)]
        attributes = [f"f{at}" for at in range(len(self._names))]
        self._get = list(map(attrgetter, attributes))
        kinds = [_optional(shape.annotation) | UnsetType for shape in self._shapes]
        self.shape = Shape(
            msgspec.defstruct(
                "Fields",
                [(name, kind, UNSET) for name, kind in zip(attributes, kinds, strict=True)],
                rename=dict(zip(attributes, self._names, strict=True)),
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
        for name, get, shape in zip(self._names, self._get, self._shapes, strict=True):
            values, are_there = _without_unset(list(map(get, objects)))
            column = shape.column(values)
            colons += column.colons + (1 + name.count(":")) * are_there
            doubtful |= column.doubtful
            if name in self._required:
                doubtful |= _are_missing(column.array, shape)
            undeclared.update(column.undeclared)
            if len(arrays) < self._type.num_fields:
                arrays.append(column.array)
            else:
                undeclared[Undeclared(self._prefix, name)] = are_there
        array = pa.StructArray.from_arrays(arrays, fields=list(self._type))
        return Column(array, colons, doubtful, undeclared)


def _are_missing(array: pa.Array, shape: Shape) -> Flags:
    """Tell which are null; to VARIANT, null is a value."""
    is_variant = shape.annotation is Raw and array.type == pa.string()
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


def _texts(values: list[Any]) -> Column:
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
    days = cast_or_null(_matching(texts, strict.DATE), pa.date32())
    return _certain(within(days, pa.int32(), FIRST_DAY, LAST_DAY), texts)


def _local(values: list[Any]) -> Column:
    texts = pa.array(values, pa.string())
    return _certain(_within_years(_without_zone(texts)), texts)


def _moments(values: list[Any]) -> Column:
    try:
        texts = pa.array(values, pa.string())
    except pa.ArrowTypeError:
        return _one_by_one(values, strict.timestamp_in, pa.timestamp("us", "UTC"))
    moments = cast_or_null(
        _matching(texts, strict.DATE + strict.TIME + strict.ZONE), pa.timestamp("us", "UTC")
    )
    if moments.null_count > texts.null_count:
        moments = pc.coalesce(moments, _without_zone(texts).cast(moments.type))
    return _certain(_within_years(moments), texts)


def _without_zone(texts: pa.Array) -> pa.Array:
    return cast_or_null(_matching(texts, f"{strict.DATE}(?:{strict.TIME})?"), pa.timestamp("us"))


def _within_years(moments: pa.Array) -> pa.Array:
    return within(moments, pa.int64(), FIRST_MOMENT, LAST_MOMENT)


def _decimals(values: list[Any], type_: pa.DataType) -> Column:
    raws = pa.array(map(_bytes, values), pa.binary(), size=len(values))
    texts = pc.if_else(pc.equal(raws, b"null"), None, raws).cast(pa.string())
    is_short = pc.less_equal(pc.binary_length(texts), MOST_DIGITS)
    # With more digits before the point, Arrow's own conversion may overflow without an error.
    before = type_.precision - type_.scale
    number = strict.NUMBER.replace(r"\d+", rf"\d{{1,{before}}}" if before else "0", 1)
    numbers = pc.if_else(is_short, _matching(texts, number), None)
    return _certain(cast_or_null(numbers, type_), texts)


def _variants(values: list[Any]) -> Column:
    """Return values as the JSON that they were written in."""
    texts = pa.array(map(_bytes, values), pa.binary(), size=len(values)).cast(pa.string())
    colons = np.array([_colons_of_text(text) for text in texts.to_pylist()], np.int64)
    are_held = np.array([text is None or holds_numbers(text) for text in texts.to_pylist()], bool)
    return Column(texts, colons, (colons < 0) | ~are_held)


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
    return pc.if_else(pc.match_substring_regex(texts, rf"\A{pattern}\z"), texts, None)


def count_colons(texts: pa.Array) -> Counts:
    """Count the colons of each text."""
    if len(texts) == texts.null_count:
        return np.zeros(len(texts), np.int64)
    _, offsets, content = texts.buffers()
    ends = np.frombuffer(offsets, np.int32)[texts.offset : texts.offset + len(texts) + 1]
    at = np.flatnonzero(np.frombuffer(content, np.uint8) == ord(":"))
    counts: Counts = np.diff(np.searchsorted(at, ends))
    return counts


def _undeclared(values: list[Any]) -> Column:
    """Count the colons of values that no column takes."""
    nested = {*map(type, values)} - {bool, int, float, type(None)}
    if not nested:
        return Column(pa.nulls(len(values)))
    if nested == {str}:
        texts = [value if type(value) is str else None for value in values]
        return Column(pa.nulls(len(values)), count_colons(pa.array(texts, pa.string())))
    return Column(pa.nulls(len(values)), np.array([_colons_within(v) for v in values], np.int64))


_SHAPES: Final[dict[type[sql.DataType], Shape]] = {
    sql.StringType: Shape(str, _texts),
    sql.BooleanType: Shape(bool, lambda values: Column(pa.array(values, pa.bool_()))),
    sql.DoubleType: Shape(float, lambda values: Column(pa.array(values, pa.float64()))),
    sql.FloatType: Shape(float, _singles),
    sql.BinaryType: Shape(str, lambda values: _one_by_one(values, strict.bytes_in, pa.binary())),
    sql.DateType: Shape(str, _dates),
    sql.TimestampType: Shape(str | int, _moments),
    sql.TimestampNTZType: Shape(str, _local),
    sql.VariantType: Shape(Raw, _variants),
}
