"""JSON after the id of a JSON Schema: decoded like JSON; error details name the id.

The declaration says what a record must contain. The registry's schema is requested only to find
records whose id is not one of a JSON Schema; records are not validated against it.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from ingestion.formats import json, wire_format
from ingestion.formats.decoder import Encoded
from ingestion.formats.wire_format import HEADER_BYTES, schema_id, writer_schemas

_FRAMING: Final = (*("not_framed", "short_header", "unknown_schema_id", "wrong_schema_type"),)
REASONS: Final[dict[str, str]] = {
    **{name: text for name, text in wire_format.REASONS.items() if name in _FRAMING},
    **json.REASONS,
}
_PAYLOAD: Final = "_payload"


def decode(records: DataFrame, encoded: Encoded) -> DataFrame:
    """Decode the bytes after the id as JSON."""
    schemas = writer_schemas(records, encoded)
    raw = F.col(encoded.column)
    reason = _framing_reason(raw, {number: each.type for number, each in schemas.items()})
    payload = F.when(reason.isNull(), F.expr(f"substring(`{encoded.column}`, {HEADER_BYTES + 1})"))
    behind = records.withColumn(_PAYLOAD, payload)
    told = json.decode(behind, encoded.of(_PAYLOAD)).drop(_PAYLOAD)
    said = F.col(encoded.into)
    traced = F.concat(F.lit("schema id "), schema_id(raw), F.lit(": "))
    detail = F.coalesce(said["detail"], F.coalesce(said["reason"], reason))
    return told.withColumn(
        encoded.into,
        F.when(raw.isNull(), said).otherwise(
            said.withField("reason", F.coalesce(said["reason"], reason)).withField(
                "detail",
                F.when(detail.isNotNull(), F.concat(F.coalesce(traced, F.lit("")), detail)),
            )
        ),
    )


def _framing_reason(raw: Column, types: dict[int, str]) -> Column:
    number = schema_id(raw)
    is_known = number.isin(*types) if types else F.lit(False)
    json_ids = [each for each, type_ in types.items() if type_ == "JSON"]
    is_json = number.isin(*json_ids) if json_ids else F.lit(False)
    return (
        F.when((F.octet_length(raw) > 0) & (F.substring(raw, 1, 1) != F.lit(b"\0")), "not_framed")
        .when(F.octet_length(raw) < HEADER_BYTES, "short_header")
        .when(~is_known, "unknown_schema_id")
        .when(~is_json, "wrong_schema_type")
    )
