"""Names in a JSON object that the declaration does not have: never lost without a word."""

from __future__ import annotations

import re
from collections.abc import Container, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from pyspark.sql.types import ArrayType, DataType, MapType, StructType

_PLAIN: Final = re.compile(r"[A-Za-z0-9_]+")


class Undeclared(NamedTuple):
    """A name that a record has and its STRUCT, or the schema itself, has not.

    Attributes:
        prefix: Where the object is, such as ``a.`` or ``a[].``; empty for the record.
        name: The name as it is.
    """

    prefix: str
    name: str

    @property
    def path(self) -> str:
        """The name as reports and books have it."""
        return self.prefix + spelt(self.name)


def spelt(name: str) -> str:
    """Write a name so that its own dots are not taken for a path's."""
    return name if _PLAIN.fullmatch(name) else f"`{name}`"


def undeclared(
    fields: Mapping[str, Any], type_: StructType, prefix: str = ""
) -> Iterator[Undeclared]:
    """Yield the names that are not declared, an object's own before those that are deeper."""
    names = set(type_.names)
    for name in fields:
        if name not in names:
            yield Undeclared(prefix, name)
    for field in type_:
        value = fields.get(field.name)
        if value is not None:
            yield from _within(value, field.dataType, prefix + spelt(field.name))


def _within(value: Any, type_: DataType, path: str) -> Iterator[Undeclared]:
    if isinstance(type_, StructType):
        yield from undeclared(value, type_, f"{path}.")
    elif isinstance(type_, ArrayType):
        for each in value:
            if each is not None:
                yield from _within(each, type_.elementType, f"{path}[]")
    elif isinstance(type_, MapType):
        for each in value.values():
            if each is not None:
                yield from _within(each, type_.valueType, f"{path}{{}}")


def names_in_another_case(paths: Sequence[str], declared: Container[str]) -> list[str]:
    """Return those that are declared in another case: their values would be null unsaid.

    Args:
        paths: Names that are not declared.
        declared: Those that are, in small letters.
    """
    return [path for path in paths if path.lower() in declared]


def paths_of(type_: DataType, path: str = "") -> Iterator[str]:
    """Yield every name that is declared, as ``Undeclared.path`` writes it."""
    if isinstance(type_, ArrayType):
        yield from paths_of(type_.elementType, f"{path}[]")
    elif isinstance(type_, MapType):
        yield from paths_of(type_.valueType, f"{path}{{}}")
    elif isinstance(type_, StructType):
        prefix = f"{path}." if path else ""
        for field in type_:
            yield prefix + spelt(field.name)
            yield from paths_of(field.dataType, prefix + spelt(field.name))
