"""Types as Delta's log writes them, in the words of a declaration, so that the two compare."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

_WORDS: Final = {
    "byte": "TINYINT",
    "short": "SMALLINT",
    "integer": "INT",
    "long": "BIGINT",
    "float": "FLOAT",
    "double": "DOUBLE",
    "boolean": "BOOLEAN",
    "string": "STRING",
    "binary": "BINARY",
    "date": "DATE",
    "timestamp": "TIMESTAMP",
    "timestamp_ntz": "TIMESTAMP_NTZ",
    "variant": "VARIANT",
}
# Where Spark notes the length of a VARCHAR, which is a STRING to everybody else.
VARCHAR: Final = "__CHAR_VARCHAR_TYPE_STRING"


def as_declared(type_json: str, metadata: Mapping[str, Any] | None = None) -> str:
    """Return a type of Delta's log, in JSON, as the declared types are written."""
    length = (metadata or {}).get(VARCHAR)
    return str(length).upper() if length else _written(json.loads(type_json))


def without_nulls(declared: str) -> str:
    """Return a declared type without what it says of nulls within, which no table enforces."""
    return re.sub(r" NOT NULL\b", "", declared)


def _written(kind: Any) -> str:
    if isinstance(kind, str):
        decimal = re.fullmatch(r"decimal\((\d+),\s*(\d+)\)", kind)
        if decimal:
            return f"DECIMAL({decimal[1]}, {decimal[2]})"
        return _WORDS.get(kind, kind.upper())
    if kind["type"] == "array":
        return f"ARRAY<{_written(kind['elementType'])}>"
    if kind["type"] == "map":
        return f"MAP<{_written(kind['keyType'])}, {_written(kind['valueType'])}>"
    fields = (f"{each['name']}: {_written(each['type'])}" for each in kind["fields"])
    return f"STRUCT<{', '.join(fields)}>"


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
    """Read a type as ``ingestion.declaration.ddl`` writes it."""
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
