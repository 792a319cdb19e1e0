"""Avro: each record is decoded with its writer's schema, and its fields are matched by name.

Logical types are converted here and not by fastavro, which fails on values that Python's types
cannot represent, such as the year 0.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from io import BytesIO
from typing import Any, Final

from fastavro import _read_py, parse_schema, schemaless_reader

from oncelake.ingestion.declaration.formats import AvroOptions
from oncelake.ingestion.errors import counted
from oncelake.ingestion.formats.avro.columns import column_decoding
from oncelake.ingestion.formats.avro.single_object import (
    SingleObjectDecoder,
    schemas_by_fingerprint,
)
from oncelake.ingestion.formats.avro.types import (
    as_json,
    as_written,
    converter,
    expanded_size,
    fields,
    has_circles,
    has_endless_arrays,
    is_record,
    linked,
    undeclared,
)
from oncelake.ingestion.formats.coerce import columns_of
from oncelake.ingestion.formats.decoder import (
    UNFORESEEN,
    BadBytesError,
    Decode,
    Decoded,
    Encoded,
    Read,
)
from oncelake.ingestion.formats.registry import wire_format
from oncelake.ingestion.formats.registry.wire_format import DecodeMany, FramedDecoder
from oncelake.ingestion.formats.variant import has_variants
from oncelake.ingestion.kafka.schema_registry import WriterSchema
from oncelake.ingestion.storage.processes import deeper_calls

REASONS: Final[dict[str, str]] = {
    **wire_format.REASONS,
    "malformed_avro": "the bytes are not what the schema says, or some are left over",
}
MOST_TYPES: Final = 10_000
_MALFORMED = (
    *(EOFError, LookupError, ValueError, OverflowError, MemoryError, struct.error),
    RecursionError,
)


def opened(encoded: Encoded) -> Decode:
    """Decode each value with its writer's schema; a key may be a bare value."""
    decoder, options = FramedDecoder, encoded.options
    if isinstance(options, AvroOptions) and not options.uses_registry:
        encoded = replace(encoded, writer_schemas=schemas_by_fingerprint(options.schemas))
        decoder = SingleObjectDecoder
    return decoder(encoded, "AVRO", compiled, compiled_many, name=record_name)


def record_name(schema: WriterSchema) -> Callable[[bytes], str | None]:
    """Return what names the record that a schema describes; none where it is no record."""
    root: Any = None
    with suppress(ValueError, RecursionError):
        root = json.loads(schema.text)
    while isinstance(root, dict) and isinstance(root.get("type"), dict):
        root = root["type"]
    if not isinstance(root, dict) or root.get("type") not in ("record", "error"):
        return lambda _: None
    name, namespace = str(root.get("name")), root.get("namespace")
    full = f"{namespace}.{name}" if namespace and "." not in name else name
    return lambda _: full


def compiled(schema: WriterSchema, encoded: Encoded) -> Read:
    """Return a reader of the payloads of one schema."""
    read, root = parsed(schema)
    if is_record(root):
        to_row = columns_of(fields(root), encoded.schema, converter)
        extra = tuple(dict.fromkeys(undeclared(root, encoded.schema)))
        return lambda payload: Decoded(to_row(read(payload)), extra)
    if not encoded.is_key or len(encoded.schema) != 1:
        raise BadBytesError("type_mismatch", "the schema is not a record")
    convert = converter(root, encoded.schema[0].dataType)

    def read_bare(payload: bytes) -> Decoded:
        value = read(payload)
        return Decoded([None if value is None else convert(value)], ())

    return read_bare


def compiled_many(schema: WriterSchema, encoded: Encoded) -> DecodeMany | None:
    """Return the decoding of many payloads of one schema at once, if there is one."""
    if has_variants(encoded.schema):
        return None
    try:
        return column_decoding(parsed(schema)[1], encoded)
    except BadBytesError:
        return None


def parsed(schema: WriterSchema) -> tuple[Callable[[bytes], Any], Any]:
    """Return a reader of payloads as Python values, and their type with all names expanded."""
    named: dict[str, Any] = {}
    try:
        texts = [*(text for _, text in schema.references), schema.text]
        for at, text in enumerate(texts):
            root = parse_schema(as_written(json.loads(text), str(at)), named_schemas=named)
        type_ = linked(root, named, {})
        size, is_endless = expanded_size(type_, {}), has_endless_arrays(type_)
    except UNFORESEEN as error:
        raise BadBytesError("unusable_schema", f"{type(error).__name__}: {error}") from None
    if is_endless:
        raise BadBytesError("unusable_schema", "an array whose items take no bytes")
    if size > MOST_TYPES:
        types = counted(size, "type")
        detail = f"{types} once all names are expanded; at most {MOST_TYPES:,}"
        raise BadBytesError("unusable_schema", detail)
    if has_circles(type_):
        # On a deeply nested record fastavro's compiled reader would crash the process.
        return _bounded(_reader(root, _read_py.schemaless_reader), type_), type_
    return _reader(root, schemaless_reader), type_


def _bounded(read: Callable[[bytes], Any], type_: Any) -> Callable[[bytes], Any]:
    """Refuse values that are nested too deeply, of which a type that contains itself has any."""

    def read_bounded(payload: bytes) -> Any:
        with deeper_calls():
            value = read(payload)
            as_json(type_, value)
        return value

    return read_bounded


def _reader(root: Any, decode: Any) -> Callable[[bytes], Any]:
    def read(payload: bytes) -> Any:
        stream = BytesIO(payload)
        try:
            value = decode(stream, root, None, return_named_type=True)
        except _MALFORMED as error:
            said = "" if str(error).startswith("cannot read") else f": {error}"
            raise BadBytesError("malformed_avro", f"{type(error).__name__}{said}") from None
        if left := len(payload) - stream.tell():
            raise BadBytesError(
                "malformed_avro", counted(left, "byte is left over", "bytes are left over")
            )
        return value

    return read
