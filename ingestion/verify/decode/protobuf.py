"""Protobuf, read by this proof's own reader of the binary encoding."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from ingestion.declaration.parts import ExtraFields
from ingestion.declaration.types import Declared
from ingestion.kafka.schema_registry import WriterSchema
from ingestion.verify.decode import DecodedRecord, Expected, coerce
from ingestion.verify.decode.coerce import Read, refuse
from ingestion.verify.decode.protobuf_binary import message, numbers, varint
from ingestion.verify.decode.protobuf_schema import Member, Schema, Shape
from ingestion.verify.decode.strict_json import BadRecordError
from ingestion.verify.decode.wire_format import ReadFramed, ReadPayload

_WRAPPERS: Final = frozenset(
    f"google.protobuf.{each}Value"
    for each in ("Bool", "Int32", "Int64", "UInt32", "UInt64", "Float", "Double", "String", "Bytes")
)


class RepeatedItem(NamedTuple):
    """One item of a repeated field."""

    member: Member


def reading(expected: Expected) -> ReadFramed:
    """Return what reads one framed message.

    Raises:
        UnprovableError: a type that this proof knows nothing of.
    """
    wanted = coerce.provable_types(expected.columns)
    return ReadFramed(expected, "PROTOBUF", lambda s: opened(s, wanted, expected.extra_fields))


def opened(
    written: WriterSchema, wanted: Mapping[str, Declared], extra: ExtraFields
) -> ReadPayload:
    """Return what reads payloads of one schema.

    Raises:
        BadRecordError: it cannot be compiled.
    """
    schema = Schema(written)

    def read(payload: bytes) -> DecodedRecord:
        shape, rest = _which(schema, payload)
        names = {each.name for each in shape.members.values()}
        if extra == "reject" and (names - wanted.keys() or numbers(rest) - shape.members.keys()):
            raise BadRecordError("fields that no column names")
        take = coerce.fields(shape.by_name, wanted, fit)
        return DecodedRecord(values=tuple(take(message(rest, shape))))

    return read


def fit(node: Member | RepeatedItem, type_: Declared) -> Read:
    """Return what takes a value that is not null as a declared type."""
    if isinstance(node, RepeatedItem):
        return _single(node.member, type_)
    if node.is_repeated and node.message is not None and node.message.is_map:
        inner = node.message.by_name
        if inner["key"].type != "string":
            return coerce.never("a map", type_)
        return coerce.nested("MAP", inner["value"], type_, fit)
    if node.is_repeated:
        return coerce.nested("ARRAY", RepeatedItem(node), type_, fit)
    return _single(node, type_)


def _single(member: Member, type_: Declared) -> Read:
    if member.message is not None and member.type == "message":
        return _message(member.message, type_)
    if member.type == "enum" and type_.word == "STRING":
        return lambda value: member.symbols.get(value) or refuse(value)
    return _scalar(member.type, type_) or coerce.never(member.type, type_)


def _scalar(word: str, type_: Declared) -> Read | None:
    if word == "bool":
        return coerce.plain(type_, "BOOLEAN")
    if word == "string":
        return coerce.text(type_)
    if word == "bytes":
        return coerce.plain(type_, "BINARY")
    return coerce.real(type_) if word in {"float", "double"} else coerce.whole(type_)


def _message(shape: Shape, type_: Declared) -> Read:
    if shape.name == "google.protobuf.Timestamp" and type_.word == "TIMESTAMP":
        moment = coerce.moment(type_, 10**9, zoned=True) or coerce.never(shape.name, type_)
        return lambda value: moment(value["seconds"] * 10**9 + value["nanos"])
    if shape.name in _WRAPPERS and type_.word != "STRUCT":
        inner = fit(shape.by_name["value"], type_)
        return lambda value: inner(value["value"])
    return coerce.nested("STRUCT", shape.by_name, type_, fit)


def _which(schema: Schema, payload: bytes) -> tuple[Shape, bytes]:
    """Follow the message indexes to a message; none of them means the first."""
    path: list[int] = []
    count, at = varint(payload, 0)
    for _ in range(_signed(count)):
        number, at = varint(payload, at)
        path.append(_signed(number))
    shapes, shape = schema.messages, None
    for number in path or [0]:
        if number >= len(shapes):
            raise BadRecordError(f"no message at {path}")
        shape = shapes[number]
        shapes = shape.inner
    assert shape is not None, "there is always a first index"
    return shape, payload[at:]


def _signed(number: int) -> int:
    value = (number >> 1) ^ -(number & 1)
    if not 0 <= value <= 100:
        raise BadRecordError(f"a message index of {value}")
    return value
