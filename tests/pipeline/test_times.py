"""Kafka's time of a record may be any number; what asks for one that no column can have is bad."""

from __future__ import annotations

import datetime as dt
import json
import tempfile
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from confluent_kafka import Message
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from oncelake.ingestion.declaration.spec import StreamSpec
from oncelake.ingestion.kafka.client import SENT, timestamp_micros_of
from oncelake.ingestion.modes.engines.local import LocalEngine
from oncelake.ingestion.operations.init.decode_sample import validate_sample
from oncelake.ingestion.operations.init.sample import SampledRecord, TopicSample
from oncelake.ingestion.operations.proof.apply_transformation import spark_transformation
from oncelake.ingestion.settings import Settings
from oncelake.ingestion.verify.fold.classify import Classifier
from oncelake.ingestion.verify.read.record import Record
from tests.support.batches import judged
from tests.support.long import twins
from tests.support.proof import find_problems
from tests.support.world import World, row, settings_in

FIRST = dt.datetime.min.replace(tzinfo=dt.UTC)
LAST = dt.datetime.max.replace(tzinfo=dt.UTC)
EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
NOW = 1_750_000_000_000
# Milliseconds, and the moment that a column has.
TIMES = {
    "now": (NOW, dt.datetime(2025, 6, 15, 15, 6, 40, tzinfo=dt.UTC)),
    "none": (-1, dt.datetime(1969, 12, 31, 23, 59, 59, 999000, tzinfo=dt.UTC)),
    "before 1970": (-2_000_000_000_000, dt.datetime(1906, 8, 16, 20, 26, 40, tzinfo=dt.UTC)),
    "first day": (-12_219_292_800_000, dt.datetime(1582, 10, 15, tzinfo=dt.UTC)),
    "day before": (-12_219_292_800_001, FIRST),
    "year 1": (-62_135_596_800_000, FIRST),
    "before year 1": (-62_135_596_800_001, FIRST),
    "year 9999": (253_370_764_800_001, dt.datetime(9999, 1, 1, 0, 0, 0, 1000, tzinfo=dt.UTC)),
    "last": (253_402_300_799_999, LAST.replace(microsecond=999_000)),
    "year 10000": (253_402_300_800_000, LAST),
    "microseconds": (NOW * 1_000, LAST),
}
BEYOND = {name for name, (_, moment) in TIMES.items() if moment in (FIRST, LAST)}
BASE = {"name": "s", "topic": "t", "schema": "id INT NOT NULL, name STRING", "keys": ["id"]}
DDL = "id INT NOT NULL, name STRING, at TIMESTAMP"
SELECTS = {"schema": DDL, "value_schema": "id INT, name STRING", "select": {"at": "_timestamp"}}
# What asks for the time, of which records, and whether also of a null value.
ASKED = {
    "order": ({"sequence_by": ["_timestamp"]}, True, True),
    "history": ({"mode": "scd2", "sequence_by": ["_timestamp"]}, True, True),
    "first wins": ({"mode": "insert_only", "sequence_by": ["_timestamp"]}, True, False),
    "offsets": ({}, False, False),
    "another order": ({"sequence_by": ["id"]}, False, False),
    "every record": ({"mode": "append", "keys": []}, False, False),
    "column": (SELECTS, True, False),
    "condition": ({"where": "_timestamp IS NOT NULL"}, True, False),
    "no condition": ({"where": "_timestamp IS NULL"}, True, False),
    "filtered": ({**SELECTS, "where": "name = 'other'"}, False, False),
    "hidden": (
        {**SELECTS, "value_schema": "id INT, name STRING, _timestamp TIMESTAMP"},
        False,
        False,
    ),
}


@pytest.mark.parametrize(("milliseconds", "moment"), TIMES.values(), ids=TIMES)
def test_a_time_that_no_column_can_have_is_the_first_or_last_moment(
    milliseconds: int, moment: dt.datetime
) -> None:
    """Any other is kept to the millisecond, by the sample of `init` and by the proof."""
    message = cast("Message", SimpleNamespace(timestamp=lambda: (1, milliseconds)))
    record = Record("t", 0, 0, milliseconds, None, None)

    assert EPOCH + dt.timedelta(microseconds=timestamp_micros_of(message)) == moment
    assert record.sent == moment
    assert record.has_time == (moment not in (FIRST, LAST))


@pytest.mark.parametrize("milliseconds", [2**63 - 1, -(2**63)])
def test_a_time_beyond_all_of_python_s_is_one_of_them_too(milliseconds: int) -> None:
    """Nanoseconds for milliseconds are no error."""
    record = Record("t", 0, 0, milliseconds, None, None)

    assert record.sent == (LAST if milliseconds > 0 else FIRST)


@pytest.mark.parametrize("name", ["order", "history", "first wins", "offsets", "every record"])
def test_engine_and_proof_find_a_time_bad_without_spark(name: str) -> None:
    """Where records are ordered by it, one that is no moment is of no use, and is kept whole."""
    fields, is_asked, _ = ASKED[name]
    spec = StreamSpec.model_validate(BASE | fields)
    given = [(at, *time) for at, time in enumerate(TIMES.values())]
    records = [Record("t", 0, at, ms, b"k", b'{"id": 1}') for at, ms, _ in given]
    sampled = tuple(
        SampledRecord(0, at, (moment - EPOCH) // dt.timedelta(microseconds=1), b"k", each.value, ())
        for each, (at, _, moment) in zip(records, given, strict=True)
    )
    sample = TopicSample(topic="t", partitions=1, ranges=(), records=sampled)

    found = validate_sample(sample, spec, Settings(kafka="nowhere:1"))
    proven = Classifier(spec).classify(records, seq=1)

    bad = {at for at, name in enumerate(TIMES) if name in BEYOND} if is_asked else set()
    kept = {row["_offset"]: row["_key"] for row in found if row["_reason"] == "bad_time"}
    assert kept == dict.fromkeys(bad, b"k")
    assert {record.offset for record, _ in proven.bad} == bad


@pytest.mark.spark
@pytest.mark.parametrize(("fields", "of_values", "of_nulls"), ASKED.values(), ids=ASKED)
def test_only_what_asks_for_the_time_finds_it_bad(
    spark: SparkSession, tmp_path: Path, fields: dict[str, Any], of_values: bool, of_nulls: bool
) -> None:
    """Engine and proof agree on each record, and on the moment that its row has."""
    spec = StreamSpec.model_validate(BASE | fields)
    raw = [
        (at, ms, value)
        for at, (ms, _) in enumerate(TIMES.values())
        for value in (b'{"id": 1, "name": "x"}', None)
    ]

    found = engine_says(spark, spec, raw)

    moments, names = [moment for _, moment in TIMES.values()], [*TIMES]
    bad = {
        (at, value is None)
        for at, _, value in raw
        if names[at] in BEYOND and (of_values if value else of_nulls)
    }
    assert {
        (row["_partition"], row["_value_is_null"]) for row in found if row["_reason"] == "bad_time"
    } == bad
    kept = {(row["_detail"], row["key"]) for row in found if row["_reason"] == "bad_time"}
    assert kept == ({("_timestamp", "1")} if bad else set())
    assert [moments[row["_partition"]] for row in found] == [row["_timestamp"] for row in found]
    records = [Record("t", at, int(value is None), ms, b"1", value) for at, ms, value in raw]
    settings = settings_in(tmp_path, "nowhere:1")
    classifier = Classifier(spec, settings=settings, apply=spark_transformation)
    proven = classifier.classify(records, seq=1)
    assert {(each.partition, each.value is None) for each, _ in proven.bad} == {
        (row["_partition"], row["_value_is_null"])
        for row in found
        if row["_disposition"] == "quarantined"
    }
    assert proven.counts["filtered"] == sum(row["_disposition"] == "filtered" for row in found)


def engine_says(
    spark: SparkSession, spec: StreamSpec, raw: list[tuple[int, int, bytes | None]]
) -> list[dict[str, Any]]:
    """Judge records, of a partition each, whose times are as Spark reads them from Kafka."""
    ddl = "_topic STRING, _partition INT, _offset BIGINT, ms BIGINT, _key BINARY, _value BINARY, "
    ddl += "_headers ARRAY<STRUCT<key: STRING, value: BINARY>>, _digest BIGINT"
    rows = [("t", at, int(value is None), ms, b"1", value, None, 7) for at, ms, value in raw]
    read = spark.createDataFrame(rows, ddl).withColumn("timestamp", F.timestamp_millis("ms"))
    records = read.withColumn("_timestamp", F.expr(SENT)).drop("ms", "timestamp")
    with (
        tempfile.TemporaryDirectory() as scratch,
        closing(LocalEngine("s", Path(scratch))) as engine,
    ):
        engine.materialize(judged(records, spec))
        return engine.rows(
            "SELECT _partition, _offset = 1 AS _value_is_null, _timestamp, _disposition, _reason, "
            "_detail, CAST(_key AS VARCHAR) AS key FROM batch ORDER BY ALL"
        )


def send_at(world: World, *records: tuple[int, dict[str, Any] | None]) -> None:
    """Send records, each at its time, keyed by 1."""
    for milliseconds, value in records:
        raw = None if value is None else json.dumps(value)
        world.producer.produce(world.topic, raw, key=b"1", partition=0, timestamp=milliseconds)
    assert world.producer.flush(30) == 0


@pytest.mark.kafka
@pytest.mark.parametrize("engine", ["local", *twins("spark")])
def test_a_time_beyond_orders_nothing_and_waits_to_be_redriven(world: World, engine: str) -> None:
    """The newest moment wins, one of the last year included; without an order all is applied."""
    world.settings = world.settings.model_copy(
        update={"merge_engine": "spark" if engine == "spark" else "auto"}
    )
    world.delete_topic()
    world.create_topic(**{"message.timestamp.after.max.ms": str(2**63 - 1), "retention.ms": "-1"})
    world.declare(mode="scd2", sequence_by=["_timestamp"])
    last, before = 253_402_300_799_999, -12_219_292_800_001
    send_at(world, (last, row(1, "last")), (NOW * 1_000, row(1, "beyond")), (-1, row(1, "first")))
    world.run()
    send_at(world, (before, row(1, "before")), (last - 1, row(1, "late")), (NOW * 1_000, None))
    world.run()

    batches = world.paths.table.scan(["name", "valid_from", "valid_to"])
    versions = {tuple(each.values()) for batch in batches for each in batch.to_pylist()}
    ends = [TIMES["none"][1], LAST.replace(microsecond=998_000), TIMES["last"][1], None]
    names = ("first", "late", "last")
    assert versions == set(zip(names, ends, ends[1:], strict=False))
    bad = {(each["_offset"], each["reason"], each["_timestamp"]) for each in world.quarantined()}
    assert bad == {(1, "bad_time", LAST), (3, "bad_time", FIRST), (5, "bad_time", LAST)}
    assert find_problems(world) == ()

    world.declare(mode="append", keys=[], sequence_by=[], tombstones="ignore")
    world.rebuild()

    kept = world.paths.table.scan(["name", "_timestamp"])
    rows = {each["name"]: each["_timestamp"] for batch in kept for each in batch.to_pylist()}
    assert (rows["beyond"], rows["before"]) == (LAST, FIRST)
    assert find_problems(world) == ()


@pytest.mark.spark
def test_what_waits_for_its_time_is_applied_once_nothing_asks_for_it(world: World) -> None:
    """A redrive knows a time that no column can have by the moment that is kept of it."""
    world.delete_topic()
    world.create_topic(**{"message.timestamp.after.max.ms": str(2**63 - 1)})
    world.declare(where="_timestamp >= '1970-01-01'")
    send_at(world, (NOW * 1_000, row(1, "a")), (NOW, row(2, "b")), (-1, row(3, "c")))
    world.run()
    waited = world.redrive()
    world.declare(where="id < 3")

    redriven = world.redrive()

    assert (waited.total("inserted"), redriven.total("inserted")) == (0, 1)
    assert [each["id"] for each in world.rows()] == [1, 2]
    assert find_problems(world) == ()
