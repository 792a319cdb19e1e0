"""The types that a stream's table can hold, as a tree.

The DDL reader makes it (``ingestion.declaration.ddl``); the rules, the schema diff and the proof
use it. Its text is the DDL that Spark prints.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from oncelake.ingestion.declaration.sql import quoted

# Each holds every value of those before it.
_INTEGERS: Final = ("TINYINT", "SMALLINT", "INT", "BIGINT")
# A DECIMAL has no more.
_DIGITS: Final = 38
# A name that DDL takes without backticks.
PLAIN_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class SqlType:
    """One type of Spark SQL; equal to another of the same DDL, so that the order of fields counts.

    Attributes:
        word: Its name, such as ``DECIMAL`` or ``STRUCT``.
        precision: Of a DECIMAL; of a VARCHAR, its length.
        scale: Of a DECIMAL.
        parts: What it is made of: fields by name, ``element``, or ``key`` and ``value``.
        required: Parts that may not be null; a declaration has them in a STRUCT alone.
    """

    word: str
    precision: int = 0
    scale: int = 0
    parts: Mapping[str, SqlType] = field(default_factory=dict)
    required: frozenset[str] = frozenset()

    def __str__(self) -> str:
        if self.word == "DECIMAL":
            return f"DECIMAL({self.precision}, {self.scale})"
        if self.word == "VARCHAR":
            return f"VARCHAR({self.precision})"
        if self.word == "STRUCT":
            return f"STRUCT<{', '.join(map(self._field, self.parts))}>"
        inner = ", ".join(map(self._part, self.parts))
        return f"{self.word}<{inner}>" if inner else self.word

    def _field(self, name: str) -> str:
        shown = name if PLAIN_NAME.fullmatch(name) else quoted(name)
        return f"{shown}: {self._part(name)}"

    def _part(self, name: str) -> str:
        return f"{self.parts[name]}{' NOT NULL' if name in self.required else ''}"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SqlType) and str(self) == str(other)

    def __hash__(self) -> int:
        return hash(str(self))

    def walk(self) -> Iterator[SqlType]:
        """Yield the type and all that it is made of."""
        yield self
        for part in self.parts.values():
            yield from part.walk()

    def names(self) -> Iterator[str]:
        """Yield the names of all fields within the type."""
        for part in self.walk():
            if part.word == "STRUCT":
                yield from part.parts

    def contains(self, *words: str) -> bool:
        """Tell whether the type, or any part of it, is of one of these names."""
        return any(type_.word in words for type_ in self.walk())

    def without_required(self) -> SqlType:
        """Return the type without a NOT NULL within, which no table enforces."""
        parts = {name: part.without_required() for name, part in self.parts.items()}
        return replace(self, parts=parts, required=frozenset())

    def widens_to(self, wider: SqlType) -> bool:
        """Tell whether another type, or this, holds each value of this one as what it is.

        A STRUCT may have more fields, which are null of the values that are there.
        """
        words = (self.word, wider.word)
        if {*words} <= {*_INTEGERS}:
            return _INTEGERS.index(self.word) <= _INTEGERS.index(wider.word)
        if words == ("DECIMAL", "DECIMAL"):
            more_digits = wider.precision - self.precision
            return 0 <= wider.scale - self.scale <= more_digits
        if words == ("VARCHAR", "VARCHAR"):
            return self.precision <= wider.precision
        if words in {("FLOAT", "DOUBLE"), ("VARCHAR", "STRING")}:
            return True
        added = wider.parts.keys() - self.parts.keys()
        return (
            self.word == wider.word
            and not added & wider.required
            and [name for name in wider.parts if name not in added] == [*self.parts]
            and all(part.widens_to(wider.parts[name]) for name, part in self.parts.items())
        )

    def united_with(self, other: SqlType) -> SqlType | None:
        """Return the narrowest type that both widen to; ``None`` where a value would be changed.

        A STRUCT has the fields of both, this one's first.
        """
        if other.widens_to(self):
            return self
        if self.widens_to(other):
            return other
        if self.word == other.word == "DECIMAL":
            scale = max(self.scale, other.scale)
            digits = max(self.precision - self.scale, other.precision - other.scale) + scale
            return replace(self, precision=digits, scale=scale) if digits <= _DIGITS else None
        if self.word != other.word or not self.parts:
            return None
        parts: dict[str, SqlType] = {}
        for name in {**self.parts, **other.parts}:
            both = [type_.parts[name] for type_ in (self, other) if name in type_.parts]
            united = both[0].united_with(both[-1])
            if united is None:
                return None
            parts[name] = united
        return SqlType(word=self.word, parts=parts, required=self.required & other.required)

    def with_words(self, words: Mapping[str, str]) -> SqlType:
        """Return the type with other types, by their words, in the places of some in it."""
        if self.word in words:
            return SqlType(word=words[self.word])
        parts = {name: part.with_words(words) for name, part in self.parts.items()}
        return replace(self, parts=parts)
