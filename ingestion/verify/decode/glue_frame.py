"""AWS Glue's frame: a version of 3, 0 or 5 for no compression or zlib, 16 bytes of a UUID."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from uuid import UUID

from oncelake.ingestion.verify.decode import protobuf_binary
from oncelake.ingestion.verify.decode.coerce import BadRecordError


def split(raw: bytes) -> tuple[UUID, bytes]:
    """Return the id of a schema, and the payload."""
    version, compression, payload = raw[:1], raw[1:2], raw[18:]
    if len(raw) < 18 or version != b"\x03" or compression not in {b"\x00", b"\x05"}:
        raise BadRecordError("no UUID of a schema version in front")
    return UUID(bytes=raw[2:18]), _inflate(payload) if compression == b"\x05" else payload


def _inflate(payload: bytes) -> bytes:
    """Inflate to a hundred times the size and 64 KiB, and to 64 MiB in no case."""
    stream, most = zlib.decompressobj(), min(len(payload) * 100 + 2**16, 2**26)
    try:
        inflated = stream.decompress(payload, most + 1)
    except zlib.error as error:
        raise BadRecordError(f"no zlib: {error}") from None
    if len(inflated) > most or not stream.eof or stream.unused_data:
        raise BadRecordError("it inflates to too much, is cut, or goes on")
    return inflated


def by_number(messages: Sequence[Any]) -> Callable[[bytes], tuple[Any, bytes]]:
    """Return what finds a message by its number: all of a file are sorted by their full names."""
    in_order = sorted(_all(messages), key=lambda each: each.full_name)

    def find(payload: bytes) -> tuple[Any, bytes]:
        number, at = protobuf_binary.varint(payload, 0, 5)
        if number >= len(in_order):
            raise BadRecordError(f"no message has the number {number}")
        return in_order[number], payload[at:]

    return find


def _all(messages: Sequence[Any]) -> Iterator[Any]:
    for each in messages:
        yield each
        yield from _all(each.nested_types)
