"""Confluent's wire format: a zero byte, four bytes of schema id, and the payload.

A serializer may put the id in a header instead, and the bytes are the payload alone: whatever they
look like, such a record is not in this format.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import cache
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from oncelake.ingestion.errors import counted
from oncelake.ingestion.formats import decoder
from oncelake.ingestion.formats.arrays import Bytes, Flags, Numbers, spans
from oncelake.ingestion.formats.decoder import (
    UNFORESEEN,
    BadBytesError,
    Decoded,
    Encoded,
    Read,
    by_record,
    merged,
)
from oncelake.ingestion.kafka.schema_registry import WriterSchema

HEADER_BYTES: Final = 5
_LONG_HEADER_BYTES: Final = 9
# For fewer records of one schema, whole columns are not worth the effort.
_MANY: Final = 32
REASONS: Final[dict[str, str]] = {
    **decoder.REASONS,
    "not_framed": "the first byte is not 0, or the schema id is in a header",
    "short_header": "fewer than five bytes, so that there is no schema id",
    "unknown_schema_id": "the registry does not know the schema id",
    "wrong_schema_type": "the schema id is one of another format",
    "unusable_schema": "the schema cannot be understood, contains itself, has no bound, or refers "
    "to one that is gone",
    "type_mismatch": "a value that its column cannot hold without a loss",
    "unknown_field": "a name is not declared, and the stream says `extra_fields: reject`",
}

# Makes the reader of the payloads of one schema; raises ``BadBytesError``.
Compile = Callable[[WriterSchema, Encoded], Read]
# Makes what names the record type of a payload of one schema, where its format has names.
Name = Callable[[WriterSchema], Callable[[bytes], str | None]]
# Decodes the payloads that begin and end in some bytes; says which of them it could.
DecodeMany = Callable[[Bytes, Numbers, Numbers], tuple[pa.StructArray, Flags]]
# Makes the decoding of many payloads of one schema or nothing.
CompileMany = Callable[[WriterSchema, Encoded], DecodeMany | None]


class FramedDecoder:
    """Decodes framed bytes and headers, each record by its writer's schema.

    Many records of one schema are decoded at once where that is possible, others one by one, and
    those of another type than those that are meant no further than their type.
    """

    def __init__(
        self,
        encoded: Encoded,
        schema_type: str,
        compile_: Compile,
        compile_many: CompileMany = lambda *_: None,
        *,
        name: Name,
    ) -> None:
        schemas = encoded.writer_schemas
        self._encoded, self._type = encoded, schema_type
        self._reader = cache(lambda number: compile_(schemas[number], encoded))
        self._many = cache(lambda number: compile_many(schemas[number], encoded))
        self._name = cache(lambda number: name(schemas[number]))
        self._nothing = [None] * len(encoded.schema)
        self._one_by_one = by_record(self._read, encoded)

    def __call__(self, values: pa.Array, headers: pa.Array | None = None) -> pa.StructArray:
        """Decode a batch."""
        in_headers = headers_with_id(headers, len(values), is_key=self._encoded.is_key)
        # Only formats whose records may lack columns read more of the headers.
        is_read = headers is not None and self._encoded.options.may_lack_columns
        columns = [values, in_headers, *([headers] if is_read else [])]
        content, starts, ends = spans(values)
        ids = np.where(in_headers.is_null(), _schema_ids(values, content, starts, ends), -1)
        is_done, parts = np.zeros(len(values), np.bool_), []
        for number in self._encoded.writer_schemas.keys() & set(np.unique(ids).tolist()):
            at = np.flatnonzero(ids == number)
            # Nothing in a schema or a record may stop the stream: one by one has the last word.
            with suppress(UNFORESEEN):
                if len(at) >= _MANY and (decode_many := self._decode_many(number)):
                    decoded, is_sound = decode_many(content, starts[at] + HEADER_BYTES, ends[at])
                    parts.append((at[is_sound], decoded.filter(pa.array(is_sound))))
                    is_done[at] = is_sound
        if not parts:
            return self._one_by_one(*columns)
        others = np.flatnonzero(~is_done)
        rest = (each.take(pa.array(others)) for each in columns)
        return merged([*parts, (others, self._one_by_one(*rest))])

    def _read(self, raw: bytes, header: str | None, *more: Any) -> Decoded:
        if header is not None:
            raise BadBytesError("not_framed", f"its schema id is in a header, {header}")
        number, payload = _split_frame(raw, self._encoded, self._type)
        wanted = self._encoded.record
        try:
            record = None if self._encoded.is_key else self._name(number)(payload)
            if wanted and record is not None and record not in wanted:
                return Decoded(self._nothing, record=record)
            return self._reader(number)(payload, *more)._replace(record=record)
        except BadBytesError as error:
            raise _bad_schema(error.reason, number, str(error)) from None

    def _decode_many(self, number: int) -> DecodeMany | None:
        """Return the decoding of many payloads of a schema, if all are of a type that is meant."""
        schema, wanted = self._encoded.writer_schemas[number], self._encoded.record
        decode = self._many(number) if schema.type == self._type and not schema.problem else None
        if decode is None or self._encoded.is_key:
            return decode
        record = self._name(number)(b"")
        if wanted and record not in wanted:
            return None

        def decode_named(content: Bytes, at: Numbers, end: Numbers) -> tuple[pa.StructArray, Flags]:
            decoded, is_sound = decode(content, at, end)
            return _of_record(decoded, record), is_sound

        return decode_named


def _of_record(decoded: pa.StructArray, record: str | None) -> pa.StructArray:
    """Say of which record type all of these are, where decoding is asked for it."""
    at = decoded.type.get_field_index("record")
    if at < 0:
        return decoded
    parts = decoded.flatten()
    parts[at] = pa.array([record] * len(decoded), pa.string())
    return pa.StructArray.from_arrays(parts, fields=list(decoded.type))


def id_headers(*, is_key: bool) -> list[str]:
    """Return the names of the headers in which serializers put a schema's id, or what names it.

    Confluent's, Apicurio's and Cloudera's, of a value or of a key.
    """
    part = "key" if is_key else "value"
    of_apicurio = ("globalId", "contentId", "contentHash", "artifactId")
    confluent, cloudera = f"__{part}_schema_id", f"{part}.schema.version.id"
    return [confluent, *(f"apicurio.{part}.{each}" for each in of_apicurio), cloudera]


def headers_with_id(headers: pa.Array | None, length: int, *, is_key: bool) -> pa.Array:
    """Return for each record the name of the header that has its schema id; null without one."""
    found: list[str | None] = [None] * length
    if headers is not None and len(keys := headers.flatten().field("key")):
        at = np.flatnonzero(pc.is_in(keys, pa.array(id_headers(is_key=is_key))))
        lengths = np.asarray(headers.value_lengths().fill_null(0))
        records = np.repeat(np.arange(length), lengths)[at]
        for record, key in zip(records.tolist(), keys.take(pa.array(at)).to_pylist(), strict=True):
            found[record] = key
    return pa.array(found, pa.string())


def schema_id_of(raw: bytes | None) -> int | None:
    """Return the schema id of framed bytes; ``None`` where they are not framed."""
    if raw is None or len(raw) < HEADER_BYTES or raw[0] != 0:
        return None
    return int.from_bytes(raw[1:HEADER_BYTES])


def schema_ids_in(records: pa.Table, column: str, *, is_key: bool) -> list[int]:
    """Return the schema ids of all bytes that are framed."""
    headers = records["_headers"].combine_chunks()
    in_headers = headers_with_id(headers, len(records), is_key=is_key)
    ids = map(schema_id_of, records[column].filter(in_headers.is_null()).to_pylist())
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
        detail = "the registry does not know it"
        if number == 0 and len(raw) >= _LONG_HEADER_BYTES:
            # No registry has an id 0.
            long = int.from_bytes(raw[1:_LONG_HEADER_BYTES])
            detail += f"; as an id of eight bytes, which Apicurio's serializers write, it is {long}"
        raise _bad_schema("unknown_schema_id", number, detail)
    if schema.type != schema_type:
        raise _bad_schema("wrong_schema_type", number, f"{schema.type}, not {schema_type}")
    if schema.problem:
        raise _bad_schema("unusable_schema", number, schema.problem)
    return number, raw[HEADER_BYTES:]


def _bad_schema(reason: str, number: int, detail: str) -> BadBytesError:
    return BadBytesError(reason, f"schema id {number}: {detail}")
