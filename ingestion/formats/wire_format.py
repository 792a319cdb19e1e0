"""Confluent's wire format: a zero byte, four bytes of schema id, and the payload."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import cache
from typing import Any, Final

import numpy as np
import pyarrow as pa

from ingestion.errors import counted
from ingestion.formats import decoder
from ingestion.formats.arrays import Bytes, Flags, Numbers, spans
from ingestion.formats.decoder import (
    UNFORESEEN,
    BadBytesError,
    Decode,
    Decoded,
    Encoded,
    Read,
    by_record,
    merged,
)
from ingestion.kafka.schema_registry import WriterSchema

HEADER_BYTES: Final = 5
# For fewer records of one schema, whole columns are not worth the effort.
_MANY: Final = 32
REASONS: Final[dict[str, str]] = {
    **decoder.REASONS,
    "not_framed": "the first byte is not 0: no serializer of a schema registry wrote this",
    "short_header": "fewer than five bytes, so that there is no schema id",
    "unknown_schema_id": "the registry does not know the schema id",
    "wrong_schema_type": "the schema id is one of another format",
    "unusable_schema": "the schema cannot be understood, contains itself, or has no bound",
    "type_mismatch": "a value that its column cannot hold without a loss",
    "unknown_field": "a name is not declared, and the stream says `extra_fields: reject`",
}

# Makes the reader of the payloads of one schema; raises ``BadBytesError``.
Compile = Callable[[WriterSchema, Encoded], Read]
# Decodes the payloads that begin and end in some bytes; says which of them it could.
DecodeMany = Callable[[Bytes, Numbers, Numbers], tuple[pa.StructArray, Flags]]
# Makes the decoding of many payloads of one schema or nothing.
CompileMany = Callable[[WriterSchema, Encoded], DecodeMany | None]


def by_writer_schema(
    encoded: Encoded,
    schema_type: str,
    compile_: Compile,
    compile_many: CompileMany = lambda *_: None,
) -> Decode:
    """Return the decoding of framed bytes, each record with its writer's schema of one type."""
    reader = cache(lambda number: compile_(encoded.writer_schemas[number], encoded))

    def read(raw: bytes, *more: Any) -> Decoded:
        number, payload = _split_frame(raw, encoded, schema_type)
        try:
            return reader(number)(payload, *more)
        except BadBytesError as error:
            raise _bad_schema(error.reason, number, str(error)) from None

    one_by_one = by_record(read, encoded)
    known = {
        n: schema for n, schema in encoded.writer_schemas.items() if schema.type == schema_type
    }
    many = cache(lambda number: compile_many(known[number], encoded))

    def decode(values: pa.Array, *more: pa.Array) -> pa.StructArray:
        content, starts, ends = spans(values)
        ids = _schema_ids(values, content, starts, ends)
        is_done, parts = np.zeros(len(values), np.bool_), []
        for number in known.keys() & set(np.unique(ids).tolist()):
            at = np.flatnonzero(ids == number)
            if len(at) < _MANY:
                continue
            # Nothing in a schema or a record may stop the stream: one by one has the last word.
            with suppress(UNFORESEEN):
                if decode_many := many(number):
                    decoded, is_sound = decode_many(content, starts[at] + HEADER_BYTES, ends[at])
                    parts.append((at[is_sound], decoded.filter(pa.array(is_sound))))
                    is_done[at] = is_sound
        if not parts:
            return one_by_one(values, *more)
        others = np.flatnonzero(~is_done)
        rest = (each.take(pa.array(others)) for each in (values, *more))
        return merged([*parts, (others, one_by_one(*rest))])

    return decode


def schema_id_of(raw: bytes | None) -> int | None:
    """Return the schema id of framed bytes; ``None`` where they are not framed."""
    if raw is None or len(raw) < HEADER_BYTES or raw[0] != 0:
        return None
    return int.from_bytes(raw[1:HEADER_BYTES])


def schema_ids_in(values: pa.ChunkedArray) -> list[int]:
    """Return the schema ids of all values that are framed."""
    ids = map(schema_id_of, values.to_pylist())
    return sorted({number for number in ids if number is not None})


def _schema_ids(values: pa.Array, content: Bytes, starts: Numbers, ends: Numbers) -> Numbers:
    """Return the schema id of each value, -1 where it is not framed."""
    is_framed = np.asarray(values.is_valid()) & (ends - starts >= HEADER_BYTES)
    header = content[starts[:, None] + np.arange(HEADER_BYTES)]
    ids = header[:, 1:].copy().view(">u4").ravel().astype(np.int64)
    return np.where(is_framed & (header[:, 0] == 0), ids, -1)


def _split_frame(raw: bytes, encoded: Encoded, schema_type: str) -> tuple[int, bytes]:
    """Return the schema id of framed bytes, which must be one of the type, and the payload."""
    if raw[:1] not in {b"", b"\0"}:
        raise BadBytesError("not_framed", f"the first byte is {raw[0]}, not 0")
    if len(raw) < HEADER_BYTES:
        raise BadBytesError("short_header", counted(len(raw), "byte"))
    number = int.from_bytes(raw[1:HEADER_BYTES])
    schema = encoded.writer_schemas.get(number)
    if schema is None:
        raise _bad_schema("unknown_schema_id", number, "the registry does not know it")
    if schema.type != schema_type:
        raise _bad_schema("wrong_schema_type", number, f"{schema.type}, not {schema_type}")
    return number, raw[HEADER_BYTES:]


def _bad_schema(reason: str, number: int, detail: str) -> BadBytesError:
    return BadBytesError(reason, f"schema id {number}: {detail}")
