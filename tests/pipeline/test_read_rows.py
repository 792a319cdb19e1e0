"""The rows of some batches as a frame: few of them come by way of this process."""

from __future__ import annotations

import pytest

from oncelake.ingestion.pipeline.spark import stores as store_session
from oncelake.ingestion.pipeline.spark.stores import read_rows
from tests.support.world import World, row

COLUMNS = "id INT NOT NULL, name STRING, at TIMESTAMP, on DATE, of ARRAY<STRUCT<a: DECIMAL(9, 2)>>"


@pytest.mark.spark
@pytest.mark.parametrize(
    ("more", "few_bytes", "is_by_spark"),
    [
        pytest.param("", 2**20, False, id="few"),
        pytest.param("", 0, True, id="many"),
        pytest.param(", v VARIANT", 2**20, True, id="VARIANT"),
    ],
)
def test_rows_are_the_same_by_spark_and_by_way_of_this_process(
    world: World, monkeypatch: pytest.MonkeyPatch, more: str, few_bytes: int, is_by_spark: bool
) -> None:
    """Of the batches asked for, with the types of the table."""
    world.declare(schema=COLUMNS + more)
    full = {"at": "2026-01-01T00:00:00Z", "on": "2026-01-01", "of": [{"a": 1.25}]}
    world.send(row(1, "a"))
    world.run()
    world.send(row(2, "b") | full, {"id": 3})
    world.run()
    monkeypatch.setattr(store_session, "_FEW_BYTES", few_bytes)
    version = max(world.log.versions())

    frame = read_rows(world.spark, world.paths, world.settings, version=version, since_seq=2)

    delta = world.spark.read.format("delta").load(str(world.paths.data)).where("_seq >= 2")
    assert [(f.name, f.dataType) for f in frame.schema] == [
        (f.name, f.dataType) for f in delta.schema
    ]
    assert sorted(map(str, frame.collect())) == sorted(map(str, delta.collect()))
    plan = frame._jdf.queryExecution().optimizedPlan().toString()
    assert ("parquet" in plan) == is_by_spark
