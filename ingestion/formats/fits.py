"""The checks that a value loses nothing on its way into a column."""

from __future__ import annotations

import math
import struct
from decimal import Context, Decimal
from typing import Any, Final, NoReturn

from pyspark.sql.types import DataType, DecimalType, FloatType

_MICROS: Final = 1_000_000
FIRST_DAY, LAST_DAY = -719_162, 2_932_896
_FIRST_MOMENT = FIRST_DAY * 86_400 * _MICROS
_LAST_MOMENT = (LAST_DAY + 1) * 86_400 * _MICROS - 1
# Enough for 128 bits and the scale that somebody may have given them.
_MOST_DIGITS: Final = 60
_SHORT: Final = 10**38
_WIDE: Final = Context(prec=200)


class MisfitError(ValueError):
    """A value that the declared column cannot hold without a loss."""


def rescaled(value: Decimal, target: DecimalType) -> Decimal:
    """Return a decimal with the declared scale."""
    if not value.is_finite() or (value and value.adjusted() > _MOST_DIGITS):
        refuse(value, target)
    scaled = value.quantize(Decimal(1).scaleb(-target.scale, _WIDE), context=_WIDE)
    if scaled != value or (value and scaled.adjusted() + target.scale >= target.precision):
        refuse(value, target)
    return scaled


def whole(value: Decimal, target: DataType) -> int:
    """Return a decimal that is a whole number as one."""
    return int(value) if value == value.to_integral_value() else refuse(value, target)


def whole_float(value: int, target: DataType) -> float:
    """Return a whole number as the float that says it exactly."""
    bits = 24 if isinstance(target, FloatType) else 53
    odd = abs(value) >> ((value & -value).bit_length() - 1) if value else 0
    return float(value) if odd.bit_length() <= bits else refuse(value, target)


def narrow(value: float, target: DataType) -> float:
    """Return a double as the float that says the same."""
    if not math.isfinite(value):
        return value
    try:
        narrow = float(struct.unpack("<f", struct.pack("<f", value))[0])
    except OverflowError:
        return refuse(value, target)
    return value if narrow == value else refuse(value, target)


def micros(ticks: int, unit: int, target: DataType) -> int:
    """Return a moment in microseconds, between the years 1 and 9999."""
    micros, rest = divmod(ticks * _MICROS, unit)
    if rest or not _FIRST_MOMENT <= micros <= _LAST_MOMENT:
        refuse(ticks, target)
    return micros


def refuse(value: Any, target: DataType) -> NoReturn:
    """Raise the error that says that a value does not fit."""
    raise MisfitError(f"{value!s:.80} does not fit {named(target)}")


def named(target: DataType) -> str:
    """Name a type as people do."""
    return target.simpleString().upper()


def unscaled(number: int, scale: int) -> Decimal:
    """Return a decimal of any length; by default, arithmetic would round it to 28 digits."""
    if abs(number) < _SHORT and abs(scale) < _WIDE.prec:
        return Decimal(number).scaleb(-scale, _WIDE)
    digits = tuple(map(int, str(abs(number))))
    return Decimal((int(number < 0), digits, -scale))
