"""A declared type as a tree, read from its Spark SQL text."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

_SIZED: Final = re.compile(r"(\w+)(?:\((\d+)(?:, *(\d+))?\))?")
_UNPROVABLE: Final = ("VARIANT",)


@dataclass(frozen=True, kw_only=True, slots=True)
class Declared:
    """One type.

    Attributes:
        word: Its name in Spark SQL.
        precision: Of a DECIMAL; of a VARCHAR, its length.
        scale: Of a DECIMAL.
        parts: What it is made of: fields by name, ``element``, or ``key`` and ``value``.
        required: Fields of a STRUCT that may not be null.
    """

    word: str
    precision: int = 0
    scale: int = 0
    parts: dict[str, Declared] = field(default_factory=dict)
    required: frozenset[str] = frozenset()

    def __str__(self) -> str:
        """Name it."""
        return self.word


def declared(text: str) -> Declared:
    """Read a type as ``ingestion.ddl`` writes it."""
    word, _, rest = text.strip().partition("<")
    if not rest:
        return _scalar(text.strip())
    inner = list(split_types(rest.removesuffix(">")))
    if word == "STRUCT":
        named = [each.partition(": ")[::2] for each in inner]
        return Declared(
            word=word,
            parts={name: declared(type_.removesuffix(" NOT NULL")) for name, type_ in named},
            required=frozenset(name for name, type_ in named if type_.endswith(" NOT NULL")),
        )
    names = ("element",) if word == "ARRAY" else ("key", "value")
    return Declared(word=word, parts=dict(zip(names, map(declared, inner), strict=True)))


def is_provable(type_: Declared) -> bool:
    """Tell whether this proof knows what a column of the type holds after Spark wrote it."""
    return type_.word not in _UNPROVABLE and all(map(is_provable, type_.parts.values()))


def _scalar(text: str) -> Declared:
    found = _SIZED.fullmatch(text)
    if found is None:
        return Declared(word=text)
    word, precision, scale = found.groups()
    return Declared(word=word, precision=int(precision or 0), scale=int(scale or 0))


def split_types(inner: str) -> Iterator[str]:
    """Split at the commas that no bracket encloses."""
    depth, start = 0, 0
    for at, sign in enumerate(inner):
        depth += (sign in "<(") - (sign in ">)")
        if sign == "," and not depth:
            yield inner[start:at].strip()
            start = at + 1
    yield inner[start:].strip()
