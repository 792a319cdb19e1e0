"""What values may stand for although their type does not say so: moments, days, decimals; pure.

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
_UNITS: Final = {
    "millis": range(10**12, 4 * 10**12),
    "micros": range(10**15, 4 * 10**15),
    "nanos": range(10**18, 4 * 10**18),
}
_IN_SPARK: Final = {
    "millis": "timestamp_millis({name})",
    "micros": "timestamp_micros({name})",
    "nanos": "timestamp_micros({name} DIV 1000)",
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
    for unit, moments in _UNITS.items():
        if all(value in moments for value in values):
            if is_debezium:
                remedy = f"TIMESTAMP_NTZ, and in `format` `timestamps: {{{name}: {unit}}}`"
            else:
                select = _IN_SPARK[unit].format(name=name)
                remedy = f"a TIMESTAMP, and `select` it as {select} (docs/transform.md)"
            return f"its values look like {unit} since 1970; if they are, declare {remedy}"
    if not _TIME.fullmatch(name):
        return ""
    if is_debezium and all(value in _DAYS for value in values):
        return "its values look like days since 1970; if they are, declare DATE"
    if not is_debezium and all(value in _SECONDS for value in values):
        return "its values look like seconds since 1970; if they are, declare TIMESTAMP"
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
