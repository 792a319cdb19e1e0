"""The meaning of ``aggregates`` in a declaration: one function of one column each, and its columns.

Every function is a monoid whose state is in the table itself, so that a batch is folded into a row
without reading any record again: the average keeps sum and count, ``first`` and ``last`` the place
of the record that they come from. Addition of floating-point numbers is not associative, so that a
sum of them would depend on the division into batches: it is refused.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from oncelake.ingestion.declaration.fields import Declaration
from oncelake.ingestion.declaration.modes import WINDOW_COLUMNS
from oncelake.ingestion.declaration.types import SqlType

# The minimum clock among the counts of a commit, in milliseconds; see ``modes.watermark``.
CLOCK: Final = "clock_ms"
CALL: Final = re.compile(r"\s*(\w+)\s*\(\s*(\*|`[^`]+`|\w+)\s*\)\s*")
# Two sums of 37 digits always fit into 38, the most that there is: so an overflow is an error.
SUM_DIGITS: Final = 37


@dataclass(frozen=True, kw_only=True, slots=True)
class Aggregate:
    """The aggregate ``name`` of a stream: a function of a column, and the column's type.

    The column is empty, and its type ``None``, for ``count(*)``.
    """

    name: str
    function: str
    column: str
    type: SqlType | None

    @property
    def sum_type(self) -> str:
        """The type of a sum of the column."""
        if self.type is None or self.type.word != "DECIMAL":
            return "BIGINT"
        return f"DECIMAL({SUM_DIGITS}, {self.type.scale})"

    def columns(self, place: str) -> dict[str, str]:
        """Return the types of its columns by name; ``place`` is that of a place in the order."""
        name, type_ = self.name, str(self.type)
        state = {
            "count": {name: "BIGINT"},
            "sum": {name: self.sum_type},
            "avg": {name: "DOUBLE", f"{name}_sum": self.sum_type, f"{name}_count": "BIGINT"},
            "set": {name: f"ARRAY<{type_}>"},
            "approx_distinct": {name: "BIGINT", f"{name}_sketch": "BINARY"},
            "first": {name: type_, f"{name}_place": place},
            "last": {name: type_, f"{name}_place": place},
        }
        return state.get(self.function, {name: type_})


FUNCTIONS: Final = ("count", "sum", "min", "max", "avg", "set", "approx_distinct", "first", "last")


def aggregates_of(spec: Declaration) -> tuple[Aggregate, ...]:
    """Return the aggregates of a declaration in which nothing is wrong."""
    declared = spec.aggregates if spec.mode == "aggregate" else {}
    return tuple(_aggregate(name, text, spec.types) for name, text in declared.items())


def aggregate_columns(spec: Declaration) -> str:
    """Return the columns of the groups as DDL: keys, window, aggregates."""
    by_name = {column.name: column for column in spec.columns}
    window = tuple(f"{name} TIMESTAMP" for name in WINDOW_COLUMNS) if spec.window else ()
    place = _place_type(spec)
    states = (aggregate.columns(place).items() for aggregate in aggregates_of(spec))
    columns = (f"`{name}` {type_}" for state in states for name, type_ in state)
    return ", ".join((*(by_name[name].as_ddl() for name in spec.keys), *window, *columns))


def aggregate_rule(spec: Declaration) -> str:
    """Describe how the groups are folded: the same columns may hold another fold."""
    parts = [f"{one.name} = {one.function}({one.column})" for one in aggregates_of(spec)]
    if spec.window:
        parts.append(f"window {spec.window.column} every {spec.window.every_seconds} s")
    return "; ".join(parts)


def _aggregate(name: str, text: str, types: Mapping[str, SqlType]) -> Aggregate:
    call = CALL.fullmatch(text)
    assert call is not None, "loading the declaration refuses any other text"
    column = call[2].strip("`").replace("*", "")
    return Aggregate(name=name, function=call[1].lower(), column=column, type=types.get(column))


def _place_type(spec: Declaration) -> str:
    types = map(spec.sequence_types.__getitem__, spec.sequence_by)
    order = (f"sequence_{nth}: {type_}" for nth, type_ in enumerate(types, 1))
    element = ("index: INT",) if spec.explode else ()
    fields = ("epoch: INT", *order, "topic: STRING", "partition: INT", "offset: BIGINT", *element)
    return f"STRUCT<{', '.join(fields)}>"
