"""Strict JSON parser in Python: one document, without guessing or rounding."""

from __future__ import annotations

import json
import re
from decimal import Decimal
from typing import Any, Final, NoReturn


def parse(raw: bytes) -> Any:
    """Read exactly one JSON document of valid UTF-8, fractions exact.

    Raises:
        ValueError: it is not one, an object has a name twice, or a string has a lone surrogate,
            which no column and no detail could hold.
    """
    try:
        found = _DECODER.decode(raw.decode("utf-8"))
        if _SURROGATE.search(raw):
            _refuse_lone_surrogates(found)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    except ArithmeticError:
        raise ValueError("a number out of range") from None
    return found


def _refuse_lone_surrogates(value: Any) -> None:
    if isinstance(value, str):
        value.encode("utf-8")
    elif isinstance(value, list):
        for each in value:
            _refuse_lone_surrogates(each)
    elif isinstance(value, dict):
        for name, each in value.items():
            _refuse_lone_surrogates(name)
            _refuse_lone_surrogates(each)


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise ValueError("a name comes twice in one object")
    return fields


def _refuse(text: str) -> NoReturn:
    raise ValueError(f"{text} is not JSON")


_SURROGATE: Final = re.compile(rb"\\u[dD][89a-fA-F]")
_DECODER: Final = json.JSONDecoder(
    object_pairs_hook=_without_duplicates, parse_float=Decimal, parse_constant=_refuse
)
