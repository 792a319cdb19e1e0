"""CSV, read character by character."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable, Iterator
from fractions import Fraction
from itertools import islice
from typing import Any, Final

from oncelake.ingestion.declaration.formats import CsvOptions
from oncelake.ingestion.declaration.types import SqlType
from oncelake.ingestion.errors import counted
from oncelake.ingestion.verify.decode import Decode, DecodedRecord, Expected, coerce
from oncelake.ingestion.verify.decode.coerce import SCALARS, BadRecordError, refuse, written

_NUMBER: Final = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?0*[0-9]{1,3})?")
_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,80}")
_MOMENT: Final = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2})"
    r"([T ][0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]{1,9})?)?(Z|[+-][0-9]{2}:[0-9]{2})?)?"
)


def reading(expected: Expected) -> Decode:
    """Return what reads one line."""
    options = expected.options
    assert isinstance(options, CsvOptions), "options are of the format's own model"
    readers = [of_text(type_) for type_ in coerce.provable_types(expected.columns).values()]

    def read(raw: bytes, *_: object) -> DecodedRecord:
        found = _fields(coerce.utf8(raw), options.delimiter, options.quote)
        fields = list(islice(found, len(readers) + 1))
        if len(fields) != len(readers):
            raise BadRecordError(f"not {counted(len(readers), 'field')}")
        return DecodedRecord(
            values=tuple(
                None if field == (options.null_value, False) else take(field[0])
                for field, take in zip(fields, readers, strict=True)
            )
        )

    return read


def _fields(line: str, delimiter: str, quote: str) -> Iterator[tuple[str, bool]]:
    """Yield each field, and whether quotes surround it."""
    line = line.removesuffix("\n").removesuffix("\r") if line.endswith("\n") else line
    rest: str | None = line
    while rest is not None:
        if rest.startswith(quote):
            text, rest = _quoted(rest, quote)
            if rest and not rest.startswith(delimiter):
                raise BadRecordError("something follows a closing quote")
            rest = rest[1:] if rest else None
            yield text, True
        else:
            text, found, behind = rest.partition(delimiter)
            if quote in text or "\n" in text or "\r" in text:
                raise BadRecordError("a quote, or the end of a line, inside a field")
            rest = behind if found else None
            yield text, False


def _quoted(rest: str, quote: str) -> tuple[str, str]:
    parts, at = [], 1
    while True:
        end = rest.find(quote, at)
        if end < 0:
            raise BadRecordError("a quote that is never closed")
        parts.append(rest[at:end])
        if not rest.startswith(quote, end + 1):
            return quote.join(parts), rest[end + 1 :]
        at = end + 2


def of_text(type_: SqlType) -> Callable[[str], Any]:
    """Return what takes a field as a declared type."""
    if as_text := coerce.text(type_):
        return as_text
    if type_.word == "BOOLEAN":
        return lambda text: text == "true" if text in {"true", "false"} else refuse(text)
    if type_.word == "DATE":
        return SCALARS["DATE"]
    if type_.word.startswith("TIMESTAMP"):
        return lambda text: _moment(text, zoned=type_.word == "TIMESTAMP")
    if type_.word in {"FLOAT", "DOUBLE"}:
        take = SCALARS[type_.word]
        return lambda text: (
            coerce.NOT_FINITE[text]
            if text in coerce.NOT_FINITE
            else take(coerce.WrittenNumber(written(_NUMBER, text)[0]))
        )
    if type_.word == "DECIMAL":
        return lambda text: coerce.exact_decimal(_number(text), type_)
    whole = coerce.whole(type_) or coerce.never("a field", type_)
    return lambda text: whole(int(written(_INTEGER, text)[0]))


def _number(text: str) -> Fraction:
    number = coerce.number_in(written(_NUMBER, text)[0] + "0" * text.endswith("."))
    float(number)  # What lies beyond all floats is refused for decimals, too.
    return number


def _moment(text: str, *, zoned: bool) -> dt.datetime:
    found = written(_MOMENT, text)
    if (found[5] and not zoned) or set((found[4] or "")[7:]) - {"0"}:
        refuse(text)
    moment = dt.datetime.fromisoformat(text)
    return coerce.in_utc(moment) if zoned else moment
