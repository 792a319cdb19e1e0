"""JSON, read as strictly as the promise is written, with or without the id of its schema."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ingestion.verify.decode import Decode, DecodedRecord, Expected
from ingestion.verify.decode.coerce import of_json, refuse_names
from ingestion.verify.decode.strict_json import parse, parse_object
from ingestion.verify.decode.wire_format import ReadFramed


def reading(expected: Expected) -> Decode:
    """Return what reads one object, or as a key a bare value."""
    rejects = expected.extra_fields == "reject"
    readers = {column.name: of_json(column.type, rejects=rejects) for column in expected.columns}

    def read(raw: bytes) -> DecodedRecord:
        fields = _key_fields(raw, expected) if expected.is_key else parse_object(raw)
        refuse_names(fields, readers, rejects=rejects)
        given = [(fields.get(name), take) for name, take in readers.items()]
        return DecodedRecord(values=tuple([None if v is None else take(v) for v, take in given]))

    if expected.options.uses_registry:
        return ReadFramed(expected, "JSON", lambda schema: read)
    return read


def _key_fields(raw: bytes, expected: Expected) -> Mapping[str, Any]:
    """Read a Kafka key: an object, or for a single column a scalar, JSON or plain text."""
    if raw.lstrip().startswith(b"{") or len(expected.columns) != 1:
        return parse_object(raw)
    (column,) = expected.columns
    if column.type.word == "STRING" and not raw.startswith(b'"'):
        return {column.name: raw.decode("utf-8")}
    return {column.name: parse(raw)}
