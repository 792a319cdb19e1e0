"""Values as values of declared types: taken where nothing is lost, else refused.

Those of JSON first, then those whose own type a schema says. None of them is null. A value that its
type cannot hold raises ``BadRecordError``, ``ValueError`` or ``OverflowError``.
"""

from __future__ import annotations

import base64
import datetime as dt
import math
import re
import struct
from collections.abc import Callable, Collection, Iterable, Mapping
from decimal import Decimal, localcontext
from fractions import Fraction
from typing import Any, Final, NoReturn

from oncelake.ingestion.declaration.ddl import DeclaredColumn
from oncelake.ingestion.declaration.types import SqlType
from oncelake.ingestion.storage.processes import deeper_calls
from oncelake.ingestion.verify.read.record import EPOCH
from oncelake.ingestion.verify.read.variant import (
    text_of_decimal,
    text_of_double,
    text_of_list,
    text_of_object,
    text_of_string,
)

Read = Callable[[Any], Any]

_DATE: Final = re.compile(r"\d{4}-\d{2}-\d{2}", re.ASCII)
_TIMESTAMP: Final = re.compile(
    r"\d{4}-\d{2}-\d{2}([T ]\d{2}:\d{2}(:\d{2}(\.\d{1,6})?)?"
    r"(Z|[+-](?:(?:0\d|1[0-7]):[0-5]\d|18:00))?)?",
    re.ASCII,
)
_ISO_MOMENT: Final = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]{1,9})?)?(Z|[+-][0-9:]{5})?"
)
# No column holds a number so small, or so large; and powers of ten take their time.
_FARTHEST: Final = 1_000
_LONGEST: Final = 150_000
_LONGEST_IN_BITS: Final = 500_000
# Fewer digits never round twice on their way through a double.
_SAFE_DIGITS: Final = 16
NOT_FINITE: Final = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
TICKS: Final = {"millis": 10**3, "micros": 10**6, "nanos": 10**9}
# A null that is a value.
NULL: Final = object()
# Of a VARIANT: names in UTF-16, digits of a decimal.
_LONGEST_NAME: Final = 50_000
_LONGEST_VARIANT: Final = 16 * 2**20
# How deep a value may be whose type contains itself, or which becomes a VARIANT.
DEEPEST: Final = 100
_MOST_DIGITS: Final = 38
_BITS: Final = {"TINYINT": 8, "SMALLINT": 16, "INT": 32, "BIGINT": 64}


class UnprovableError(Exception):
    """This proof cannot decide, and must not guess; the message has the reason.

    Whatever depends on the declaration, or on what today's Kafka and registry still hold, may raise
    it; ``verify`` makes it an obstacle of the verdict.
    """


# What reading a value, or a schema, that is not as it should be may raise.
BROKEN: Final = (
    *(ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError),
)


class BadRecordError(ValueError):
    """A record that cannot be applied; the message is the reason."""


class TruncateError(BadRecordError):
    """A record that says that the source has emptied its table."""


class UnknownSchemaError(BadRecordError):
    """A record that cannot be read, for the registry does not know its schema, or not any more."""


class WrittenNumber(str):
    """A number of JSON with a point or an exponent, kept as it was written."""

    __slots__ = ()


def refuse(value: Any) -> NoReturn:
    """Raise the error that says that a value does not fit."""
    raise BadRecordError(f"not a value of the declared type: {value!r:.80}")


def utf8(raw: bytes) -> str:
    """Return bytes as text."""
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadRecordError(f"no UTF-8: {error}") from None


def provable_types(columns: Iterable[DeclaredColumn]) -> dict[str, SqlType]:
    """Return the types of columns by name, or raise ``UnprovableError`` for a VARIANT."""
    types = {column.name: column.type for column in columns}
    for name, type_ in types.items():
        if type_.contains("VARIANT"):
            raise UnprovableError(f"column {name}, which is {type_}, is not provable")
    return types


# Values of JSON.


def with_nulls(fields: Mapping[str, Any], columns: Mapping[str, SqlType]) -> Mapping[str, Any]:
    """Mark the nulls that are values of a VARIANT, as every null is that is written out."""
    names = (name for name, type_ in columns.items() if type_.word in WRITERS)
    nulls = {name: NULL for name in names if name in fields and fields[name] is None}
    return {**fields, **nulls} if nulls else fields


def of_json(type_: SqlType, *, rejects: bool = False) -> Read:
    """Return what takes a parsed JSON value as a declared type; ``rejects`` undeclared names."""
    if type_.parts:
        return _json_nested(type_, rejects)
    if type_.word in _BITS:
        whole_number = whole(type_) or never("a number", type_)
        return lambda value: whole_number(value) if type(value) is int else refuse(value)
    if type_.word == "DECIMAL":
        return lambda value: _json_decimal(value, type_)
    if within := text(type_):
        return lambda value: within(_string(value))
    if type_.word not in SCALARS:
        raise UnprovableError(f"columns of type {type_} are not provable")
    return SCALARS[type_.word]


def refuse_names(fields: Mapping[str, Any], declared: Collection[str], *, rejects: bool) -> None:
    """Refuse names that stand for one declared in another case; if ``rejects``, any undeclared."""
    if fields.keys() <= set(declared):
        return
    others, absent = fields.keys() - set(declared), set(declared) - fields.keys()
    if rejects:
        raise BadRecordError(f"names that are not declared: {sorted(others)}")
    if {name.lower() for name in others} & {name.lower() for name in absent}:
        raise BadRecordError(f"a name in another case: {sorted(others)}")


def _json_nested(type_: SqlType, rejects: bool) -> Read:
    if type_.word == "MAP" and type_.parts["key"].word != "STRING":
        raise UnprovableError("maps with other keys than texts are not provable")
    kind: type[Any] = list if type_.word == "ARRAY" else dict
    read = nested(type_.word, type_.parts, type_, lambda _, part: of_json(part, rejects=rejects))

    def read_nested(value: Any) -> Any:
        if type(value) is not kind:
            refuse(value)
        if type_.word == "STRUCT":
            refuse_names(value, type_.parts, rejects=rejects)
            optional = {n: part for n, part in type_.parts.items() if n not in type_.required}
            value = with_nulls(value, optional)
        elif type_.word == "MAP":
            value = with_nulls(value, dict.fromkeys(value, type_.parts["value"]))
        elif type_.parts["element"].word in WRITERS:
            value = [NULL if each is None else each for each in value]
        return read(value)

    return read_nested


def _json_decimal(value: Any, type_: SqlType) -> Decimal:
    """Take a number that needs no rounding to fit; none that is text."""
    if type(value) not in (int, WrittenNumber):
        refuse(value)
    return exact_decimal(number_in(str(value)), type_)


def number_in(text: str) -> Fraction:
    """Return the number that a text writes; a far power of ten is refused, and not computed."""
    number = Decimal(text)
    if number and abs(number.adjusted()) > _FARTHEST:
        refuse(text)
    return Fraction(number) if number else Fraction()


def _double(value: Any) -> float:
    if type(value) is not int and not isinstance(value, WrittenNumber):
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


def _string(value: Any) -> str:
    if type(value) is not str:
        refuse(value)
    if not value.isascii():
        value.encode("utf-8")  # a lone surrogate is refused here
    return str(value)


def variant(value: Any) -> str:
    """Write any value as the proof compares VARIANTs: see ``ingestion.verify.read.variant``."""
    with deeper_calls():
        return _json(value, _number_of_variant)


def json_text(value: Any) -> str:
    """Write any value as JSON without blanks, with sorted names and numbers as they are written."""
    with deeper_calls():
        return _json(value, str)


def _held_json_text(value: Any) -> str:
    variant(value)
    return json_text(value)


# By the word of the type; ``JSON`` is a VARIANT of which the sink keeps the text, and ``HELD_JSON``
# the text of one that Spark makes of it.
WRITERS: Final[Mapping[str, Read]] = {
    "VARIANT": variant,
    "JSON": json_text,
    "HELD_JSON": _held_json_text,
}


def variant_of(value: Any, type_: SqlType) -> str:
    """Write what a schema made of bytes, if it is no larger than a VARIANT may be."""
    if len(json_text(value)) > _LONGEST_VARIANT:
        raise BadRecordError("larger than a VARIANT may be")
    return str(WRITERS[type_.word](value))


def real_in_json(value: float) -> str:
    """Write a float as a number that is a double, or as the text that stands for it."""
    if math.isfinite(value):
        return WrittenNumber(f"{value!r}" if "e" in repr(value) else f"{value!r}e0")
    return next(name for name, each in NOT_FINITE.items() if repr(each) == repr(value))


def _json(value: Any, number: Callable[[str], str]) -> str:
    if type(value) is dict:
        if any(len(name.encode("utf-16-le")) > 2 * _LONGEST_NAME for name in value):
            raise BadRecordError("a name that no VARIANT has")
        return text_of_object({name: _json(each, number) for name, each in value.items()})
    if type(value) is list:
        return text_of_list([_json(each, number) for each in value])
    if type(value) is str:
        return text_of_string(value)
    if type(value) is bool:
        return "true" if value else "false"
    return "null" if value in (None, NULL) else number(str(value))


def _number_of_variant(written: str) -> str:
    """Write a whole number of 64 bits, a decimal of 38 digits, or a double."""
    if "e" not in written.lower():
        if "." not in written and -(2**63) <= int(written) < 2**63:
            return written
        number = Decimal(written)
        _, digits, exponent = number.as_tuple()
        if len(digits) <= _MOST_DIGITS and -int(exponent) <= _MOST_DIGITS:
            return text_of_decimal(number)
    near, mantissa = float(written), written.lower().partition("e")[0]
    is_lost = near == 0 and any(digit in mantissa for digit in "123456789")
    return refuse(written) if is_lost or math.isinf(near) else text_of_double(near)


def _bytes(value: Any) -> bytes:
    """Take base64 with its padding; Python's own reading lets more padding pass."""
    found = base64.b64decode(_string(value), validate=True)
    return found if len(base64.b64encode(found)) == len(value) else refuse(value)


def _timestamp(value: Any) -> dt.datetime:
    return EPOCH + dt.timedelta(seconds=value) if type(value) is int else in_utc(_moment(value))


def _moment(value: Any) -> dt.datetime:
    return dt.datetime.fromisoformat(written(_TIMESTAMP, value)[0])


def written(pattern: re.Pattern[str], value: Any) -> re.Match[str]:
    """Return how a pattern matches the whole of a text; refuse any other value."""
    return (type(value) is str and pattern.fullmatch(value)) or refuse(value)


def in_utc(moment: dt.datetime) -> dt.datetime:
    """Return a moment in UTC, which is what one without a zone is in already."""
    return moment.astimezone(dt.UTC) if moment.tzinfo else moment.replace(tzinfo=dt.UTC)


SCALARS: Final[Mapping[str, Read]] = {
    "BINARY": _bytes,
    "FLOAT": _float,
    "DOUBLE": _double,
    "BOOLEAN": lambda value: value if isinstance(value, bool) else refuse(value),
    "DATE": lambda value: dt.date.fromisoformat(written(_DATE, value)[0]),
    "TIMESTAMP": _timestamp,
    "TIMESTAMP_NTZ": lambda value: refuse(value) if (at := _moment(value)).tzinfo else at,
    **WRITERS,
}


# Values whose own type a schema says; nothing is returned where the declared type is another.


def whole(type_: SqlType) -> Read | None:
    """Take a whole number."""
    if type_.word in _BITS:
        end = 2 ** (_BITS[type_.word] - 1)
        return lambda value: value if -end <= value < end else refuse(value)
    if type_.word == "DECIMAL":
        return lambda value: exact_decimal(Fraction(value), type_)
    if type_.word in {"FLOAT", "DOUBLE"}:
        return lambda value: _same_float(value, type_)
    return None


def real(type_: SqlType) -> Read | None:
    """Take a binary fraction, which a narrower column must hold as it is."""
    return (lambda value: _same_float(value, type_)) if type_.word in {"FLOAT", "DOUBLE"} else None


def scaled(type_: SqlType, scale: int) -> Read | None:
    """Take a decimal, given as its unscaled whole number."""
    if type_.word == "DECIMAL":
        return lambda value: exact_decimal(_shifted(value, scale), type_)
    within = whole(type_) if type_.word in _BITS else None
    if within is None:
        return None

    def read(value: int) -> Any:
        number = _shifted(value, scale)
        return within(int(number)) if number.denominator == 1 else refuse(value)

    return read


def day(type_: SqlType) -> Read | None:
    """Take days since 1970."""
    if type_.word == "DATE":
        return lambda value: (EPOCH + dt.timedelta(days=value)).date()
    return whole(type_) if type_.word in _BITS else None


def moment(type_: SqlType, ticks: int, *, zoned: bool) -> Read | None:
    """Take a number of ticks since 1970, so many a second."""
    if type_.word in _BITS:
        return whole(type_)
    if type_.word != ("TIMESTAMP" if zoned else "TIMESTAMP_NTZ"):
        return None

    def read(value: int) -> dt.datetime:
        micros = Fraction(value) * 1_000_000 / ticks
        if micros.denominator != 1:
            refuse(value)
        found = EPOCH + dt.timedelta(microseconds=int(micros))
        return found if zoned else found.replace(tzinfo=None)

    return read


def unscaled(digits: bytes, scale: int, type_: SqlType) -> Decimal:
    """Return a decimal that is given by its digits and their scale."""
    return exact_decimal(_shifted(int.from_bytes(digits, signed=True), scale), type_)


def _shifted(number: int, scale: int) -> Fraction:
    """Return a number with its point so many digits from the right; too far is refused."""
    if number and abs(scale) > _FARTHEST:
        refuse(number)
    return Fraction(number) / Fraction(10) ** (scale if number else 0)


def unscaled_text(digits: bytes, scale: int) -> str:
    """Write such a decimal with all its digits."""
    number = int.from_bytes(digits, signed=True)
    if number.bit_length() > _LONGEST_IN_BITS:
        refuse(scale)
    # Unlike str(int), it has no limit.
    figures = str(Decimal(abs(number)))
    # Zeros that take no bytes in Kafka would fill the memory.
    if len(figures) > _LONGEST or not -_FARTHEST <= scale <= len(figures) + _FARTHEST:
        refuse(scale)
    if scale <= 0:
        whole, fraction = figures + "0" * (-scale if number else 0), ""
    else:
        figures = figures.zfill(scale + 1)
        whole, fraction = figures[:-scale], "." + figures[-scale:]
    return f"{'-' if number < 0 else ''}{whole}{fraction}"


def iso_moment(value: Any, zoned: bool) -> dt.datetime:
    """Take a text of ISO 8601, with a zone or without, of which nothing beyond micros is lost."""
    found = written(_ISO_MOMENT, value)
    if bool(found[3]) != zoned or set((found[2] or "")[7:]) - {"0"}:
        refuse(value)
    moment = dt.datetime.fromisoformat(value)
    return moment.astimezone(dt.UTC) if zoned else moment


def plain(type_: SqlType, *words: str) -> Read | None:
    """Take a value as it is, where one of these types is declared."""
    return (lambda value: value) if type_.word in words else None


def text(type_: SqlType) -> Read | None:
    """Take a text, where it is not too long."""
    if type_.word == "VARCHAR":
        return lambda value: value if len(value) <= type_.precision else refuse(value)
    return plain(type_, "STRING")


def never(what: str, type_: SqlType) -> Read:
    """Refuse every value, since none of its kind is the declared type."""
    return lambda _: refuse(f"{what} for {type_}")


def fields(
    types: Mapping[str, Any], wanted: Mapping[str, SqlType], fit: Callable[[Any, SqlType], Read]
) -> Callable[[Mapping[str, Any]], list[Any]]:
    """Return what takes the wanted fields of a record; one that it lacks is null."""
    readers = [(n, fit(types[n], type_) if n in types else None) for n, type_ in wanted.items()]
    return lambda record: [
        None if read is None or (value := record.get(name)) is None else read(value)
        for name, read in readers
    ]


# Where a field is: the names of columns and parts on the way to it, and its own.
Path = tuple[str, ...]


def undeclared(node: Any, type_: SqlType, inside: Callable[[Any, str], Iterable[Any]]) -> set[Path]:
    """Return the paths of the fields of records for which the STRUCT in their place has none.

    Args:
        node: What an encoding says of a value, or the value.
        type_: Its declared type.
        inside: Returns the parts of a node, by the names that a type of that word has for them;
            those of each branch, where there are several.
    """
    paths: set[Path] = set()
    for parts in inside(node, type_.word):
        for name, part in parts.items():
            if name in type_.parts:
                paths |= {(name, *each) for each in undeclared(part, type_.parts[name], inside)}
            elif type_.word == "STRUCT":
                paths.add((name,))
    return paths


def inside_json(value: Any, word: str) -> Iterable[Any]:
    """Return the parts of a parsed value of JSON."""
    if type(value) is list and word == "ARRAY":
        return [{"element": each} for each in value]
    if type(value) is dict and word == "MAP":
        return [{"value": each} for each in value.values()]
    return [value] if type(value) is dict and word == "STRUCT" else ()


def nested(word: str, parts: Any, type_: SqlType, fit: Callable[[Any, SqlType], Read]) -> Read:
    """Take a record, a list or a map, given the types of its fields, items or values."""
    if type_.word != word:
        return never(word, type_)
    if word == "ARRAY":
        item = fit(parts, type_.parts["element"])
        return lambda value: [None if each is None else item(each) for each in value]
    if word == "MAP":
        if type_.parts["key"].word != "STRING":
            return never("a map with texts for keys", type_)
        item = fit(parts, type_.parts["value"])
        return lambda value: {n: None if each is None else item(each) for n, each in value.items()}
    take = fields(parts, type_.parts, fit)

    def read_struct(record: Mapping[str, Any]) -> dict[str, Any]:
        found = dict(zip(type_.parts, take(record), strict=True))
        if any(found[name] is None for name in type_.required):
            refuse("a NOT NULL field is null")
        return found

    return read_struct


def exact_decimal(number: Fraction, type_: SqlType) -> Decimal:
    """Return a number as a DECIMAL that needs no rounding."""
    unscaled = number * 10**type_.scale
    if unscaled.denominator != 1 or abs(unscaled) >= 10**type_.precision:
        refuse(number)
    with localcontext() as context:
        context.prec = 60
        return Decimal(int(unscaled)).scaleb(-type_.scale)


def _same_float(value: float, type_: SqlType) -> float:
    if isinstance(value, float) and not math.isfinite(value):
        return value
    shape = "<f" if type_.word == "FLOAT" else "<d"
    found = float(struct.unpack(shape, struct.pack(shape, value))[0])
    return found if found == value else refuse(value)
