"""CSV: one line per record, its fields in the order of the columns.

Strictly as in RFC 4180: a quote is allowed only around a whole field, inside it is doubled, and it
must be closed; there are exactly as many fields as columns.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from decimal import Decimal
from typing import Any, Final

from pyspark.sql import types as sql

from oncelake.ingestion.declaration.formats import CsvOptions
from oncelake.ingestion.errors import counted
from oncelake.ingestion.formats import decoder
from oncelake.ingestion.formats.coerce import Convert, columns_of, refuse
from oncelake.ingestion.formats.connect import Hint, json_value
from oncelake.ingestion.formats.decoder import (
    BadBytesError,
    Decode,
    Decoded,
    Encoded,
    by_record,
    text_of,
)

REASONS: Final[dict[str, str]] = {
    **decoder.REASONS,
    "invalid_utf8": "the bytes are not UTF-8",
    "malformed_csv": "not one line with as many fields as columns, or a quote out of place",
    "type_mismatch": "a value that its column cannot hold without a loss",
}
_WHOLE: Final = re.compile(r"[+-]?\d{1,80}", re.ASCII)
_NUMBER: Final = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?0*\d{1,3})?", re.ASCII)
_BOOLEAN: Final = {"true": True, "false": False}
_SPACE: Final = re.compile(r"(\d{4}-\d\d-\d\d) (?=\d\d:)", re.ASCII)
_MIDNIGHT: Final = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)


def opened(encoded: Encoded) -> Decode:
    """Decode each value as one line."""
    options = encoded.options
    assert isinstance(options, CsvOptions), "options are of the format's own model"
    split, null = splitter(options.delimiter, options.quote), options.null_value
    names = encoded.schema.names
    to_row = columns_of(dict.fromkeys(names), encoded.schema, from_text)

    def read(raw: bytes) -> Decoded:
        fields = split(text_of(raw))
        if len(fields) != len(names):
            widths = f"{counted(len(fields), 'field')}, and {counted(len(names), 'column')}"
            raise BadBytesError("malformed_csv", widths)
        texts = (None if text == null and not is_quoted else text for text, is_quoted in fields)
        return Decoded(to_row(dict(zip(names, texts, strict=True))))

    return by_record(read, encoded)


def splitter(delimiter: str, quote: str) -> Callable[[str], list[tuple[str, bool]]]:
    """Return a function that splits a line into fields, each with whether it is quoted."""
    d, q = re.escape(delimiter), re.escape(quote)
    field = re.compile(f"(?:{q}((?:[^{q}]|{q}{q})*){q}|([^{q}{d}\r\n]*))(?:({d})|(?:\r?\n)?\\Z)")

    def split(line: str) -> list[tuple[str, bool]]:
        fields, at, more = [], 0, True
        while more:
            found = field.match(line, at)
            if found is None:
                raise BadBytesError("malformed_csv", f"at character {at + 1}")
            quoted, plain, end = found.groups()
            is_quoted = quoted is not None
            fields.append((quoted.replace(quote * 2, quote) if is_quoted else plain, is_quoted))
            at, more = found.end(), end is not None
        return fields

    return split


def from_text(_: Any, target: sql.DataType) -> Convert:
    """Return the conversion of a field to the declared type."""
    convert = json_value(Hint(), target)
    if isinstance(target, sql.BooleanType):
        return lambda text: convert(_BOOLEAN.get(text, text))
    if isinstance(target, sql.TimestampType | sql.TimestampNTZType):
        return lambda text: convert(_as_iso(text, zoned=isinstance(target, sql.TimestampType)))
    if isinstance(target, sql.FloatType | sql.DoubleType | sql.DecimalType):
        return lambda text: convert(_number(text, target))
    if isinstance(target, sql.StringType | sql.VarcharType | sql.DateType):
        return convert
    return lambda text: convert(int(text) if _WHOLE.fullmatch(text) else text)


def _number(text: str, target: sql.DataType) -> Decimal | str:
    """Return a number, which must not overflow to infinity; a text that is none as it is."""
    if not _NUMBER.fullmatch(text):
        return text
    number = Decimal(text)
    return number if math.isfinite(float(number)) else refuse(text, target)


def _as_iso(text: str, *, zoned: bool) -> str:
    """Write a timestamp as in JSON: without a zone it is UTC, without a time it is midnight."""
    text = _SPACE.sub(r"\1T", text, count=1)
    if _MIDNIGHT.fullmatch(text):
        text += "T00:00:00"
    has_zone = text.endswith("Z") or re.search(r"[+-]\d\d:\d\d$", text[16:]) is not None
    return text + "Z" if zoned and not has_zone else text
