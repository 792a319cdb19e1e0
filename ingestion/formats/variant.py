"""VARIANTs of JSON texts, byte for byte as Spark's ``parse_json`` makes them.

A number with a point stays the decimal that was written, as far as 38 digits hold it; DuckDB's own
conversion would make a double of it, and nothing of a null.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache, partial
from itertools import accumulate
from typing import Any, Final

import msgspec
import pyarrow as pa
from pyspark.sql import types as sql
from pyspark.sql.pandas.types import to_arrow_type

from oncelake.ingestion.formats.decoder import BadBytesError
from oncelake.ingestion.storage.processes import deeper_calls

_Names = dict[str, int]

# Of the longest name (as UTF-16) and value that Spark's own parser takes.
LONGEST_NAME: Final = 50_000
LONGEST_VARIANT: Final = 16 * 2**20
# How deep a value may be whose type contains itself, or which becomes JSON.
DEEPEST: Final = 100
_LONGEST_SHORT: Final = 63
# As Spark takes it from Python: the value comes first, and the metadata tell what it is.
_OF_SPARK: Final = to_arrow_type(sql.VariantType())
# Numbers without this are between 1e-300 and 1e300, or zero.
_FAR: Final = re.compile(r"\d[eE][+-]?\d{3}|[\d.]{200}")
# By how many bits a whole number has without its sign.
_BYTES_OF_BITS: Final = (*(1,) * 8, *(2,) * 8, *(4,) * 16, *(8,) * 32)
_WHOLE: Final = {1: b"\x0c", 2: b"\x10", 4: b"\x14", 8: b"\x18"}
# Most digits, which bound the scale, too; the header, and the size of the number.
_DECIMALS: Final = tuple(
    (most, 10**most, header, size)
    for most, header, size in ((9, 0x20, 4), (18, 0x24, 8), (38, 0x28, 16))
)


def has_variants(type_: sql.DataType) -> bool:
    """Tell whether a type is a VARIANT, or has one in it."""
    if isinstance(type_, sql.StructType):
        return any(has_variants(field.dataType) for field in type_)
    if isinstance(type_, sql.ArrayType):
        return has_variants(type_.elementType)
    if isinstance(type_, sql.MapType):
        return has_variants(type_.valueType)
    return isinstance(type_, sql.VariantType)


def variant_text(value: Any, reason: str = "malformed_json") -> str:
    """Write a value as JSON, if Spark's parser would take it; ``reason`` is that of a refusal."""
    for name in _names_in(value):
        if len(name.encode("utf-16-le")) > 2 * LONGEST_NAME:
            raise BadBytesError(reason, f"a name of more than {LONGEST_NAME} characters")
    text = msgspec.json.encode(value).decode()
    if len(text) > LONGEST_VARIANT:
        raise BadBytesError(reason, f"a VARIANT of {len(text)} characters")
    return text


def refuse_unheld(value: Any) -> None:
    """Refuse a value with a number that would become infinite, or zero, as a double."""
    for each in _values_in(value):
        if type(each) not in (msgspec.Raw, int):
            continue
        written = str(each) if type(each) is int else bytes(each).decode()
        if written == "null":
            continue
        near, digits = float(written), written.lower().partition("e")[0]
        if math.isinf(near):
            raise BadBytesError("not_finite", f"no VARIANT holds {written:.80}")
        if not near and digits.strip("-.0"):
            raise BadBytesError("inexact_number", f"a VARIANT would hold {written:.80} as zero")


def holds_numbers(text: str) -> bool:
    """Tell whether a VARIANT of a JSON text has none of those numbers."""
    if _FAR.search(text):
        try:
            refuse_unheld(_PARSE_AS_WRITTEN(text))
        except (BadBytesError, msgspec.MsgspecError, RecursionError):
            return False
    return True


def real_as_json(value: float) -> Any:
    """Return a float as JSON has it: with an exponent, by which it is no decimal, or as a text."""
    if math.isfinite(value):
        return msgspec.Raw(f"{value!r}{'' if 'e' in repr(value) else 'e0'}".encode())
    return "NaN" if math.isnan(value) else f"{'-' * (value < 0)}Infinity"


def _names_in(value: Any) -> Iterator[str]:
    for each in _values_in(value):
        if type(each) is dict:
            yield from each


def _values_in(value: Any) -> Iterator[Any]:
    """Yield a value of JSON, and those in it, however deep."""
    rest = [value]
    while rest:
        each = rest.pop()
        yield each
        if type(each) is dict:
            rest += each.values()
        elif type(each) is list:
            rest += each


def with_variants(values: pa.Array, type_: sql.DataType, *, as_text: bool = False) -> pa.Array:
    """Make VARIANTs of the JSON that stands for them in values of a type, at any depth.

    With ``as_text`` they stay JSON, but in one form: sorted names, no blanks, numbers as written.
    """
    if not has_variants(type_):
        return values
    made = partial(with_variants, as_text=as_text)
    if isinstance(type_, sql.StructType):
        # What lies below a null is no JSON.
        fields = zip(values.flatten(), type_, strict=True)
        parts = [made(part, field.dataType) for part, field in fields]
        return pa.StructArray.from_arrays(parts, names=type_.names, mask=values.is_null())
    if isinstance(type_, sql.ArrayType):
        items = made(values.values, type_.elementType)
        return pa.ListArray.from_arrays(values.offsets, items, mask=values.is_null())
    if isinstance(type_, sql.MapType):
        items = made(values.items, type_.valueType)
        mask = values.is_null()
        return pa.MapArray.from_arrays(values.offsets, values.keys, items, mask=mask)
    # Each text is parsed once, however often it comes.
    coded = values.dictionary_encode()
    with deeper_calls():
        distinct = (_in_one_form if as_text else _parsed)(coded.dictionary.to_pylist())
    return distinct.take(coded.indices)


def _in_one_form(texts: list[str]) -> pa.Array:
    parsed = map(_PARSE_AS_WRITTEN, texts)
    encoded = [msgspec.json.encode(each, order="sorted").decode() for each in parsed]
    return pa.array(encoded, pa.string())


def _parsed(texts: list[str]) -> pa.Array:
    encoded = list(map(encode, texts))
    parts = [pa.array([each[at] for each in encoded], pa.binary()) for at in (1, 0)]
    return pa.StructArray.from_arrays(parts, fields=list(_OF_SPARK))


def encode(text: str) -> tuple[bytes, bytes]:
    """Return metadata and value of JSON that is strict already."""
    names: _Names = {}
    parsed = _PARSE(text)
    value = _ENCODERS[type(parsed)](parsed, names)
    return _metadata(tuple(names)), value


@lru_cache(maxsize=1_000)
def _metadata(names: tuple[str, ...]) -> bytes:
    texts = [name.encode() for name in names]
    ends = [0, *accumulate(map(len, texts))]
    size = _size_of(max(ends[-1], len(names)))
    header = bytes([1 | (size - 1) << 6])
    return header + _numbers([len(names), *ends], size) + b"".join(texts)


def _object(fields: Mapping[str, Any], names: _Names) -> bytes:
    ids, parts = [], []
    for name, value in fields.items():
        ids.append(names.setdefault(name, len(names)))
        parts.append(_ENCODERS[type(value)](value, names))
    ends = [0, *accumulate(map(len, parts))]
    order = _order(tuple(fields))
    id_size, size = _size_of(max(ids, default=0)), _size_of(ends[-1])
    header = 2 | (size - 1) << 2 | (id_size - 1) << 4 | (len(ids) > 255) << 6
    return b"".join(
        (
            _begun(header, len(ids)),
            _numbers([ids[at] for at in order], id_size),
            _numbers([*(ends[at] for at in order), ends[-1]], size),
            *parts,
        )
    )


def _list(items: list[Any], names: _Names) -> bytes:
    parts = [_ENCODERS[type(item)](item, names) for item in items]
    ends = [0, *accumulate(map(len, parts))]
    size = _size_of(ends[-1])
    header = 3 | (size - 1) << 2 | (len(items) > 255) << 4
    return b"".join((_begun(header, len(items)), _numbers(ends, size), *parts))


@lru_cache(maxsize=1_000)
def _order(names: tuple[str, ...]) -> list[int]:
    """Return where names stand that are sorted by Java, which compares halves of surrogates."""
    return sorted(range(len(names)), key=lambda at: names[at].encode("utf-16-be"))


def _begun(header: int, count: int) -> bytes:
    return bytes([header, count]) if count < 256 else struct.pack("<BI", header, count)


def _numbers(numbers: list[int], size: int) -> bytes:
    if size == 1:
        return bytes(numbers)
    return b"".join([number.to_bytes(size, "little") for number in numbers])


def _size_of(most: int) -> int:
    return 1 if most < 256 else 2 if most < 65_536 else 3 if most < 1 << 24 else 4


def _text(text: str, _: _Names) -> bytes:
    content = text.encode()
    size = len(content)
    if size <= _LONGEST_SHORT:
        return bytes([size << 2 | 1]) + content
    return struct.pack("<BI", 0x40, size) + content


def _whole(number: int, _: _Names) -> bytes:
    bits = (number if number >= 0 else ~number).bit_length()
    if bits >= len(_BYTES_OF_BITS):
        return _decimal(number, 0) or _double(str(number))
    size = _BYTES_OF_BITS[bits]
    return _WHOLE[size] + number.to_bytes(size, "little", signed=True)


def _fraction(text: str) -> bytes:
    """Encode a number with a point or an exponent, as it is parsed."""
    if "e" in text or "E" in text:
        return _double(text)
    whole, _, digits = text.partition(".")
    return _decimal(int(whole + digits), len(digits)) or _double(text)


def _decimal(unscaled: int, scale: int) -> bytes:
    """Encode a number of at most 38 digits; nothing of more."""
    for most, end, header, size in _DECIMALS:
        if scale <= most and -end < unscaled < end:
            return bytes((header, scale)) + unscaled.to_bytes(size, "little", signed=True)
    return b""


def _double(text: str) -> bytes:
    return struct.pack("<Bd", 0x1C, float(text))


_PARSE_AS_WRITTEN: Final = msgspec.json.Decoder(
    float_hook=lambda text: msgspec.Raw(text.encode())
).decode
_PARSE: Final = msgspec.json.Decoder(float_hook=_fraction).decode
_ENCODERS: Final[Mapping[type, Callable[[Any, _Names], bytes]]] = {
    dict: _object,
    list: _list,
    str: _text,
    int: _whole,
    # Fractions are encoded already.
    bytes: lambda value, _: value,
    bool: lambda value, _: b"\x04" if value else b"\x08",
    type(None): lambda _value, _: b"\x00",
}
