"""What is said of rows that do not meet an expectation."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import SparkSession

from oncelake.ingestion.declaration.parts import Expectation
from oncelake.ingestion.pipeline.gate.expectations import evaluate


@pytest.mark.spark
@pytest.mark.filterwarnings("default")  # Of Great Expectations and what it imports.
def test_the_query_of_an_expectation_finds_its_rows(spark: SparkSession) -> None:
    """It is Spark SQL over the table, also where values are to be unique; a met one has none."""
    rows = spark.createDataFrame(
        [(1, "a", -1), (1, "b'c", 2), (3, None, 4)], "id INT, s STRING, n INT"
    )
    rows.createOrReplaceTempView("of_a_run")
    given: dict[str, dict[str, Any]] = {
        "values_to_be_between": {"column": "n", "min_value": 0},
        "values_to_be_in_set": {"column": "s", "value_set": ["a", "x'y"]},
        "values_to_not_be_null": {"column": "s"},
        "values_to_be_unique": {"column": "id"},
        "max_to_be_between": {"column": "n", "max_value": 3},
        "values_to_be_of_type": {"column": "id", "type_": "IntegerType"},
    }
    asked = [
        Expectation.model_validate({"type": f"expect_column_{name}", **more})
        for name, more in given.items()
    ]

    between, in_set, not_null, unique, of_all, met = (
        [*map(tuple, spark.sql(each.query).collect())] if each.query else None
        for each in evaluate(asked, rows, declared_in="orders.yaml", table="of_a_run")
    )

    assert (between, in_set) == ([(1, "a", -1)], [(1, "b'c", 2)])
    assert (not_null, unique) == ([(3, None, 4)], [(1, 2)])
    assert (of_all, met) == (None, None)
