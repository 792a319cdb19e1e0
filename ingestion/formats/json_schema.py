"""JSON after the id of a JSON Schema: decoded like JSON; error details name the id.

The declaration says what a record must contain. The registry's schema is requested only to find
records whose id is not one of a JSON Schema, and for its title, which names their type; records are
not validated against it.
"""

from __future__ import annotations

import json as json_library
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

import numpy as np
import pyarrow as pa

from oncelake.ingestion.formats import json
from oncelake.ingestion.formats.arrays import Bytes, Flags, Numbers
from oncelake.ingestion.formats.decoder import BadBytesError, Decode, Encoded
from oncelake.ingestion.formats.json.strict import StrictReader
from oncelake.ingestion.formats.registry import wire_format
from oncelake.ingestion.formats.registry.wire_format import FramedDecoder
from oncelake.ingestion.kafka.schema_registry import WriterSchema

_FRAMING: Final = (
    *("not_framed", "short_header", "malformed_compression"),
    *("unknown_schema_id", "wrong_schema_type", "unusable_schema"),
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

    def name(schema: WriterSchema) -> Callable[[bytes], str | None]:
        found = title(schema)
        if encoded.record and found(b"") is None:
            raise BadBytesError("unusable_schema", "it has no `title`, which `record` asks for")
        return found

    return FramedDecoder(
        encoded, "JSON", lambda *_: read_strictly, lambda *_: decode_many, name=name
    )


def title(schema: WriterSchema) -> Callable[[bytes], str | None]:
    """Return what names the records of a schema as serializers do: by its title."""
    root: Any = None
    with suppress(ValueError, RecursionError):
        root = json_library.loads(schema.text)
    found = root.get("title") if isinstance(root, dict) else None
    return lambda _: found if isinstance(found, str) and found else None
