"""Rows beside the data table belong to a seq, and are replaced with it."""

from __future__ import annotations

from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from ingestion.lake.location import Location
from ingestion.lake.side_tables import overwrite_seq, remove_beyond, rows_of_seq

pytestmark = pytest.mark.spark


def write(spark: SparkSession, path: Path, seq: int, *values: str) -> None:
    """Write rows of one seq."""
    rows = spark.createDataFrame([(value, seq) for value in values], "value STRING, _seq LONG")
    overwrite_seq(rows, Location.of(path), seq, stats_on=["_seq"])


def test_writing_a_seq_again_replaces_its_rows(spark: SparkSession, tmp_path: Path) -> None:
    """What a dead attempt wrote is gone, also when the next one writes less."""
    path = tmp_path / "side"
    write(spark, path, 1, "a", "b")
    write(spark, path, 2, "dead", "attempt")

    write(spark, path, 2, "c")

    found = DeltaTable(path).to_pyarrow_table().to_pylist()
    assert sorted(row["value"] for row in found) == ["a", "b", "c"]
    assert (rows_of_seq(Location.of(path), 1), rows_of_seq(Location.of(path), 2)) == (2, 1)


def test_rows_beyond_the_table_are_removed(spark: SparkSession, tmp_path: Path) -> None:
    """Rows of a seq that was never committed are leftovers; the others stay."""
    path = tmp_path / "side"
    write(spark, path, 1, "a")
    write(spark, path, 2, "left over")

    removed = [remove_beyond(Location.of(path), 1), remove_beyond(Location.of(path), 1)]

    assert removed == [1, 0]
    assert DeltaTable(path).to_pyarrow_table().column("value").to_pylist() == ["a"]
    assert remove_beyond(Location.of(tmp_path / "none"), 1) == 0
