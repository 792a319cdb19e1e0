"""What is wrong with the aggregates of a declaration, each thing named by the field to edit."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from difflib import get_close_matches
from typing import TYPE_CHECKING, Final

from ingestion.declaration.aggregates import (
    CALL,
    FUNCTIONS,
    WINDOW_COLUMNS,
    aggregates_of,
    scale_of,
)
from ingestion.declaration.rules import RuleViolation

if TYPE_CHECKING:
    from ingestion.declaration.spec import StreamSpec

_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
_WHOLE: Final = ("TINYINT", "SMALLINT", "INT", "BIGINT")
_NESTED: Final = ("ARRAY", "MAP", "STRUCT", "VARIANT")
_INEXACT: Final = ("FLOAT", "DOUBLE")


def aggregate_violations(spec: StreamSpec) -> Iterator[RuleViolation]:
    """Find what is wrong with the aggregates of a declaration."""
    if not spec.aggregates:
        yield RuleViolation(
            ("aggregates",),
            "missing; `mode: aggregate` needs at least one, for example `{records: count(*)}`",
        )
    if spec.extra_fields == "keep":
        yield RuleViolation(
            ("extra_fields",), "a group has no fields of its own; write `ignore` or `reject`"
        )
    yield from _problems_of_window(spec)
    found = [each for name in spec.aggregates for each in _problems_of(spec, name)]
    yield from found
    if not found and set(spec.keys) <= {column.name for column in spec.columns}:
        yield from _twice(spec)


def _problems_of_window(spec: StreamSpec) -> Iterator[RuleViolation]:
    types = {column.name: column.type for column in spec.columns} | {"_timestamp": "TIMESTAMP"}
    name = spec.window.column if spec.window else "_timestamp"
    if name not in types:
        yield RuleViolation(("window", "column"), _no_column(name, types))
    elif types[name] != "TIMESTAMP":
        said = f"{name} is {types[name]}; write a TIMESTAMP column, or _timestamp"
        yield RuleViolation(("window", "column"), said)


def _problems_of(spec: StreamSpec, name: str) -> Iterator[RuleViolation]:
    at, types = ("aggregates", name), {column.name: column.type for column in spec.columns}
    if not _NAME.fullmatch(name):
        yield RuleViolation(at, "a column's name is letters, digits and `_`, a letter first")
        return
    found = CALL.fullmatch(spec.aggregates[name])
    if not found or found[1].lower() not in FUNCTIONS:
        near = get_close_matches(found[1].lower(), FUNCTIONS, n=1) if found else ()
        hint = f"; did you mean `{near[0]}`?" if near else ""
        known = ", ".join(FUNCTIONS)
        yield RuleViolation(at, f"write `function(column)`, with one of: {known}{hint}")
        return
    function, column = found[1].lower(), found[2].strip("`")
    if column not in types and (function, column) != ("count", "*"):
        yield RuleViolation(at, _no_column(column, types))
        return
    if problem := _unfit(function, types.get(column, "")):
        yield RuleViolation(at, f"{column} is {types[column]}; {problem}")
    if function in ("first", "last") and not spec.sequence_by:
        yield RuleViolation(
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
        if type_ not in _WHOLE and not (type_.startswith("DECIMAL") and scale_of(type_) < 38):
            return f"`{function}` adds whole numbers and DECIMALs of a scale below 38"
    if function in ("min", "max") and type_.startswith(_NESTED):
        return f"`{function}` needs values with an order"
    if function == "set" and type_.startswith((*_NESTED, *_INEXACT)):
        return "`set` needs values with a reliable equality"
    if function == "approx_distinct" and type_ not in ("INT", "BIGINT", "STRING", "BINARY"):
        return "`approx_distinct` counts values of INT, BIGINT, STRING and BINARY"
    return None


def _twice(spec: StreamSpec) -> Iterator[RuleViolation]:
    """Find two columns of one name; ``avg`` and some others have more than one."""
    taken = {name.lower(): f"key {name}" for name in spec.keys}
    if spec.window:
        taken |= dict.fromkeys(WINDOW_COLUMNS, "`window`")
    for each in aggregates_of(spec):
        for name in each.columns("STRING"):
            if name.lower() in taken:
                other = taken[name.lower()]
                yield RuleViolation(
                    ("aggregates", each.name), f"column {name} is also of {other}; rename one"
                )
            taken[name.lower()] = f"aggregate {each.name}"


def _no_column(name: str, known: Collection[str]) -> str:
    near = get_close_matches(name, known, n=1, cutoff=0.5)
    hint = f"did you mean `{near[0]}`?" if near else f"there are: {', '.join(known)}"
    return f"{name!r} is not a column of `schema`; {hint}"


if TYPE_CHECKING:
    from ingestion.declaration.spec import StreamSpec

VALID_FROM: Final = "valid_from"
VALID_TO: Final = "valid_to"
CURRENT: Final = "current"


def history_columns(spec: StreamSpec) -> str:
    """Return the columns of the versions as DDL."""
    types = {column.name: column.type for column in spec.columns} | {"_timestamp": "TIMESTAMP"}
    moment = types[spec.sequence_by[0]]
    return f"{spec.ddl}, {VALID_FROM} {moment}, {VALID_TO} {moment}, {CURRENT} BOOLEAN"


def history_violations(spec: StreamSpec) -> Iterator[RuleViolation]:
    """Find what is wrong with a declaration of versions."""
    if len(spec.sequence_by) != 1:
        yield RuleViolation(
            ("sequence_by",),
            "`mode: scd2` needs exactly one column, which says from when on a version is valid; "
            "`_timestamp` (Kafka's) is allowed",
        )
    for column in spec.columns:
        if column.name.lower() in (VALID_FROM, VALID_TO, CURRENT):
            yield RuleViolation(
                ("schema",), f"column {column.name} is one that `mode: scd2` adds; rename it"
            )
