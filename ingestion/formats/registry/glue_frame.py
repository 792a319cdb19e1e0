"""AWS Glue's frame: a three, how the payload is compressed, the UUID of a schema version, all else.

A payload of Protobuf begins with one number: which message it is, of all by their full names. How
far a payload may grow when it is decompressed is decided for each alone, whatever is around it.
"""

from __future__ import annotations

import zlib
from collections.abc import Collection, Iterator
from contextlib import suppress
from typing import Final
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from oncelake.ingestion.errors import counted
from oncelake.ingestion.formats.arrays import Bytes, Flags, Numbers, spans
from oncelake.ingestion.formats.decoder import BadBytesError
from oncelake.ingestion.kafka.schema_registry import SchemaId

HEADER_BYTES: Final = 18
_STARTS: Final = (b"\3\0", b"\3\5")
_PLAIN, _ZLIB = 0, 5
# What a payload may grow to: this, and so many times its size; and no more in any case.
_SMALL, _MOST_GROWTH, _LARGE = 64 * 1024, 100, 64 * 1024 * 1024
# Of payloads that are decompressed together; the others are one by one.
_MOST_AT_ONCE: Final = 64 * 1024 * 1024


def ids_in(values: pa.Array) -> list[SchemaId]:
    """Return the schemas of framed values, each once."""
    header, is_framed = _headers(values)
    return [UUID(bytes=raw) for raw in _ids(header[is_framed]).dictionary.to_pylist()]


def groups(
    values: pa.Array, known: Collection[SchemaId]
) -> Iterator[tuple[SchemaId, Numbers, int]]:
    """Yield known schemas, the values of each, and where their payloads begin."""
    header, is_framed = _headers(values)
    at = np.flatnonzero(is_framed & (header[:, 1] == _PLAIN))
    ids = _ids(header[at])
    for code, raw in enumerate(ids.dictionary.to_pylist()):
        if (number := UUID(bytes=raw)) in known:
            yield number, at[np.asarray(ids.indices) == code], HEADER_BYTES


def unpacked(values: pa.Array) -> pa.Array:
    """Return values with compressed payloads as they were, as far as that is possible at once."""
    header, is_framed = _headers(values)
    is_packed, room = is_framed & (header[:, 1] == _ZLIB), _MOST_AT_ONCE
    plain = []
    for raw in values.filter(pa.array(is_packed)).to_pylist():
        plain.append(raw)
        with suppress(BadBytesError):
            if room > 0:
                plain[-1] = bytes([3, _PLAIN]) + raw[2:HEADER_BYTES] + split(raw)[1]
                room -= len(plain[-1])
    return (
        pc.replace_with_mask(values, is_packed, pa.array(plain, pa.binary())) if plain else values
    )


def split(raw: bytes) -> tuple[UUID, bytes]:
    """Return the UUID of one framed value, and the payload."""
    if not any(start.startswith(raw[:2]) for start in _STARTS):
        found = f"the first bytes are {raw[:2].hex()}, not 0300 or 0305 of AWS Glue's"
        raise BadBytesError("not_framed", found)
    if len(raw) < HEADER_BYTES:
        raise BadBytesError("short_header", counted(len(raw), "byte"))
    payload = raw[HEADER_BYTES:]
    return UUID(bytes=raw[2:HEADER_BYTES]), _decompressed(payload) if raw[1] else payload


def _headers(values: pa.Array) -> tuple[Bytes, Flags]:
    """Return what would be the header of each value, and which of them are framed."""
    content, starts, ends = spans(values)
    header = content[starts[:, None] + np.arange(HEADER_BYTES)]
    is_framed = (header[:, 0] == 3) & np.isin(header[:, 1], (_PLAIN, _ZLIB))
    return header, is_framed & (ends - starts >= HEADER_BYTES) & np.asarray(values.is_valid())


def _ids(header: Bytes) -> pa.DictionaryArray:
    raw = pa.py_buffer(header[:, 2:].tobytes())
    return pa.FixedSizeBinaryArray.from_buffers(
        pa.binary(16), len(header), [None, raw]
    ).dictionary_encode()


def _decompressed(raw: bytes) -> bytes:
    decompress = zlib.decompressobj()
    most = min(_SMALL + _MOST_GROWTH * len(raw), _LARGE)
    try:
        payload = decompress.decompress(raw, most + 1)
    except zlib.error as error:
        raise BadBytesError("malformed_compression", str(error)) from None
    if len(payload) > most:
        raise BadBytesError("malformed_compression", f"more than {counted(most, 'byte')}")
    if not decompress.eof or decompress.unused_data:
        raise BadBytesError("malformed_compression", "it is cut, or bytes are left over")
    return payload
