"""Parsed JSON as values of a table's types, nested ones too.

The values are Python's own, equal to what delta-rs hands out for the same column: so rows can be
compared without a conversion in between.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

from ingestion.declaration.types import split_types
from ingestion.proof.scalars import (
    SCALARS,
    Read,
    decimal,
    instance_of,
    integer_of,
    refuse,
    text_of,
)
from ingestion.proof.strict_json import BadRecordError

_BITS: Final = {"TINYINT": 8, "SMALLINT": 16, "INT": 32, "BIGINT": 64}


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
