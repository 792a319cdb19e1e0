"""Strict JSON parser in Python: one document, without guessing or rounding."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable
from decimal import Decimal
from typing import Any, Final, NoReturn

from oncelake.ingestion.formats.decoder import BadBytesError, text_of

WHITE_SPACE: Final = " \t\r\n"
# As Spark's parser, so that what passes here passes there.
MOST_NESTED: Final = 900
LONGEST_NUMBER: Final = 1_000
_SURROGATE: Final = re.compile(r"\\u[dD][89a-fA-F]")
# Possessive, and without its end if need be: no text is looked at again from the middle.
_STRING: Final = r'"(?:[^"\\]++|\\.)*+"?'
_TOKENS: Final = re.compile(rf"{_STRING}|[^\s\[\]{{}},:\"]+", re.DOTALL)
_BRACKETS: Final = re.compile(rf"{_STRING}|[\[{{]|[\]}}]", re.DOTALL)


class BadTokenError(BadBytesError):
    """A word or number that may not be in the text; ``StrictParser`` says where it is."""

    def __init__(self, detail: str, token: str) -> None:
        super().__init__("malformed_json", detail)
        self.token = token

    def locate(self, text: str) -> None:
        """Say at which character the token is, in a text in which it is the first of its kind."""
        found = (each for each in _TOKENS.finditer(text) if each[0].startswith(self.token))
        at = next((each.start() for each in found), None)
        if at is not None:
            self.args = (f"{self} at character {at + 1}",)


class LongNumberError(BadTokenError):
    """A number of more digits than any column holds."""


class StrictParser:
    """Parses documents of JSON; makes numbers of the texts of fractions and of whole ones."""

    def __init__(self, fraction: Callable[[str], Any], whole: Callable[[str], Any] = int) -> None:
        numbers: dict[str, Any] = {"parse_float": fraction, "parse_int": whole}
        self._pairs = json.JSONDecoder(parse_constant=_refuse, object_pairs_hook=list, **numbers)
        self._strict = json.JSONDecoder(
            parse_constant=_refuse, object_pairs_hook=_without_duplicates, **numbers
        )

    def __call__(self, raw: bytes) -> Any:
        """Parse exactly one document of valid UTF-8; raise ``BadBytesError`` if it is not one.

        Nor may an object have a name twice, or a string a lone surrogate, which no column and no
        detail could hold.
        """
        text = text_of(raw)
        if text.startswith("\ufeff"):
            raise _malformed(
                "it begins with a byte order mark (EF BB BF), which JSON does not have"
            )
        start = len(text) - len(text.lstrip(WHITE_SPACE))
        if start == len(text):
            raise BadBytesError("empty_value", "nothing but white space")
        try:
            return self._parse(text, start)
        except RecursionError:
            raise _malformed("nested too deeply") from None
        except BadTokenError as error:
            error.locate(text)
            raise
        except BadBytesError:
            raise
        except json.JSONDecodeError as error:
            raise _malformed(
                f"{error.msg.removesuffix(' at')} at character {error.pos + 1}"
            ) from None
        except (ArithmeticError, ValueError) as error:
            raise _malformed(str(error)) from None

    def _parse(self, text: str, start: int) -> Any:
        if text.count("[") + text.count("{") > MOST_NESTED and (at := _too_deep(text)) is not None:
            raise _malformed(f"nested more than {MOST_NESTED} deep at character {at + 1}")
        try:
            value, end = self._strict.raw_decode(text, start)
        except BadBytesError as error:
            if error.reason == "duplicate_name" and not self._is_own(text, start):
                error.reason = "malformed_json"
            raise
        if text[end:].strip(WHITE_SPACE):
            raise BadBytesError("trailing_data", f"more at character {end + 1}")
        if _SURROGATE.search(text):
            _refuse_lone_surrogates(value)
        return value

    def _is_own(self, text: str, start: int) -> bool:
        """Tell whether a name comes twice in the record's own object, and not only deeper."""
        pairs, _ = self._pairs.raw_decode(text, start)
        return text[start] == "{" and len(dict(pairs)) < len(pairs)


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        names = [name for name, _ in pairs]
        name = ascii(next(name for name, times in Counter(names).items() if times > 1))
        raise BadBytesError("duplicate_name", f"{name} comes twice in one object")
    return fields


def _refuse_lone_surrogates(value: Any) -> None:
    try:
        json.dumps(value, ensure_ascii=False, default=str).encode("utf-8")
    except UnicodeEncodeError:
        raise BadBytesError("lone_surrogate", "half of a surrogate pair") from None


def _too_deep(text: str) -> int | None:
    """Return where the first bracket is that is nested too deeply."""
    depth = 0
    for found in _BRACKETS.finditer(text):
        depth += (found[0] in "[{") - (found[0] in "]}")
        if depth > MOST_NESTED:
            return found.start()
    return None


def _malformed(detail: str) -> BadBytesError:
    return BadBytesError("malformed_json", detail)


def _refuse(text: str) -> NoReturn:
    raise BadTokenError(f"{text} is not JSON", text)


def of_sane_length(number: str) -> str:
    """Return a number as it is written, unless no column could hold it."""
    if len(number.lstrip("-").replace(".", "", 1)) > LONGEST_NUMBER:
        raise LongNumberError(f"a number of {len(number)} characters", number)
    return number


parse: Final = StrictParser(
    lambda text: Decimal(of_sane_length(text)), lambda text: int(of_sane_length(text))
)
