"""One contender in a process of its own: a warm JVM that loads a topic each time it is told to.

    python -m bench.contender oncelake|naive TOPIC

Reads one line a round on stdin; answers each with a JSON line: rows, wall and CPU seconds.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import dagster as dg
from delta.tables import DeltaTable
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from assets.checks import check_results
from assets.evidence import gather
from bench.cpu import cpu_seconds
from ingestion.declaration.loader import DeclaredStream, load_stream
from ingestion.declaration.spec import StreamSpec
from ingestion.operations.run import Run
from ingestion.pipeline.session import spark_config, start_session
from ingestion.settings import Settings, load_settings
from resources.spark import SparkResource

STREAM = Path(__file__).parent / "flights.yaml"


def oncelake(spec: StreamSpec, settings: Settings) -> Callable[[], int]:
    """Our run: books, ledger and audit included, and the checks that Dagster shows."""
    spark = start_session(settings)
    declared = DeclaredStream(name=spec.name, path=STREAM, spec=spec, error=None)
    resource = cast("SparkResource", SimpleNamespace(spark_session=spark))
    instance = dg.DagsterInstance.ephemeral()

    def load() -> int:
        report = Run(spec=spec, settings=settings, spark=lambda _: spark, run_id="bench").execute()
        if not report.is_balanced or report.lag:
            raise SystemExit(f"not a result: {report}")
        evidence = gather(declared, settings, resource, report, instance)
        if not all(check.passed for check in check_results(evidence)):
            raise SystemExit(f"a check failed: {report}")
        return report.row_count

    return load


def naive(spec: StreamSpec, settings: Settings) -> Callable[[], int]:
    """What is on every blog: foreachBatch, from_json, row_number, MERGE; Spark's own defaults."""
    spark = _default_session(settings)
    path, checkpoint = str(settings.lake / "naive"), str(settings.state / "naive")
    keys = list(spec.keys)

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

    def load() -> int:
        DeltaTable.createIfNotExists(spark).location(path).addColumns(
            spark.createDataFrame([], spec.ddl).schema
        ).execute()
        source = spark.readStream.format("kafka").option(
            "kafka.bootstrap.servers", settings.bootstrap_servers()
        )
        records = source.option("subscribe", spec.subscribed[0]).option(
            "startingOffsets", "earliest"
        )
        stream = records.load().writeStream.foreachBatch(merge)
        stream.option("checkpointLocation", checkpoint).trigger(
            availableNow=True
        ).start().awaitTermination()
        return DeltaTable.forPath(spark, path).toDF().count()

    return load


def _default_session(settings: Settings) -> SparkSession:
    """Start Spark with what it needs to read Kafka and write Delta, and nothing else of ours."""
    needed = (
        "spark.master",
        "spark.jars",
        "spark.driver.extraClassPath",
        "spark.driver.memory",
        "spark.ui.enabled",
        "spark.sql.extensions",
        "spark.sql.catalog.spark_catalog",
        "spark.local.dir",
    )
    ours = spark_config(settings)
    builder = SparkSession.builder
    for key in (key for key in needed if key in ours):
        builder = builder.config(key, ours[key])
    return builder.getOrCreate()


def main(name: str, topic: str) -> None:
    """Answer each line on stdin with one measured load into an empty lake."""
    settings = load_settings()
    spec = load_stream(STREAM).model_copy(update={"topic": topic})
    contenders: dict[str, Callable[[StreamSpec, Settings], Callable[[], int]]]
    contenders = {"oncelake": oncelake, "naive": naive}
    load = contenders[name](spec, settings)
    for _ in sys.stdin:
        for folder in (settings.lake, settings.state / "checkpoints", settings.state / "naive"):
            shutil.rmtree(folder, ignore_errors=True)
        wall, cpu = time.monotonic(), cpu_seconds(os.getpid())
        rows = load()
        _answer(rows=rows, wall=time.monotonic() - wall, cpu=cpu_seconds(os.getpid()) - cpu)


def _answer(**measured: Any) -> None:
    print(json.dumps(measured), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
