"""The aggregates obey their laws, so that the table cannot depend on how batches were cut."""

from __future__ import annotations

import datetime as dt
import random
from decimal import Context, Decimal
from fractions import Fraction
from functools import reduce
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from oncelake.ingestion.declaration.aggregates import FUNCTIONS, Aggregate
from oncelake.ingestion.declaration.ddl import parse_type
from oncelake.ingestion.declaration.spec import StreamSpec
from oncelake.ingestion.modes.aggregate_functions import folded, of_records, place_in
from oncelake.ingestion.verify.fold.aggregate import AGGREGATES
from tests.support.long import only_long

pytestmark = [pytest.mark.spark]

WIDE = Context(prec=40)
VALUES = "whole BIGINT, exact DECIMAL(12, 3), text STRING, day DATE"
PLACED = "_epoch INT, at INT, _topic STRING, _partition INT, _offset BIGINT"
SCHEMA = f"g INT, part STRING, {PLACED}, {VALUES}"
TYPES = dict(column.split(" ", 1) for column in ("whole BIGINT", "text STRING", "day DATE"))
TYPES["exact"] = "DECIMAL(12, 3)"
FITS = {
    **dict.fromkeys(FUNCTIONS, ("whole", "text")),
    "sum": ("whole", "exact"),
    "avg": ("whole", "exact"),
    "min": ("whole", "exact", "text", "day"),
    "max": ("whole", "exact", "text", "day"),
    "set": ("exact", "text", "day"),
}
EVERY = [
    Aggregate(
        name=f"{function}_{column}",
        function=function,
        column=column,
        type=parse_type(TYPES[column]),
    )
    for function in FUNCTIONS
    for column in FITS[function]
]

SPEC = StreamSpec.model_validate(
    {"name": "s", "topic": "t", "schema": "id INT, at INT", "keys": ["id"], "sequence_by": ["at"]}
)

values = st.tuples(
    st.none() | st.integers(-(10**12), 10**12),
    st.none() | st.decimals(-(10**8), 10**8, places=3),
    st.none() | st.text(max_size=3),
    st.none() | st.dates(dt.date(1900, 1, 1), dt.date(2100, 1, 1)),
)
records = st.lists(
    st.tuples(st.integers(0, 5), st.sampled_from("abc"), st.integers(0, 3), values),
    min_size=60,
    max_size=120,
)


@settings(
    max_examples=3,
    deadline=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
@given(told=records)
@only_long
def test_states_fold_together_in_any_order(spark: SparkSession, told: list[Any]) -> None:
    """(a·b)·c, a·(b·c) and c·(b·a) are the state of all records, and what Python says it is."""
    rows = [
        (g, part, 1, at, "t", 0, offset, *each) for offset, (g, part, at, each) in enumerate(told)
    ]
    # Of each part every group has some: a state of nulls alone is the identity.
    rows += [
        (g, part, 1, -1, "t", 0, -100 + 10 * g + nth, None, None, None, None)
        for g in range(6)
        for nth, part in enumerate("abc")
    ]
    frame = spark.createDataFrame(rows, SCHEMA).localCheckpoint()
    a, b, c = (_reduced(frame.where(f"part = '{part}'")) for part in "abc")
    whole = _shown(_reduced(frame))

    assert _shown(_folded(_folded(a, b), c)) == whole
    assert _shown(_folded(a, _folded(b, c))) == whole
    assert _shown(_folded(c, _folded(b, a))) == whole
    assert _in_python(rows) == {
        g: {name: value for name, value in row.items() if "approx" not in name}
        for g, row in whole.items()
    }


def test_an_estimate_does_not_depend_on_the_cut(spark: SparkSession) -> None:
    """Of many more values than a sketch holds, three parts give the estimate of the whole."""
    each = Aggregate(name="n", function="approx_distinct", column="id", type=parse_type("BIGINT"))
    ids = spark.range(60_000).withColumn("_epoch", F.lit(1))
    ids = ids.selectExpr("id", "1 AS g", "_epoch")
    parts = [
        ids.where(F.col("id") % 3 == nth).groupBy("g").agg(*_columns(of_records(each, F.lit(0))))
        for nth in range(3)
    ]
    (whole,) = ids.groupBy("g").agg(*_columns(of_records(each, F.lit(0)))).collect()

    def both(one: DataFrame, other: DataFrame) -> DataFrame:
        joined = one.alias("a").join(other.alias("b"), F.col("a.g") == F.col("b.g"))
        return joined.select(F.col("a.g"), *_columns(folded(each, "a", "b")))

    (told,) = reduce(both, parts).collect()
    assert told["n"] == whole["n"]
    assert abs(told["n"] - 60_000) < 3_000


def test_an_average_is_rounded_once(spark: SparkSession) -> None:
    """It is the double nearest to the exact quotient: 0.3 by 3 is 0.1, and so on to 37 digits."""
    pick = random.Random(7)
    for scale in (0, 2, 18, 37):
        cases = [(3, 3), (30, 3), (-30, 7), (1, 3), (0, 5), (10**37 - 1, 1), (-(10**37) + 1, 3)]
        cases += [(2**53 + 1, 1), (2**54 + 2, 2), (1, 2**62), (10**37 - 1, 2**63 - 1)]
        cases += [
            (
                pick.randrange(-(10**digits), 10**digits),
                pick.randrange(1, 10 ** pick.randint(1, 18)),
            )
            for digits in range(1, 38)
        ]
        type_ = f"DECIMAL({37}, {scale})"
        each = Aggregate(name="m", function="avg", column="x", type=parse_type(type_))
        rows = [(n, Decimal(total).scaleb(-scale, WIDE), of) for n, (total, of) in enumerate(cases)]
        state = f"g INT, m_sum {type_}, m_count BIGINT"
        one = spark.createDataFrame(rows, state)
        none = spark.createDataFrame([(n, None, 0) for n, _ in enumerate(cases)], state)
        joined = (
            one.withColumn("m", F.lit(0.0))
            .alias("a")
            .join(
                none.withColumn("m", F.lit(None).cast("double")).alias("b"),
                F.col("a.g") == F.col("b.g"),
            )
        )

        found = joined.select(F.col("a.g"), *_columns(folded(each, "a", "b"))).orderBy("g")

        due = [float(Fraction(total) / of / 10**scale) for total, of in cases]
        assert [row["m"] for row in found.collect()] == due


def test_the_proof_adds_wide_decimals_exactly() -> None:
    """A sum of 37 digits loses none, and neither does the average of it."""
    state, big = AGGREGATES["avg"].empty, Decimal("1" * 36 + ".7")
    for value in (big, Decimal("0.3"), Decimal("0.1")):
        state = AGGREGATES["avg"].add(state, value, ())

    columns = AGGREGATES["avg"].columns(state)
    assert columns["_sum"] == Decimal("1" * 35 + "2.1")
    assert columns[""] == float(Fraction("1" * 35 + "2.1") / 3)


@pytest.mark.parametrize(
    ("type_", "value"),
    [("BIGINT", "9223372036854775807"), ("DECIMAL(38, 0)", "9" * 37)],
    ids=["whole numbers", "decimals"],
)
def test_a_sum_that_does_not_fit_is_an_error(spark: SparkSession, type_: str, value: str) -> None:
    """An overflow ends the batch, in a batch's own sum as in the fold; it is never a null."""
    each = Aggregate(name="s", function="sum", column="v", type=parse_type(type_))
    one = spark.sql(f"SELECT 1 AS g, CAST('{value}' AS {type_}) AS v")
    state = one.groupBy("g").agg(*_columns(of_records(each, F.lit(0))))
    again = state.alias("a").join(state.alias("b"), F.col("a.g") == F.col("b.g"))

    assert str(state.collect()[0]["s"]) == value
    for frame in (
        one.union(one).groupBy("g").agg(*_columns(of_records(each, F.lit(0)))),
        again.select(*_columns(folded(each, "a", "b"))),
    ):
        with pytest.raises(PySparkException, match=r"OVERFLOW|OUT_OF_RANGE"):
            frame.collect()


def _reduced(frame: DataFrame) -> DataFrame:
    states = [state for each in EVERY for state in _columns(of_records(each, place_in(SPEC)))]
    return frame.groupBy("g").agg(*states)


def _folded(one: DataFrame, other: DataFrame) -> DataFrame:
    joined = one.alias("a").join(other.alias("b"), F.col("a.g") == F.col("b.g"))
    states = [state for each in EVERY for state in _columns(folded(each, "a", "b"))]
    return joined.select(F.col("a.g").alias("g"), *states)


def _columns(states: Any) -> list[Any]:
    return [state.alias(name) for name, state in states.items()]


def _shown(frame: DataFrame) -> dict[int, dict[str, Any]]:
    """Collect the states by group, but for the sketches: their bytes tell how they were made."""
    rows = (row.asDict(recursive=True) for row in frame.collect())
    return {
        row["g"]: {
            k: tuple(v.values()) if k.endswith("_place") else v
            for k, v in row.items()
            if k != "g" and not k.endswith("_sketch")
        }
        for row in rows
    }


def _in_python(rows: list[Any]) -> dict[int, dict[str, Any]]:
    """Fold the same records by the proof's own monoids."""
    at = {"whole": 7, "exact": 8, "text": 9, "day": 10}
    proven = [each for each in EVERY if each.function in AGGREGATES]
    states: dict[int, list[Any]] = {
        g: [AGGREGATES[each.function].empty for each in proven] for g in range(6)
    }
    for row in rows:
        place = (row[2], row[3], row[4], row[5], row[6])
        for nth, each in enumerate(proven):
            value = row[at[each.column]]
            value = Decimal(value) if each.column == "exact" and value is not None else value
            states[row[0]][nth] = AGGREGATES[each.function].add(states[row[0]][nth], value, place)
    return {
        g: {
            f"{each.name}{suffix}": value
            for each, state in zip(proven, of, strict=True)
            for suffix, value in AGGREGATES[each.function].columns(state).items()
        }
        for g, of in states.items()
    }
