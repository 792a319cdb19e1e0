"""Names in a JSON object that the declaration does not have: never lost silently."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

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
