"""Avro: each record is decoded with its writer's schema, and its fields are matched by name.

Logical types are converted here and not by fastavro, which fails on values that Python's types
cannot represent, such as the year 0.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from io import BytesIO
from typing import Any, Final

from fastavro import parse_schema, schemaless_reader
from pyspark.sql.types import StructType

from ingestion.formats import wire_format
from ingestion.formats.avro.columns import flat_decoding
from ingestion.formats.avro.types import AvroTypes, logical_types_set_aside
from ingestion.formats.decoder import BadBytesError, Decode, Decoded, Encoded, Read
from ingestion.formats.nested import columns_of
from ingestion.formats.wire_format import DecodeMany, by_writer_schema
from ingestion.kafka.schema_registry import WriterSchema

REASONS: Final[dict[str, str]] = {
    **wire_format.REASONS,
    "malformed_avro": "the bytes are not what the schema says, or some are left over",
}
_UNUSABLE = (ValueError, TypeError, KeyError, AttributeError, IndexError, RecursionError)
_MALFORMED = (EOFError, LookupError, ValueError, OverflowError, MemoryError, struct.error)


def opened(encoded: Encoded) -> Decode:
    """Decode each value with its writer's schema; a key may be a bare value."""
    return by_writer_schema(encoded, "AVRO", compiled, compiled_flat)


def compiled(schema: WriterSchema, encoded: Encoded) -> Read:
    """Return a reader of the payloads of one schema.

    Raises:
        BadBytesError: the schema is unusable.
    """
    read, types, root = parsed(schema)
    is_record = types.is_record(root)
    if is_record:
        to_row, extra = columns_of(types.fields(root), encoded.schema, types.converter)
    elif encoded.is_key and len(encoded.schema) == 1:
        to_row, extra = _bare(types, root, encoded.schema), ()
    else:
        raise BadBytesError("type_mismatch", "the schema is not a record")
    return lambda payload: Decoded(to_row(read(payload)), extra)


def compiled_flat(schema: WriterSchema, encoded: Encoded) -> DecodeMany | None:
    """Return the decoding of many payloads of one schema at once, if there is one."""
    try:
        _, types, root = parsed(schema)
    except BadBytesError:
        return None
    return flat_decoding(types, root, encoded)


def parsed(schema: WriterSchema) -> tuple[Callable[[bytes], Any], AvroTypes, Any]:
    """Return a reader of payloads as Python values, the schema's types, and its root.

    Raises:
        BadBytesError: the schema is unusable or recursive.
    """
    named: dict[str, Any] = {}
    try:
        for _, text in schema.references:
            parse_schema(logical_types_set_aside(json.loads(text)), named_schemas=named)
        root = parse_schema(logical_types_set_aside(json.loads(schema.text)), named_schemas=named)
        types = AvroTypes(named)
        is_recursive = types.is_recursive(root)
    except _UNUSABLE as error:
        raise BadBytesError("unusable_schema", f"{type(error).__name__}: {error}") from None
    if is_recursive:
        # On a deeply nested record fastavro's compiled reader would crash the process.
        raise BadBytesError("unusable_schema", "a type that contains itself")
    return _reader(root), types, root


def _reader(root: Any) -> Callable[[bytes], Any]:
    def read(payload: bytes) -> Any:
        stream = BytesIO(payload)
        try:
            value = schemaless_reader(stream, root, None, return_named_type=True)
        except _MALFORMED as error:
            said = "" if str(error).startswith("cannot read") else f": {error}"
            raise BadBytesError("malformed_avro", f"{type(error).__name__}{said}") from None
        if left := len(payload) - stream.tell():
            raise BadBytesError("malformed_avro", f"{left} bytes are left over")
        return value

    return read


def _bare(types: AvroTypes, root: Any, columns: StructType) -> Callable[[Any], list[Any]]:
    (column,) = columns
    convert = types.converter(root, column.dataType)
    return lambda value: [None if value is None else convert(value)]
