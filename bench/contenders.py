"""Oncelake and naive Spark, each in a process of its own that repeats a run in one folder each.

    python -m bench.contenders oncelake|naive STREAM FOLDER...

The first repetition starts the JVM; what each took goes to ``FOLDER/cost.json``.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any, Final

from delta.tables import DeltaTable
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from bench.cpu import cpu_seconds, repeat
from oncelake.ingestion.declaration.files.loader import find_stream
from oncelake.ingestion.declaration.spec import StreamSpec
from oncelake.ingestion.lake.ledger import LedgerRow
from oncelake.ingestion.lake.paths import StreamPaths
from oncelake.ingestion.operations.run import Run
from oncelake.ingestion.pipeline.spark.session import spark_config, start_session
from oncelake.ingestion.settings import Settings, load_settings

# Set where the table marks rows as gone.
MARKS: Final = "BENCH_DELETION_VECTORS"
# Batches of one run that are not counted: they load classes and compile.
FIRST_BATCHES: Final = 5
# What Spark needs to read Kafka and write Delta here, and nothing else of ours.
_NEEDED: Final = (
    *("spark.master", "spark.jars", "spark.driver.extraClassPath", "spark.driver.memory"),
    *("spark.ui.enabled", "spark.sql.extensions", "spark.sql.catalog.spark_catalog"),
    *("spark.local.dir", "spark.driver.host", "spark.driver.bindAddress"),
)
Note = dict[str, Any]


def oncelake(spec: StreamSpec, settings: Settings) -> Note:
    """Run a stream, with books, audit and ledger; measure its batches but for the first few."""
    marks: list[tuple[float, float, int]] = []
    batches = 0

    def start(backlog: int) -> SparkSession:
        return start_session(settings, backlog=backlog)

    def look(_: LedgerRow, lag: int) -> None:
        nonlocal batches
        batches += 1
        if batches == FIRST_BATCHES or not lag:
            jobs = start(0).sparkContext._jsc.sc().dagScheduler().numTotalJobs()
            marks.append((time.monotonic(), cpu_seconds(os.getpid()), jobs))

    run = Run(spec=spec, settings=settings, spark=start, run_id="bench", on_batch=look)
    report = run.execute()
    if not report.is_balanced or report.lag:
        raise SystemExit(f"not a result: {report}")
    note: Note = {"engine": report.engine, "batches": batches}
    if len(marks) > 1:
        counted = batches - FIRST_BATCHES
        wall, cpu, jobs = ((b - a) / counted for a, b in zip(*marks, strict=True))
        note |= {"batch_wall": wall, "batch_cpu": cpu, "batch_jobs": jobs}
    return note


def naive(spec: StreamSpec, settings: Settings) -> Note:
    """What is on every blog: foreachBatch, from_json, row_number, MERGE; Spark's own defaults."""
    builder, ours = SparkSession.builder, spark_config(settings)
    for key in (key for key in _NEEDED if key in ours):
        builder = builder.config(key, ours[key])
    spark = builder.getOrCreate()
    path, keys = str(StreamPaths.of(spec.name, settings, spec.sink).data), spec.keys

    def merge(batch: DataFrame, _: int) -> None:
        newest = Window.partitionBy(*keys).orderBy(F.desc("updated_at"), F.desc("offset"))
        rows = (
            batch.select(F.from_json(F.col("value").cast("string"), spec.ddl).alias("r"), "offset")
            .select("r.*", "offset")
            .withColumn("rank", F.row_number().over(newest))
            .where("rank = 1")
            .drop("rank", "offset")
        )
        same = " AND ".join(f"t.{key} = s.{key}" for key in keys)
        target = DeltaTable.forPath(batch.sparkSession, path)
        merged = target.alias("t").merge(rows.alias("s"), same)
        merged.whenMatchedUpdateAll().whenNotMatchedInsertAll().execute()

    schema = spark.createDataFrame([], spec.ddl).schema
    DeltaTable.createIfNotExists(spark).location(path).addColumns(schema).execute()
    records = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", settings.bootstrap_servers())
        .option("subscribe", spec.subscribed[0])
        .option("startingOffsets", "earliest")
        .load()
    )
    query = records.writeStream.foreachBatch(merge).trigger(availableNow=True)
    query.option("checkpointLocation", str(settings.state / "naive")).start().awaitTermination()
    return {}


def main(name: str, stream: str, *folders: str) -> None:
    """Repeat the runs of one contender."""
    settings = load_settings()
    spec = find_stream(settings.streams, stream)
    if os.environ.get(MARKS):
        spec = spec.model_copy(update={"deletion_vectors": True})
    contender = {"oncelake": oncelake, "naive": naive}[name]

    def run(folder: Path) -> Note:
        places = {"lake": folder / "lake", "state": folder / "state"}
        return contender(spec, settings.model_copy(update=places))

    repeat(run, folders)


if __name__ == "__main__":
    main(*sys.argv[1:])
