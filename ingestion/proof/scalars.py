"""One JSON value as one value of a scalar type: taken where nothing is lost, else refused."""

from __future__ import annotations

import base64
import datetime as dt
import math
import re
import struct
from collections.abc import Callable, Mapping
from decimal import Context, Decimal, InvalidOperation
from fractions import Fraction
from typing import Any, Final, NoReturn

from ingestion.proof.strict_json import BadRecordError, Written

Read = Callable[[Any], Any]

_DATE: Final = re.compile(r"\d{4}-\d{2}-\d{2}", re.ASCII)
_TIMESTAMP: Final = re.compile(
    r"\d{4}-\d{2}-\d{2}([T ]\d{2}:\d{2}(:\d{2}(\.\d{1,6})?)?"
    r"(Z|[+-](?:(?:0\d|1[0-7]):[0-5]\d|18:00))?)?",
    re.ASCII,
)
_PLAIN: Final = re.compile(r"-?\d+(\.\d+)?", re.ASCII)
_MOST_DIGITS: Final = 38
_WIDE: Final = Context(prec=100)
_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
# Fewer digits never round twice on their way through a double.
_SAFE_DIGITS: Final = 16


def instance_of(value: Any, kind: type) -> Any:
    """Return a value that is of a kind of JSON; refuse any other."""
    return value if isinstance(value, kind) else refuse(value)


def integer_of(bits: int) -> Read:
    """Return the reader of whole numbers of so many bits."""
    limit = 1 << (bits - 1)

    def read(value: Any) -> int:
        if type(value) is not int or not -limit <= value < limit:
            refuse(value)
        return value

    return read


def _double(value: Any) -> float:
    if type(value) is not int and not isinstance(value, Written):
        refuse(value)
    number = float(value)
    return number if math.isfinite(number) else refuse(value)


def _float(value: Any) -> float:
    """Round to the nearest 32-bit float, once: by way of a double some would be rounded twice."""
    near = float(struct.unpack("<f", struct.pack("<f", _double(value)))[0])
    if len(str(value)) < _SAFE_DIGITS:
        return near
    exact, bits = Fraction(str(value)), struct.unpack("<I", struct.pack("<f", abs(near)))[0]
    around = [bits, max(bits - 1, 0), bits + 1]
    floats = {each: struct.unpack("<f", struct.pack("<I", each))[0] for each in around}
    best = min(floats, key=lambda each: (abs(Fraction(floats[each]) - abs(exact)), each & 1))
    return math.copysign(floats[best], near)


def decimal(value: Any, precision: int, scale: int) -> Decimal:
    """Take a number in plain notation that needs no rounding to fit; none that is text."""
    if type(value) not in (int, Written) or not _PLAIN.fullmatch(str(value)):
        refuse(value)
    if _digits(str(value)) > _MOST_DIGITS:
        refuse(value)
    number, unit = Decimal(value), Decimal(1).scaleb(-scale)
    try:
        scaled = number.quantize(unit, context=_WIDE)
    except InvalidOperation:
        return refuse(value)
    if scaled != number or len(scaled.as_tuple().digits) > precision:
        refuse(value)
    return scaled or unit * 0


def _digits(number: str) -> int:
    """Count the digits that a decimal must have to hold a number as it is written."""
    whole, _, fraction = number.removeprefix("-").partition(".")
    return max(len((whole + fraction).lstrip("0")), len(fraction))


def text_of(length: int) -> Read:
    """Return the reader of text of at most so many characters."""

    def read(value: Any) -> str:
        text = _string(value)
        return text if len(text) <= length else refuse(value)

    return read


def _boolean(value: Any) -> bool:
    return value if isinstance(value, bool) else refuse(value)


def _string(value: Any) -> str:
    if type(value) is not str:
        refuse(value)
    if not value.isascii():
        value.encode("utf-8")  # a lone surrogate is refused here
    return str(value)


def _binary(value: Any) -> bytes:
    return base64.b64decode(instance_of(value, str), validate=True)


def _date(value: Any) -> dt.date:
    if type(value) is not str or not _DATE.fullmatch(value):
        refuse(value)
    return dt.date.fromisoformat(value)


def _timestamp(value: Any) -> dt.datetime:
    if type(value) is int:
        return _EPOCH + dt.timedelta(seconds=value)
    moment = _moment(value)
    return (moment if moment.tzinfo else moment.replace(tzinfo=dt.UTC)).astimezone(dt.UTC)


def _timestamp_without_zone(value: Any) -> dt.datetime:
    moment = _moment(value)
    return refuse(value) if moment.tzinfo else moment


def _moment(value: Any) -> dt.datetime:
    if type(value) is not str or not _TIMESTAMP.fullmatch(value):
        refuse(value)
    return dt.datetime.fromisoformat(value)


def refuse(value: Any) -> NoReturn:
    """Raise the error that says that a value does not fit."""
    raise BadRecordError(f"not a value of the declared type: {value!r:.80}")


SCALARS: Final[Mapping[str, Read]] = {
    "STRING": _string,
    "BINARY": _binary,
    "FLOAT": _float,
    "DOUBLE": _double,
    "BOOLEAN": _boolean,
    "DATE": _date,
    "TIMESTAMP": _timestamp,
    "TIMESTAMP_NTZ": _timestamp_without_zone,
}
