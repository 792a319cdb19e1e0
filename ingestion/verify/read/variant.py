"""VARIANTs as texts that are equal where value and type of every number in them are.

JSON with sorted names, by which a decimal has a point (``1.5``, ``12.0``) and a double a ``d``
behind it. Files have them as two binaries, whose encoding Parquet defines.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from decimal import Context, Decimal
from itertools import pairwise
from typing import Any, Final

import pyarrow as pa
from pyarrow import types

from oncelake.ingestion.storage.processes import deeper_calls
from oncelake.ingestion.tables.arrow_types import VARIANT

_EXACT: Final = Context(prec=60)
_CONSTANTS: Final = {0: "null", 1: "true", 2: "false"}
_WHOLE: Final = {3: 1, 4: 2, 5: 4, 6: 8}
_DOUBLE: Final = 7
_DECIMAL: Final = {8: 4, 9: 8, 10: 16}
_LONG_TEXT: Final = 16
# How a value begins: what it is, by the two lowest bits.
_PRIMITIVE, _SHORT_TEXT, _OBJECT = 0, 1, 2


# As files have it, and as Spark hands it over.
_VARIANTS: Final = (VARIANT, pa.struct([VARIANT.field("value"), VARIANT.field("metadata")]))


def with_texts(values: list[Any], type_: pa.DataType) -> list[Any]:
    """Write VARIANTs as texts among values of an Arrow type, which are those of Python."""
    if not _has_variants(type_):
        return values
    with deeper_calls():
        return [_with_texts(value, type_) for value in values]


def _has_variants(type_: pa.DataType) -> bool:
    return any(str(each) in str(type_) for each in _VARIANTS)


def _with_texts(value: Any, type_: pa.DataType) -> Any:
    if value is None or not _has_variants(type_):
        return value
    if type_ in _VARIANTS:
        return _Reader(value["metadata"], value["value"]).text(0)
    if types.is_struct(type_):
        return {field.name: _with_texts(value[field.name], field.type) for field in type_}
    if types.is_map(type_):
        return {name: _with_texts(each, type_.item_type) for name, each in value.items()}
    return [_with_texts(each, type_.value_type) for each in value]


def text_of_object(fields: Mapping[str, str]) -> str:
    """Write an object whose values are texts already."""
    named = (f"{text_of_string(name)}:{fields[name]}" for name in sorted(fields))
    return f"{{{','.join(named)}}}"


def text_of_list(items: Sequence[str]) -> str:
    """Write a list whose items are texts already."""
    return f"[{','.join(items)}]"


def text_of_string(value: str) -> str:
    """Write a text."""
    return json.dumps(value, ensure_ascii=False)


def text_of_decimal(value: Decimal) -> str:
    """Write a decimal, without the zeros that end it."""
    plain = format(value.normalize(_EXACT) if value else Decimal(0), "f")
    return plain if "." in plain else f"{plain}.0"


def text_of_double(value: float) -> str:
    """Write a double, so that it can be told from a decimal."""
    return f"{value!r}d"


class _Reader:
    """Reads one value by its names."""

    def __init__(self, metadata: bytes, value: bytes) -> None:
        self._value = value
        size = (metadata[0] >> 6) + 1
        count, *ends = _numbers(metadata, 1, size, _number(metadata, 1, size) + 2)
        texts = metadata[1 + size * (count + 2) :]
        self._names = [texts[start:end].decode() for start, end in pairwise(ends)]

    def text(self, at: int) -> str:
        """Write the value that begins at a byte."""
        kind, of = self._value[at] & 3, self._value[at] >> 2
        if kind == _PRIMITIVE:
            return self._primitive(of, at + 1)
        if kind == _SHORT_TEXT:
            return self._string(at + 1, of)
        is_object = kind == _OBJECT
        is_large = of >> (4 if is_object else 2) & 1
        count, at = _number(self._value, at + 1, 4 if is_large else 1), at + (5 if is_large else 2)
        id_size, size = (of >> 2 & 3) + 1, (of & 3) + 1
        ids = _numbers(self._value, at, id_size, count if is_object else 0)
        at += id_size * len(ids)
        starts = _numbers(self._value, at, size, count)
        at += size * (count + 1)
        items = [self.text(at + start) for start in starts]
        if not is_object:
            return text_of_list(items)
        return text_of_object({self._names[n]: item for n, item in zip(ids, items, strict=True)})

    def _primitive(self, of: int, at: int) -> str:
        if of in _CONSTANTS:
            return _CONSTANTS[of]
        if of in _WHOLE:
            return str(self._whole(at, _WHOLE[of]))
        if of in _DECIMAL:
            unscaled = self._whole(at + 1, _DECIMAL[of])
            return text_of_decimal(Decimal(unscaled).scaleb(-self._value[at], _EXACT))
        if of == _DOUBLE:
            return text_of_double(struct.unpack_from("<d", self._value, at)[0])
        if of == _LONG_TEXT:
            return self._string(at + 4, _number(self._value, at, 4))
        return f"a value of type {of}, which JSON does not have"

    def _whole(self, at: int, size: int) -> int:
        return int.from_bytes(self._value[at : at + size], "little", signed=True)

    def _string(self, at: int, size: int) -> str:
        return text_of_string(self._value[at : at + size].decode())


def _number(content: bytes, at: int, size: int) -> int:
    return int.from_bytes(content[at : at + size], "little")


def _numbers(content: bytes, at: int, size: int, count: int) -> Sequence[int]:
    if size == 1:
        return content[at : at + count]
    return [_number(content, at + size * n, size) for n in range(count)]
