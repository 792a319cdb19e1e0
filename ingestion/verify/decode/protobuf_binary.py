"""Protobuf's binary encoding, by its specification and nothing else."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any, Final

from ingestion.verify.decode.protobuf_schema import Member, Shape
from ingestion.verify.decode.strict_json import BadRecordError

_DEEPEST: Final = 100
_LAST_FIELD: Final = 2**29 - 1
_FIXED: Final = {
    "double": "<d",
    "float": "<f",
    "fixed64": "<Q",
    "fixed32": "<I",
    "sfixed64": "<q",
    "sfixed32": "<i",
}
_BY_LENGTH: Final = ("string", "bytes", "message")


def message(payload: bytes, shape: Shape, depth: int = 0) -> dict[str, Any]:
    """Read one message: every field's value by name, null where an absent one shows.

    Raises:
        BadRecordError: the bytes are not what the schema says.
    """
    if depth > _DEEPEST:
        raise BadRecordError("nested too deeply")
    found: dict[int, list[Any]] = {}
    for number, wire, value in _fields(payload):
        member = shape.members.get(number)
        values = None if member is None else _values(member, wire, value)
        if member is None or values is None:
            continue
        for other in shape.members.values():
            if member.oneof is not None and other.oneof == member.oneof and other is not member:
                found.pop(other.number, None)
        found.setdefault(number, []).extend(values)
    return {
        each.name: _value(each, found.get(number), depth) for number, each in shape.members.items()
    }


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
        if not 1 <= number <= _LAST_FIELD or wire not in {0, 1, 2, 5}:
            raise BadRecordError(f"field {number} of wire type {wire}")
        if wire == 0:
            value, at = varint(payload, at)
            yield number, wire, value
            continue
        length = {1: 8, 5: 4}.get(wire, 0)
        if wire == 2:
            length, at = varint(payload, at)
        if at + length > len(payload):
            raise BadRecordError("the bytes end too early")
        yield number, wire, payload[at : at + length]
        at += length


def _values(member: Member, wire: int, value: Any) -> list[Any] | None:
    """Return what a field holds, several when it is packed; nothing for another wire type."""
    if member.type in _BY_LENGTH:
        return [value] if wire == 2 else None
    size = struct.calcsize(_FIXED[member.type]) if member.type in _FIXED else 0
    if wire == {8: 1, 4: 5}.get(size, 0):
        return [_scalar(member, value)]
    if wire != 2 or not member.is_repeated:
        return None
    return [_scalar(member, each) for each in _packed(value, size)]


def _packed(value: bytes, size: int) -> Iterator[Any]:
    if size and len(value) % size:
        raise BadRecordError("packed numbers end too early")
    at = 0
    while at < len(value):
        if size:
            yield value[at : at + size]
            at += size
        else:
            number, at = varint(value, at)
            yield number


def _scalar(member: Member, value: Any) -> Any:
    if member.type in _FIXED:
        return struct.unpack(_FIXED[member.type], value)[0]
    if member.type == "bool":
        return value != 0
    if member.type in {"sint32", "sint64"}:
        value &= 2 ** int(member.type[4:]) - 1
        return (value >> 1) ^ -(value & 1)
    if member.type == "uint64":
        return value
    if member.type == "uint32":
        return value & 0xFFFFFFFF
    bits = 64 if member.type == "int64" else 32
    value &= 2**bits - 1
    return value - 2**bits if value >> (bits - 1) else value


def _value(member: Member, found: list[Any] | None, depth: int) -> Any:
    if found is None:
        return {} if member.message is not None and member.message.is_map else member.default
    if member.message is not None and member.type == "message":
        return _messages(member, member.message, found, depth)
    if member.type == "string":
        found = [_text(each) for each in found]
    return found if member.is_repeated else found[-1]


def _messages(member: Member, shape: Shape, found: list[bytes], depth: int) -> Any:
    if not member.is_repeated:
        return message(b"".join(found), shape, depth + 1)
    each = [message(payload, shape, depth + 1) for payload in found]
    if not shape.is_map:
        return each
    value = shape.by_name["value"]
    empty = {} if value.message is None else message(b"", value.message)
    filled = (entry["value"] if entry["value"] is not None else empty for entry in each)
    return {entry["key"]: value for entry, value in zip(each, filled, strict=True)}


def _text(value: bytes) -> str:
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadRecordError(f"no UTF-8: {error}") from None
