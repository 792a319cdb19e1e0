"""A quarantined record is kept raw, with all that says why, where and by whom."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from ingestion.declaration.spec import engine_version, fingerprint
from ingestion.kafka.offsets import Offsets
from ingestion.lake.commit_metadata import UNKNOWN, CommitMetadata
from ingestion.lake.paths import StreamPaths
from ingestion.lake.quarantine import write_quarantine
from ingestion.settings import Settings
from tests.verify.factories import declared

pytestmark = pytest.mark.spark

_BAD = (
    "_topic STRING, _partition INT, _offset LONG, _timestamp TIMESTAMP, _key BINARY, "
    "_value BINARY, _headers ARRAY<STRUCT<key: STRING, value: BINARY>>, _reason STRING, "
    "_detail STRING"
)


def test_a_row_knows_the_schema_the_engine_and_the_run(spark: SparkSession, tmp_path: Path) -> None:
    """The id of a schema comes from the detail's beginning; a large value is kept whole."""
    large, now = b"x" * 3_000_000, dt.datetime(2024, 1, 1)  # noqa: DTZ001 (Spark takes it for UTC)
    details = ("schema id 42: no field x", "schema id 99999999999: too large", "x schema id 7:")
    rows = [
        ("t", 0, at, now, None, large, [("h", b"\x00")], "malformed_json", detail)
        for at, detail in enumerate((*details, None))
    ]
    paths, spec = StreamPaths.of("s", Settings(lake=tmp_path)), declared()
    metadata = CommitMetadata(
        kind="ingest", seq=3, run_id="me", epoch=1, identity=UNKNOWN, columns="", next=Offsets()
    )

    written = write_quarantine(spark.createDataFrame(rows, _BAD), paths, metadata, spec)

    found = DeltaTable(paths.quarantine).to_pyarrow_table().to_pylist()
    found.sort(key=lambda row: row["_offset"])
    assert (written, [row["schema_id"] for row in found]) == (4, [42, None, None, None])
    assert {(row["_seq"], row["run_id"], row["redriven_seq"]) for row in found} == {(3, "me", None)}
    assert {row["engine_version"] for row in found} == {engine_version()}
    assert {row["declaration"] for row in found} == {fingerprint(spec)}
    assert all(row["value"] == large for row in found)
