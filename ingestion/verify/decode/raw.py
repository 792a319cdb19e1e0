"""Bytes and texts as they are."""

from __future__ import annotations

from ingestion.verify.decode import Expected, Read, Said
from ingestion.verify.decode.strict_json import BadRecordError


def reading(expected: Expected) -> Read:
    """Return what takes bytes, or where a STRING is declared, text."""
    return _text if expected.columns[0].type == "STRING" else _octets


def _octets(raw: bytes) -> Said:
    return Said(values=(raw,))


def _text(raw: bytes) -> Said:
    try:
        return Said(values=(str(raw, "utf-8", "strict"),))
    except UnicodeDecodeError as error:
        raise BadRecordError(f"no UTF-8: {error}") from None
