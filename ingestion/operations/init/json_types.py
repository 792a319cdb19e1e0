"""Types for values of JSON, from the values themselves; pure.

A type leaves room: the next record may have a larger number or one more name. What no type can
hold, or nobody can know yet, is left out, and the note says why.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from oncelake.ingestion.declaration.ddl import parse_type
from oncelake.ingestion.declaration.messages import printable
from oncelake.ingestion.declaration.names import name_trouble
from oncelake.ingestion.declaration.sinks import SINKS
from oncelake.ingestion.declaration.types import SqlType
from oncelake.ingestion.errors import counted
from oncelake.ingestion.formats.coerce import MOST_DIGITS, moment
from oncelake.ingestion.formats.json.strict import DATE, DAY, MOMENT, ZONE
from oncelake.ingestion.formats.strict_json import StrictParser, of_sane_length
from oncelake.ingestion.operations.init.hints import NUMBER, hint_at

_ZONED: Final = re.compile(rf"{DATE}T\d\d:\d\d(?::\d\d(?:\.\d{{1,6}})?)?({ZONE})", re.ASCII)
_BIGINT: Final = range(-(2**63), 2**63)
# More places behind the point than money has are those of measurements.
_MOST_PLACES: Final = 6
# Objects with so many names, most of which most objects lack, are maps.
_FEWEST_KEYS: Final = 5
# How Kafka Connect writes them, since JSON has no such numbers.
_NOT_FINITE: Final = frozenset({"NaN", "Infinity", "-Infinity"})
# A type that so many values have is the column's; the others are mistakes.
_NEARLY_ALL: Final = 0.9


class FractionText(str):
    """A number with a point or an exponent, as it was written."""

    __slots__ = ()


parse: Final = StrictParser(
    lambda text: FractionText(of_sane_length(text)), lambda text: int(of_sane_length(text))
)


class Guess(NamedTuple):
    """A proposed type, null where there is none, and what a person should check.

    Attributes:
        is_lenient: Whether some of its values are written as another type.
    """

    type: SqlType | None
    note: str = ""
    is_lenient: bool = False


class Dialect(NamedTuple):
    """The JSON values that a format takes for a type.

    Attributes:
        moment: What a text looks like that is a moment, its zone as a group.
        mixed: The type of values of several types, if the format has one.
    """

    moment: re.Pattern[str]
    mixed: SqlType | None


JSON: Final = Dialect(MOMENT, SqlType(word="VARIANT"))
# Texts stand for texts there, but for moments with a zone.
DEBEZIUM: Final = Dialect(_ZONED, None)


def guess_columns(
    objects: Iterable[Mapping[str, Any]], dialect: Dialect = JSON
) -> dict[str, Guess]:
    """Propose a type for each name of some objects, in the order in which they come."""
    return {
        name: _guess_column(name, values, dialect) for name, values in _by_name(objects).items()
    }


def without_twins(columns: Mapping[str, Guess]) -> dict[str, Guess]:
    """Leave out the columns whose names differ only in case."""
    spellings = Counter(name.lower() for name in columns)
    twin = Guess(None, "another name differs only in case, and Spark ignores case")
    return {name: twin if spellings[name.lower()] > 1 else columns[name] for name in columns}


def is_storable(struct: SqlType) -> bool:
    """Tell whether every sink can store the names of a STRUCT's fields."""
    try:
        parse_type(str(struct))
    except ValueError:
        return False
    return SINKS["delta"].refused_name("", struct) is None


def _guess_column(name: str, values: Sequence[Any], dialect: Dialect) -> Guess:
    if trouble := name_trouble(name):
        return Guess(None, trouble)
    given = [value for value in values if value is not None]
    if dialect is JSON and (numbers := _without_quotes(given)):
        found = guess(numbers, dialect)
        quoted_ = sum(type(value) is str for value in given)
        of = f"of {counted(len(given), 'number')}"
        notes = counted(quoted_, f"{of} is in quotes", f"{of} are in quotes"), found.note
        return Guess(found.type, "; ".join(filter(None, notes)), is_lenient=True)
    found = guess(given, dialect)
    hint = hint_at(name, given, is_debezium=dialect is DEBEZIUM) if given else ""
    return found._replace(note="; ".join(filter(None, (found.note, hint))))


def _without_quotes(values: Sequence[Any]) -> list[Any]:
    """Return values as numbers where all are, some of them in quotes; else none."""
    texts = [value for value in values if type(value) is str]
    is_mixed = {_KINDS[type(value)] for value in values} == {"numbers", "texts"}
    if not is_mixed or not all(map(NUMBER.fullmatch, texts)):
        return []
    return [parse(value.encode()) if type(value) is str else value for value in values]


def guess(values: Sequence[Any], dialect: Dialect = JSON) -> Guess:
    """Propose the type of some values, as ``parse`` returns them; nulls say nothing."""
    given = [value for value in values if value is not None]
    kinds = Counter(_KINDS[type(value)] for value in given)
    if not kinds:
        return Guess(None, "only nulls were seen")
    if len(kinds) > 1:
        return _most_of(given, kinds, dialect)
    return _GUESSES[kinds.popitem()[0]](given, dialect)


def _most_of(values: Sequence[Any], kinds: Counter[str], dialect: Dialect) -> Guess:
    """Propose the type of nearly all values, or one that holds them all."""
    texts = {value for value in values if type(value) is str}
    if dialect is DEBEZIUM and set(kinds) == {"numbers", "texts"} and texts <= _NOT_FINITE:
        return Guess(SqlType(word="DOUBLE"), "some numbers are not finite")
    ((kind, count), *others) = kinds.most_common()
    found = ", ".join(counted(number, other.removesuffix("s")) for other, number in others)
    if count < _NEARLY_ALL * len(values):
        most_often = counted(count, kind.removesuffix("s"))
        return _mixed(dialect, f"values of several types were seen: {most_often}, {found}")
    most = guess([value for value in values if _KINDS[type(value)] == kind], dialect)
    others_note = f"{count:,} values are {kind}; a record with another ({found}) goes to quarantine"
    notes = (others_note, most.note)
    return most._replace(note="; ".join(filter(None, notes)))


def _text(texts: Sequence[str], dialect: Dialect) -> Guess:
    moments = [dialect.moment.fullmatch(text) for text in texts]
    others = [text for text, m in zip(texts, moments, strict=True) if not m or not _is_moment(text)]
    if others:
        return Guess(SqlType(word="STRING"), _nearly_moments(len(texts), others))
    if all(map(DAY.fullmatch, texts)):
        return Guess(SqlType(word="DATE"), "every text is a date; any other goes to quarantine")
    without = sum(not found[1] for found in moments if found)
    of = f"of {len(texts):,}"
    zoneless = counted(without, f"{of} has no zone and is", f"{of} have no zone and are")
    return Guess(SqlType(word="TIMESTAMP"), f"{zoneless} read as UTC" if without else "")


def _nearly_moments(number: int, others: Sequence[str]) -> str:
    share = 1 - len(others) / number
    if share < _NEARLY_ALL:
        return ""
    some = ", ".join(f'"{printable(text, longest=30)}"' for text in dict.fromkeys(others[:3]))
    return (
        f"{math.floor(share * 100)} % of the values are ISO times; the others are not: {some}; as "
        "TIMESTAMP those go to quarantine"
    )


def _number(values: Sequence[int | FractionText], dialect: Dialect) -> Guess:
    """Propose BIGINT for whole numbers, and for others DECIMAL unless they look like floats."""
    parts = [str(value).lstrip("-").partition(".") for value in values]
    digits = max(len(whole) for whole, _, _ in parts)
    places = max(len(fraction) for _, _, fraction in parts)
    if all(type(value) is int for value in values):
        if all(value in _BIGINT for value in values):
            return Guess(SqlType(word="BIGINT"))
        if digits <= MOST_DIGITS:
            return Guess(_decimal(MOST_DIGITS, 0), "some numbers are beyond BIGINT")
        return _mixed(dialect, f"some numbers have {digits} digits, which no number column has")
    scale = max(places, 2)
    precision = 18 if digits + scale <= 12 else MOST_DIGITS
    doubt = ""
    if any({*"eE"} & {*str(value)} for value in values):
        doubt = "some numbers have an exponent"
    elif places > _MOST_PLACES:
        doubt = f"up to {places} places behind the point look like floats; DOUBLE is rounded"
    elif digits + scale > precision:
        doubt = "some numbers are too long for a DECIMAL"
    if doubt:
        return Guess(SqlType(word="DOUBLE"), doubt)
    note = f"a number with more than {scale} places behind the point goes to quarantine"
    return Guess(_decimal(precision, scale), f"{note}; DOUBLE would round it")


def _decimal(precision: int, scale: int) -> SqlType:
    return SqlType(word="DECIMAL", precision=precision, scale=scale)


def _array(values: Sequence[list[Any]], dialect: Dialect) -> Guess:
    items = guess([item for value in values for item in value], dialect)
    if items.type is None:
        return Guess(None, f"of its items {items.note}")
    return Guess(SqlType(word="ARRAY", parts={"element": items.type}), items.note)


def _object(values: Sequence[dict[str, Any]], dialect: Dialect) -> Guess:
    """Propose a STRUCT, or a MAP where the names are values themselves."""
    if dialect is DEBEZIUM and all(value.keys() == {"scale", "value"} for value in values):
        return Guess(SqlType(word="STRING"), "a number of any length, as a text of all its digits")
    fields = {name: guess(each, dialect) for name, each in _by_name(values).items()}
    if _has_free_names(values, fields):
        item = guess([item for value in values for item in value.values()], dialect)
        if item.type is not None and item.type != dialect.mixed:
            key_and_value = {"key": SqlType(word="STRING"), "value": item.type}
            note = f"{len(fields):,} different names were seen, so they are taken for keys"
            return Guess(SqlType(word="MAP", parts=key_and_value), note)
    known = {name: each.type for name, each in fields.items() if each.type is not None}
    struct = SqlType(word="STRUCT", parts=known)
    if not known:
        return Guess(None, "only empty objects, or nulls in them, were seen")
    if not is_storable(struct):
        return _mixed(dialect, "no STRUCT of every sink can have its names")
    left_out = ", ".join(name for name in fields if name not in known)
    notes = [f"{name}: {each.note}" for name, each in fields.items() if each.note and each.type]
    notes += [f"left out of it: {left_out}"] if left_out else []
    return Guess(struct, "; ".join(notes))


def _has_free_names(values: Sequence[Mapping[str, Any]], names: Mapping[str, Any]) -> bool:
    """Tell whether objects have many names, each in the fewest of them."""
    given = sum(map(len, values))
    return len(names) >= _FEWEST_KEYS and given < len(values) * len(names) / 2


def _mixed(dialect: Dialect, note: str) -> Guess:
    if dialect.mixed is None:
        return Guess(None, note)
    return Guess(dialect.mixed, note)


def _by_name(objects: Iterable[Mapping[str, Any]]) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for each in objects:
        for name, value in each.items():
            found.setdefault(name, []).append(value)
    return found


def _is_moment(text: str) -> bool:
    try:
        moment(text)
    except ValueError:
        return False
    return True


_KINDS: Final[Mapping[type, str]] = {
    bool: "booleans",
    int: "numbers",
    FractionText: "numbers",
    str: "texts",
    list: "lists",
    dict: "objects",
}
_GUESSES: Final[Mapping[str, Callable[[Sequence[Any], Dialect], Guess]]] = {
    "booleans": lambda *_: Guess(SqlType(word="BOOLEAN")),
    "numbers": _number,
    "texts": _text,
    "lists": _array,
    "objects": _object,
}
