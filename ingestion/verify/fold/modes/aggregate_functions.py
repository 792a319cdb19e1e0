"""The aggregates in plain Python: a state, one more value, and what the table must then hold."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from ingestion.verify.read.record import Place


@dataclass(frozen=True, kw_only=True, slots=True)
class AggregateFunction:
    """One aggregate function.

    Attributes:
        empty: The state of no records.
        add: Returns the state with one more record: its value, and its place in the order.
        columns: Returns the columns of a state: by suffix, empty for the aggregate's own.
    """

    empty: Any
    add: Callable[[Any, Any, Place], Any]
    columns: Callable[[Any], Mapping[str, Any]]


def _itself(state: Any) -> Mapping[str, Any]:
    return {"": state}


def _unless_null(
    fold: Callable[[Any, Any], Any],
) -> Callable[[Any, Any, Place], Any]:
    """Pass over nulls, and begin with the first value."""

    def add(state: Any, value: Any, _: Place) -> Any:
        if value is None:
            return state
        return value if state is None else fold(state, value)

    return add


def _rank(value: Any) -> Any:
    """Rank as Spark does: not a number is above every number."""
    is_nan = isinstance(value, float) and math.isnan(value)
    return (is_nan, 0 if is_nan else value)


def _add_to_average(state: Any, value: Any, _: Place) -> Any:
    return state if value is None else (value + (state[0] or 0), state[1] + 1)


def _average(state: Any) -> Mapping[str, Any]:
    total, count = state
    mean = float(total) / count if count else None
    return {"": mean, "_sum": total, "_count": count}


def _at_place(state: Any) -> Mapping[str, Any]:
    place, value = state
    return {"": value, "_place": place}


def _first(state: Any, value: Any, place: Place) -> Any:
    return (place, value) if state is None or place < state[0] else state


def _last(state: Any, value: Any, place: Place) -> Any:
    return (place, value) if state is None or place > state[0] else state


AGGREGATES: Final[Mapping[str, AggregateFunction]] = {
    "count": AggregateFunction(
        empty=0, add=lambda n, value, _: n + (value is not None), columns=_itself
    ),
    "sum": AggregateFunction(empty=None, add=_unless_null(lambda a, b: a + b), columns=_itself),
    "min": AggregateFunction(
        empty=None, add=_unless_null(lambda a, b: min(a, b, key=_rank)), columns=_itself
    ),
    "max": AggregateFunction(
        empty=None, add=_unless_null(lambda a, b: max(a, b, key=_rank)), columns=_itself
    ),
    "avg": AggregateFunction(empty=(None, 0), add=_add_to_average, columns=_average),
    "set": AggregateFunction(
        empty=frozenset(),
        add=lambda values, value, _: values if value is None else values | {value},
        columns=lambda values: {"": sorted(values)},
    ),
    "first": AggregateFunction(empty=None, add=_first, columns=_at_place),
    "last": AggregateFunction(empty=None, add=_last, columns=_at_place),
}
