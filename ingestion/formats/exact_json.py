"""JSON parsed in Python: one document, nothing guessed, nothing rounded."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any, Final, NoReturn


def parse(raw: bytes) -> Any:
    """Read exactly one JSON document of valid UTF-8, fractions exact.

    Raises:
        ValueError: it is not one, or a name comes twice in one object.
    """
    try:
        return _DECODER.decode(raw.decode("utf-8"))
    except RecursionError:
        raise ValueError("nested too deeply") from None
    except ArithmeticError:
        raise ValueError("a number beyond all numbers") from None


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise ValueError("a name comes twice in one object")
    return fields


def _refuse(text: str) -> NoReturn:
    raise ValueError(f"{text} is not JSON")


_DECODER: Final = json.JSONDecoder(
    object_pairs_hook=_without_duplicates, parse_float=Decimal, parse_constant=_refuse
)
