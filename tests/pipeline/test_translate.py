"""A translated statement gives in DuckDB what it gives in Spark, or DuckDB says that it cannot."""

from __future__ import annotations

import datetime as dt
import math
import random
import re
from collections.abc import Sequence
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from oncelake.ingestion.modes.engines.rows import UnevaluatedError
from oncelake.ingestion.pipeline.statements.evaluate import evaluated
from oncelake.ingestion.pipeline.statements.translate import CASED, Statement, translate
from tests.support.long import IS_LONG, twins

pytestmark = pytest.mark.spark

DDL: Final = (
    "b BOOLEAN, t TINYINT, s SMALLINT, i INT, l BIGINT, f FLOAT, d DOUBLE, x STRING, y STRING, "
    "day DATE, at TIMESTAMP, local TIMESTAMP_NTZ, money DECIMAL(10,2), rate DECIMAL(6,4), "
    'inner STRUCT<n: INT, x: STRING, deep: STRUCT<z: STRING>>, `odd "" name` INT'
)
COMPARED: Final = ("=", "<=>", "<", "<=", ">", ">=", "<>")
_NAN: Final = float("nan")
_VALUES: Final[dict[str, list[Any]]] = {
    "b": [True, False],
    "t": [0, 1, -1, 127, -128],
    "s": [0, 7, -7, 32767, -32768],
    "i": [0, 1, -1, 42, 2**31 - 1, -(2**31)],
    "l": [0, 3, -3, 10**15 + 1, 2**63 - 1, -(2**63)],
    "f": [0.0, -0.0, 0.1, -2.5, 3.4e38, _NAN, math.inf, -math.inf],
    "d": [0.0, -0.0, 0.1, -2.5, 1.7e308, 5e-324, 1e16, _NAN, math.inf, -math.inf],
    "x": [
        "",
        "a",
        "b",
        " a ",
        "ab%",
        "a_b",
        "Ärger",
        "日本",
        "x\ny",
        "😀b",
        "a\x00b",
        "it's",
        "\t a",
    ],
    "y": ["", "a", "B", "aa", "日", "\xa0a\u3000", "null"],
    "day": [dt.date(1, 1, 1), dt.date(1582, 10, 10), dt.date(2024, 2, 29), dt.date(9999, 12, 31)],
    "at": [
        dt.datetime(1, 1, 1, tzinfo=dt.UTC),
        dt.datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=dt.UTC),
        dt.datetime(2024, 2, 29, 12, 30, tzinfo=dt.UTC),
        dt.datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=dt.UTC),
    ],
    "local": list(map(dt.datetime.fromisoformat, ("0001-01-01", "2024-02-29 12:30", "9999-12-31"))),
    "money": [Decimal("0.00"), Decimal("12.34"), Decimal("-99999999.99")],
    "rate": [Decimal("0.0000"), Decimal("1.5000"), Decimal("-99.9999")],
    "inner": [
        {"n": 1, "x": "a", "deep": {"z": "q"}},
        {"n": None, "x": None, "deep": None},
        {"n": -5, "x": "日", "deep": {"z": None}},
    ],
    'odd "" name': [0, 5],
}
# What is written most, and each kind of node that is translated.
STATEMENTS: Final = (
    *("i > 1 AND x <> 'a'", "i = 1 OR b", "NOT b", "b IS NOT TRUE", "x IS NULL", "x <=> y"),
    *("l BETWEEN -3 AND 3", "i IN (1, 42, NULL)", "x IN ('a', '日本')", "x NOT IN ('a')"),
    *("nullif(x, '')", "coalesce(x, y, 'none')", "nvl(i, 0)", "if(i > 0, x, y)"),
    *("CASE WHEN i > 1 THEN 'big' WHEN i < 0 THEN x END", "CASE x WHEN 'a' THEN 1 ELSE 2 END"),
    *("upper(x)", "lower(x)", "length(x)", "trim(x)", "x || '-' || y", "concat(x, y)"),
    *("x LIKE 'a%'", "x LIKE '%b'", "x LIKE '%a%'", "x LIKE '_'", "x LIKE 'a_b'", "x LIKE y"),
    *("d * 2", "d + f", "f + f", "i / 2", "money * rate", "money + 1", "money - rate", "money > 5"),
    *("i % 5", "t % s", "-f", "abs(d)", "CAST(i AS BIGINT)", "CAST(l AS STRING)", "f > d"),
    *("CAST(at AS DATE)", "to_date(local)", "date(at) > DATE'2000-01-01'", "at >= '2024-01-01'"),
    *("year(day)", "month(at)", "day(day)", "inner.n > 0", "inner.deep.z", '`odd "" name` + 1'),
    *(
        "at < TIMESTAMP'1970-01-01 00:00:00'",
        "local > TIMESTAMP_NTZ'2000-01-01'",
        "CAST(money AS DECIMAL(20,4))",
    ),
    *("x = 'it''s'", "d = 0.1", "d > 1e15", "i = 1.0", "rate = 1.5", "x > y", "d = 'NaN'", "TRUE"),
)


def _operand(rng: random.Random, type_: str, depth: int) -> str:
    """Return a random expression of a type: a column, a literal, or what is made of others."""
    leaves = {
        "bool": ["b", "TRUE", "CAST(NULL AS BOOLEAN)"],
        "int": ["i", "CAST(t AS INT)", "CAST(s AS INT)", "3", "inner.n", "-7"],
        "double": ["d", "CAST(f AS DOUBLE)", "0.5D", "CAST(i AS DOUBLE)", "1e3"],
        "text": ["x", "y", "'a'", "inner.x", "'日'", "''"],
        "date": ["day", "CAST(at AS DATE)", "DATE'2024-02-29'"],
    }[type_]
    if depth == 0 or rng.random() < 0.2:
        return rng.choice(leaves)

    def of(other: str) -> str:
        return _operand(rng, other, depth - 1)

    any_type = rng.choice(["int", "double", "text", "date", "bool"])
    generic = [f"CASE WHEN {of('bool')} THEN {of(type_)} ELSE {of(type_)} END"]
    generic += [f"coalesce({of(type_)}, {of(type_)})", f"nullif({of(type_)}, {of(type_)})"]
    made = {
        "bool": [
            f"({of(any_type)} {rng.choice(COMPARED)} {of(any_type)})",
            f"({of('bool')} {rng.choice(['AND', 'OR'])} {of('bool')})",
            f"(NOT {of('bool')})",
            f"({of(any_type)} IS {rng.choice(['', 'NOT '])}NULL)",
            f"({of('int')} IN ({of('int')}, 1, 2))",
            f"startswith({of('text')}, {of('text')})",
            f"contains({of('text')}, {of('text')})",
            f"({of('text')} LIKE '{rng.choice(['a%', '%b', '_', '%a_b%', 'a', '%日%'])}')",
        ],
        "int": [
            f"({of('int')} {rng.choice('+-*')} {of('int')})",
            f"({of('int')} % {of('int')})",
            f"length({of('text')})",
            f"year({of('date')})",
            f"abs({of('int')})",
        ],
        "double": [
            f"({of('double')} {rng.choice('+-*/')} {of('double')})",
            f"(-{of('double')})",
            f"CAST({of('int')} AS DOUBLE)",
        ],
        "text": [
            f"({of('text')} || {of('text')})",
            f"trim({of('text')})",
            f"CAST({of('int')} AS STRING)",
        ],
        "date": [f"if({of('bool')}, {of('date')}, {of('date')})"],
    }[type_]
    return rng.choice([*made, *made, *generic])


@pytest.fixture(scope="module")
def rows(spark: SparkSession) -> DataFrame:
    """Rows of odd values, and nulls, each column on its own."""
    rng = random.Random(11)
    found = [dict.fromkeys(_VALUES)]
    for _ in range(60):
        found.append({n: rng.choice([*values, None]) for n, values in _VALUES.items()})
    frame = spark.createDataFrame([tuple(each.values()) for each in found], DDL)
    return frame.coalesce(1).cache()


def _in_spark(rows: DataFrame, statements: Sequence[str]) -> list[pa.Array | None]:
    """Return what each gives, by few jobs; nothing of one that fails."""
    named = (F.expr(sql).alias(str(n)) for n, sql in enumerate(statements))
    try:
        found = rows.select(*named).toArrow().combine_chunks()
    except PySparkException:
        half = len(statements) // 2
        if not half:
            return [None]
        return _in_spark(rows, statements[:half]) + _in_spark(rows, statements[half:])
    return [column.combine_chunks() for column in found.columns]


def _in_duckdb(rows: pa.Table, statement: Statement) -> pa.Array | None:
    given = dict(zip(rows.column_names, rows.columns, strict=True))
    try:
        return evaluated([statement], given, pa.array([True] * len(rows)))[0]
    except UnevaluatedError:
        return None


def _texts(values: pa.Array) -> list[str]:
    """Write values so that NaN is NaN, and zeros have their signs."""
    return [repr(value) for value in values.to_pylist()]


def _compare(rows: DataFrame, statements: Sequence[str], *, may_refuse: bool = True) -> list[str]:
    """Compare the statements that are translated, and return the others."""
    by_text = {sql: translate(rows, [F.expr(sql)]) for sql in statements}
    taken = {sql: found[0] for sql, found in by_text.items() if found}
    given = rows.toArrow().combine_chunks()
    for (sql, statement), due in zip(taken.items(), _in_spark(rows, list(taken)), strict=True):
        is_ = _in_duckdb(given, statement)
        if due is None or (is_ is None and may_refuse):
            assert is_ is None, f"{sql}: Spark fails, and DuckDB does not: {statement.sql}"
            continue
        assert is_ is not None, f"{sql}: DuckDB fails, and Spark does not: {statement.sql}"
        assert _texts(is_.cast(due.type)) == _texts(due), f"{sql}: {statement.sql}"
    return [sql for sql in statements if sql not in taken]


def test_each_statement_gives_the_same_in_both(rows: DataFrame) -> None:
    """None of them is left to Spark but one; what overflows over such rows fails in both."""
    assert _compare(rows, STATEMENTS) == ["x LIKE y"]


COUNT = 80 if IS_LONG else 32


@pytest.mark.parametrize("seed", [1, *twins(2, 3)])
def test_random_statements_give_the_same_in_both(rows: DataFrame, seed: int) -> None:
    """Whatever they are made of: a value is the same, or fails in both."""
    rng = random.Random(seed)
    small = rows.where("i BETWEEN -99 AND 99 AND (d IS NULL OR abs(d) < 1e6)").cache()
    types = ["bool", "int", "double", "text", "date"]
    statements = [_operand(rng, rng.choice(types), 3) for _ in range(COUNT)]

    assert len(_compare(small, statements)) < COUNT * 3 // 8


@pytest.mark.parametrize(
    "sql",
    [
        *("i + i", "l * 2", "t + t", "-l", "abs(i)", "i / 0", "i % 0", "d / 0", "s - s - s"),
        *("CAST(i AS DOUBLE) / l", "CASE WHEN i = 0 THEN 0 ELSE l % i END"),
    ],
)
def test_what_fails_in_spark_fails_in_duckdb(spark: SparkSession, sql: str) -> None:
    """Row by row: an overflow, a division by 0."""
    for n in range(6 if IS_LONG else 3):
        row = {name: values[n % len(values)] for name, values in _VALUES.items()}
        row |= {"t": [127, -128, 0][n % 3], "l": [2**63 - 1, -(2**63), 0][n % 3]}
        one = spark.createDataFrame([tuple(row.values())], DDL)
        assert _compare(one, [sql], may_refuse=False) == []


def test_what_duckdb_may_read_otherwise_is_left_to_spark(rows: DataFrame) -> None:
    """Functions that try, other escapes, texts that become numbers, and what is not known."""
    for sql in (
        *("try_cast(x AS INT)", "CAST(x AS INT)", "try_add(i, 1)", "try_divide(i, 0)"),
        *("x LIKE 'a/%' ESCAPE '/'", r"x LIKE 'a\\%'", "CAST(d AS STRING)", "CAST(l AS INT)"),
        *("substring(x, 0, 2)", "x RLIKE 'a'", "round(d, 1)", "CAST(d AS DECIMAL(10,2))"),
        *(
            "trim('a' FROM x)",
            "3 % 0",
            "i + 1 / 0",
            "CAST(at AS STRING)",
            "DATE'+12024-01-01'",
            "x COLLATE UNICODE = 'a'",
        ),
        *("money * money * money * money", "inner", "inner = inner"),
    ):
        if sql != "inner":
            assert translate(rows, [F.expr(sql)]) is None, sql
    (taken,) = translate(rows, [F.expr("inner")]) or ()
    assert taken.is_column


def test_every_letter_that_is_cased_has_one_other_case(spark: SparkSession) -> None:
    """And DuckDB refuses the others, such as ß, for Spark to read."""
    pairs = re.findall(r"(?:\\x\{?([0-9A-F]+)\}?)-(?:\\x\{?([0-9A-F]+)\}?)", CASED)
    letters = [chr(n) for low, high in pairs for n in range(int(low, 16), int(high, 16) + 1)]
    frame = spark.createDataFrame([(letter,) for letter in letters], "x STRING").coalesce(1)
    assert _compare(frame, ["upper(x)", "lower(x)", "length(x)"], may_refuse=False) == []

    (upper,) = translate(frame, [F.expr("upper(x)")]) or ()
    for odd in ("ß", "ŉ", "İ", "\u0131", "\u017f", "ΑΣ", "ǆ", "ﬁ"):
        assert _in_duckdb(pa.table({"x": [odd]}), upper) is None, odd


def test_nothing_is_translated_where_spark_does_not_fail(spark: SparkSession) -> None:
    """Without ANSI an overflow wraps around."""
    frame = spark.createDataFrame([(1,)], "i INT")
    assert translate(frame, [F.expr("i + 1")])
    spark.conf.set("spark.sql.ansi.enabled", "false")
    try:
        assert translate(frame, [F.expr("i + 1")]) is None
    finally:
        spark.conf.set("spark.sql.ansi.enabled", "true")
