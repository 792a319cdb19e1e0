"""Hints that values stand for moments, days or decimals although their type does not say so; pure.

Nobody can be sure of it, so nothing else is proposed: a comment says what to declare if it is so.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

# A number as JSON writes it.
NUMBER: Final = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?", re.ASCII)
_TIME: Final = re.compile(
    r".*(time|date|day|moment|stamp|ts|_at|At|_on|On)(_?(m|u|n)?s)?", re.ASCII
)
# As so many since 1970 they are moments of 2001 to 2096.
_SECONDS: Final = range(10**9, 4 * 10**9)
# The others, and how Spark reads them.
_UNITS: Final = {
    "millis": (range(10**12, 4 * 10**12), "timestamp_millis({name})"),
    "micros": (range(10**15, 4 * 10**15), "timestamp_micros({name})"),
    "nanos": (range(10**18, 4 * 10**18), "timestamp_micros({name} DIV 1000)"),
}
# 1980 to 2099.
_DAYS: Final = range(3_652, 47_483)


def hint_at(name: str, values: Sequence[Any], *, is_debezium: bool) -> str:
    """Say what the values of a field may stand for, and what to declare then; empty if nothing."""
    if all(type(value) is int for value in values):
        return _of_numbers(name, values, is_debezium=is_debezium)
    if all(type(value) is str and NUMBER.fullmatch(value) for value in values):
        return _of_texts(name, values, is_debezium=is_debezium)
    return ""


def _of_numbers(name: str, values: Sequence[int], *, is_debezium: bool) -> str:
    for unit, (moments, select) in _UNITS.items():
        if all(value in moments for value in values):
            remedy = f"TIMESTAMP_NTZ, and in `format` `timestamps: {{{name}: {unit}}}`"
            if not is_debezium:
                as_moment = select.format(name=name)
                remedy = f"a TIMESTAMP, and `select` it as {as_moment} (docs/transform.md)"
            return f"its values look like {unit} since 1970; if they are, declare {remedy}"
    what, range_, type_ = (
        ("days", _DAYS, "DATE") if is_debezium else ("seconds", _SECONDS, "TIMESTAMP")
    )
    if _TIME.fullmatch(name) and all(value in range_ for value in values):
        return f"its values look like {what} since 1970; if they are, declare {type_}"
    return ""


def _of_texts(name: str, values: Sequence[str], *, is_debezium: bool) -> str:
    """Say that texts are numbers; whole ones may be names, as of a postcode."""
    places = max(len(value.partition(".")[2]) for value in values)
    if not places:
        return ""
    remedy = "in `format` `decimals: string`" if is_debezium else f"`types: {{{name}: lenient}}`"
    return (
        "its values are numbers in quotes; for a column of numbers declare a DECIMAL with at least "
        f"{places} places behind the point, and {remedy}"
    )
