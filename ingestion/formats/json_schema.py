"""JSON after the id of a JSON Schema: decoded like JSON; error details name the id.

The declaration says what a record must contain. The registry's schema is requested only to find
records whose id is not one of a JSON Schema; records are not validated against it.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from ingestion.formats import json, wire_format
from ingestion.formats.decoder import (
    BadBytesError,
    Decode,
    Encoded,
    arrow_type,
    decoded_struct,
    struct_of_parts,
)
from ingestion.formats.wire_format import HEADER_BYTES, split_frame

_FRAMING: Final = (*("not_framed", "short_header", "unknown_schema_id", "wrong_schema_type"),)
REASONS: Final[dict[str, str]] = {
    **{name: text for name, text in wire_format.REASONS.items() if name in _FRAMING},
    **json.REASONS,
}


def opened(encoded: Encoded) -> Decode:
    """Decode the bytes after the id as JSON."""
    decode_json = json.opened(encoded)
    type_ = arrow_type(decoded_struct(encoded))

    def decode(values: pa.Array, _: pa.Array | None = None) -> pa.StructArray:
        raws = values.to_pylist()
        frames = [None if raw is None else _payload(raw, encoded) for raw in raws]
        payloads = [frame if isinstance(frame, bytes) else None for frame in frames]
        decoded = decode_json(pa.array(payloads, pa.binary()), None)
        return _with_framing(decoded, raws, frames, type_)

    return decode


def _payload(raw: bytes, encoded: Encoded) -> bytes | BadBytesError:
    try:
        return split_frame(raw, encoded, "JSON")[1]
    except BadBytesError as error:
        return error


def _with_framing(
    decoded: pa.StructArray,
    raws: list[bytes | None],
    frames: list[bytes | BadBytesError | None],
    type_: pa.StructType,
) -> pa.StructArray:
    """Add what is wrong with the framing, and name the schema in every other detail."""
    parts = {name: decoded.field(at) for at, name in enumerate(type_.names)}
    if parts["reason"].null_count == len(frames) and all(type(frame) is bytes for frame in frames):
        return decoded
    reasons, details = parts["reason"].to_pylist(), parts["detail"].to_pylist()
    for at, (raw, frame) in enumerate(zip(raws, frames, strict=True)):
        if isinstance(frame, BadBytesError):
            reasons[at], details[at] = frame.reason, str(frame)
        elif raw is not None and reasons[at] is not None:
            number = int.from_bytes(raw[1:HEADER_BYTES])
            details[at] = f"schema id {number}: {details[at] or reasons[at]}"
    return struct_of_parts(type_, **{**parts, "reason": reasons, "detail": details})
