"""Conversion of an encoding's values to declared columns: lossless, or refused.

The results are what Arrow takes: timestamps as microseconds and dates as days, since both may be
outside the range of Python's own types. Records, lists and maps are converted by name, whatever
their encoding; null is never passed to a conversion.
"""

from __future__ import annotations

import binascii
import datetime as dt
import math
import re
import struct
from collections.abc import Callable, Mapping
from ctypes import c_float
from decimal import MAX_EMAX, MAX_PREC, MIN_EMIN, Context, Decimal
from typing import Any, Final, NamedTuple, NoReturn

from pyspark.sql import types as sql
from pyspark.sql.types import DataType

from oncelake.ingestion.errors import counted
from oncelake.ingestion.formats.decoder import BadBytesError

_MICROS: Final = 1_000_000
FIRST_DAY, LAST_DAY = -719_162, 2_932_896
FIRST_MOMENT = FIRST_DAY * 86_400 * _MICROS
LAST_MOMENT = (LAST_DAY + 1) * 86_400 * _MICROS - 1
_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_BASE64: Final = re.compile(
    "(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?", re.ASCII
)
# Enough for 128 bits with any usual scale.
_MOST_DIGITS: Final = 60
# More than PostgreSQL's NUMERIC has, before the point or behind it.
_LONGEST_DECIMAL: Final = 150_000
# Of more, Decimal(int) would take its time: as long as these.
_LONGEST_IN_BITS: Final = 500_000
# More than any column holds, and than a decimal has zeros that no digit stands behind.
_FARTHEST: Final = 1_000
_MOST_BITS: Final = 4_000
# Rounds nothing; default arithmetic would round to 28 digits.
_ENDLESS: Final = Context(prec=MAX_PREC, Emin=MIN_EMIN, Emax=MAX_EMAX)
BITS: Final[dict[type[DataType], int]] = {
    sql.ByteType: 8,
    sql.ShortType: 16,
    sql.IntegerType: 32,
    sql.LongType: 64,
}
# Of a DECIMAL.
MOST_DIGITS: Final = 38
MORE_DIGITS: Final = f"a number of more than {MOST_DIGITS} digits"
# The columns that hold all values of a kind, or of one of Python's types.
_COLUMNS: Final = {
    "boolean": "BOOLEAN",
    "integer": "BIGINT",
    "float": "FLOAT",
    "double": "DOUBLE",
    "string": "STRING",
    "bytes": "BINARY",
    "decimal": "DECIMAL",
    "date": "DATE",
    "timestamp": "TIMESTAMP",
    "local_timestamp": "TIMESTAMP_NTZ",
}
_NAMES: Final[dict[type, str]] = {
    bool: "BOOLEAN",
    float: "DOUBLE",
    str: "STRING",
    bytes: "BINARY",
    list: "ARRAY",
    dict: "STRUCT",
}
# Kinds of values that are whole numbers in their encoding.
_NUMBERED: Final = ("integer", "date", "timestamp", "local_timestamp")

Convert = Callable[[Any], Any]
# Returns the conversion of an encoding's type to a declared one.
Converter = Callable[[Any, DataType], Convert]


class MisfitError(BadBytesError):
    """A value that the declared column cannot hold without loss.

    Attributes:
        path: Where it is, such as ``a[].b``; empty in the column itself.
    """

    def __init__(self, message: str, reason: str = "type_mismatch") -> None:
        super().__init__(reason, message)
        self.path = ""

    def __str__(self) -> str:
        message = super().__str__()
        return f"{self.path}: {message}" if self.path else message

    def within(self, step: str) -> MisfitError:
        """Say that it is at this name, in a list ``[]`` or in a map ``{}``."""
        is_joined = not self.path or self.path[0] in "[{"
        self.path = step + self.path if is_joined else f"{step}.{self.path}"
        return self


class Source(NamedTuple):
    """The type of a value in its encoding.

    Attributes:
        kind: ``boolean, integer, float, double, string, bytes, decimal, date, timestamp`` or
            ``local_timestamp``.
        unit: For the last two, ticks per second.
    """

    kind: str
    unit: int = 0


def exact(source: Source, target: DataType) -> Convert:
    """Return the lossless conversion of scalars; it raises ``MisfitError``."""
    find = _EXACT.get((source.kind, type(target)))
    return find(source, target) if find else mismatch(source.kind, target)


def exact_ticks(unit: int, target: DataType) -> Convert:
    """Return the conversion of ticks, so many a second, to a timestamp with or without a zone."""
    is_zoned = isinstance(target, sql.TimestampType)
    return exact(Source("timestamp" if is_zoned else "local_timestamp", unit), target)


def mismatch(kind: str, target: DataType) -> Convert:
    """Return a conversion that refuses every value of ``kind``."""

    def convert(_: Any) -> NoReturn:
        raise MisfitError(f"expected {named(target)}, found {_COLUMNS.get(kind, kind)}")

    return convert


def columns_of(
    fields: Mapping[str, Any], columns: sql.StructType, converter: Converter
) -> Callable[[Any], list[Any]]:
    """Return the conversion of a record to a row.

    Args:
        fields: The encoding's types, by name.
        columns: The declared columns; one that is not in ``fields`` is null.
        converter: Returns the conversion of one type to another.
    """
    plan = [
        (each.name, converter(fields[each.name], each.dataType) if each.name in fields else None)
        for each in columns
    ]

    def to_row(record: Any) -> list[Any]:
        row, name = [], ""
        try:
            for name, convert in plan:
                value = None if convert is None else record.get(name)
                row.append(value if convert is None or value is None else convert(value))
        except MisfitError as error:
            raise error.within(name) from None
        return row

    return to_row


def struct_of(
    fields: Mapping[str, Any],
    target: DataType,
    converter: Converter,
    *,
    missing: str = "type_mismatch",
) -> Convert:
    """Return the conversion of a record to a STRUCT; ``missing`` is the reason of NOT NULL."""
    if not isinstance(target, sql.StructType):
        return mismatch("STRUCT", target)
    to_row = columns_of(fields, target, converter)
    names = target.names
    required = [at for at, field in enumerate(target) if not field.nullable]

    def convert(record: Any) -> dict[str, Any]:
        row = to_row(record)
        for at in required:
            if row[at] is None:
                raise MisfitError("null, and NOT NULL", missing).within(names[at])
        return dict(zip(names, row, strict=True))

    return convert


def array_of(items: Any, target: DataType, converter: Converter) -> Convert:
    """Return the conversion of a list to an ARRAY."""
    if not isinstance(target, sql.ArrayType):
        return mismatch("ARRAY", target)
    convert = converter(items, target.elementType)

    def convert_items(values: Any) -> list[Any]:
        try:
            return [None if value is None else convert(value) for value in values]
        except MisfitError as error:
            raise error.within("[]") from None

    return convert_items


def map_of(values: Any, target: DataType, converter: Converter) -> Convert:
    """Return the conversion to a MAP with STRING keys."""
    if not isinstance(target, sql.MapType) or not isinstance(target.keyType, sql.StringType):
        return mismatch("MAP", target)
    convert = converter(values, target.valueType)

    def convert_values(items: Any) -> list[tuple[str, Any]]:
        try:
            return [(k, None if v is None else convert(v)) for k, v in items.items()]
        except MisfitError as error:
            raise error.within("{}") from None

    return convert_values


def refuse(value: Any, target: DataType) -> NoReturn:
    """Raise the error for a value that its column cannot hold, and name the column that could."""
    raise MisfitError(f"expected {named(target)}, found {holding(value)}: {value!s:.80}")


def holding(value: Any) -> str:
    """Name the type of a column that holds a value, as far as the value tells."""
    if type(value) is int and -(1 << 63) <= value < 1 << 63:
        return "BIGINT"
    if type(value) is int or isinstance(value, Decimal):
        return _holding_decimal(Decimal(value))
    return _NAMES.get(type(value), type(value).__name__)


def _holding_decimal(number: Decimal) -> str:
    """Name a DECIMAL that holds a number exactly, if there is one."""
    if not number.is_finite() or abs(number.adjusted()) > MOST_DIGITS:
        return MORE_DIGITS
    exact = number.normalize(_ENDLESS)
    scale = max(0, -int(exact.as_tuple().exponent))
    fits = max(0, exact.adjusted() + 1) + scale <= MOST_DIGITS
    return f"DECIMAL({MOST_DIGITS}, {scale})" if fits else MORE_DIGITS


def named(target: DataType) -> str:
    """Return the SQL name of a type."""
    return target.simpleString().upper()


def unscaled(number: int, scale: int) -> Decimal:
    """Return the decimal ``number / 10**scale``, of any length."""
    return Decimal(number).scaleb(-scale, _ENDLESS)


def decimal_of(raw: bytes, scale: int, target: DataType) -> Decimal:
    """Return the decimal whose unscaled number stands in bytes, the most significant first."""
    number = int.from_bytes(raw, signed=True)
    if not number:
        return Decimal()
    if number.bit_length() > _MOST_BITS or abs(scale) > _FARTHEST:
        refuse_size(f"a number of scale {scale} in {counted(len(raw), 'byte')}", target)
    return unscaled(number, scale)


def refuse_size(found: str, target: DataType) -> NoReturn:
    """Raise the error for a number that is too long to be computed, or written."""
    raise MisfitError(f"expected {named(target)}, found {found}")


def decimal_text(raw: bytes, scale: int, target: DataType) -> str:
    """Write the same decimal as a text, with all its digits and no exponent."""
    number = int.from_bytes(raw, signed=True)
    if number.bit_length() > _LONGEST_IN_BITS:
        refuse_size(f"a number of scale {scale} in {counted(len(raw), 'byte')}", target)
    digits = Decimal(number).adjusted() + 1
    # Zeros that take no bytes in Kafka would fill the memory.
    if digits > _LONGEST_DECIMAL or not -_FARTHEST <= scale <= digits + _FARTHEST:
        refuse_size(f"a number of {counted(digits, 'digit')} and scale {scale}", target)
    return f"{unscaled(number, scale):f}"


def rescaled(value: Decimal, target: sql.DecimalType) -> Decimal:
    """Return a decimal with the declared scale."""
    if not value.is_finite() or (value and value.adjusted() > _MOST_DIGITS):
        refuse(value, target)
    scaled = value.quantize(Decimal(1).scaleb(-target.scale), context=_ENDLESS)
    if scaled != value or (value and scaled.adjusted() + target.scale >= target.precision):
        refuse(value, target)
    return scaled


def nearest_single(value: float, written: str) -> float:
    """Return the 32-bit float nearest to a number, given as a double and as it was written.

    Half-way between two of them the double may have been rounded already: the text decides. Beyond
    all of them it is infinite.
    """
    near = c_float(value).value
    if near == value or math.isinf(near):
        return near
    (bits,) = struct.unpack("<i", struct.pack("<f", near))
    step = 1 if abs(near) < abs(value) else -1
    (other,) = struct.unpack("<f", struct.pack("<i", bits + step))
    if abs(value - near) != abs(other - value) or Decimal(written) == Decimal(value):
        return near
    return float(max(near, other) if Decimal(written) > Decimal(value) else min(near, other))


def moment(text: str) -> int:
    """Return a moment of ISO 8601 in microseconds, between the years 1 and 9999.

    Without a zone it is UTC; its form is the caller's concern.

    Raises:
        ValueError: there is no such moment.
    """
    if text[11:13] == "24":
        raise ValueError("no hour of a day; newer Pythons take it for the next day's first")
    found = dt.datetime.fromisoformat(text)
    since = found.replace(tzinfo=found.tzinfo or dt.UTC) - _EPOCH
    micros = since // dt.timedelta(microseconds=1)
    if not _is_moment(micros):
        raise ValueError("beyond the years 1 to 9999")
    return micros


def from_base64(text: str) -> bytes:
    """Return the bytes of base64 with its padding; raise ``ValueError`` if it is none."""
    if not _BASE64.fullmatch(text):
        raise ValueError("not base64")
    return binascii.a2b_base64(text)


def _as_is(_: Source, __: DataType) -> Convert:
    return lambda value: value


def _within(_: Source, target: DataType) -> Convert:
    most = 1 << (BITS[type(target)] - 1)
    return lambda value: value if -most <= value < most else refuse(value, target)


def _whole(source: Source, target: DataType) -> Convert:
    within = _within(source, target)

    def convert(value: Decimal) -> Any:
        if (value and value.adjusted() > _MOST_DIGITS) or value != value.to_integral_value():
            refuse(value, target)
        return within(int(value or 0))

    return convert


def _short(_: Source, target: Any) -> Convert:
    return lambda value: value if len(value) <= target.length else refuse(value, target)


def _day(_: Source, target: DataType) -> Convert:
    return lambda days: days if FIRST_DAY <= days <= LAST_DAY else refuse(days, target)


def _ticks(source: Source, target: DataType) -> Convert:
    def convert(ticks: int) -> int:
        micros, rest = divmod(ticks * _MICROS, source.unit)
        return refuse(ticks, target) if rest or not _is_moment(micros) else micros

    return convert


def _is_moment(micros: int) -> bool:
    return FIRST_MOMENT <= micros <= LAST_MOMENT


def _whole_float(_: Source, target: DataType) -> Convert:
    """Refuse a whole number that no float equals."""
    most = 24 if isinstance(target, sql.FloatType) else 53
    return lambda value: float(value) if _bits_of(value) <= most else refuse(value, target)


def _bits_of(value: int) -> int:
    """Count the bits from the first to the last that is set."""
    return abs(value).bit_length() - (value & -value).bit_length() + 1 if value else 0


def _single(_: Source, target: DataType) -> Convert:
    """Refuse a double that no 32-bit float equals."""
    return lambda value: value if _fits_single(value) else refuse(value, target)


def _fits_single(value: float) -> bool:
    return not math.isfinite(value) or c_float(value).value == value


_EXACT: Final[dict[tuple[str, type[DataType]], Callable[[Source, Any], Convert]]] = {
    **{(kind, word): _within for kind in _NUMBERED for word in BITS},
    **{("decimal", word): _whole for word in BITS},
    ("boolean", sql.BooleanType): _as_is,
    ("integer", sql.DecimalType): lambda _, target: lambda v: rescaled(Decimal(v), target),
    ("integer", sql.FloatType): _whole_float,
    ("integer", sql.DoubleType): _whole_float,
    ("float", sql.FloatType): _as_is,
    ("float", sql.DoubleType): _as_is,
    ("double", sql.FloatType): _single,
    ("double", sql.DoubleType): _as_is,
    ("string", sql.StringType): _as_is,
    ("string", sql.VarcharType): _short,
    ("bytes", sql.BinaryType): _as_is,
    ("decimal", sql.DecimalType): lambda _, target: lambda v: rescaled(v, target),
    ("date", sql.DateType): _day,
    ("timestamp", sql.TimestampType): _ticks,
    ("local_timestamp", sql.TimestampNTZType): _ticks,
}
