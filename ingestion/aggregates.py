"""What ``aggregates`` in a declaration means: one function of one column each, and its columns.

Every function is a monoid whose state is in the table itself, so that a batch is folded into a row
without reading any record again: the average keeps sum and count, ``first`` and ``last`` the place
of the record that they come from. Addition of floating-point numbers is not associative, so that a
sum of them would depend on how the batches were cut: it is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Final

from ingestion.agreement import Contradiction

if TYPE_CHECKING:
    from ingestion.spec import StreamSpec

WINDOW_COLUMNS: Final = ("window_start", "window_end")
_CALL: Final = re.compile(r"\s*(\w+)\s*\(\s*(\*|`[^`]+`|\w+)\s*\)\s*")
_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
_WHOLE: Final = ("TINYINT", "SMALLINT", "INT", "BIGINT")
_NESTED: Final = ("ARRAY", "MAP", "STRUCT", "VARIANT")
_INEXACT: Final = ("FLOAT", "DOUBLE")
# Two sums of 37 digits always fit into 38, the most that there is: so an overflow is an error.
_SUM_DIGITS: Final = 37


@dataclass(frozen=True, kw_only=True, slots=True)
class Aggregate:
    """One aggregate of a stream.

    Attributes:
        name: Its column.
        function: A name in ``FUNCTIONS``.
        column: What it is a function of; empty for ``count(*)``.
        type: The type of that column.
    """

    name: str
    function: str
    column: str
    type: str

    @property
    def sum_type(self) -> str:
        """The type of a sum of the column."""
        if not self.type.startswith("DECIMAL"):
            return "BIGINT"
        return f"DECIMAL({_SUM_DIGITS}, {_scale(self.type)})"

    def columns(self, place: str) -> dict[str, str]:
        """Return the types of its columns by name; ``place`` is that of a place in the order."""
        name, type_ = self.name, self.type
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


def aggregates_of(spec: StreamSpec) -> tuple[Aggregate, ...]:
    """Return the aggregates of a declaration in which nothing is wrong."""
    types = {column.name: column.type for column in spec.columns}
    return tuple(_parsed(name, text, types) for name, text in spec.aggregates.items())


def table_columns(spec: StreamSpec) -> str:
    """Return the columns of the groups as DDL: keys, window, aggregates."""
    by_name = {column.name: column for column in spec.columns}
    window = tuple(f"{name} TIMESTAMP" for name in WINDOW_COLUMNS) if spec.window else ()
    place = _place_type(spec)
    states = (each.columns(place).items() for each in aggregates_of(spec))
    told = (f"`{name}` {type_}" for state in states for name, type_ in state)
    return ", ".join((*(by_name[name].as_ddl() for name in spec.keys), *window, *told))


def rule(spec: StreamSpec) -> str:
    """Say what the groups are made of: the same columns may hold another fold."""
    told = [f"{each.name} = {each.function}({each.column})" for each in aggregates_of(spec)]
    if spec.window:
        told.append(f"window {spec.window.column} every {spec.window.every_seconds} s")
    return "; ".join(told)


def problems(spec: StreamSpec) -> Iterator[Contradiction]:
    """Find what is wrong with the aggregates of a declaration."""
    if not spec.aggregates:
        yield Contradiction(
            ("aggregates",),
            "missing; `mode: aggregate` needs at least one, for example `{records: count(*)}`",
        )
    if spec.extra_fields == "keep":
        yield Contradiction(
            ("extra_fields",), "a group has no fields of its own; write `ignore` or `reject`"
        )
    yield from _problems_of_window(spec)
    found = [each for name in spec.aggregates for each in _problems_of(spec, name)]
    yield from found
    if not found and set(spec.keys) <= {column.name for column in spec.columns}:
        yield from _twice(spec)


def _problems_of_window(spec: StreamSpec) -> Iterator[Contradiction]:
    types = {column.name: column.type for column in spec.columns} | {"_timestamp": "TIMESTAMP"}
    name = spec.window.column if spec.window else "_timestamp"
    if name not in types:
        near = get_close_matches(name, types, n=1, cutoff=0.5)
        hint = f"did you mean `{near[0]}`?" if near else f"there are: {', '.join(types)}"
        said = f"{name!r} is not a column of `schema`; {hint}"
        yield Contradiction(("window", "column"), said)
    elif types[name] != "TIMESTAMP":
        said = f"{name} is {types[name]}; write a TIMESTAMP column, or _timestamp"
        yield Contradiction(("window", "column"), said)


def _problems_of(spec: StreamSpec, name: str) -> Iterator[Contradiction]:
    at, types = ("aggregates", name), {column.name: column.type for column in spec.columns}
    if not _NAME.fullmatch(name):
        yield Contradiction(at, "a column's name is letters, digits and `_`, a letter first")
        return
    found = _CALL.fullmatch(spec.aggregates[name])
    if not found or found[1].lower() not in FUNCTIONS:
        near = get_close_matches(found[1].lower(), FUNCTIONS, n=1) if found else ()
        hint = f"; did you mean `{near[0]}`?" if near else ""
        known = ", ".join(FUNCTIONS)
        yield Contradiction(at, f"write `function(column)`, with one of: {known}{hint}")
        return
    function, column = found[1].lower(), found[2].strip("`")
    if column not in types and (function, column) != ("count", "*"):
        near = get_close_matches(column, types, n=1, cutoff=0.5)
        hint = f"did you mean `{near[0]}`?" if near else f"there are: {', '.join(types)}"
        yield Contradiction(at, f"{column!r} is not a column of `schema`; {hint}")
        return
    if problem := _unfit(function, types.get(column, "")):
        yield Contradiction(at, f"{column} is {types[column]}; {problem}")
    if function in ("first", "last") and not spec.sequence_by:
        yield Contradiction(
            at, f"`{function}` needs an order between records; declare `sequence_by`"
        )


def _unfit(function: str, type_: str) -> str | None:
    """Say why a function cannot be folded over values of a type."""
    if function in ("sum", "avg"):
        if type_ in _INEXACT:
            return (
                "adding such numbers depends on their order, and so would the table; declare the "
                "column as DECIMAL"
            )
        if type_ not in _WHOLE and not (type_.startswith("DECIMAL") and _scale(type_) < 38):
            return f"`{function}` adds whole numbers and DECIMALs of a scale below 38"
    if function in ("min", "max") and type_.startswith(_NESTED):
        return f"`{function}` needs values with an order"
    if function == "set" and type_.startswith((*_NESTED, *_INEXACT)):
        return "`set` needs values with a reliable equality"
    if function == "approx_distinct" and type_ not in ("INT", "BIGINT", "STRING", "BINARY"):
        return "`approx_distinct` counts values of INT, BIGINT, STRING and BINARY"
    return None


def _twice(spec: StreamSpec) -> Iterator[Contradiction]:
    """Find two columns of one name; ``avg`` and some others have more than one."""
    taken = {name.lower(): f"key {name}" for name in spec.keys}
    if spec.window:
        taken |= dict.fromkeys(WINDOW_COLUMNS, "`window`")
    for each in aggregates_of(spec):
        for name in each.columns("STRING"):
            if name.lower() in taken:
                other = taken[name.lower()]
                yield Contradiction(
                    ("aggregates", each.name), f"column {name} is also of {other}; rename one"
                )
            taken[name.lower()] = f"aggregate {each.name}"


def _parsed(name: str, text: str, types: Mapping[str, str]) -> Aggregate:
    found = _CALL.fullmatch(text)
    assert found is not None, "what is wrong with it is said when it is loaded"
    column = found[2].strip("`").replace("*", "")
    return Aggregate(
        name=name, function=found[1].lower(), column=column, type=types.get(column, "")
    )


def _place_type(spec: StreamSpec) -> str:
    types = {column.name: column.type for column in spec.columns} | {"_timestamp": "TIMESTAMP"}
    order = (f"sequence_{nth}: {types[name]}" for nth, name in enumerate(spec.sequence_by, 1))
    fields = ("epoch: INT", *order, "topic: STRING", "partition: INT", "offset: BIGINT")
    return f"STRUCT<{', '.join(fields)}>"


def _scale(type_: str) -> int:
    return int(type_.rstrip(")").rpartition(",")[2])
