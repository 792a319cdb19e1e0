"""Where a declaration contradicts its write mode, each thing named by the field to edit."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from oncelake.ingestion.declaration.aggregates import CALL, FUNCTIONS, SUM_DIGITS, aggregates_of
from oncelake.ingestion.declaration.fields import Declaration
from oncelake.ingestion.declaration.modes import (
    CURRENT,
    MODES,
    VALID_FROM,
    VALID_TO,
    WINDOW_COLUMNS,
)
from oncelake.ingestion.declaration.names import hint
from oncelake.ingestion.declaration.rules.stream import unknown_column
from oncelake.ingestion.declaration.rules.violations import Violation
from oncelake.ingestion.declaration.types import SqlType

_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
_WHOLE: Final = ("TINYINT", "SMALLINT", "INT", "BIGINT")
_NESTED: Final = ("ARRAY", "MAP", "STRUCT", "VARIANT")
_INEXACT: Final = ("FLOAT", "DOUBLE")


def mode_violations(spec: Declaration) -> Iterator[Violation]:
    """Yield every disagreement between a declaration and its write mode."""
    yield from _general_violations(spec)
    mode_of = {field: name for name in reversed(MODES) for field in MODES[name].fields}
    for field, name in mode_of.items():
        if field in spec.model_fields_set and field not in spec.write_mode.fields:
            problem = f"`mode: {spec.mode}` has no such thing; remove it, or write `mode: {name}`"
            yield field, problem
    if spec.mode == "upsert" and spec.ignore_null_updates:
        yield from _partial_update_violations(spec)
    if spec.mode == "scd2":
        yield from _history_violations(spec)
    if spec.mode == "aggregate":
        yield from _aggregate_violations(spec)


def _general_violations(spec: Declaration) -> Iterator[Violation]:
    mode, of_mode = f"`mode: {spec.mode}`", spec.write_mode
    if of_mode.has_keys and not spec.keys:
        needed = f"missing; {mode} needs the columns that identify a row"
        yield "keys", f"{needed}, for example `keys: [{spec.columns[0].name}]`"
    if spec.keys and not of_mode.has_keys:
        yield "keys", f"{mode} keeps every record as a row of its own; remove it"
    if spec.sequence_by and not of_mode.has_order:
        yield "sequence_by", f"{mode} lets no record win over another; remove it"
    if spec.apply_as_deletes and not of_mode.has_deletes:
        yield "apply_as_deletes", f"{mode} deletes no rows; remove it"
    if spec.tombstones == "delete" and not of_mode.has_deletes:
        yield "tombstones", f"{mode} deletes no rows; write `ignore` or `quarantine`"


def _partial_update_violations(spec: Declaration) -> Iterator[Violation]:
    if spec.sequence_by:
        yield (
            "ignore_null_updates",
            "a record that comes late would need an order of its own for every column; remove "
            "`sequence_by`, so that offsets order the records of a key, or send whole rows",
        )
    if spec.deletes == "soft":
        yield (
            "ignore_null_updates",
            "a row that stays when it is deleted has nothing to keep; write `deletes: hard`",
        )


def _history_violations(spec: Declaration) -> Iterator[Violation]:
    if len(spec.sequence_by) != 1:
        yield (
            "sequence_by",
            "`mode: scd2` needs exactly one column, which says from when on a version is valid; "
            "`_timestamp` (Kafka's) is allowed",
        )
    for name in spec.types:
        if name.lower() in (VALID_FROM, VALID_TO, CURRENT):
            yield "schema", f"column {name} is one that `mode: scd2` adds; rename it"
    if spec.track:
        yield from _track_violations(spec)


def _track_violations(spec: Declaration) -> Iterator[Violation]:
    for name in dict.fromkeys(spec.track):
        if name not in spec.types:
            yield "track", unknown_column(name, spec.types)
        elif spec.track.count(name) > 1:
            yield "track", f"names {name!r} twice; remove one"
        elif name in spec.keys:
            yield "track", f"{name} is a key, which is the same in all versions; remove it"
        elif (type_ := spec.types[name]).word in _NESTED:
            problem = "has no reliable equality; track a column that `select` makes of it"
            yield "track", f"{name} is {type_}, which {problem}"
    if spec.renamed_from:
        problem = "`track` cannot follow a rename, since it remembers records by their old names"
        advice = f"remove this; a table that is there needs oncelake rebuild {spec.name}"
        yield "renamed_from", f"{problem}; {advice}"
    if spec.format.options.may_lack_columns:
        problem = "a change of Debezium leaves columns out or moves a key, and the record before it"
        advice = "remove this, or let the connector unwrap its changes (ExtractNewRecordState)"
        yield "track", f"{problem} may be no version; {advice}"


def _aggregate_violations(spec: Declaration) -> Iterator[Violation]:
    if spec.delivery == "at_least_once":
        yield (
            "delivery",
            "a topic that is read again is folded again, and the sums would count it twice; write "
            "`exactly_once`",
        )
    if not spec.aggregates:
        yield (
            "aggregates",
            "missing; `mode: aggregate` needs at least one, for example `{records: count(*)}`",
        )
    if spec.extra_fields == "keep":
        yield "extra_fields", "a group has no fields of its own; write `ignore` or `reject`"
    yield from _window_violations(spec)
    violations = [
        (("aggregates", name), problem)
        for name, text in spec.aggregates.items()
        for problem in _aggregate_problems(spec, name, text)
    ]
    yield from violations
    if not violations and set(spec.keys) <= spec.types.keys():
        yield from _name_collisions(spec)


def _window_violations(spec: Declaration) -> Iterator[Violation]:
    types = spec.sequence_types
    name = spec.window.column if spec.window else "_timestamp"
    if name not in types:
        yield ("window", "column"), unknown_column(name, types)
    elif types[name].word != "TIMESTAMP":
        problem = f"{name} is {types[name]}; write a TIMESTAMP column, or _timestamp"
        yield ("window", "column"), problem


def _aggregate_problems(spec: Declaration, name: str, text: str) -> Iterator[str]:
    types = spec.types
    call = CALL.fullmatch(text)
    function = call[1].lower() if call else ""
    if not _NAME.fullmatch(name):
        yield "a column's name is letters, digits and `_`, a letter first"
    elif not call or function not in FUNCTIONS:
        usage = f"write `function(column)`, with one of: {', '.join(FUNCTIONS)}"
        yield usage + hint(function, FUNCTIONS)
    elif (column := call[2].strip("`")) not in types and (function, column) != ("count", "*"):
        yield unknown_column(column, types)
    else:
        if column in types and (problem := _type_problem(function, types[column])):
            yield f"{column} is {types[column]}; {problem}"
        if function in ("first", "last") and not spec.sequence_by:
            yield f"`{function}` needs an order between records; declare `sequence_by`"


def _type_problem(function: str, type_: SqlType) -> str | None:
    """Say why a function cannot be folded over values of a type."""
    if function in ("sum", "avg"):
        if type_.word in _INEXACT:
            return (
                "adding such numbers depends on their order, and so would the table; declare the "
                "column as DECIMAL"
            )
        if type_.word not in (*_WHOLE, "DECIMAL") or type_.scale >= SUM_DIGITS:
            most = f"of a scale below {SUM_DIGITS}, which leaves a sum digits before the point"
            return f"`{function}` adds whole numbers and DECIMALs {most}"
    if function in ("min", "max") and type_.word in _NESTED:
        return f"`{function}` needs values with an order"
    if function == "set" and type_.word in (*_NESTED, *_INEXACT):
        return "`set` needs values with a reliable equality"
    if function == "approx_distinct" and type_.word not in ("INT", "BIGINT", "STRING", "BINARY"):
        return "`approx_distinct` counts values of INT, BIGINT, STRING and BINARY"
    return None


def _name_collisions(spec: Declaration) -> Iterator[Violation]:
    """Refuse two columns of one name; ``avg`` and some others have more than one."""
    taken = {name.lower(): f"key {name}" for name in spec.keys}
    if spec.window:
        taken |= dict.fromkeys(WINDOW_COLUMNS, "`window`")
    for aggregate in aggregates_of(spec):
        for name in aggregate.columns("STRING"):
            if name.lower() in taken:
                problem = f"column {name} is also of {taken[name.lower()]}; rename one"
                yield ("aggregates", aggregate.name), problem
            taken[name.lower()] = f"aggregate {aggregate.name}"
