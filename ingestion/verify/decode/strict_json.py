"""JSON read as strictly as the promise is written, and without Spark.

A second opinion is worth something only when nothing in it comes from the first, so this shares
no code with the engine's formats. It accepts one document of valid UTF-8, without duplicate names,
NaN or Infinity.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final, NoReturn

_MOST_DIGITS: Final = 1000
_MOST_NESTED: Final = 900


class BadRecordError(ValueError):
    """A record that cannot be applied; the message is the reason."""


class UnknownSchemaError(BadRecordError):
    """A record that cannot be read, for the registry does not know its schema, or not any more."""


class WrittenNumber(str):
    """A number with a point or an exponent, kept as it was written."""

    __slots__ = ()


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
