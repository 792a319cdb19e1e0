"""The aggregates as SQL that every engine runs: the state of records, and the fold of two states.

Each law (associative, with an identity; commutative but for ties that cannot be) is what makes the
table independent of how batches were cut and of the order in which records came. An average is
made of its state in the end, and is no part of it. Sketches are Spark's functions alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from oncelake.ingestion.declaration.aggregates import Aggregate
from oncelake.ingestion.declaration.spec import StreamSpec
from oncelake.ingestion.modes import sql

States = Mapping[str, str]
# Digits that are divided at once: with a rest of 19 they fit into 128 bits.
_GROUP: Final = 18
_GROUPS: Final = 3
_FLOATS: Final = ("FLOAT", "DOUBLE")
# Spark has no such type, and takes its widest DECIMAL.
WHOLE: Final = "HUGEINT"


def place_in(spec: StreamSpec) -> str:
    """Return a record's place in the order, as the table keeps it."""
    parts = {"epoch": "_epoch"}
    parts |= {f"sequence_{n}": sql.name(name) for n, name in enumerate(spec.sequence_by, 1)}
    return struct(parts | {name.removeprefix("_"): sql.name(name) for name in spec.origin})


def struct(fields: Mapping[str, str]) -> str:
    """Return a struct of values; two are compared field by field."""
    return f"{{{', '.join(f'{sql.text(name)}: {value}' for name, value in fields.items())}}}"


def of_records(aggregate: Aggregate, place: str) -> States:
    """Return the state of a group of records, by column."""
    name, value = aggregate.name, sql.name(aggregate.column) if aggregate.column else "*"
    total = f"CAST(sum({value}) AS {aggregate.sum_type})"
    if aggregate.function == "avg":
        return {f"{name}_sum": total, f"{name}_count": f"count({value})"}
    if aggregate.function == "approx_distinct":
        # By way of a union the estimate does not depend on the order of the values.
        sketch = f"hll_sketch_agg({value})"
        return _distinct(aggregate, f"hll_union({sketch}, {sketch})")
    if aggregate.function in ("first", "last"):
        of = "max" if aggregate.function == "last" else "min"
        # DuckDB would pass over a value that is null.
        whole = f"{of}_by({{'value': {value}}}, {place})"
        return {name: f"struct_extract({whole}, 'value')", f"{name}_place": f"{of}({place})"}
    if aggregate.function in ("min", "max") and aggregate.type and aggregate.type.word in _FLOATS:
        # Of -0.0 and 0.0, which are equal, the first would stay.
        value = f"CAST({value} + 0 AS {aggregate.type.word})"
    known = f"list(DISTINCT {value}) FILTER (WHERE {value} IS NOT NULL)"
    return {
        name: {
            "count": f"count({value})",
            "sum": total,
            "min": f"min({value})",
            "max": f"max({value})",
            "set": f"coalesce(list_sort({known}), [])",
        }[aggregate.function]
    }


def folded(aggregate: Aggregate, one: str, other: str) -> States:
    """Return the state of two groups together, by column; ``one`` and ``other`` are aliases."""
    name = aggregate.name
    a, b = sql.name(name, one), sql.name(name, other)

    def parts(part: str) -> tuple[str, str]:
        return sql.name(f"{name}_{part}", one), sql.name(f"{name}_{part}", other)

    if aggregate.function == "avg":
        here, there = parts("count")
        return {
            f"{name}_sum": _plus(aggregate, *parts("sum")),
            f"{name}_count": f"{here} + {there}",
        }
    if aggregate.function == "approx_distinct":
        here, there = parts("sketch")
        return _distinct(aggregate, f"hll_union({here}, {there})")
    if aggregate.function in ("first", "last"):
        here, there = parts("place")
        is_there = f"{there} > {here}" if aggregate.function == "last" else f"{there} < {here}"
        return {
            name: f"CASE WHEN {is_there} THEN {b} ELSE {a} END",
            f"{name}_place": f"CASE WHEN {is_there} THEN {there} ELSE {here} END",
        }
    return {
        name: {
            "count": f"{a} + {b}",
            "sum": _plus(aggregate, a, b),
            "min": f"least({a}, {b})",
            "max": f"greatest({a}, {b})",
            "set": f"list_sort(list_distinct(list_concat({a}, {b})))",
        }[aggregate.function]
    }


def made_of(aggregate: Aggregate) -> States:
    """Return what is made of a state, and is none itself, by column."""
    if aggregate.function != "avg":
        return {}
    scale = aggregate.type.scale if aggregate.type is not None else 0
    total, count = (sql.name(f"{aggregate.name}_{part}") for part in ("sum", "count"))
    return {aggregate.name: _quotient(total, count, scale=scale)}


def _plus(aggregate: Aggregate, a: str, b: str) -> str:
    """Add what is there; the sum of nothing is null, and an overflow is an error."""
    return f"coalesce(CAST({a} + {b} AS {aggregate.sum_type}), {a}, {b})"


def _quotient(total: str, count: str, *, scale: int) -> str:
    """Divide a sum by a count, and round once, to the nearest double; null without any.

    Both as doubles would be rounded before they are divided: 0.3 by 3 would not be 0.1. So they
    are divided as on paper, in groups of digits, as many behind the point as before it; a rest in
    the end makes the last digit odd, so that no tie is seen where there is none.
    """
    whole = f"CAST(abs(CAST({total} AS DECIMAL(38, {scale}))) AS VARCHAR)"
    digits = f"lpad(replace({whole}, '.', ''), {_GROUP * _GROUPS}, '0')"
    starts = range(1, _GROUP * _GROUPS, _GROUP)
    groups = [f"CAST(substr({digits}, {at}, {_GROUP}) AS {WHOLE})" for at in starts]
    values = [groups[0]]
    for group in (*groups[1:], *["0"] * _GROUPS):
        values.append(f"(CAST(({values[-1]} % {count}) * {10**_GROUP} AS {WHOLE}) + {group})")
    written = [f"lpad(CAST({each} // {count} AS VARCHAR), {_GROUP}, '0')" for each in values]
    rest = f"CASE WHEN {values[-1]} % {count} > 0 THEN '1' ELSE '0' END"
    sign = f"CASE WHEN {total} < 0 THEN '-' ELSE '' END"
    power = f"E-{_GROUP * _GROUPS + 1 + scale}"
    text = " || ".join([sign, *written, rest, sql.text(power)])
    return f"CASE WHEN {count} > 0 THEN CAST({text} AS DOUBLE) END"


def _distinct(aggregate: Aggregate, sketch: str) -> States:
    name = aggregate.name
    return {name: f"hll_sketch_estimate({sketch})", f"{name}_sketch": sketch}
