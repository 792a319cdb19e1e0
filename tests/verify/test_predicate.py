"""``apply_as_deletes`` by another engine: the same answer as Spark's, or none."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from oncelake.ingestion.declaration.ddl import parse_columns
from oncelake.ingestion.declaration.spec import StreamSpec
from oncelake.ingestion.declaration.sql import quoted
from oncelake.ingestion.settings import Settings
from oncelake.ingestion.verify.decode.coerce import UnprovableError
from oncelake.ingestion.verify.fold.transform import Apply, Condition, transformation

DDL = "id INT, name STRING, at TIMESTAMP, price DECIMAL(9, 2), ratio FLOAT, `key` STRING"
NOON = dt.datetime(2020, 1, 1, 12, tzinfo=dt.UTC)
ROWS = [
    (1, "gone", NOON, Decimal("1.50"), 0.5, "a"),
    (2, "Gone ", NOON, None, None, None),
    (3, None, None, None, None, "b"),
]

CONDITIONS = [
    ("name = 'gone'", [1]),
    ('NAME == "gone" OR `key` <=> null', [1, 2]),
    ("name <> 'gone'", [2]),
    ("not (name = 'gone')", [2]),
    ("name is null or name in ('gone', null)", [1, 3]),
    ("lower(name) like 'gone%'", [1, 2]),
    ("at >= '2020-01-01 12:00:00' and id between 2 and 9", [2]),
    ("at = timestamp '2020-01-01 12:00:00'", [1, 2]),
    ("at > date '2020-01-01'", [1, 2]),
    ("price > 1.49", [1]),
    ("nvl(name, 'x') = 'x'", [3]),
    ("case when id % 2 = 1 then true else null end", [1, 3]),
    ("if(key = 'a', true, false)", [1]),
    ("name = null", []),
]


def selected(condition: str) -> list[int]:
    """Return the ids of the rows that a condition selects."""
    selects = Condition("apply_as_deletes", condition, parse_columns(DDL))
    return [row[0] for row, is_it in zip(ROWS, selects(ROWS), strict=True) if is_it]


@pytest.mark.parametrize(("condition", "ids"), CONDITIONS)
def test_a_condition_selects_what_spark_would(condition: str, ids: list[int]) -> None:
    """A condition that is null selects nothing."""
    assert selected(condition) == ids


@pytest.mark.parametrize("name", ["_row", "chunk", "x`y", "q'\"", "a.b", "_OFFSET", "a\nb"])
def test_a_column_of_any_name_is_read(name: str) -> None:
    """Neither what DuckDB calls something, nor a quote, makes a name stand for another column."""
    columns = parse_columns(f"id INT, {quoted(name)} INT")

    selects = Condition("where", f"{quoted(name)} = 2 AND id = 1", columns)

    assert selects([(1, 2), (2, 2), (1, 1), (1, None)]) == [True, False, False, False]


@pytest.mark.spark
def test_spark_selects_what_the_proof_selects(spark: SparkSession) -> None:
    """Every condition that is taken for unambiguous selects the same rows in Spark."""
    rows = spark.createDataFrame(ROWS, DDL)
    answers = (
        F.sort_array(F.collect_list(F.when(F.expr(condition), F.col("id")))).alias(str(number))
        for number, (condition, _) in enumerate(CONDITIONS)
    )

    (found,) = rows.agg(*answers).collect()

    assert dict(zip([c for c, _ in CONDITIONS], found, strict=True)) == dict(CONDITIONS)


# And signs and letters that have one case alone, as far as their names reach back.
LETTERS = [*map(chr, range(0x180)), *"€…東京あハ한ابא๑😀"]
ALIKE = [text for text in LETTERS if len(text.lower()) == len(text.upper()) == 1]


@pytest.mark.spark
@pytest.mark.parametrize("function", ["lower", "upper"])
def test_letters_have_the_case_that_spark_gives_them(spark: SparkSession, function: str) -> None:
    """In Europe's Latin alphabets, unless it is more than one letter; most signs have none."""
    pairs = spark.createDataFrame([(text,) for text in ALIKE], "name STRING")
    cased = [row[0] for row in pairs.selectExpr(f"{function}(name)").collect()]
    condition = Condition("where", f"{function}(name) = `key`", parse_columns(DDL))

    rows = zip(ALIKE, cased, strict=True)

    assert all(condition([(0, name, NOON, None, None, key) for name, key in rows]))


@pytest.mark.parametrize("name", ["straße", "İstanbul", "ΟΔΟΣ", "Ⓐ", "\u0378"])
def test_letters_that_have_two_other_cases_are_not_answered(name: str) -> None:
    """Spark has SS for ß, and a sigma of its own at the end of a word; DuckDB has not."""
    condition = Condition("where", "lower(name) = 'x'", parse_columns(DDL))

    with pytest.raises(UnprovableError, match="LOWER or UPPER of"):
        condition([(1, name, NOON, None, None, None)])
    with pytest.raises(UnprovableError, match="LOWER or UPPER of"):
        Condition("where", f"name = upper('{name}')", parse_columns(DDL))


@pytest.mark.parametrize(
    "condition",
    [
        "name rlike '^gone'",
        "ratio > 0.1",
        "at < current_timestamp()",
        "rand() < 0.5",
        "name = 'a\\nb'",
        "cast(name as int) = 1",
        "name = 1",
        "nosuch = 1",
        "id",
        "id =",
        "id in (select 1)",
        "read_text('/etc/passwd') = 'x'",
    ],
)
def test_what_may_be_read_in_two_ways_is_not_answered(condition: str) -> None:
    """No guess is taken for a proof, and nothing but the rows is ever read."""
    with pytest.raises(UnprovableError, match="apply_as_deletes is not provable"):
        selected(condition)


@pytest.mark.parametrize(("evaluated_by", "asks_spark"), [("local", True), (None, False)])
def test_a_condition_is_asked_of_the_engine_that_did_not_evaluate_it(
    evaluated_by: str | None, asks_spark: bool
) -> None:
    """Both understand it, so that only this tells whether the proof is a second opinion."""
    spec = StreamSpec.model_validate(
        {"name": "s", "topic": "s", "schema": "id INT", "keys": ["id"], "where": "id > 1"}
    )
    asked = []

    def apply(spec: StreamSpec, settings: Settings) -> Apply:
        asked.append(spec.where)
        return lambda values: pa.table({})

    transformation(spec, Settings(), apply, evaluated_by=evaluated_by)

    assert asked == ["id > 1"] * asks_spark
