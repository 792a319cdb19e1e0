"""Avro's single-object encoding: two bytes of marker, a fingerprint of the schema, the payload.

The schemas are those that the declaration has; the fingerprint is the CRC-64-AVRO of a schema's
Parsing Canonical Form, its lowest byte first.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Final

import numpy as np
import pyarrow as pa
from fastavro.schema import fingerprint, to_parsing_canonical_form

from oncelake.ingestion.errors import counted
from oncelake.ingestion.formats.arrays import Bytes, Numbers
from oncelake.ingestion.formats.decoder import BadBytesError
from oncelake.ingestion.formats.registry.wire_format import Fingerprint, FramedDecoder
from oncelake.ingestion.kafka.schema_registry import SchemaId, WriterSchema

_MARKER: Final = b"\xc3\x01"
_HEADER_BYTES: Final = 10


class SingleObjectDecoder(FramedDecoder):
    """Decodes values in the single-object encoding; a schema's fingerprint is its id."""

    payload_at = _HEADER_BYTES

    def ids_of(self, values: pa.Array, content: Bytes, starts: Numbers, ends: Numbers) -> Numbers:
        """Return the fingerprint of each value, -1 where there is none."""
        is_framed = np.asarray(values.is_valid()) & (ends - starts >= _HEADER_BYTES)
        header = content[starts[:, None] + np.arange(_HEADER_BYTES)]
        is_framed &= (header[:, :2] == list(_MARKER)).all(axis=1)
        return np.where(is_framed, header[:, 2:].copy().view("<i8").ravel(), -1)

    def split(self, raw: bytes) -> tuple[SchemaId, bytes]:
        """Return the fingerprint of one value, and the payload."""
        if raw[:2] != _MARKER[: len(raw)]:
            raise BadBytesError("not_framed", f"the first bytes are {raw[:2].hex()}, not c301")
        if len(raw) < _HEADER_BYTES:
            raise BadBytesError("short_header", counted(len(raw), "byte"))
        number = int.from_bytes(raw[2:_HEADER_BYTES], "little", signed=True)
        return Fingerprint(number), raw[_HEADER_BYTES:]


def schemas_by_fingerprint(texts: Iterable[str]) -> dict[SchemaId, WriterSchema]:
    """Return schemas by their fingerprints."""
    schemas: dict[SchemaId, WriterSchema] = {}
    for text in texts:
        raw = bytes.fromhex(fingerprint(to_parsing_canonical_form(json.loads(text)), "CRC-64-AVRO"))
        number = Fingerprint(int.from_bytes(raw, "little", signed=True))
        schemas[number] = WriterSchema(id=number, type="AVRO", text=text)
    return schemas
