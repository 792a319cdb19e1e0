"""Each stage of a batch has the columns that it is said to have."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from oncelake.ingestion.declaration.modes import EXTRA_COLUMN
from oncelake.ingestion.declaration.spec import StreamSpec
from oncelake.ingestion.modes.engines.rows import RAW, RECORDS
from oncelake.ingestion.modes.engines.spark import SparkEngine
from oncelake.ingestion.pipeline.columns import PLACE
from tests.support.batches import stages

pytestmark = pytest.mark.spark

RECORD = "_topic STRING, _partition INT, _offset BIGINT, _timestamp TIMESTAMP, _key BINARY, "
RECORD += "_value BINARY, _headers ARRAY<STRUCT<key: STRING, value: BINARY>>, _digest BIGINT"
LISTS = {"value_schema": "id INT, items ARRAY<STRING>", "explode": "items"}
LISTS |= {"schema": "id INT, item STRING", "select": {"item": "items"}, "keys": ["id", "item"]}


# ``_decoded_key`` is there only where a null value deletes by its key.
DECODED = (*RECORDS.names, "_decoded")
EXPLODED = (*DECODED, "_index", "_is_empty")
TRANSFORMED = (*DECODED, "_index", "_transformed", "_selected", "_misfit")
# Of a judged row: its disposition, undeclared names, size of the value, digest, what is wrong.
JUDGED = ("_disposition", "_extra", "_bytes", "_digest", "_reason", "_detail", *RAW)
# Null of streams that declare nothing of the kind.
JUDGED += ("_unavailable", "_coerced", "_moved_from", "_record", "_moves", "_is_shared", "_left_to")


def same_rows(rows: DataFrame) -> DataFrame:
    """A declared function that changes nothing."""
    return rows


@pytest.mark.parametrize(
    ("fields", "by_key", "kept"),
    [
        ({"keys": ["id"], "sequence_by": []}, ["_decoded_key"], []),
        ({"mode": "append"}, [], []),
        ({"mode": "append", "extra_fields": "keep"}, [], [EXTRA_COLUMN]),
        ({"mode": "append", "where": "id > 0"}, [], []),
        ({"mode": "append", "transform": f"{__name__}.same_rows"}, [], []),
        ({"mode": "append", **{k: v for k, v in LISTS.items() if k != "keys"}}, [], []),
    ],
    ids=["upsert", "append", "kept", "where", "function", "explode"],
)
def test_a_stage_adds_the_columns_of_its_contract(
    spark: SparkSession, fields: dict[str, Any], by_key: list[str], kept: list[str]
) -> None:
    """The order does not matter; a column more or less does."""
    base = {"name": "s", "topic": "t", "schema": "id INT, name STRING"}
    spec = StreamSpec.model_validate({**base, **fields})
    table = [column.name for column in spec.columns]
    records = spark.createDataFrame([], RECORD)
    assert set(records.columns) == set(RECORDS.names)

    with stages(records, spec) as rows, closing(SparkEngine(spark)) as engine:
        decoded, transformed, _ = (set(each.frame().columns) for each in rows)
        engine.materialize(rows[-1])
        validated = set(engine.columns("batch"))
        assert decoded == {*(EXPLODED if spec.explode else DECODED), *by_key}
        assert transformed >= ({*TRANSFORMED, *by_key} if spec.is_transformed else decoded)
        assert validated == {*PLACE, "_index", *table, *JUDGED, *kept}
        # Statements that workers can evaluate may still be left to Spark.
        may_fail = bool(spec.where or spec.select) and not spec.transform
        assert [each.in_spark is not None for each in rows] == [False, may_fail, may_fail]
