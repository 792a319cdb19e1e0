"""Rows beside the data table belong to an attempt, and are replaced with it."""

from __future__ import annotations

from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from ingestion.lake.attempts import ROWS, Attempt
from ingestion.lake.side_tables import count_of, overwrite_attempt
from ingestion.storage.location import Location

pytestmark = pytest.mark.spark


def write(spark: SparkSession, path: Path, attempt: Attempt, *values: str) -> None:
    """Write rows of one attempt."""
    written = [(value, *attempt) for value in values]
    rows = spark.createDataFrame(written, "value STRING, _seq LONG, _attempt LONG")
    overwrite_attempt(rows, Location.of(path), attempt, stats_on=ROWS)


def test_an_attempt_replaces_its_own_rows_and_no_others(
    spark: SparkSession, tmp_path: Path
) -> None:
    """What another attempt at the same seq wrote stays, also when this one writes again."""
    path, ours, theirs = tmp_path / "side", Attempt(2, 22), Attempt(2, 21)
    write(spark, path, Attempt(1, 11), "a", "b")
    write(spark, path, theirs, "another", "attempt")

    write(spark, path, ours, "c", "d")
    write(spark, path, ours, "c")

    found = DeltaTable(path).to_pyarrow_table().to_pylist()
    assert sorted(row["value"] for row in found) == ["a", "another", "attempt", "b", "c"]
    of = [count_of(Location.of(path), each) for each in (ours, theirs, Attempt(2, None))]
    assert of == [1, 2, 0]
