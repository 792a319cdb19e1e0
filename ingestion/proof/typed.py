"""Values of a typed encoding as values of declared columns: equal to what delta-rs hands out.

The promise of the formats with a schema, implemented a second time: nothing is rounded, cut,
wrapped or guessed; what does not fit makes the record bad.
"""

from __future__ import annotations

import datetime as dt
import math
import struct
from collections.abc import Callable, Mapping
from decimal import Decimal, localcontext
from fractions import Fraction
from typing import Any, Final

from ingestion.declaration.types import Declared
from ingestion.proof.scalars import Read, refuse

_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_BITS: Final = {"TINYINT": 8, "SMALLINT": 16, "INT": 32, "BIGINT": 64}


def whole(type_: Declared) -> Read | None:
    """Take a whole number."""
    if type_.word in _BITS:
        bits = _BITS[type_.word]
        return lambda value: (
            value if -(2 ** (bits - 1)) <= value < 2 ** (bits - 1) else refuse(value)
        )
    if type_.word == "DECIMAL":
        return lambda value: exact_decimal(Fraction(value), type_)
    if type_.word in {"FLOAT", "DOUBLE"}:
        return lambda value: _same_float(value, type_)
    return None


def real(type_: Declared) -> Read | None:
    """Take a binary fraction, which a narrower column must hold as it is."""
    return (lambda value: _same_float(value, type_)) if type_.word in {"FLOAT", "DOUBLE"} else None


def scaled(type_: Declared, scale: int) -> Read | None:
    """Take a decimal, given as its unscaled whole number."""
    if type_.word == "DECIMAL":
        return lambda value: exact_decimal(Fraction(value) / 10**scale, type_)
    within = whole(type_) if type_.word in _BITS else None
    if within is None:
        return None

    def read(value: int) -> Any:
        number = Fraction(value) / 10**scale
        return within(int(number)) if number.denominator == 1 else refuse(value)

    return read


def day(type_: Declared) -> Read | None:
    """Take days since 1970."""
    if type_.word == "DATE":
        return lambda value: (_EPOCH + dt.timedelta(days=value)).date()
    return whole(type_) if type_.word in _BITS else None


def moment(type_: Declared, ticks: int, *, zoned: bool) -> Read | None:
    """Take a number of ticks since 1970, so many a second."""
    if type_.word in _BITS:
        return whole(type_)
    if type_.word != ("TIMESTAMP" if zoned else "TIMESTAMP_NTZ"):
        return None

    def read(value: int) -> dt.datetime:
        micros = Fraction(value) * 1_000_000 / ticks
        if micros.denominator != 1:
            refuse(value)
        found = _EPOCH + dt.timedelta(microseconds=int(micros))
        return found if zoned else found.replace(tzinfo=None)

    return read


def plain(type_: Declared, *words: str) -> Read | None:
    """Take a value as it is, where one of these types is declared."""
    return (lambda value: value) if type_.word in words else None


def text(type_: Declared) -> Read | None:
    """Take a text, where it is not too long."""
    if type_.word == "VARCHAR":
        return lambda value: value if len(value) <= type_.precision else refuse(value)
    return plain(type_, "STRING")


def never(what: str, type_: Declared) -> Read:
    """Refuse every value, since none of its kind is the declared type."""
    return lambda _: refuse(f"{what} for {type_}")


def fields(
    types: Mapping[str, Any], wanted: Mapping[str, Declared], fit: Callable[[Any, Declared], Read]
) -> Callable[[Mapping[str, Any]], list[Any]]:
    """Return what takes the wanted fields of a record; one that it lacks is null."""
    readers = [(n, fit(types[n], type_) if n in types else None) for n, type_ in wanted.items()]

    def read(record: Mapping[str, Any]) -> list[Any]:
        given = [(record.get(name), each) for name, each in readers]
        return [None if v is None or each is None else each(v) for v, each in given]

    return read


def nested(word: str, parts: Any, type_: Declared, fit: Callable[[Any, Declared], Read]) -> Read:
    """Take a record, a list or a map, given the types of its fields, items or values."""
    if type_.word != word:
        return never(word, type_)
    if word == "STRUCT":
        return _struct(fields(parts, type_.parts, fit), type_)
    if word == "ARRAY":
        item = fit(parts, type_.parts["element"])
        return lambda value: [None if each is None else item(each) for each in value]
    if type_.parts["key"].word != "STRING":
        return never("a map with texts for keys", type_)
    item = fit(parts, type_.parts["value"])
    return lambda value: {n: None if each is None else item(each) for n, each in value.items()}


def _struct(take: Callable[[Mapping[str, Any]], list[Any]], type_: Declared) -> Read:
    def read(record: Mapping[str, Any]) -> dict[str, Any]:
        found = dict(zip(type_.parts, take(record), strict=True))
        if any(found[name] is None for name in type_.required):
            refuse("a NOT NULL field is null")
        return found

    return read


def exact_decimal(number: Fraction, type_: Declared) -> Decimal:
    """Return a number as a DECIMAL that needs no rounding."""
    unscaled = number * 10**type_.scale
    if unscaled.denominator != 1 or abs(unscaled) >= 10**type_.precision:
        refuse(number)
    with localcontext() as context:
        context.prec = 60
        return Decimal(int(unscaled)).scaleb(-type_.scale)


def _same_float(value: float, type_: Declared) -> float:
    if isinstance(value, float) and not math.isfinite(value):
        return value
    shape = "<f" if type_.word == "FLOAT" else "<d"
    found = float(struct.unpack(shape, struct.pack(shape, value))[0])
    return found if found == value else refuse(value)
