"""Values as Debezium writes them in JSON, as values of declared columns; by its documentation."""

from __future__ import annotations

import base64
import datetime as dt
import re
from collections.abc import Mapping
from decimal import Decimal
from fractions import Fraction
from typing import Any, Final, NamedTuple

from ingestion.declaration.types import SqlType
from ingestion.verify.decode import coerce
from ingestion.verify.decode.coerce import NOT_FINITE, SCALARS, Read, refuse
from ingestion.verify.decode.strict_json import WrittenNumber

_TICKS: Final = {
    "io.debezium.time.Timestamp": 10**3,
    "org.apache.kafka.connect.data.Timestamp": 10**3,
    "io.debezium.time.MicroTimestamp": 10**6,
    "io.debezium.time.NanoTimestamp": 10**9,
}
# No column holds a number so small, or so large; and powers of ten take their time.
_FARTHEST: Final = 1_000
_NUMBER: Final = re.compile(r"[+-]?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]{1,3})?")
_MOMENT: Final = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]{1,9})?)?(Z|[+-][0-9:]{5})?"
)


class Meaning(NamedTuple):
    """What a value's schema, or the declaration, says of it.

    Attributes:
        ticks: A number is a moment, of so many ticks a second.
        is_days: A number is a date.
        scale: A text is the base64 of an unscaled decimal.
        items: What is said of a list's items.
    """

    ticks: int | None = None
    is_days: bool = False
    scale: int | None = None
    items: Any = None


def meaning_of(schema: Mapping[str, Any]) -> Meaning:
    """Read what a schema of Kafka Connect says of its values."""
    name = schema.get("name")
    items = schema.get("items")
    if name == "org.apache.kafka.connect.data.Decimal":
        return Meaning(scale=int(schema["parameters"]["scale"]))
    is_days = name in {"io.debezium.time.Date", "org.apache.kafka.connect.data.Date"}
    return Meaning(_TICKS.get(str(name)), is_days, None, meaning_of(items) if items else None)


def fit(meaning: Meaning, type_: SqlType) -> Read:
    """Return what takes a parsed value that is not null as a declared type."""
    word = type_.word
    if word in {"STRUCT", "ARRAY", "MAP"}:
        kind = list if word == "ARRAY" else dict
        parts: Any = (
            dict.fromkeys(type_.parts, meaning) if word == "STRUCT" else meaning.items or meaning
        )
        read = coerce.nested(word, parts, type_, fit)
        return lambda value: read(value) if type(value) is kind else refuse(value)
    if word == "DECIMAL":
        return lambda value: _decimal(value, meaning, type_)
    if word == "DATE":
        return lambda value: _date(value, meaning, type_)
    if word in {"TIMESTAMP", "TIMESTAMP_NTZ"}:
        return lambda value: _moment(value, meaning, type_)
    if word in {"FLOAT", "DOUBLE"}:
        return lambda value: (
            NOT_FINITE[value]
            if type(value) is str and value in NOT_FINITE
            else SCALARS[word](value)
        )
    return coerce.of_json(type_)


def _decimal(value: Any, meaning: Meaning, type_: SqlType) -> Decimal:
    if type(value) is dict and sorted(value) == ["scale", "value"]:
        return _unscaled(value["value"], value["scale"], type_)
    is_number = type(value) is int or isinstance(value, WrittenNumber)
    if type(value) is str and meaning.scale is not None:
        return _unscaled(value, meaning.scale, type_)
    if not (is_number or type(value) is str) or not _NUMBER.fullmatch(str(value)):
        refuse(value)
    return coerce.exact_decimal(Fraction(str(value)), type_)


def _unscaled(text: Any, scale: Any, type_: SqlType) -> Decimal:
    if type(text) is not str or type(scale) is not int:
        refuse(text)
    return unscaled(
        int.from_bytes(base64.b64decode(text, validate=True), signed=True), scale, type_
    )


def unscaled(number: int, scale: int, type_: SqlType) -> Decimal:
    """Return a decimal that is given by its digits and their scale."""
    if number and abs(scale) > _FARTHEST:
        refuse(number)
    scale = scale if number else 0
    return coerce.exact_decimal(Fraction(number) / Fraction(10) ** scale, type_)


def _date(value: Any, meaning: Meaning, type_: SqlType) -> Any:
    if type(value) is int:
        read = coerce.day(type_) if meaning.is_days else None
        return read(value) if read else refuse(value)
    return SCALARS["DATE"](value)


def _moment(value: Any, meaning: Meaning, type_: SqlType) -> Any:
    zoned = type_.word == "TIMESTAMP"
    if type(value) is int:
        read = coerce.moment(type_, meaning.ticks, zoned=zoned) if meaning.ticks else None
        return read(value) if read else refuse(value)
    found = _MOMENT.fullmatch(value) if type(value) is str else None
    if not found or bool(found[3]) != zoned or set((found[2] or "")[7:]) - {"0"}:
        refuse(value)
    moment = dt.datetime.fromisoformat(value)
    return moment.astimezone(dt.UTC) if zoned else moment
