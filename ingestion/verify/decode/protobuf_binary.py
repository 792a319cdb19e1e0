"""Protobuf's binary encoding, by its specification and nothing else."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, Final

from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto

from oncelake.ingestion.verify.decode.coerce import BadRecordError, utf8

_DEEPEST: Final = 100
_LAST_FIELD: Final = 2**29 - 1
_BYTES_OF_TAG: Final = 5
_FIXED: Final = {
    "double": struct.Struct("<d"),
    "fixed64": struct.Struct("<Q"),
    "sfixed64": struct.Struct("<q"),
    "float": struct.Struct("<f"),
    "fixed32": struct.Struct("<I"),
    "sfixed32": struct.Struct("<i"),
}
_BY_LENGTH: Final = ("string", "bytes", "message")
_GROUP, _END_OF_GROUP = 3, 4
# How many bytes a value of a wire type has; none says that this varies.
_LENGTHS: Final = {0: None, 1: 8, 2: None, _GROUP: None, 5: 4}
# By their numbers in a descriptor.
_WORDS: Final[Mapping[int, str]] = {
    number: name.removeprefix("TYPE_").lower() for name, number in FieldDescriptorProto.Type.items()
}


def is_map(message: Any) -> bool:
    """Tell whether a message is an entry of a map."""
    return bool(message is not None and message.GetOptions().map_entry)


def word_of(field: Any) -> str:
    """Return Protobuf's name of a field's type."""
    return _WORDS[field.type]


def read_message(payload: bytes, descriptor: Any, depth: int = 0) -> dict[str, Any]:
    """Read one message: every field's value by name, null where an absent one shows."""
    if depth > _DEEPEST:
        raise BadRecordError("nested too deeply")
    read: dict[int, list[Any]] = {}
    for number, wire, value in _fields(payload):
        field = descriptor.fields_by_number.get(number)
        values = None if field is None else _values(field, wire, value)
        if values is None:
            continue
        if field.containing_oneof is not None:
            for other in field.containing_oneof.fields:
                if other.number != number:
                    read.pop(other.number, None)
        read.setdefault(number, []).extend(values)
    return {field.name: _value(field, read.get(field.number), depth) for field in descriptor.fields}


def numbers(payload: bytes) -> set[int]:
    """Return the numbers of the fields that a message has."""
    return {number for number, _, _ in _fields(payload)}


def varint(payload: bytes, at: int, most_bytes: int = 10) -> tuple[int, int]:
    """Read a number of at most 64 bits, and return where it ends."""
    value = 0
    for shift in range(0, 7 * most_bytes, 7):
        if at >= len(payload):
            break
        byte = payload[at]
        value |= (byte & 0x7F) << shift
        at += 1
        if byte < 0x80:
            return value & (2**64 - 1), at
    raise BadRecordError("a number without an end")


def _fields(payload: bytes) -> Iterator[tuple[int, int, Any]]:
    at = 0
    while at < len(payload):
        number, wire, value, at = _field(payload, at)
        if wire == _END_OF_GROUP:
            raise BadRecordError("a group that ends before it begins")
        yield number, wire, value


def _field(payload: bytes, at: int, depth: int = 0) -> tuple[int, int, Any, int]:
    """Read a field: its number, its wire type, what it holds, and where it ends."""
    tag, at = varint(payload, at, _BYTES_OF_TAG)
    number, wire = tag >> 3, tag & 7
    if not 1 <= number <= _LAST_FIELD or wire not in {*_LENGTHS, _END_OF_GROUP}:
        raise BadRecordError(f"field {number} of wire type {wire}")
    if wire == _END_OF_GROUP:
        return number, wire, None, at
    if wire == _GROUP:
        return number, wire, *_group(payload, at, number, depth + 1)
    value: Any = _LENGTHS[wire]
    if value is None:
        value, at = varint(payload, at)
    if wire != 0:
        value, at = payload[at : at + value], at + value
    if at > len(payload):
        raise BadRecordError("the bytes end too early")
    return number, wire, value, at


def _group(payload: bytes, begin: int, number: int, depth: int) -> tuple[bytes, int]:
    """Return what stands in a group, and where it ends."""
    at, wire = begin, _GROUP
    while wire != _END_OF_GROUP:
        if depth > _DEEPEST:
            raise BadRecordError("nested too deeply")
        end = at
        found, wire, _, at = _field(payload, at, depth)
    if found != number:
        raise BadRecordError("a group that ends as another one")
    return payload[begin:end], at


def _values(field: Any, wire: int, value: Any) -> list[Any] | None:
    """Return what a field holds, several when it is packed; nothing for another wire type.

    Numbers of which a closed enum has no symbol count for nothing.
    """
    numbers = _numbers(field, wire, value)
    if numbers is None or word_of(field) != "enum" or not field.enum_type.is_closed:
        return numbers
    return [each for each in numbers if each in field.enum_type.values_by_number] or None


def _numbers(field: Any, wire: int, value: Any) -> list[Any] | None:
    word = word_of(field)
    if word == "group" or wire == _GROUP:
        return [value] if (word, wire) == ("group", _GROUP) else None
    if word in _BY_LENGTH:
        if wire == 2 and word == "string" and _is_checked(field.file):
            utf8(value)
        return [value] if wire == 2 else None
    size = _FIXED[word].size if word in _FIXED else None
    if wire != 2 and _LENGTHS[wire] == size:
        return [_scalar(word, value)]
    if wire != 2 or not field.is_repeated:
        return None
    return [_scalar(word, number) for number in _packed(value, size)]


@lru_cache(maxsize=100)
def _is_checked(file: Any) -> bool:
    """Tell whether texts of a file's messages must be UTF-8, which proto2 leaves to readers."""
    found = FileDescriptorProto()
    file.CopyToProto(found)
    return found.syntax in {"proto3", "editions"}


def _packed(value: bytes, size: int | None) -> Iterator[Any]:
    if size and len(value) % size:
        raise BadRecordError("packed numbers end too early")
    at = 0
    while at < len(value):
        number, at = (value[at : at + size], at + size) if size else varint(value, at)
        yield number


def _scalar(word: str, value: Any) -> Any:
    if word in _FIXED:
        return _FIXED[word].unpack(value)[0]
    if word == "bool":
        return value != 0
    if word in {"sint32", "sint64"}:
        value &= 2 ** int(word[4:]) - 1
        return (value >> 1) ^ -(value & 1)
    if word in {"uint32", "uint64"}:
        return value & (2 ** int(word[4:]) - 1)
    bits = 64 if word == "int64" else 32
    value &= 2**bits - 1
    return value - 2**bits if value >> (bits - 1) else value


def _value(field: Any, values: list[Any] | None, depth: int) -> Any:
    if values is None:
        if field.is_repeated:
            return {} if is_map(field.message_type) else []
        return None if field.has_presence else field.default_value
    if word_of(field) not in {"message", "group"}:
        return values if field.is_repeated else values[-1]
    inner = field.message_type
    if not field.is_repeated:
        return read_message(b"".join(values), inner, depth + 1)
    messages = [read_message(value, inner, depth + 1) for value in values]
    if not is_map(inner):
        return messages
    key, value = (_default(inner.fields_by_name[name]) for name in ("key", "value"))
    pairs = ((entry["key"], entry["value"]) for entry in messages)
    return {key if k is None else _key(k): value if v is None else v for k, v in pairs}


def _default(field: Any) -> Any:
    """Return what stands for a key or a value that an entry of a map leaves out."""
    inner = field.message_type
    return field.default_value if inner is None else read_message(b"", inner)


def _key(value: Any) -> Any:
    return utf8(value) if type(value) is bytes else value
