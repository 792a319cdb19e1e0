"""Values that JSON encodes indirectly: decimals in base64, timestamps as numbers, NaN as text."""

from __future__ import annotations

import math
import re
import struct
from decimal import Decimal
from typing import Any, Final, NamedTuple, NoReturn

from pyspark.sql import types as sql

from ingestion.formats.coerce import (
    Convert,
    MisfitError,
    Source,
    exact,
    from_base64,
    moment,
    unscaled,
)
from ingestion.formats.nested import array_of, map_of, struct_of

_NUMBER: Final = re.compile(r"[+-]?\d+(\.\d+)?([eE][+-]?\d{1,3})?", re.ASCII)
_MOMENT: Final = re.compile(
    r"\d{4}-\d\d-\d\dT\d\d:\d\d(:\d\d(\.\d{1,9})?)?(Z|[+-]\d\d:\d\d)?", re.ASCII
)
_DATE: Final = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_NOT_FINITE: Final = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_DAY: Final = 86_400_000_000
_MOST_DIGITS: Final = 400


class Hint(NamedTuple):
    """What is known of a value apart from its JSON.

    Attributes:
        unit: Ticks per second of a numeric timestamp; 0 if unknown.
        days: Whether a number may be a date.
        scale: The scale of a decimal in base64; ``None`` if decimals are plain text.
        items: The hint for the items of a list.
    """

    unit: int = 0
    days: bool = False
    scale: int | None = None
    items: Any = None


def json_value(hint: Hint | None, target: sql.DataType) -> Convert:
    """Return the conversion of a parsed, non-null value to the declared type."""
    told = hint or Hint()
    if isinstance(target, sql.StructType):
        inner = struct_of(dict.fromkeys(target.names, told), target, json_value)
        return lambda value: inner(_of(dict, value, target))
    if isinstance(target, sql.ArrayType):
        items = array_of(told.items or told, target, json_value)
        return lambda value: items(_of(list, value, target))
    if isinstance(target, sql.MapType):
        values = map_of(told, target, json_value)
        return lambda value: values(
            {_text(name, sql.StringType()): each for name, each in _of(dict, value, target).items()}
        )
    if isinstance(target, sql.DecimalType):
        return lambda value: _decimal(value, told, target)
    if isinstance(target, sql.DateType):
        return lambda value: _days(value, told, target)
    if isinstance(target, sql.TimestampType | sql.TimestampNTZType):
        return lambda value: _moment(value, told, target)
    return _plain(target)


def _plain(target: sql.DataType) -> Convert:
    if isinstance(target, sql.BinaryType):
        return lambda value: _base64(_of(str, value, target), target)
    if isinstance(target, sql.FloatType | sql.DoubleType):
        return lambda value: _float(value, target)
    if isinstance(target, sql.BooleanType):
        return lambda value: _of(bool, value, target)
    if isinstance(target, sql.StringType | sql.VarcharType):
        return lambda value: _text(_of(str, value, target), target)
    convert = exact(Source("integer"), target)
    return lambda value: convert(_of(int, value, target))


def _decimal(value: Any, hint: Hint, target: sql.DecimalType) -> Any:
    convert = exact(Source("decimal"), target)
    if type(value) is dict and value.keys() == {"scale", "value"}:
        number = _base64(_of(str, value["value"], target), target)
        scale = _of(int, value["scale"], target)
        return convert(unscaled(int.from_bytes(number, signed=True), scale))
    if type(value) is int or isinstance(value, Decimal):
        return (
            convert(Decimal(value))
            if abs(Decimal(value).adjusted()) < _MOST_DIGITS
            else _no(value, target)
        )
    text = _of(str, value, target)
    if hint.scale is not None:
        return convert(unscaled(int.from_bytes(_base64(text, target), signed=True), hint.scale))
    return convert(Decimal(text)) if _NUMBER.fullmatch(text) else _no(value, target)


def _days(value: Any, hint: Hint, target: sql.DataType) -> int:
    if type(value) is int and hint.days:
        return int(exact(Source("date"), target)(value))
    if type(value) is not str or not _DATE.fullmatch(value):
        _no(value, target)
    try:
        return moment(value) // _DAY
    except ValueError:
        return _no(value, target)


def _moment(value: Any, hint: Hint, target: sql.DataType) -> int:
    zoned = isinstance(target, sql.TimestampType)
    if type(value) is int:
        if not hint.unit:
            raise MisfitError(f"{value} has no unit; say which in the option `timestamps`")
        kind = "timestamp" if zoned else "local_timestamp"
        return int(exact(Source(kind, hint.unit), target)(value))
    found = _MOMENT.fullmatch(value) if type(value) is str else None
    if found is None or bool(found[3]) != zoned or (found[2] or "")[7:].strip("0"):
        _no(value, target)
    try:
        return moment(value)
    except ValueError:
        return _no(value, target)


def _float(value: Any, target: sql.DataType) -> float:
    """Round a number to the nearest float: writers use the shortest text that identifies it."""
    if type(value) is str and value in _NOT_FINITE:
        return _NOT_FINITE[value]
    if type(value) is not int and not isinstance(value, Decimal):
        _no(value, target)
    try:
        near = float(value)
        if isinstance(target, sql.FloatType):
            near = float(struct.unpack("<f", struct.pack("<f", near))[0])
    except OverflowError:
        return _no(value, target)
    return near if math.isfinite(near) else _no(value, target)


def _text(value: str, target: sql.DataType) -> str:
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        return _no(ascii(value), target)
    return str(exact(Source("string"), target)(value))


def _base64(text: str, target: sql.DataType) -> bytes:
    try:
        return from_base64(text)
    except ValueError:
        return _no(text, target)


def _of(kind: type, value: Any, target: sql.DataType) -> Any:
    return value if type(value) is kind else _no(value, target)


def _no(value: Any, target: sql.DataType) -> NoReturn:
    raise MisfitError(f"{value!s:.80} is not {target.simpleString().upper()}")
