"""JSON after the id of a JSON Schema: decoded like JSON; error details name the id.

The declaration says what a record must contain. The registry's schema is requested only to find
records whose id is not one of a JSON Schema, and for its title, which names their type; records are
not validated against it.
"""

from __future__ import annotations

import json as json_library
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import numpy as np
import pyarrow as pa

from ingestion.formats import json, wire_format
from ingestion.formats.arrays import Bytes, Flags, Numbers
from ingestion.formats.decoder import BadBytesError, Decode, Encoded
from ingestion.formats.json.strict import StrictReader
from ingestion.formats.wire_format import by_writer_schema
from ingestion.kafka.schema_registry import WriterSchema

_FRAMING: Final = (
    *("not_framed", "short_header", "unknown_schema_id", "wrong_schema_type", "unusable_schema"),
)
REASONS: Final[dict[str, str]] = {
    **{name: text for name, text in wire_format.REASONS.items() if name in _FRAMING},
    **json.REASONS,
}


def opened(encoded: Encoded) -> Decode:
    """Decode the bytes after the id as JSON; those that it refuses once more, to name the id."""
    decode_json, read_strictly = json.opened(encoded), StrictReader(encoded)

    def decode_many(content: Bytes, at: Numbers, end: Numbers) -> tuple[pa.StructArray, Flags]:
        raw, spans = content.tobytes(), zip(at.tolist(), end.tolist(), strict=True)
        decoded = decode_json(pa.array([raw[a:b] for a, b in spans], pa.binary()))
        return decoded, np.asarray(decoded.field("reason").is_null())

    def title(schema: WriterSchema) -> Callable[[bytes], str | None]:
        found = _title(schema.text)
        if found is None and encoded.record_types:
            raise BadBytesError("unusable_schema", "it has no `title`, which `record` asks for")
        return lambda _: found

    return by_writer_schema(
        encoded, "JSON", lambda *_: read_strictly, lambda *_: decode_many, name=title
    )


def _title(text: str) -> str | None:
    """Return the name that serializers give to a JSON Schema's records: its title."""
    with suppress(ValueError, RecursionError):
        schema = json_library.loads(text)
        title = schema.get("title") if isinstance(schema, dict) else None
        return title if isinstance(title, str) and title else None
    return None
