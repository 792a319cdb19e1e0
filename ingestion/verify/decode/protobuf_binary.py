"""Protobuf's binary encoding, by its specification and nothing else."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from typing import Any, Final

from google.protobuf.descriptor_pb2 import FieldDescriptorProto

from ingestion.verify.decode.coerce import BadRecordError, utf8

_DEEPEST: Final = 100
_LAST_FIELD: Final = 2**29 - 1
_FIXED: Final = {
    "double": struct.Struct("<d"),
    "fixed64": struct.Struct("<Q"),
    "sfixed64": struct.Struct("<q"),
    "float": struct.Struct("<f"),
    "fixed32": struct.Struct("<I"),
    "sfixed32": struct.Struct("<i"),
}
_BY_LENGTH: Final = ("string", "bytes", "message")
# How many bytes a value of a wire type has; none says that this varies.
_LENGTHS: Final = {0: None, 1: 8, 2: None, 5: 4}
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


def varint(payload: bytes, at: int) -> tuple[int, int]:
    """Read a number of at most 64 bits, and return where it ends."""
    value = 0
    for shift in range(0, 70, 7):
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
        tag, at = varint(payload, at)
        number, wire = tag >> 3, tag & 7
        if not 1 <= number <= _LAST_FIELD or wire not in _LENGTHS:
            raise BadRecordError(f"field {number} of wire type {wire}")
        value: Any = _LENGTHS[wire]
        if value is None:
            value, at = varint(payload, at)
        if wire != 0:
            value, at = payload[at : at + value], at + value
        if at > len(payload):
            raise BadRecordError("the bytes end too early")
        yield number, wire, value


def _values(field: Any, wire: int, value: Any) -> list[Any] | None:
    """Return what a field holds, several when it is packed; nothing for another wire type."""
    word = word_of(field)
    if word in _BY_LENGTH:
        return [value] if wire == 2 else None
    size = _FIXED[word].size if word in _FIXED else None
    if wire != 2 and _LENGTHS[wire] == size:
        return [_scalar(word, value)]
    if wire != 2 or not field.is_repeated:
        return None
    return [_scalar(word, number) for number in _packed(value, size)]


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
    if word_of(field) == "string":
        values = [utf8(value) for value in values]
    if word_of(field) != "message":
        return values if field.is_repeated else values[-1]
    inner = field.message_type
    if not field.is_repeated:
        return read_message(b"".join(values), inner, depth + 1)
    messages = [read_message(value, inner, depth + 1) for value in values]
    if not is_map(inner):
        return messages
    value_type = inner.fields_by_name["value"].message_type
    empty = {} if value_type is None else read_message(b"", value_type)
    return {entry["key"]: empty if entry["value"] is None else entry["value"] for entry in messages}
