"""Every record has one disposition, and the reason when it is quarantined."""

from __future__ import annotations

import datetime as dt
import json
import tempfile
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as F

from oncelake.ingestion.declaration.spec import StreamSpec
from oncelake.ingestion.kafka.offsets import Offsets, TopicPartition
from oncelake.ingestion.modes.engines.local import LocalEngine
from oncelake.ingestion.modes.engines.spark import SparkEngine
from tests.support.batches import judged

pytestmark = pytest.mark.spark

DDL = "id INT, must STRING NOT NULL, at INT, time TIMESTAMP"
UNMET = "violates_constraint"
WHOLE = b'{"id": 1, "must": "x", "at": 1}'
LONG = WHOLE.replace(b"1", b'"%s"' % ("é" * 1_001).encode(), 1)
IN_POSTGRES = {"sink": "postgres", "schema": DDL.replace("id INT", "id STRING")}


def declared(**fields: Any) -> StreamSpec:
    """A stream with a key, an order and a required column."""
    base = {"name": "s", "topic": "t", "schema": DDL, "keys": ["id"], "sequence_by": ["at"]}
    return StreamSpec.model_validate({**base, **fields})


def validated(
    spark: SparkSession,
    spec: StreamSpec,
    value: bytes | None,
    *,
    reached: Offsets | None = None,
    constraints: Mapping[str, str] | None = None,
) -> Row:
    """Judge one record of partition 0 at offset 5, whose Kafka key is 1."""
    raw = F.lit(None).cast("binary") if value is None else F.lit(bytearray(value))
    record = spark.range(1).select(
        F.lit("t").alias("_topic"),
        F.lit(0).alias("_partition"),
        F.lit(5).cast("long").alias("_offset"),
        F.lit(0).cast("timestamp").alias("_timestamp"),
        F.lit(bytearray(b"1")).alias("_key"),
        raw.alias("_value"),
        F.lit(None).cast("string").alias("_headers"),
        F.lit(7).cast("long").alias("_digest"),
    )
    reached = reached or Offsets()
    rows = judged(record, spec, reached, constraints)
    with closing(SparkEngine(spark)) as engine:
        engine.materialize(rows)
        (row,) = engine.frame("batch").collect()
    with (
        tempfile.TemporaryDirectory() as scratch,
        closing(LocalEngine("s", Path(scratch))) as engine,
    ):
        engine.materialize(rows)
        (by_worker,) = engine.rows("SELECT * FROM batch")
    assert comparable(by_worker) == comparable(row.asDict(recursive=True))
    return row


def comparable(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row without time zones, of which Python shows Spark's as local time."""
    return {
        name: value.replace(tzinfo=None) if isinstance(value, dt.datetime) else value
        for name, value in row.items()
    }


@pytest.mark.parametrize(
    ("value", "fields", "disposition", "reason"),
    [
        (WHOLE, {}, "row", None),
        (b'{"must": "x", "at": 1}', {}, "quarantined", "missing_key"),
        (b'{"id": 1, "must": "x"}', {}, "quarantined", "missing_order"),
        (b'{"id": 1, "at": 1}', {}, "quarantined", "missing_required"),
        (WHOLE + WHOLE, {}, "quarantined", "trailing_data"),
        (b'{"id": 1, "must": "\xff", "at": 1}', {}, "quarantined", "invalid_utf8"),
        (LONG, IN_POSTGRES, "quarantined", "key_too_long"),
        (LONG, {**IN_POSTGRES, "apply_as_deletes": "at = 1"}, "quarantined", "key_too_long"),
        (LONG, {**IN_POSTGRES, "sink": "delta"}, "row", None),
        (WHOLE, {"apply_as_deletes": "must = 'x'"}, "delete", None),
        (b'{"id": 1, "at": 1}', {"apply_as_deletes": "at = 1"}, "delete", None),
        (None, {}, "quarantined", "tombstone_without_order"),
        (None, {"tombstones": "ignore"}, "ignored", None),
        (None, {"sequence_by": []}, "delete", None),
    ],
    ids=[
        "whole",
        "no key",
        "no order",
        "required is null",
        "two documents",
        "no text",
        "a key that is too long for an index",
        "a delete of one",
        "one that its sink takes",
        "deleting",
        "a delete needs no more than key and order",
        "tombstone without order",
        "ignored tombstone",
        "tombstone",
    ],
)
def test_a_record_has_one_disposition(
    spark: SparkSession,
    value: bytes | None,
    fields: dict[str, Any],
    disposition: str,
    reason: str | None,
) -> None:
    """What a record is, is said once, by the declaration and nothing else."""
    row = validated(spark, declared(**fields), value)

    assert (row["_disposition"], row["_reason"]) == (disposition, reason)
    assert (row["_value"] is not None) == (disposition == "quarantined" and value is not None)


@pytest.mark.parametrize(("next_offset", "disposition"), [(6, "overlap"), (5, "row")])
def test_what_the_table_holds_is_overlap(
    spark: SparkSession, next_offset: int, disposition: str
) -> None:
    """A record below the next offset was read before; the one at it was not."""
    reached = Offsets({TopicPartition("t", 0): next_offset})

    assert validated(spark, declared(), WHOLE, reached=reached)["_disposition"] == disposition


def test_a_time_without_a_zone_is_utc(spark: SparkSession) -> None:
    """The same record means the same moment on every machine."""
    value = b'{"id": 1, "must": "x", "at": 1, "time": "2013-01-01T05:00:00"}'

    found = validated(spark, declared(), value)["time"].astimezone(dt.UTC)

    assert found == dt.datetime(2013, 1, 1, 5, tzinfo=dt.UTC)


SOFT = {"deletes": "soft", "sequence_by": []}
KEPT = {"where": "at = 2", "on_filtered": "keep"}


@pytest.mark.parametrize(
    ("value", "fields", "constraint", "disposition", "reason"),
    [
        pytest.param(WHOLE, {}, "at > 0", "row", None, id="met"),
        pytest.param(WHOLE, {}, "at > 1 AND must = 'x'", "quarantined", UNMET, id="not met"),
        pytest.param(WHOLE, {}, "time > DATE'2020-01-01'", "quarantined", UNMET, id="null"),
        pytest.param(WHOLE, {}, "time IS NULL", "row", None, id="true of null"),
        pytest.param(
            WHOLE, {}, "must RLIKE '^y' OR hash(id) = 0", "quarantined", UNMET, id="Spark"
        ),
        pytest.param(
            b'{"id": 1, "at": 1}', {}, "at > 1", "quarantined", "missing_required", id="2"
        ),
        pytest.param(WHOLE, KEPT, "at > 1", "filtered", None, id="filtered"),
        pytest.param(WHOLE, {"apply_as_deletes": "at = 1"}, "at > 1", "delete", None, id="delete"),
        pytest.param(None, {"sequence_by": []}, "at > 1", "delete", None, id="tombstone"),
        pytest.param(None, SOFT, "at > 1", "quarantined", UNMET, id="soft tombstone"),
        pytest.param(None, SOFT, "id > 0", "delete", None, id="soft tombstone whose row meets it"),
    ],
)
def test_a_row_that_the_table_would_not_take_is_quarantined(
    spark: SparkSession,
    value: bytes | None,
    fields: dict[str, Any],
    constraint: str,
    disposition: str,
    reason: str | None,
) -> None:
    """As Delta has it, a constraint that is null is not met; a delete leaves no row to meet any."""
    asked = {"old": "id < 100", "mine": constraint}

    row = validated(spark, declared(**fields), value, constraints=asked)

    assert (row["_disposition"], row["_reason"]) == (disposition, reason)
    assert row["_detail"] == (f"mine: {constraint}" if reason == UNMET else row["_detail"])
    assert (row["_value"] is not None) == (disposition == "quarantined" and value is not None)


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"apply_as_deletes": "tag = 'gone'"},
        {"where": "sha2(coalesce(tag, ''), 256) <> ''"},
        {"where": "sha2(coalesce(tag, ''), 256) <> ''", "apply_as_deletes": "tag = 'gone'"},
    ],
    ids=["by workers", "a condition", "by Spark", "both by Spark"],
)
def test_a_bad_element_is_found_among_more_than_spark_hands_out_at_once(
    spark: SparkSession, more: dict[str, Any]
) -> None:
    """The record waits as a whole, and its bytes with it."""
    tags = [*map(str, range(1_500)), None]
    value = json.dumps({"id": 1, "at": 1, "tag": tags}).encode()
    spec = declared(
        value_schema="id INT NOT NULL, at INT, tag ARRAY<STRING>",
        schema="id INT NOT NULL, at INT, tag STRING",
        explode="tag",
        keys=["id", "tag"],
        **more,
    )

    row = validated(spark, spec, value)

    assert (row["_reason"], row["_detail"]) == ("missing_key", "element 1500: null: tag")
    assert bytes(row["_value"]) == value


@pytest.mark.parametrize("by", ["concat(coalesce(a, ''), b)", "sha2(a, 256)"])
def test_required_columns_of_a_value_are_named_that_are_null(spark: SparkSession, by: str) -> None:
    """By workers or by Spark, whatever is made of them."""
    spec = declared(
        value_schema="id INT, at INT, a STRING NOT NULL, b STRING NOT NULL",
        schema="id INT, at INT, c STRING",
        select={"c": by},
    )

    row = validated(spark, spec, b'{"id": 1, "at": 1}')

    assert (row["_reason"], row["_detail"]) == ("missing_required", "null: a, b")
