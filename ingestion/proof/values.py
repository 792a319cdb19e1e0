"""Parsed JSON as values of a table's types, nested ones too.

The values are Python's own, equal to what delta-rs hands out for the same column: so rows can be
compared without a conversion in between.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from ingestion.proof.scalars import SCALARS, Read, decimal, instance_of, integer_of, refuse

_BITS: Final = {"TINYINT": 8, "SMALLINT": 16, "INT": 32, "BIGINT": 64}


class UnprovableError(Exception):
    """This judge cannot tell, and must not guess; the message says why."""


def reader(type_: str) -> Read:
    """Return the function that turns a parsed JSON value into a value of a Spark SQL type.

    It is not asked about null. It raises ``BadRecordError`` (or ``ValueError``, ``OverflowError``)
    for a value that the type cannot hold.

    Raises:
        UnprovableError: this judge knows nothing of the type.
    """
    word, _, rest = type_.partition("<")
    if rest:
        return _nested(word.strip(), rest.removesuffix(">"))
    name, _, arguments = type_.replace(" ", "").rstrip(")").partition("(")
    if name in _BITS:
        return integer_of(_BITS[name])
    if name == "DECIMAL":
        precision, scale = map(int, arguments.split(","))
        return lambda value: decimal(value, precision, scale)
    if name not in SCALARS:
        raise UnprovableError(f"columns of type {type_} are not provable")
    return SCALARS[name]


def _nested(word: str, inner: str) -> Read:
    if word == "ARRAY":
        element = _nullable(reader(inner))
        return lambda value: [element(each) for each in instance_of(value, list)]
    parts = list(_split(inner))
    if word == "MAP" and parts[0] == "STRING":
        item = _nullable(reader(parts[1]))
        return lambda value: {name: item(each) for name, each in instance_of(value, dict).items()}
    if word == "STRUCT":
        fields = dict(_field(part) for part in parts)
        return lambda value: {
            n: read(instance_of(value, dict).get(n)) for n, read in fields.items()
        }
    raise UnprovableError(f"columns of type {word}<{inner}> are not provable")


def _field(text: str) -> tuple[str, Read]:
    """Read ``name: TYPE [NOT NULL]``, as a declared STRUCT writes its fields."""
    name, _, type_ = text.partition(": ")
    required = type_.endswith(" NOT NULL")
    read = reader(type_.removesuffix(" NOT NULL"))
    return name, _required(read) if required else _nullable(read)


def _split(inner: str) -> Iterator[str]:
    """Split at the commas that no bracket encloses."""
    depth, start = 0, 0
    for at, sign in enumerate(inner):
        depth += (sign in "<(") - (sign in ">)")
        if sign == "," and not depth:
            yield inner[start:at].strip()
            start = at + 1
    yield inner[start:].strip()


def _nullable(read: Read) -> Read:
    return lambda value: None if value is None else read(value)


def _required(read: Read) -> Read:
    return lambda value: refuse(value) if value is None else read(value)
