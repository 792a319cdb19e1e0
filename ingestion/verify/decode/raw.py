"""Bytes and texts as they are."""

from __future__ import annotations

from ingestion.verify.decode import Decode, DecodedRecord, Expected
from ingestion.verify.decode.strict_json import BadRecordError


def reading(expected: Expected) -> Decode:
    """Return what takes bytes, or where a STRING is declared, text."""
    return _text if expected.columns[0].type.word == "STRING" else _octets


def _octets(raw: bytes) -> DecodedRecord:
    return DecodedRecord(values=(raw,))


def _text(raw: bytes) -> DecodedRecord:
    try:
        return DecodedRecord(values=(str(raw, "utf-8", "strict"),))
    except UnicodeDecodeError as error:
        raise BadRecordError(f"no UTF-8: {error}") from None
