"""JSON, read strictly, with or without the id of its schema.

One document of valid UTF-8, without duplicate names, NaN or Infinity, by Python's own parser.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final, NoReturn

from oncelake.ingestion.declaration.ddl import DeclaredColumn
from oncelake.ingestion.declaration.formats import JsonKeyOptions
from oncelake.ingestion.kafka.schema_registry import WriterSchema
from oncelake.ingestion.verify.decode import Decode, DecodedRecord, Expected, Name, ReadFramed
from oncelake.ingestion.verify.decode.coerce import (
    WRITERS,
    BadRecordError,
    WrittenNumber,
    of_json,
    refuse_names,
    with_nulls,
)

_MOST_DIGITS: Final = 1000
_MOST_NESTED: Final = 900
# Columns that hold what Java's serializers write in so many bytes.
_NUMBERS_OF_BYTES: Final[Mapping[int, tuple[str, ...]]] = {
    2: ("SMALLINT", "INT", "BIGINT"),
    4: ("INT", "BIGINT"),
    8: ("BIGINT",),
}


def reading(expected: Expected) -> Decode:
    """Return what reads one object, or as a key a bare value."""
    rejects = expected.extra_fields == "reject"
    readers = {
        column.name: of_json(column.type, rejects=rejects or column.name in expected.whole)
        for column in expected.columns
    }
    lenient = [column for column in expected.columns if column.name in expected.lenient]
    types = {column.name: column.type for column in expected.columns}
    keeps = expected.extra_fields == "keep"
    write = WRITERS["JSON" if expected.keeps_json else "VARIANT"]

    def read(raw: bytes, *_: object) -> DecodedRecord:
        fields = _key_fields(raw, expected) if expected.is_key else parse_object(raw)
        refuse_names(fields, readers, rejects=rejects)
        coerced = _coerced(fields, lenient)
        others = {n: v for n, v in fields.items() if n not in readers} if keeps else None
        fields = with_nulls({**fields, **coerced}, types)
        given = [(fields.get(name), take) for name, take in readers.items()]
        values = tuple([None if v is None else take(v) for v, take in given])
        extra = write(others) if others else None
        return DecodedRecord(values=values, coerced=len(coerced), extra=extra)

    if expected.options.uses_registry:
        return ReadFramed(expected, "JSON", lambda schema: read, partial(_naming, expected))
    return read


def _naming(expected: Expected, schema: WriterSchema) -> Name:
    """Return what names the records of a JSON Schema: its title, as serializers do."""
    try:
        found = json.loads(schema.text)
    except (ValueError, RecursionError):
        found = None
    title = found.get("title") if isinstance(found, dict) else None
    title = title if isinstance(title, str) and title else None
    if expected.record and title is None:
        raise BadRecordError("a schema without a title, and `record` names one")
    return lambda _: title


def _coerced(fields: Mapping[str, Any], lenient: Sequence[DeclaredColumn]) -> dict[str, Any]:
    """Return what lenient columns take for a value of another type."""
    coerced: dict[str, Any] = {}
    for column in lenient:
        value = fields.get(column.name)
        is_text = isinstance(value, str) and not isinstance(value, WrittenNumber)
        if column.type.word in {"STRING", "VARCHAR"}:
            if not is_text and isinstance(value, bool | int | WrittenNumber):
                coerced[column.name] = str(value).lower() if isinstance(value, bool) else str(value)
        elif is_text and (number := _number_in(str(value))) is not None:
            coerced[column.name] = number
    return coerced


def _number_in(text: str) -> int | WrittenNumber | None:
    """Return the number that a text is as a document of JSON, without blanks around it."""
    try:
        found = _DECODER.decode(text)
    except (ValueError, RecursionError):
        return None
    is_number = type(found) in (int, WrittenNumber) and text == text.strip()
    return found if is_number else None


def _key_fields(raw: bytes, expected: Expected) -> Mapping[str, Any]:
    """Read a Kafka key: an object, or for a single column a scalar, JSON or plain text."""
    if raw.lstrip().startswith(b"{") or len(expected.columns) != 1:
        return parse_object(raw)
    (column,) = expected.columns
    if column.type.word == "STRING" and not raw.startswith(b'"'):
        return {column.name: raw.decode("utf-8")}
    is_open = isinstance(expected.options, JsonKeyOptions) and expected.options.numbers is None
    if is_open and column.type.word in _NUMBERS_OF_BYTES.get(len(raw), ()):
        raise BadRecordError("a bare key of as many bytes as a number of Java's")
    return {column.name: parse(raw)}


def parse_object(raw: bytes) -> Mapping[str, Any]:
    """Read exactly one JSON object."""
    parsed = parse(raw)
    if not isinstance(parsed, dict):
        raise BadRecordError(f"a JSON object was expected, not {type(parsed).__name__}")
    return parsed


def parse(raw: bytes) -> Any:
    """Read exactly one JSON document that leaves no room for doubt, fractions kept as text."""
    try:
        text = raw.decode("utf-8")
        parsed = _DECODER.decode(text)
        if "\\u" in text:
            # A lone surrogate, anywhere, is no text, and cannot be written as such.
            json.dumps(parsed, ensure_ascii=False).encode("utf-8")
    except (ValueError, RecursionError) as error:
        raise BadRecordError(f"not JSON: {error}") from None
    if text.count("{") + text.count("[") > _MOST_NESTED:
        _refuse_depth(parsed)
    return parsed


def _refuse_depth(parsed: Any) -> None:
    """Refuse what is nested more deeply than the engine's limit, wherever Python's own is."""
    level, depth = [parsed], 0
    while level := [each for each in level if isinstance(each, dict | list)]:
        depth += 1
        if depth > _MOST_NESTED:
            raise BadRecordError("nested too deeply")
        level = [inner for e in level for inner in (e.values() if isinstance(e, dict) else e)]


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise BadRecordError("a name comes twice in one object")
    return fields


def _refuse(value: str) -> NoReturn:
    raise BadRecordError(f"not a number of JSON: {value}")


def _of_sane_length(number: str) -> str:
    """Refuse a number that no parser of JSON must take; the engine's takes a thousand digits."""
    if len(number.lstrip("-").replace(".", "", 1)) > _MOST_DIGITS:
        raise BadRecordError(f"a number of {len(number)} characters")
    return number


_DECODER: Final = json.JSONDecoder(
    object_pairs_hook=_without_duplicates,
    parse_float=lambda text: WrittenNumber(_of_sane_length(text)),
    parse_int=lambda text: int(_of_sane_length(text)),
    parse_constant=_refuse,
)
