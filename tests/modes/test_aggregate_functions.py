"""The aggregates obey their laws, so that the table cannot depend on how batches were cut."""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Iterator
from decimal import Context, Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from oncelake.ingestion.declaration.aggregates import FUNCTIONS, Aggregate
from oncelake.ingestion.declaration.ddl import parse_type
from oncelake.ingestion.declaration.spec import StreamSpec
from oncelake.ingestion.modes import sql
from oncelake.ingestion.modes.aggregate_functions import folded, made_of, of_records, place_in
from oncelake.ingestion.modes.engines.engine import Engine, OverflowedError
from oncelake.ingestion.modes.engines.local import LocalEngine
from oncelake.ingestion.modes.engines.spark import SparkEngine, translate
from oncelake.ingestion.verify.fold.aggregate import AGGREGATES
from tests.support.long import only_long, twins

WIDE = Context(prec=40)
TYPES = {"whole": "BIGINT", "exact": "DECIMAL(12, 3)", "text": "STRING", "day": "DATE"}
SCHEMA = pa.schema(
    [
        *(("g", pa.int32()), ("part", pa.string()), ("_epoch", pa.int32()), ("at", pa.int32())),
        *(("_topic", pa.string()), ("_partition", pa.int32()), ("_offset", pa.int64())),
        *(("whole", pa.int64()), ("exact", pa.decimal128(12, 3)), ("text", pa.string())),
        ("day", pa.date32()),
    ]
)
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
    # Sketches are Spark's alone.
    if function != "approx_distinct"
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


@pytest.fixture(params=["local", pytest.param("spark", marks=pytest.mark.spark)])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Engine]:
    """Each engine, for one test."""
    if request.param == "spark":
        opened: Engine = SparkEngine(request.getfixturevalue("spark"))
    else:
        opened = LocalEngine("s", tmp_path)
    yield opened
    opened.close()


@settings(
    max_examples=3,
    deadline=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
@given(told=records)
@pytest.mark.parametrize("engine", ["local", *twins("spark")], indirect=True)
def test_states_fold_together_in_any_order(engine: Engine, told: list[Any]) -> None:
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
    _give(engine, "records", pa.Table.from_pydict(_by_column(rows), SCHEMA))
    for part in "abc":
        engine.define(part, _reduced(EVERY, f"(SELECT * FROM records WHERE part = '{part}')"))
    engine.define("whole", _reduced(EVERY, "records"))
    whole = _shown(engine, "whole")

    for one, two, three in ("abc", "bca", "cba"):
        engine.define("two", _folded(EVERY, one, two))
        engine.define("three", _folded(EVERY, "two", three))
        assert _shown(engine, "three") == whole
        engine.define("three", _folded(EVERY, three, "two"))
        assert _shown(engine, "three") == whole
    assert _in_python(rows) == whole


@only_long
@pytest.mark.spark
def test_an_estimate_does_not_depend_on_the_cut(spark: SparkSession) -> None:
    """Of many more values than a sketch holds, three parts give the estimate of the whole."""
    each = [Aggregate(name="n", function="approx_distinct", column="id", type=parse_type("BIGINT"))]
    engine = SparkEngine(spark)
    spark.range(60_000).selectExpr("id", "1 AS g", "1 AS _epoch").createOrReplaceTempView("ids")
    for nth in range(3):
        engine.define(f"p{nth}", _reduced(each, f"(SELECT * FROM ids WHERE id % 3 = {nth})", "0"))
    engine.define("both", _folded(each, "p0", "p1"))
    engine.define("all", _folded(each, "both", "p2"))

    (told,), (whole,) = engine.rows('SELECT * FROM "all"'), engine.rows(_reduced(each, "ids", "0"))
    assert told["n"] == whole["n"]
    assert abs(told["n"] - 60_000) < 3_000


def test_an_average_is_rounded_once(engine: Engine) -> None:
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
        each = Aggregate(
            name="m", function="avg", column="x", type=parse_type(f"DECIMAL(37, {scale})")
        )
        totals = [Decimal(total).scaleb(-scale, WIDE) for total, _ in cases]
        state = {
            "n": pa.array(range(len(cases)), pa.int32()),
            "m_sum": pa.array(totals, pa.decimal128(37, scale)),
            "m_count": pa.array([count for _, count in cases], pa.int64()),
        }
        _give(engine, "state", pa.table(state))

        found = engine.rows(f"SELECT n, {sql.selected(made_of(each))} FROM state ORDER BY n")

        due = [float(Fraction(total) / of / 10**scale) for total, of in cases]
        assert [row["m"] for row in found] == due


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
def test_a_sum_that_does_not_fit_is_an_error(engine: Engine, type_: str, value: str) -> None:
    """An overflow ends the batch, in a batch's own sum as in the fold; it is never a null."""
    each = [Aggregate(name="s", function="sum", column="v", type=parse_type(type_))]
    one = f"SELECT 1 AS g, CAST('{value}' AS {type_}) AS v"
    engine.define("state", _reduced(each, f"({one})", "0"))

    assert str(engine.rows("SELECT * FROM state")[0]["s"]) == value
    for query in (
        _reduced(each, f"({one} UNION ALL {one})", "0"),
        _folded(each, "state", "state"),
    ):
        with pytest.raises(OverflowedError):
            engine.rows(query)


def test_a_zero_has_no_sign_among_the_least_and_the_largest(engine: Engine) -> None:
    """Of two that are equal, that of another cut of the batches would stay."""
    each = [
        Aggregate(name=f"{function}_{word}", function=function, column="v", type=parse_type(word))
        for function in ("min", "max")
        for word in ("FLOAT", "DOUBLE")
    ]
    for first, second in (("-0.0", "0.0"), ("0.0", "-0.0")):
        values = " UNION ALL ".join(
            f"SELECT 1 AS g, CAST('{value}' AS DOUBLE) AS v" for value in (first, second)
        )
        (row,) = engine.rows(_reduced(each, f"({values})", "0"))

        assert [str(row[one.name]) for one in each] == ["0.0"] * 4


def _give(engine: Engine, name: str, rows: pa.Table) -> None:
    if isinstance(engine, SparkEngine):
        engine.spark.createDataFrame(rows).createOrReplaceTempView(name)
    else:
        assert isinstance(engine, LocalEngine)
        engine.hold(rows, name=name)


def _by_column(rows: list[Any]) -> dict[str, list[Any]]:
    columns = map(list, zip(*rows, strict=True))
    return dict(zip(SCHEMA.names, columns, strict=True))


def _reduced(each: list[Aggregate], records: str, place: str | None = None) -> str:
    place = place or place_in(SPEC)
    states = {name: sql for one in each for name, sql in of_records(one, place).items()}
    reduced = f"SELECT g, {sql.selected(states)} FROM {records} r GROUP BY g"
    return _whole(each, reduced)


def _folded(each: list[Aggregate], one: str, other: str) -> str:
    states = {name: sql for part in each for name, sql in folded(part, "a", "b").items()}
    return _whole(
        each, f"SELECT a.g, {sql.selected(states)} FROM {one} a JOIN {other} b ON a.g = b.g"
    )


def _whole(each: list[Aggregate], states: str) -> str:
    made = {name: sql for one in each for name, sql in made_of(one).items()}
    return f"SELECT *, {sql.selected(made)} FROM ({states}) s" if made else states


def _shown(engine: Engine, name: str) -> dict[int, dict[str, Any]]:
    """Return the states by group."""
    return {
        row["g"]: {
            k: tuple(v.values()) if k.endswith("_place") else v for k, v in row.items() if k != "g"
        }
        for row in engine.rows(f"SELECT * FROM {name}")
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


def test_a_type_is_translated_and_no_name_like_it() -> None:
    """Spark has no whole number of 128 bits; a column and a text may be called so."""
    text = translate("""SELECT "INT128", 'UINT128', CAST(a AS HUGEINT) FROM t""")

    assert text == "SELECT `INT128`, 'UINT128', CAST(a AS DECIMAL(38, 0)) FROM t"
