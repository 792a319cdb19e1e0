"""Conversion of an encoding's values to declared columns: lossless, or refused.

The results are what Arrow takes: timestamps as microseconds and dates as days, since both may be
outside the range of Python's own types.
"""

from __future__ import annotations

import binascii
import datetime as dt
import math
import re
import struct
from collections.abc import Callable
from decimal import Context, Decimal
from typing import Any, Final, NamedTuple, NoReturn

from pyspark.sql import types as sql
from pyspark.sql.types import DataType

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
_SHORT: Final = 10**38
_WIDE: Final = Context(prec=200)


class MisfitError(ValueError):
    """A value that the declared column cannot hold without loss.

    Attributes:
        reason: Why, as a code of the format.
        path: Where it is, such as ``a[].b``; empty in the column itself.
    """

    def __init__(self, message: str, reason: str = "type_mismatch") -> None:
        super().__init__(message)
        self.reason, self.path = reason, ""

    def __str__(self) -> str:
        message = super().__str__()
        return f"{self.path}: {message}" if self.path else message

    def within(self, step: str) -> MisfitError:
        """Say that it is at this name, in a list ``[]`` or in a map ``{}``."""
        is_joined = not self.path or self.path[0] in "[{"
        self.path = step + self.path if is_joined else f"{step}.{self.path}"
        return self


def rescaled(value: Decimal, target: sql.DecimalType) -> Decimal:
    """Return a decimal with the declared scale."""
    if not value.is_finite() or (value and value.adjusted() > _MOST_DIGITS):
        refuse(value, target)
    scaled = value.quantize(Decimal(1).scaleb(-target.scale, _WIDE), context=_WIDE)
    if scaled != value or (value and scaled.adjusted() + target.scale >= target.precision):
        refuse(value, target)
    return scaled


def whole(value: Decimal, target: DataType) -> int:
    """Return the int of a decimal that is a whole number."""
    return int(value) if value == value.to_integral_value() else refuse(value, target)


def whole_float(value: int, target: DataType) -> float:
    """Return the float that equals a whole number exactly."""
    bits = 24 if isinstance(target, sql.FloatType) else 53
    odd = abs(value) >> ((value & -value).bit_length() - 1) if value else 0
    return float(value) if odd.bit_length() <= bits else refuse(value, target)


def narrow(value: float, target: DataType) -> float:
    """Return the 32-bit float that equals a double exactly."""
    if not math.isfinite(value):
        return value
    try:
        narrow = float(struct.unpack("<f", struct.pack("<f", value))[0])
    except OverflowError:
        return refuse(value, target)
    return value if narrow == value else refuse(value, target)


def nearest_single(value: float, written: str) -> float:
    """Return the 32-bit float nearest to a number, given as a double and as it was written.

    Half-way between two of them the double may have been rounded already: the text decides.

    Raises:
        OverflowError: it is beyond all of them.
    """
    (near,) = struct.unpack("<f", struct.pack("<f", value))
    if near == value:
        return float(near)
    (bits,) = struct.unpack("<i", struct.pack("<f", near))
    step = 1 if abs(near) < abs(value) else -1
    (other,) = struct.unpack("<f", struct.pack("<i", bits + step))
    if abs(value - near) != abs(other - value) or Decimal(written) == Decimal(value):
        return float(near)
    return float(max(near, other) if Decimal(written) > Decimal(value) else min(near, other))


def micros(ticks: int, unit: int, target: DataType) -> int:
    """Return a timestamp in microseconds, between the years 1 and 9999."""
    micros, rest = divmod(ticks * _MICROS, unit)
    if rest or not FIRST_MOMENT <= micros <= LAST_MOMENT:
        refuse(ticks, target)
    return micros


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
    if not FIRST_MOMENT <= micros <= LAST_MOMENT:
        raise ValueError("beyond the years 1 to 9999")
    return micros


def from_base64(text: str) -> bytes:
    """Return the bytes of base64 with its padding.

    Raises:
        ValueError: it is not base64.
    """
    if not _BASE64.fullmatch(text):
        raise ValueError("not base64")
    return binascii.a2b_base64(text)


def refuse(value: Any, target: DataType) -> NoReturn:
    """Raise the error for a value that does not fit."""
    raise MisfitError(f"{value!s:.80} does not fit {named(target)}")


def named(target: DataType) -> str:
    """Return the SQL name of a type."""
    return target.simpleString().upper()


def unscaled(number: int, scale: int) -> Decimal:
    """Return a decimal of any length; default arithmetic would round to 28 digits."""
    if abs(number) < _SHORT and abs(scale) < _WIDE.prec:
        return Decimal(number).scaleb(-scale, _WIDE)
    digits = tuple(map(int, str(abs(number))))
    return Decimal((int(number < 0), digits, -scale))


Convert = Callable[[Any], Any]

_BITS: Final[dict[type[DataType], int]] = {
    sql.ByteType: 8,
    sql.ShortType: 16,
    sql.IntegerType: 32,
    sql.LongType: 64,
}
# Kinds of values that are whole numbers in their encoding.
_NUMBERED: Final = ("integer", "date", "timestamp", "local_timestamp")


class Source(NamedTuple):
    """The type of a value in its encoding.

    Attributes:
        kind: ``boolean, integer, float, double, string, bytes, decimal, date, timestamp`` or
            ``local_timestamp``.
        unit: For the last two, ticks per second; for a decimal, its scale.
    """

    kind: str
    unit: int = 0


def exact(source: Source, target: DataType) -> Convert:
    """Return the lossless conversion to the declared type; null is never passed to it.

    It raises ``MisfitError``.
    """
    find = _EXACT.get((source.kind, type(target)))
    return find(source, target) if find else mismatch(source.kind, target)


def mismatch(kind: str, target: DataType) -> Convert:
    """Return a conversion that refuses every value of ``kind``."""

    def convert(_: Any) -> NoReturn:
        raise MisfitError(f"{kind} is not {named(target)}")

    return convert


def _as_is(_: Source, __: DataType) -> Convert:
    return lambda value: value


def _within(_: Source, target: DataType) -> Convert:
    most = 1 << (_BITS[type(target)] - 1)
    return lambda value: value if -most <= value < most else refuse(value, target)


def _whole(source: Source, target: DataType) -> Convert:
    within = _within(source, target)
    return lambda value: within(whole(value, target))


def _short(_: Source, target: Any) -> Convert:
    return lambda value: value if len(value) <= target.length else refuse(value, target)


def _day(_: Source, target: DataType) -> Convert:
    return lambda days: days if FIRST_DAY <= days <= LAST_DAY else refuse(days, target)


def _ticks(source: Source, target: DataType) -> Convert:
    return lambda ticks: micros(ticks, source.unit, target)


_EXACT: Final[dict[tuple[str, type[DataType]], Callable[[Source, Any], Convert]]] = {
    **{(kind, word): _within for kind in _NUMBERED for word in _BITS},
    **{("decimal", word): _whole for word in _BITS},
    ("boolean", sql.BooleanType): _as_is,
    ("integer", sql.DecimalType): lambda _, target: lambda v: rescaled(Decimal(v), target),
    ("integer", sql.FloatType): lambda _, target: lambda v: whole_float(v, target),
    ("integer", sql.DoubleType): lambda _, target: lambda v: whole_float(v, target),
    ("float", sql.FloatType): _as_is,
    ("float", sql.DoubleType): _as_is,
    ("double", sql.FloatType): lambda _, target: lambda v: narrow(v, target),
    ("double", sql.DoubleType): _as_is,
    ("string", sql.StringType): _as_is,
    ("string", sql.VarcharType): _short,
    ("bytes", sql.BinaryType): _as_is,
    ("decimal", sql.DecimalType): lambda _, target: lambda v: rescaled(v, target),
    ("date", sql.DateType): _day,
    ("timestamp", sql.TimestampType): _ticks,
    ("local_timestamp", sql.TimestampNTZType): _ticks,
}
