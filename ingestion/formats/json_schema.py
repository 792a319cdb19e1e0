"""JSON after the id of a JSON Schema: decoded like JSON; error details name the id.

The declaration says what a record must contain. The registry's schema is requested only to find
records whose id is not one of a JSON Schema; records are not validated against it.
"""

from __future__ import annotations

from typing import Final, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ingestion.formats import json, wire_format
from ingestion.formats.arrays import Numbers, spans
from ingestion.formats.decoder import (
    Decode,
    Encoded,
    arrow_type,
    by_record,
    decoded_struct,
    merged,
    struct_of_parts,
)
from ingestion.formats.wire_format import HEADER_BYTES, schema_ids, split_frame

_FRAMING: Final = (*("not_framed", "short_header", "unknown_schema_id", "wrong_schema_type"),)
REASONS: Final[dict[str, str]] = {
    **{name: text for name, text in wire_format.REASONS.items() if name in _FRAMING},
    **json.REASONS,
}


def opened(encoded: Encoded) -> Decode:
    """Decode the bytes after the id as JSON."""
    decode_json = json.opened(encoded)
    type_ = arrow_type(decoded_struct(encoded))
    known = [schema.id for schema in encoded.writer_schemas.values() if schema.type == "JSON"]

    def refuse_frame(raw: bytes) -> NoReturn:
        number, _ = split_frame(raw, encoded, "JSON")
        raise AssertionError(f"schema id {number} is known")

    refuse = by_record(refuse_frame, encoded)

    def decode(values: pa.Array, _: pa.Array | None = None) -> pa.StructArray:
        ids = schema_ids(values, *spans(values))
        is_known = np.isin(ids, known)
        framed = values.filter(pa.array(is_known)).to_pylist()
        payloads = pa.array([raw[HEADER_BYTES:] for raw in framed], pa.binary())
        decoded = _with_id(decode_json(payloads, None), ids[is_known], type_)
        others = refuse(values.filter(pa.array(~is_known)), None)
        return merged([(np.flatnonzero(is_known), decoded), (np.flatnonzero(~is_known), others)])

    return decode


def _with_id(decoded: pa.StructArray, ids: Numbers, type_: pa.StructType) -> pa.StructArray:
    """Name the schema wherever something is wrong."""
    parts = {name: decoded.field(at) for at, name in enumerate(type_.names)}
    wrong = pc.coalesce(parts["detail"], parts["reason"])
    detail = pc.binary_join_element_wise(
        "schema id ", pa.array(ids).cast(pa.string()), ": ", wrong, ""
    )
    return struct_of_parts(type_, **{**parts, "detail": detail})
