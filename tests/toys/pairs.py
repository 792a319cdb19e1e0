"""A format as somebody would add it: `id=1;name=a`, every value a text or a whole number."""

from __future__ import annotations

import re
from typing import Any

from pyspark.sql.types import DataType, StringType

from oncelake.ingestion.formats.decoder import BadBytesError, Decode, Decoded, Encoded, by_record

REASONS = {"not_pairs": "no list of pairs", "wrong_number": "no whole number"}
PAIRS = re.compile(r"\w+=[^;=]*(;\w+=[^;=]*)*")


def opened(encoded: Encoded) -> Decode:
    """Take each column from the pair of its name."""
    columns = {field.name: field.dataType for field in encoded.schema}

    def read(raw: bytes) -> Decoded:
        text = raw.decode()
        if not PAIRS.fullmatch(text):
            raise BadBytesError("not_pairs", text)
        pairs = dict(pair.split("=") for pair in text.split(";"))
        row = [value(pairs.get(name), type_) for name, type_ in columns.items()]
        return Decoded(row, [name for name in pairs if name not in columns])

    return by_record(read, encoded)


def value(text: str | None, type_: DataType) -> Any:
    """Return a text, or the whole number that it is."""
    if text is None or isinstance(type_, StringType):
        return text
    if not re.fullmatch(r"-?\d+", text):
        raise BadBytesError("wrong_number", text)
    return int(text)
