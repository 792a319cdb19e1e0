"""One JSON value as one value of a scalar type: taken where nothing is lost, else refused."""

from __future__ import annotations

import base64
import datetime as dt
import math
import re
import struct
from collections.abc import Callable, Collection, Mapping
from decimal import Context, Decimal, InvalidOperation, localcontext
from fractions import Fraction
from typing import Any, Final, NoReturn

from ingestion.declaration.types import Declared, split_types
from ingestion.verify.decode.strict_json import BadRecordError, WrittenNumber

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


def decimal(value: Any, precision: int, scale: int) -> Decimal:
    """Take a number in plain notation that needs no rounding to fit; none that is text."""
    if type(value) not in (int, WrittenNumber) or not _PLAIN.fullmatch(str(value)):
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


class UnprovableError(Exception):
    """This judge cannot tell, and must not guess; the message says why."""


def reader(type_: str, *, rejects: bool = False) -> Read:
    """Return the function that turns a parsed JSON value into a value of a Spark SQL type.

    It is not asked about null. It raises ``BadRecordError`` (or ``ValueError``, ``OverflowError``)
    for a value that the type cannot hold.

    Args:
        type_: The type, as a declaration is parsed.
        rejects: Whether objects may have no names but the declared.

    Raises:
        UnprovableError: this judge knows nothing of the type.
    """
    word, _, rest = type_.partition("<")
    if rest:
        return _nested(word.strip(), rest.removesuffix(">"), rejects)
    name, _, arguments = type_.replace(" ", "").rstrip(")").partition("(")
    if name in _BITS:
        return integer_of(_BITS[name])
    if name == "DECIMAL":
        precision, scale = map(int, arguments.split(","))
        return lambda value: decimal(value, precision, scale)
    if name == "VARCHAR":
        return text_of(int(arguments))
    if name not in SCALARS:
        raise UnprovableError(f"columns of type {type_} are not provable")
    return SCALARS[name]


def refuse_names(fields: Mapping[str, Any], declared: Collection[str], *, rejects: bool) -> None:
    """Refuse an object with a name that is declared in another case, or not at all.

    Raises:
        BadRecordError: it has one.
    """
    if fields.keys() <= set(declared):
        return
    others = fields.keys() - set(declared)
    if rejects:
        raise BadRecordError(f"names that are not declared: {sorted(others)}")
    if {name.lower() for name in others} & {name.lower() for name in declared}:
        raise BadRecordError(f"a name in another case: {sorted(others)}")


def _nested(word: str, inner: str, rejects: bool) -> Read:
    if word == "ARRAY":
        element = _nullable(reader(inner, rejects=rejects))
        return lambda value: [element(each) for each in instance_of(value, list)]
    parts = list(split_types(inner))
    if word == "MAP" and parts[0] == "STRING":
        item = _nullable(reader(parts[1], rejects=rejects))
        return lambda value: {name: item(each) for name, each in instance_of(value, dict).items()}
    if word == "STRUCT":
        fields = dict(_field(part, rejects=rejects) for part in parts)

        def read(value: Any) -> dict[str, Any]:
            refuse_names(instance_of(value, dict), fields, rejects=rejects)
            return {name: read_one(value.get(name)) for name, read_one in fields.items()}

        return read
    raise UnprovableError(f"columns of type {word}<{inner}> are not provable")


def _field(text: str, *, rejects: bool) -> tuple[str, Read]:
    """Read ``name: TYPE [NOT NULL]``, as a declared STRUCT writes its fields."""
    name, _, type_ = text.partition(": ")
    required = type_.endswith(" NOT NULL")
    read = reader(type_.removesuffix(" NOT NULL"), rejects=rejects)
    return name, _required(read) if required else _nullable(read)


def _nullable(read: Read) -> Read:
    return lambda value: None if value is None else read(value)


def _required(read: Read) -> Read:
    return lambda value: refuse(value) if value is None else read(value)
