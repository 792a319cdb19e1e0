"""Confluent's wire format: a zero byte, four bytes of schema id, and the payload.

A payload of Protobuf begins with message indexes. A serializer may put all in front of the payload
in a header instead, or a one and the sixteen bytes of the schema's GUID; the bytes are the payload
alone then, whatever they look like. Ids in headers of other makers' serializers are not read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from typing import Any, Final
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from oncelake.ingestion.errors import counted
from oncelake.ingestion.formats import decoder
from oncelake.ingestion.formats.arrays import Bytes, Flags, Numbers, last_of, spans
from oncelake.ingestion.formats.decoder import (
    UNFORESEEN,
    BadBytesError,
    Decoded,
    Encoded,
    Read,
    by_record,
    merged,
)
from oncelake.ingestion.formats.registry import glue_frame
from oncelake.ingestion.kafka.schema_registry import SchemaId, WriterSchema

HEADER_BYTES: Final = 5
_LONG_HEADER_BYTES: Final = 9
GUID_HEADER_BYTES: Final = 17
# What an id may lie in, in front of a payload: Glue's frame is the longest.
LONGEST_FRONT_BYTES: Final = glue_frame.HEADER_BYTES
_MOST_INDEXES: Final = 100
# For fewer records of one schema, whole columns are not worth the effort.
_MANY: Final = 32
REASONS: Final[dict[str, str]] = {
    **decoder.REASONS,
    "not_framed": "the first bytes are not those of the framing, or a header has the schema id in "
    "a form that is not read",
    "short_header": "too few bytes, so that there is no schema id",
    "malformed_compression": "the payload is not zlib's as AWS Glue's serializers write it, or "
    "grows too large",
    "unknown_schema_id": "the registry does not know the schema id, or what the schema refers to, "
    "or `schemas` has no schema of the fingerprint",
    "wrong_schema_type": "the schema id is one of another format",
    "unusable_schema": "the schema cannot be understood, or has no bound",
    "type_mismatch": "a value that its column cannot hold without a loss",
    "unknown_field": "a name is not declared, and the stream says `extra_fields: reject`, or a "
    "STRUCT that follows its schema cannot get the field",
}

# Makes the reader of the payloads of one schema; raises ``BadBytesError``.
Compile = Callable[[WriterSchema, Encoded], Read]
# Makes what names the record type of a payload of one schema, where its format has names.
Name = Callable[[WriterSchema], Callable[[bytes], str | None]]
# Decodes the payloads that begin and end in some bytes; says which of them it could.
DecodeMany = Callable[[Bytes, Numbers, Numbers], tuple[pa.StructArray, Flags]]
# Makes the decoding of many payloads of one schema or nothing.
CompileMany = Callable[[WriterSchema, Encoded], DecodeMany | None]


class Fingerprint(int):
    """A schema's CRC-64-AVRO, which names it in Avro's single-object encoding; it has a sign."""

    def __str__(self) -> str:
        """Write it as hexadecimal digits."""
        return f"{self % 2**64:016x}"


class FramedDecoder:
    """Decodes framed bytes and headers, each record by its writer's schema.

    Many records of one schema are decoded at once where that is possible, others one by one, and
    those of another type than those that are meant no further than their type.

    Attributes:
        payload_at: How many bytes are before a payload.
    """

    payload_at = HEADER_BYTES

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
        values = glue_frame.unpacked(values) if self._encoded.in_glue else values
        header, name = ids_in_headers(headers, len(values), is_key=self._encoded.is_key)
        header = pc.if_else(values.is_valid(), header, None)
        # Only formats whose records may lack columns read more of the headers.
        is_read = headers is not None and self._encoded.options.may_lack_columns
        columns = [values, header, name, *([headers] if is_read else [])]
        content, starts, ends = spans(values)
        is_done, parts = np.zeros(len(values), np.bool_), []
        if self._encoded.in_glue:
            groups = glue_frame.groups(values, self._encoded.writer_schemas)
        else:
            groups = self._groups(self.ids_of(values, content, starts, ends), header, name)
        for number, at, payload_at in groups:
            # Nothing in a schema or a record may stop the stream: one by one has the last word.
            with suppress(UNFORESEEN):
                if len(at) >= _MANY and (decode_many := self._decode_many(number)):
                    decoded, is_sound = decode_many(content, starts[at] + payload_at, ends[at])
                    parts.append((at[is_sound], decoded.filter(pa.array(is_sound))))
                    is_done[at] = is_sound
        if not parts:
            return self._one_by_one(*columns)
        others = np.flatnonzero(~is_done)
        rest = (each.take(pa.array(others)) for each in columns)
        return merged([*parts, (others, self._one_by_one(*rest))])

    def ids_of(self, values: pa.Array, content: Bytes, starts: Numbers, ends: Numbers) -> Numbers:
        """Return the schema id of each value, -1 where it is not framed."""
        is_framed = np.asarray(values.is_valid()) & (ends - starts >= HEADER_BYTES)
        header = content[starts[:, None] + np.arange(HEADER_BYTES)]
        ids = header[:, 1:].copy().view(">u4").ravel().astype(np.int64)
        return np.where(is_framed & (header[:, 0] == 0), ids, -1)

    def split(self, raw: bytes) -> tuple[SchemaId, bytes]:
        """Return the schema id of one framed value, and the payload."""
        if raw[:1] not in {b"", b"\0"}:
            raise BadBytesError("not_framed", f"the first byte is {raw[0]}, not 0")
        if len(raw) < HEADER_BYTES:
            raise BadBytesError("short_header", counted(len(raw), "byte"))
        return int.from_bytes(raw[1:HEADER_BYTES]), raw[HEADER_BYTES:]

    def _groups(
        self, numbers: Numbers, header: pa.Array, name: pa.Array
    ) -> Iterator[tuple[SchemaId, Numbers, int]]:
        """Yield the known schemas, the records of each, and where their payloads begin."""
        known = self._encoded.writer_schemas
        numbers = np.where(name.is_null(), numbers, -1)
        for number in known.keys() & set(np.unique(numbers).tolist()):
            yield number, np.flatnonzero(numbers == number), self.payload_at
        distinct = header.dictionary_encode()
        codes = np.asarray(distinct.indices.fill_null(-1))
        for code in np.flatnonzero(np.bincount(codes[codes >= 0]) >= _MANY).tolist():
            with suppress(BadBytesError):
                of_header, rest = split_header(distinct.dictionary[code].as_py(), self._type)
                # Message indexes are of a format that is read one by one.
                if of_header in known and not rest:
                    yield of_header, np.flatnonzero(codes == code), 0

    def _split(self, raw: bytes, header: bytes | None, name: str | None) -> tuple[SchemaId, bytes]:
        if self._encoded.in_glue:
            return glue_frame.split(raw)
        if header is not None:
            number, indexes = split_header(header, self._type)
            return number, indexes + raw
        if name is not None:
            raise BadBytesError("not_framed", f"its schema id is in a header, {name}")
        return self.split(raw)

    def _read(self, raw: bytes, header: bytes | None, name: str | None, *more: Any) -> Decoded:
        number, payload = self._split(raw, header, name)
        _refuse_unusable(number, payload, self._encoded, self._type)
        wanted = self._encoded.record
        try:
            record = None if self._encoded.is_key else self._name(number)(payload)
            if wanted and record is not None and record not in wanted:
                return Decoded(self._nothing, record=record)
            return self._reader(number)(payload, *more)._replace(record=record)
        except BadBytesError as error:
            raise _bad_schema(error.reason, number, str(error)) from None

    def _decode_many(self, number: SchemaId) -> DecodeMany | None:
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


def ids_in_headers(
    headers: pa.Array | None, length: int, *, is_key: bool
) -> tuple[pa.Array, pa.Array]:
    """Return of each record the header of Confluent's that has its schema id, if there is one.

    And the name of any header that has an id, or what names the schema.
    """
    if headers is None or not len(headers.flatten()):
        return pa.nulls(length, pa.binary()), pa.nulls(length, pa.string())
    names = id_headers(is_key=is_key)
    pairs, of_confluent = headers.flatten(), last_of(headers, names[:1])
    values = pairs.field("value").fill_null(b"").take(of_confluent)
    return values, pairs.field("key").take(last_of(headers, names))


def split_header(header: bytes, schema_type: str) -> tuple[SchemaId, bytes]:
    """Return the id or GUID that a header has, and the message indexes of Protobuf after it."""
    size = GUID_HEADER_BYTES if header[:1] == b"\1" else HEADER_BYTES
    rest = header[size:]
    try:
        is_whole = not (message_path(rest)[1] if schema_type == "PROTOBUF" else rest)
    except BadBytesError:
        is_whole = False
    number = _id_at_start(header)
    if number is None or not is_whole:
        detail = (
            f"a header has no schema id as Confluent's serializers write it: {header[:40].hex()}"
        )
        raise BadBytesError("not_framed", detail)
    return number, rest


def _id_at_start(header: bytes) -> SchemaId | None:
    """Return the id or GUID at the start of a header, whatever follows it."""
    if header[:1] == b"\1" and len(header) >= GUID_HEADER_BYTES:
        return UUID(bytes=header[1:GUID_HEADER_BYTES])
    return schema_id_of(header)


def message_path(payload: bytes) -> tuple[tuple[int, ...], bytes]:
    """Return the message indexes at the start of bytes, and the bytes after them."""
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
    value, at = varint(payload, at)
    return (value >> 1) ^ -(value & 1), at


def varint(payload: bytes, at: int) -> tuple[int, int]:
    """Return the number at a place of some bytes, and the place after it."""
    value = shift = 0
    while at < len(payload) and shift < 35:
        byte = payload[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at
    raise BadBytesError("malformed_protobuf", "no message indexes")


def schema_id_of(raw: bytes | None) -> int | None:
    """Return the schema id of framed bytes; ``None`` where they are not framed."""
    if raw is None or len(raw) < HEADER_BYTES or raw[0] != 0:
        return None
    return int.from_bytes(raw[1:HEADER_BYTES])


def schema_ids_in(raws: pa.Array, headers: pa.Array, encoded: Encoded) -> list[SchemaId]:
    """Return the schema ids of all bytes, in front of them or in a header, each once."""
    if encoded.in_glue:
        return glue_frame.ids_in(raws)
    in_headers, names = ids_in_headers(headers, len(raws), is_key=encoded.is_key)
    fronts = pc.binary_slice(raws.filter(names.is_null()), 0, HEADER_BYTES).unique()
    numbers = sorted(
        {number for number in map(schema_id_of, fronts.to_pylist()) if number is not None}
    )
    of_headers = {raw for raw in in_headers.filter(raws.is_valid()).to_pylist() if raw}
    named = {_id_at_start(raw) for raw in of_headers}
    return [*numbers, *(each for each in named if each is not None)]


def _refuse_unusable(number: SchemaId, payload: bytes, encoded: Encoded, schema_type: str) -> None:
    """Refuse a schema that the registry does not know, or by which nothing can be read."""
    schema = encoded.writer_schemas.get(number)
    if schema is None:
        detail = "the registry does not know it"
        if isinstance(number, Fingerprint):
            detail = "`schemas` has none with it"
        if number == 0 and len(payload) >= _LONG_HEADER_BYTES - HEADER_BYTES:
            # No registry has an id 0.
            long = int.from_bytes(payload[: _LONG_HEADER_BYTES - HEADER_BYTES])
            detail += f"; as an id of eight bytes, which Apicurio's serializers write, it is {long}"
        raise _bad_schema("unknown_schema_id", number, detail)
    if schema.type != schema_type:
        raise _bad_schema("wrong_schema_type", number, f"{schema.type}, not {schema_type}")
    if schema.problem:
        reason = "unusable_schema" if schema.is_whole else "unknown_schema_id"
        raise _bad_schema(reason, number, schema.problem)


def _bad_schema(reason: str, number: SchemaId, detail: str) -> BadBytesError:
    what = {UUID: "GUID", Fingerprint: "fingerprint"}.get(type(number), "id")
    return BadBytesError(reason, f"schema {what} {number}: {detail}")
