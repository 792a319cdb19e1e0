"""Strict JSON parser in Python: one document, without guessing or rounding."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from decimal import Decimal
from typing import Any, Final, NoReturn

WHITE_SPACE: Final = " \t\r\n"
# As Spark's parser, so that what passes here passes there.
MOST_NESTED: Final = 900
_SURROGATE: Final = re.compile(r"\\u[dD][89a-fA-F]")
_BRACKETS: Final = re.compile(r'"(?:[^"\\]|\\.)*"|[\[{]|[\]}]', re.DOTALL)


class NotJsonError(ValueError):
    """Bytes that are not exactly one document; ``reason`` is a code of the format ``json``."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


class StrictParser:
    """Parses documents of JSON.

    Args:
        fraction: Makes a number of the text of one with a point or an exponent.
        whole: Makes a number of the text of any other.
    """

    def __init__(
        self, fraction: Callable[[str], Any] = Decimal, whole: Callable[[str], Any] = int
    ) -> None:
        numbers: dict[str, Any] = {"parse_float": fraction, "parse_int": whole}
        self._pairs = json.JSONDecoder(parse_constant=_refuse, object_pairs_hook=list, **numbers)
        self._strict = json.JSONDecoder(
            parse_constant=_refuse, object_pairs_hook=_without_duplicates, **numbers
        )

    def __call__(self, raw: bytes) -> Any:
        """Parse exactly one document of valid UTF-8.

        Raises:
            NotJsonError: it is not one, an object has a name twice, or a string has a lone
                surrogate, which no column and no detail could hold.
        """
        try:
            text = raw.decode("utf-8")
        except UnicodeDecodeError as error:
            raise NotJsonError("invalid_utf8", str(error)) from None
        start = len(text) - len(text.lstrip(WHITE_SPACE))
        if start == len(text):
            raise NotJsonError("empty_value", "nothing but white space")
        try:
            return self._parse(text, start)
        except RecursionError:
            raise _malformed("nested too deeply") from None
        except NotJsonError:
            raise
        except (ArithmeticError, ValueError) as error:
            raise _malformed(str(error)) from None

    def _parse(self, text: str, start: int) -> Any:
        if text.count("[") + text.count("{") > MOST_NESTED and _depth(text) > MOST_NESTED:
            raise _malformed("nested too deeply")
        try:
            value, end = self._strict.raw_decode(text, start)
        except _DuplicateError as error:
            raise self._duplicate(text, start, f"{error} comes twice in one object") from None
        if text[end:].strip(WHITE_SPACE):
            raise NotJsonError("trailing_data", f"more at character {end + 1}")
        if _SURROGATE.search(text):
            _refuse_lone_surrogates(value)
        return value

    def _duplicate(self, text: str, start: int, detail: str) -> NotJsonError:
        """Return the error for a name that comes twice: in the record's own object, or deeper."""
        pairs, _ = self._pairs.raw_decode(text, start)
        names = [name for name, _ in pairs] if text[start] == "{" else []
        return NotJsonError(
            "duplicate_name" if len(set(names)) < len(names) else "malformed_json", detail
        )


class _DuplicateError(Exception):
    """A name that comes twice."""


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        names = [name for name, _ in pairs]
        raise _DuplicateError(ascii(next(name for name in fields if names.count(name) > 1)))
    return fields


def _refuse_lone_surrogates(value: Any) -> None:
    try:
        json.dumps(value, ensure_ascii=False, default=str).encode("utf-8")
    except UnicodeEncodeError:
        raise NotJsonError("lone_surrogate", "half of a surrogate pair") from None


def _depth(text: str) -> int:
    depth = deepest = 0
    for found in _BRACKETS.finditer(text):
        depth += (found[0] in "[{") - (found[0] in "]}")
        deepest = max(deepest, depth)
    return deepest


def _malformed(detail: str) -> NotJsonError:
    return NotJsonError("malformed_json", detail)


def _refuse(text: str) -> NoReturn:
    raise _malformed(f"{text} is not JSON")


parse: Final = StrictParser()
