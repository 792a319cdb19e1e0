"""The aggregates as Spark's expressions: the state of records, and the fold of two states.

Each law (associative, with an identity; commutative but for ties that cannot be) is what makes the
table independent of how batches were cut and of the order in which records came.
"""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as F

from oncelake.ingestion.declaration.aggregates import Aggregate
from oncelake.ingestion.declaration.spec import StreamSpec
from oncelake.ingestion.declaration.sql import quoted

States = Mapping[str, Column]
# Digits that are divided at once; with a rest of as many they fit into the widest DECIMAL.
_GROUP: Final = 19
_WHOLE: Final = "decimal(38, 0)"


def place_in(spec: StreamSpec) -> Column:
    """Return a record's place in the order, as the table keeps it."""
    nth = (F.col(quoted(name)).alias(f"sequence_{n}") for n, name in enumerate(spec.sequence_by, 1))
    origin = (F.col(name).alias(name.removeprefix("_")) for name in spec.origin)
    return F.struct(F.col("_epoch").alias("epoch"), *nth, *origin)


def of_records(aggregate: Aggregate, place: Column) -> States:
    """Return the state of a group of records, by column."""
    value = F.col(quoted(aggregate.column)) if aggregate.column else F.lit(1)
    if aggregate.function == "avg":
        total, count = F.sum(value).cast(aggregate.sum_type), F.count(value)
        return _average(aggregate, total, count)
    if aggregate.function == "approx_distinct":
        # By way of a union the estimate does not depend on the order of the values.
        sketch = F.hll_sketch_agg(value)
        return _distinct(aggregate, F.hll_union(sketch, sketch))
    if aggregate.function in ("first", "last"):
        by, of = (F.max_by, F.max) if aggregate.function == "last" else (F.min_by, F.min)
        return {aggregate.name: by(value, place), f"{aggregate.name}_place": of(place)}
    return {
        aggregate.name: {
            "count": lambda: F.count(value),
            "sum": lambda: F.sum(value).cast(aggregate.sum_type),
            "min": lambda: F.min(value),
            "max": lambda: F.max(value),
            "set": lambda: F.array_sort(F.collect_set(value)),
        }[aggregate.function]()
    }


def folded(aggregate: Aggregate, one: str, other: str) -> States:
    """Return the state of two groups together, by column; ``one`` and ``other`` are aliases."""
    a, b = F.col(f"{one}.{aggregate.name}"), F.col(f"{other}.{aggregate.name}")

    def part(side: str, name: str) -> Column:
        return F.col(f"{side}.{aggregate.name}_{name}")

    if aggregate.function == "avg":
        total = _plus(aggregate, part(one, "sum"), part(other, "sum"))
        return _average(aggregate, total, part(one, "count") + part(other, "count"))
    if aggregate.function == "approx_distinct":
        return _distinct(aggregate, F.hll_union(part(one, "sketch"), part(other, "sketch")))
    if aggregate.function in ("first", "last"):
        here, there = part(one, "place"), part(other, "place")
        is_there = there > here if aggregate.function == "last" else there < here
        return {
            aggregate.name: F.when(is_there, b).otherwise(a),
            f"{aggregate.name}_place": F.when(is_there, there).otherwise(here),
        }
    return {
        aggregate.name: {
            "count": lambda: a + b,
            "sum": lambda: _plus(aggregate, a, b),
            "min": lambda: F.least(a, b),
            "max": lambda: F.greatest(a, b),
            "set": lambda: F.array_sort(F.array_union(a, b)),
        }[aggregate.function]()
    }


def _plus(aggregate: Aggregate, a: Column, b: Column) -> Column:
    """Add what is there; the sum of nothing is null, and an overflow is an error (ANSI)."""
    return F.coalesce((a + b).cast(aggregate.sum_type), a, b)


def _average(aggregate: Aggregate, total: Column, count: Column) -> States:
    scale = aggregate.type.scale if aggregate.type is not None else 0
    mean = F.when(count > 0, _quotient(total, count, scale=scale))
    return {aggregate.name: mean, f"{aggregate.name}_sum": total, f"{aggregate.name}_count": count}


def _quotient(total: Column, count: Column, *, scale: int) -> Column:
    """Divide a sum by a count, and round once, to the nearest double.

    Both as doubles would be rounded before they are divided: 0.3 by 3 would not be 0.1. So they
    are divided as on paper, in groups of 19 digits, of which a rest and a group always fit into a
    DECIMAL; a rest in the end makes the last digit odd, so that no tie is seen where there is none.
    """
    digits = F.abs(total.cast(f"decimal(38, {scale})")).cast("string")
    digits = F.lpad(F.replace(digits, F.lit("."), F.lit("")), 2 * _GROUP, "0")
    groups = (digits.substr(1, _GROUP), digits.substr(1 + _GROUP, _GROUP), F.lit("0"), F.lit("0"))
    divisor, base = count.cast(f"decimal({_GROUP}, 0)"), F.lit(Decimal(10**_GROUP))

    def divide(state: Column, group: Column) -> Column:
        value = (state["rest"] * base).cast(_WHOLE) + group
        rest = value % divisor
        quotient = ((value - rest) / divisor).cast(f"decimal({_GROUP}, 0)").cast("string")
        written = F.concat(state["digits"], F.lpad(quotient, _GROUP, "0"))
        return F.struct(rest.cast(_WHOLE).alias("rest"), written.alias("digits"))

    def finish(state: Column) -> Column:
        return F.concat(state["digits"], F.when(state["rest"] > 0, "1").otherwise("0"))

    start = F.struct(F.lit(0).cast(_WHOLE).alias("rest"), F.lit("").alias("digits"))
    written = F.aggregate(F.array(*(group.cast(_WHOLE) for group in groups)), start, divide, finish)
    sign, power = F.when(total < 0, "-").otherwise(""), F.lit(f"E-{2 * _GROUP + 1 + scale}")
    return F.concat(sign, written, power).cast("double")


def _distinct(aggregate: Aggregate, sketch: Column) -> States:
    return {aggregate.name: F.hll_sketch_estimate(sketch), f"{aggregate.name}_sketch": sketch}
