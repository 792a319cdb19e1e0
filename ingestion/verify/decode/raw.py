"""Bytes and texts as they are."""

from __future__ import annotations

from oncelake.ingestion.verify.decode import Decode, DecodedRecord, Expected, coerce


def reading(expected: Expected) -> Decode:
    """Return what takes bytes, or where a STRING is declared, text."""
    if expected.columns[0].type.word == "STRING":
        return lambda raw, *_: DecodedRecord(values=(coerce.utf8(raw),))
    return lambda raw, *_: DecodedRecord(values=(raw,))
