"""A value of an encoding as one of a declared column: taken where nothing is lost, else refused.

Values leave as Arrow takes them: moments as microseconds, dates as days, since both may lie beyond
what Python's own types can say.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any, Final, NamedTuple, NoReturn

from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    ByteType,
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

from ingestion.formats.fits import (
    FIRST_DAY,
    LAST_DAY,
    MisfitError,
    micros,
    named,
    narrow,
    refuse,
    rescaled,
    whole,
    whole_float,
)

Convert = Callable[[Any], Any]

_BITS: Final[dict[type[DataType], int]] = {
    ByteType: 8,
    ShortType: 16,
    IntegerType: 32,
    LongType: 64,
}


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
        raise MisfitError(f"{kind} is not {named(target)}")

    return convert


def _as_is(value: Any) -> Any:
    return value


def _boolean(_: Source, target: DataType) -> Convert | None:
    return _as_is if isinstance(target, BooleanType) else None


def _integer(_: Source, target: DataType) -> Convert | None:
    if type(target) in _BITS:
        return _within(-(1 << (_BITS[type(target)] - 1)), target)
    if isinstance(target, DecimalType):
        return lambda value: rescaled(Decimal(value), target)
    if isinstance(target, FloatType | DoubleType):
        return lambda value: whole_float(value, target)
    return None


def _float(_: Source, target: DataType) -> Convert | None:
    return _as_is if isinstance(target, FloatType | DoubleType) else None


def _double(_: Source, target: DataType) -> Convert | None:
    if isinstance(target, FloatType):
        return lambda value: narrow(value, target)
    return _as_is if isinstance(target, DoubleType) else None


def _string(_: Source, target: DataType) -> Convert | None:
    if isinstance(target, VarcharType):
        return lambda value: value if len(value) <= target.length else refuse(value, target)
    return _as_is if isinstance(target, StringType) else None


def _bytes(_: Source, target: DataType) -> Convert | None:
    return _as_is if isinstance(target, BinaryType) else None


def _decimal(_: Source, target: DataType) -> Convert | None:
    if isinstance(target, DecimalType):
        return lambda value: rescaled(value, target)
    if type(target) in _BITS:
        within = _within(-(1 << (_BITS[type(target)] - 1)), target)
        return lambda value: within(whole(value, target))
    return None


def _date(source: Source, target: DataType) -> Convert | None:
    if isinstance(target, DateType):
        return lambda days: days if FIRST_DAY <= days <= LAST_DAY else refuse(days, target)
    return _integer(source, target) if type(target) in _BITS else None


def _moment(source: Source, target: DataType) -> Convert | None:
    if type(target) in _BITS:
        return _integer(source, target)
    zoned = source.kind == "timestamp"
    if not isinstance(target, TimestampType if zoned else TimestampNTZType):
        return None
    return lambda ticks: micros(ticks, source.unit, target)


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
    return lambda value: value if low <= value < -low else refuse(value, target)
