"""A value of an encoding as one of a declared column: taken where nothing is lost, else refused.

Values leave as Arrow takes them: moments as microseconds, dates as days, since both may lie beyond
what Python's own types can say.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from decimal import Context, Decimal
from typing import Any, Final, NamedTuple, NoReturn

from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    ByteType,
    CharType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    TimestampNTZType,
    TimestampType,
    VarcharType,
)

Convert = Callable[[Any], Any]

_BITS: Final[dict[type[DataType], int]] = {
    ByteType: 8,
    ShortType: 16,
    IntegerType: 32,
    LongType: 64,
}
_MICROS: Final = 1_000_000
_FIRST_DAY, _LAST_DAY = -719_162, 2_932_896
_FIRST_MOMENT = _FIRST_DAY * 86_400 * _MICROS
_LAST_MOMENT = (_LAST_DAY + 1) * 86_400 * _MICROS - 1
# Enough for 128 bits and the scale that somebody may have given them.
_WIDE: Final = Context(prec=200)


class MisfitError(ValueError):
    """A value that the declared column cannot hold without a loss."""


class Source(NamedTuple):
    """What an encoding says a value is.

    Attributes:
        kind: ``boolean, integer, float, double, string, bytes, decimal, date, timestamp`` or
            ``local_timestamp``.
        unit: Of the last two, ticks a second; of a decimal, digits behind the point.
    """

    kind: str
    unit: int = 0


def exact(source: Source, target: DataType) -> Convert:
    """Return what turns a value into the declared type; it raises ``MisfitError``.

    It is not asked about null.
    """
    find = _BY_KIND.get(source.kind)
    convert = find(source, target) if find else None
    return convert or mismatch(source.kind, target)


def mismatch(kind: str, target: DataType) -> Convert:
    """Return what refuses every value, since none of its kind can be the declared type."""

    def convert(_: Any) -> NoReturn:
        raise MisfitError(f"{kind} is not {_named(target)}")

    return convert


def _as_is(value: Any) -> Any:
    return value


def _boolean(_: Source, target: DataType) -> Convert | None:
    return _as_is if isinstance(target, BooleanType) else None


def _integer(_: Source, target: DataType) -> Convert | None:
    if type(target) in _BITS:
        return _within(-(1 << (_BITS[type(target)] - 1)), target)
    if isinstance(target, DecimalType):
        return lambda value: _rescaled(Decimal(value), target)
    if isinstance(target, FloatType | DoubleType):
        return lambda value: _whole_float(value, target)
    return None


def _float(_: Source, target: DataType) -> Convert | None:
    return _as_is if isinstance(target, FloatType | DoubleType) else None


def _double(_: Source, target: DataType) -> Convert | None:
    if isinstance(target, FloatType):
        return lambda value: _narrow(value, target)
    return _as_is if isinstance(target, DoubleType) else None


def _string(_: Source, target: DataType) -> Convert | None:
    if isinstance(target, CharType | VarcharType):
        return lambda value: value if len(value) <= target.length else _refuse(value, target)
    return _as_is if isinstance(target, StringType) else None


def _bytes(_: Source, target: DataType) -> Convert | None:
    return _as_is if isinstance(target, BinaryType) else None


def _decimal(_: Source, target: DataType) -> Convert | None:
    if isinstance(target, DecimalType):
        return lambda value: _rescaled(value, target)
    if type(target) in _BITS:
        within = _within(-(1 << (_BITS[type(target)] - 1)), target)
        return lambda value: within(_whole(value, target))
    return None


def _date(source: Source, target: DataType) -> Convert | None:
    if isinstance(target, DateType):
        return lambda days: days if _FIRST_DAY <= days <= _LAST_DAY else _refuse(days, target)
    return _integer(source, target) if type(target) in _BITS else None


def _moment(source: Source, target: DataType) -> Convert | None:
    if type(target) in _BITS:
        return _integer(source, target)
    zoned = source.kind == "timestamp"
    if not isinstance(target, TimestampType if zoned else TimestampNTZType):
        return None
    return lambda ticks: _micros(ticks, source.unit, target)


_BY_KIND: Final[dict[str, Callable[[Source, DataType], Convert | None]]] = {
    "boolean": _boolean,
    "integer": _integer,
    "float": _float,
    "double": _double,
    "string": _string,
    "bytes": _bytes,
    "decimal": _decimal,
    "date": _date,
    "timestamp": _moment,
    "local_timestamp": _moment,
}


def _within(low: int, target: DataType) -> Convert:
    return lambda value: value if low <= value < -low else _refuse(value, target)


def _rescaled(value: Decimal, target: DecimalType) -> Decimal:
    if not value.is_finite():
        _refuse(value, target)
    scaled = value.quantize(Decimal(1).scaleb(-target.scale, _WIDE), context=_WIDE)
    if scaled != value or len(scaled.as_tuple().digits) > target.precision:
        _refuse(value, target)
    return scaled


def _whole(value: Decimal, target: DataType) -> int:
    return int(value) if value == value.to_integral_value() else _refuse(value, target)


def _whole_float(value: int, target: DataType) -> float:
    bits = 24 if isinstance(target, FloatType) else 53
    odd = abs(value) >> ((value & -value).bit_length() - 1) if value else 0
    return float(value) if odd.bit_length() <= bits else _refuse(value, target)


def _narrow(value: float, target: DataType) -> float:
    if not math.isfinite(value):
        return value
    try:
        narrow = float(struct.unpack("<f", struct.pack("<f", value))[0])
    except OverflowError:
        return _refuse(value, target)
    return value if narrow == value else _refuse(value, target)


def _micros(ticks: int, unit: int, target: DataType) -> int:
    micros, rest = divmod(ticks * _MICROS, unit)
    if rest or not _FIRST_MOMENT <= micros <= _LAST_MOMENT:
        _refuse(ticks, target)
    return micros


def _refuse(value: Any, target: DataType) -> NoReturn:
    raise MisfitError(f"{value!s:.80} does not fit {_named(target)}")


def _named(target: DataType) -> str:
    return target.simpleString().upper()


def unscaled(number: int, scale: int) -> Decimal:
    """Return a decimal of any length; arithmetic would round it to 28 digits."""
    digits = tuple(map(int, str(abs(number))))
    return Decimal((int(number < 0), digits, -scale))
