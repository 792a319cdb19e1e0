"""The proof's engine for predicates answers as Spark does, condition by condition."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from tests.verify.test_predicate import CONDITIONS, DDL, ROWS

pytestmark = pytest.mark.spark


def test_spark_selects_what_the_proof_selects(spark: SparkSession) -> None:
    """Every condition that is taken for unambiguous selects the same rows in Spark."""
    rows = spark.createDataFrame(ROWS, DDL)
    answers = (
        F.sort_array(F.collect_list(F.when(F.expr(condition), F.col("id")))).alias(str(number))
        for number, (condition, _) in enumerate(CONDITIONS)
    )

    (found,) = rows.agg(*answers).collect()

    assert dict(zip([c for c, _ in CONDITIONS], found, strict=True)) == dict(CONDITIONS)
