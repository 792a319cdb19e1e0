"""JSON, read as strictly as the promise is written, with or without the id of its schema."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ingestion.verify.decode import Decode, DecodedRecord, Expected
from ingestion.verify.decode.coerce import of_json, refuse_names
from ingestion.verify.decode.strict_json import parse, parse_object
from ingestion.verify.decode.wire_format import ReadFramed


def reading(expected: Expected) -> Decode:
    """Return what reads one object, or as a key a bare value.

    Raises:
        UnprovableError: a type that this proof knows nothing of.
    """
    read = ReadJson(expected)
    if expected.options.uses_registry:
        return ReadFramed(expected, "JSON", lambda schema: read)
    return read


class ReadJson:
    """Reads one JSON document a record."""

    def __init__(self, expected: Expected) -> None:
        self._columns = expected.columns
        self._rejects = expected.extra_fields == "reject"
        self._readers = {
            column.name: of_json(column.type, rejects=self._rejects) for column in expected.columns
        }
        self._is_key = expected.is_key

    def __call__(self, raw: bytes) -> DecodedRecord:
        """Read one document.

        Raises:
            BadRecordError: it belongs in quarantine.
        """
        fields = self._key_fields(raw) if self._is_key else parse_object(raw)
        refuse_names(fields, self._readers, rejects=self._rejects)
        given = [(fields.get(name), read) for name, read in self._readers.items()]
        return DecodedRecord(values=tuple([None if v is None else read(v) for v, read in given]))

    def _key_fields(self, raw: bytes) -> Mapping[str, Any]:
        """Read a Kafka key: an object, or for a single column a scalar, JSON or plain text."""
        if raw.lstrip().startswith(b"{") or len(self._columns) != 1:
            return parse_object(raw)
        (column,) = self._columns
        if column.type.word == "STRING" and not raw.startswith(b'"'):
            return {column.name: raw.decode("utf-8")}
        return {column.name: parse(raw)}
