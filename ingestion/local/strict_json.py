"""JSON, and the types of a table, read as strictly as the promise is written and without Spark.

A second opinion is worth something only when nothing in it comes from the first, so this shares
no code with the engine's formats. It accepts one document of valid UTF-8, without duplicate names,
NaN or Infinity, and a value only where it becomes the declared type without loss.
"""

from __future__ import annotations

import datetime as dt
import json
import math
import re
from collections.abc import Callable, Mapping
from decimal import Context, Decimal, InvalidOperation
from typing import Any, Final, NoReturn

Value = int | float | str | bool | dt.date | dt.datetime | Decimal | None
Read = Callable[[Any], Value]

_BITS: Final = {"TINYINT": 8, "SMALLINT": 16, "INT": 32, "INTEGER": 32, "BIGINT": 64, "LONG": 64}
_DATE: Final = re.compile(r"\d{4}-\d{2}-\d{2}", re.ASCII)
_TIMESTAMP: Final = re.compile(
    r"\d{4}-\d{2}-\d{2}([T ]\d{2}:\d{2}(:\d{2}(\.\d{1,6})?)?(Z|[+-]\d{2}:\d{2})?)?", re.ASCII
)
_NUMBER: Final = re.compile(r"[+-]?\d+(\.\d+)?([eE][+-]?\d+)?", re.ASCII)
_WIDE: Final = Context(prec=100)
_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


class BadRecordError(ValueError):
    """A record that cannot be applied; the message is the reason."""


class _Fraction(str):
    """A number with a point or an exponent, kept as it was written."""

    __slots__ = ()


def parse_object(raw: bytes) -> Mapping[str, Any]:
    """Read exactly one JSON object.

    Raises:
        BadRecordError: it is anything else.
    """
    parsed = parse(raw)
    if not isinstance(parsed, dict):
        raise BadRecordError(f"a JSON object was expected, not {type(parsed).__name__}")
    return parsed


def parse(raw: bytes) -> Any:
    """Read exactly one JSON document, fractions kept as text.

    Raises:
        BadRecordError: it is not one, or leaves room for doubt.
    """
    try:
        return _DECODER.decode(raw.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise BadRecordError(f"not JSON: {error}") from None


def reader(type: str) -> Read:
    """Return the function that turns a parsed JSON value into a value of a Spark SQL type.

    It is not asked about null. It raises ``BadRecordError`` (or ``ValueError``, ``OverflowError``)
    for a value that the type cannot hold.

    Raises:
        NotImplementedError: this judge knows nothing of the type, and must not guess.
    """
    name, _, arguments = type.upper().replace(" ", "").rstrip(")").partition("(")
    if name in _BITS:
        return _integer_of(_BITS[name])
    if name in {"DECIMAL", "NUMERIC"}:
        precision, scale = map(int, (f"{arguments},0" if arguments else "10,0").split(",")[:2])
        return lambda value: _decimal(value, precision, scale)
    if name not in _READERS:
        raise NotImplementedError(f"the fold cannot judge columns of type {type}")
    return _READERS[name]


def _integer_of(bits: int) -> Read:
    limit = 1 << (bits - 1)

    def read(value: Any) -> int:
        if type(value) is not int or not -limit <= value < limit:
            _refuse(value)
        return value

    return read


def _double(value: Any) -> float:
    if type(value) is not int and not isinstance(value, _Fraction):
        _refuse(value)
    number = float(value)
    return number if math.isfinite(number) else _refuse(value)


def _decimal(value: Any, precision: int, scale: int) -> Decimal:
    if isinstance(value, bool) or not _NUMBER.fullmatch(str(value)):
        _refuse(value)
    number, unit = Decimal(value), Decimal(1).scaleb(-scale)
    try:
        scaled = number.quantize(unit, context=_WIDE)
    except InvalidOperation:
        return _refuse(value)
    if scaled != number or len(scaled.as_tuple().digits) > precision:
        _refuse(value)
    return scaled or unit * 0


def _boolean(value: Any) -> bool:
    return value if isinstance(value, bool) else _refuse(value)


def _string(value: Any) -> str:
    if type(value) is str and value.isascii():
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict | list):
        raise NotImplementedError("the fold cannot judge an object in a STRING column")
    text = str(value)
    text.encode("utf-8")  # a lone surrogate is refused here
    return text


def _date(value: Any) -> dt.date:
    if type(value) is not str or not _DATE.fullmatch(value):
        _refuse(value)
    return dt.date.fromisoformat(value)


def _timestamp(value: Any) -> dt.datetime:
    if type(value) is int:
        return _EPOCH + dt.timedelta(seconds=value)
    if type(value) is not str or not _TIMESTAMP.fullmatch(value):
        _refuse(value)
    moment = dt.datetime.fromisoformat(value)
    return (moment if moment.tzinfo else moment.replace(tzinfo=dt.UTC)).astimezone(dt.UTC)


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise BadRecordError("a name comes twice in one object")
    return fields


def _refuse(value: Any) -> NoReturn:
    raise BadRecordError(f"not a value of the declared type: {value!r:.80}")


_DECODER: Final = json.JSONDecoder(
    object_pairs_hook=_without_duplicates, parse_float=_Fraction, parse_constant=_refuse
)
_READERS: Final[Mapping[str, Read]] = {
    "STRING": _string,
    "DOUBLE": _double,
    "BOOLEAN": _boolean,
    "DATE": _date,
    "TIMESTAMP": _timestamp,
}
