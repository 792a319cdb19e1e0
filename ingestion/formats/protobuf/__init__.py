"""Protobuf: each record is decoded with its writer's schema; fields are matched by name."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any, Final

from google.protobuf import descriptor_pool, message_factory
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.message import DecodeError
from google.protobuf.unknown_fields import UnknownFieldSet

from ingestion.formats import wire_format
from ingestion.formats.decoder import BadBytesError, Decode, Decoded, Encoded, Read
from ingestion.formats.nested import columns_of
from ingestion.formats.protobuf.compiler import prepared
from ingestion.formats.protobuf.types import View, converter, whole_fields
from ingestion.formats.wire_format import by_writer_schema
from ingestion.kafka.schema_registry import WriterSchema

__all__ = ["REASONS", "compiled", "opened", "prepared"]

REASONS: Final[dict[str, str]] = {
    **wire_format.REASONS,
    "malformed_protobuf": "the bytes are not what the schema says, or name no message of it",
}
_MOST_INDEXES: Final = 100


def opened(encoded: Encoded) -> Decode:
    """Decode each value with its writer's schema, as any of its messages."""
    return by_writer_schema(encoded, "PROTOBUF", compiled)


def compiled(schema: WriterSchema, encoded: Encoded) -> Read:
    """Return a reader of the payloads of one schema.

    Raises:
        BadBytesError: the schema is unusable.
    """
    return _Messages(schema, encoded)


class _Messages:
    """Reads the messages of one schema."""

    def __init__(self, schema: WriterSchema, encoded: Encoded) -> None:
        self._encoded = encoded
        self._readers: dict[tuple[int, ...], Read] = {}
        try:
            found = FileDescriptorSet.FromString(base64.b64decode(schema.text))
            pool = descriptor_pool.DescriptorPool()
            for each in found.file:
                pool.Add(each)
            self._main = pool.FindFileByName(found.file[-1].name)
        except (DecodeError, TypeError, KeyError, IndexError) as error:
            raise BadBytesError("unusable_schema", f"{error!s:.200}") from None
        self._in_order = [each.name for each in found.file[-1].message_type]

    def __call__(self, payload: bytes) -> Decoded:
        path, rest = message_path(payload)
        read = self._readers.get(path)
        if read is None:
            read = self._readers[path] = self._opened(path)
        return read(rest)

    def _opened(self, path: tuple[int, ...]) -> Read:
        try:
            message = self._main.message_types_by_name[self._in_order[path[0]]]
            for index in path[1:]:
                message = message.nested_types[index]
        except IndexError:
            raise BadBytesError("malformed_protobuf", f"no message at {list(path)}") from None
        make = message_factory.GetMessageClass(message)
        fields = whole_fields(message)
        to_row, extra = columns_of(fields, self._encoded.schema, converter)

        def read(payload: bytes) -> Decoded:
            try:
                found = make.FromString(payload)
            except DecodeError as error:
                raise BadBytesError("malformed_protobuf", f"{error!s:.200}") from None
            return Decoded(to_row(View(found)), [*extra, *_unknown(found)])

        return read


def message_path(payload: bytes) -> tuple[tuple[int, ...], bytes]:
    """Return the message indexes of a payload, and the bytes after them.

    Raises:
        BadBytesError: the indexes are missing or invalid.
    """
    count, at = _zigzag(payload, 0)
    if not 0 <= count <= _MOST_INDEXES:
        raise BadBytesError("malformed_protobuf", f"{count} message indexes")
    path = []
    for _ in range(count):
        index, at = _zigzag(payload, at)
        if index < 0:
            raise BadBytesError("malformed_protobuf", f"a message index of {index}")
        path.append(index)
    return tuple(path) or (0,), payload[at:]


def _zigzag(payload: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(payload) and shift < 35:
        byte = payload[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), at
    raise BadBytesError("malformed_protobuf", "no message indexes")


def _unknown(message: Any) -> list[str]:
    """Return the fields that the schema does not have, by number: ``#9``."""
    numbers: Mapping[int, None] = dict.fromkeys(e.field_number for e in UnknownFieldSet(message))
    return [f"#{number}" for number in numbers]
