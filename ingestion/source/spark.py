"""Kafka as a DataFrame: the only place that says ``format("kafka")``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from oncelake.ingestion.declaration.spec import StreamSpec
from oncelake.ingestion.kafka.client import SENT
from oncelake.ingestion.kafka.offsets import Offsets, Range
from oncelake.ingestion.kafka.security import java_options
from oncelake.ingestion.modes.engines.rows import RECORDS
from oncelake.ingestion.settings import Settings

# So many are decoded sooner than a second pair of Python workers would have started.
ONE_TASK_RECORDS: Final = 10_000


def read_stream(
    spark: SparkSession, spec: StreamSpec, settings: Settings, *, starting: Offsets, lag: int
) -> DataFrame:
    """Return the stream's records from ``starting`` on, one row a record, undecoded.

    Args:
        spark: The session that will run the query.
        settings: Where Kafka is, and how to talk to it.
        starting: The offset to begin at, of *every* partition: Spark begins one that is not
            named at its earliest, and fails on one that does not exist.
        lag: How many offsets there are to read; a few are read by one task.

    Returns:
        ``_topic, _partition, _offset, _timestamp, _key, _value, _headers, _digest``.
    """
    options = {
        "subscribe": ",".join(spec.subscribed),
        "startingOffsets": starting.to_json(),
        "maxOffsetsPerTrigger": str(spec.max_offsets_per_trigger),
    }
    read = spark.readStream.format("kafka").options(**options, **_of_every_read(settings))
    return _as_records(read.load(), min(lag, spec.max_offsets_per_trigger))


def read_ranges(spark: SparkSession, settings: Settings, ranges: Sequence[Range]) -> DataFrame:
    """Return the records of some ranges, of partitions that differ, as ``read_stream`` does."""
    partitions: dict[str, list[int]] = {}
    for part in ranges:
        partitions.setdefault(part.topic, []).append(part.partition)
    options = {
        "assign": json.dumps(partitions),
        "startingOffsets": Offsets({r.topic_partition: r.start for r in ranges}).to_json(),
        "endingOffsets": Offsets({r.topic_partition: r.end for r in ranges}).to_json(),
    }
    read = spark.read.format("kafka").options(**options, **_of_every_read(settings))
    return _as_records(read.load(), sum(map(len, ranges)))


def _of_every_read(settings: Settings) -> dict[str, str]:
    return {
        "kafka.bootstrap.servers": settings.bootstrap_servers(),
        "failOnDataLoss": "true",
        "includeHeaders": "true",
        # Spark's default delivers what a transaction has aborted.
        "kafka.isolation.level": "read_committed",
        "kafka.max.poll.records": "5000",
        "kafka.max.partition.fetch.bytes": "8388608",
        # What is asked for is there. A fetch beyond it, which the consumer sends ahead, keeps its
        # connection waiting, and Spark asks for a partition's ends on it after every fetch: half a
        # second each by default, one partition after the other.
        "kafka.fetch.max.wait.ms": "10",
        **_patience(settings),
        **java_options(settings),
    }


def _as_records(read: DataFrame, count: int) -> DataFrame:
    digest = F.xxhash64("key", "value", "headers")
    records = read.withColumns({"timestamp": F.expr(SENT), "digest": digest}).select(
        *(F.col(name.removeprefix("_")).alias(name) for name in RECORDS.names)
    )
    return records.coalesce(1) if count <= ONE_TASK_RECORDS else records


def _patience(settings: Settings) -> dict[str, str]:
    """Bound every wait by the one setting.

    Left alone, Spark asks for offsets three times for a minute each, and a task waits two minutes
    for a record, then a minute more to learn where the partition ends.
    """
    milliseconds = str(int(settings.kafka_timeout_seconds * 1000))
    return {
        "kafkaConsumer.pollTimeoutMs": milliseconds,
        "kafka.request.timeout.ms": milliseconds,
        "kafka.default.api.timeout.ms": milliseconds,
        "fetchOffset.numRetries": "1",
    }
