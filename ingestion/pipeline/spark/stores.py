"""Spark's settings for a lake on S3: a file system, commits that overwrite none, bounded waits.

No setting holds a secret: the JVM reads the same variables of the environment as delta-rs does.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession

from oncelake.ingestion.declaration.ddl import DeclaredColumn
from oncelake.ingestion.delta.features import unwritable_features
from oncelake.ingestion.delta.files import endpoint_of_s3, open_rows, read_delta
from oncelake.ingestion.errors import SetupError
from oncelake.ingestion.lake.paths import StreamPaths
from oncelake.ingestion.local.jars import store_jars
from oncelake.ingestion.pipeline.schema.types import frame_of
from oncelake.ingestion.settings import Settings
from oncelake.ingestion.storage.location import Location

_APPENDED: Final = "SPARK_DIST_CLASSPATH"
# Rows that this process hands to the JVM at most.
_FEW_BYTES: Final = 32 * 1024 * 1024
_ALWAYS: Final[Mapping[str, str]] = {
    # Delta's own decides between the commits of one JVM; this one lets S3 decide between all.
    "spark.delta.logStore.s3.impl": "oncelake.ConditionalLogStore",
    "spark.hadoop.fs.s3.impl": "oncelake.FolderlessS3",
    # Spark copies keys from the driver's environment to where the first two look, executors too;
    # the last looks where AWS's own tools do.
    "spark.hadoop.fs.s3a.aws.credentials.provider": (
        "org.apache.hadoop.fs.s3a.TemporaryAWSCredentialsProvider,"
        "org.apache.hadoop.fs.s3a.SimpleAWSCredentialsProvider,"
        "software.amazon.awssdk.auth.credentials.DefaultCredentialsProvider"
    ),
    # New files have new names, which nobody needs to look for before.
    "spark.hadoop.fs.s3a.performance.flags": "create,mkdir",
    # Delta renames the checksum of a version into its place, by 21 requests; no reader needs it.
    "spark.databricks.delta.writeChecksumFile.enabled": "false",
    # By default a store that does not answer is waited for, for as long as an hour. These are the
    # wait for one request, for the upload of at most 128 MB, and the number of attempts.
    "spark.hadoop.fs.s3a.connection.request.timeout": "30s",
    "spark.hadoop.fs.s3a.connection.timeout": "30s",
    "spark.hadoop.fs.s3a.connection.establish.timeout": "15s",
    "spark.hadoop.fs.s3a.connection.part.upload.timeout": "120s",
    "spark.hadoop.fs.s3a.retry.limit": "3",
    "spark.hadoop.fs.s3a.retry.throttle.limit": "3",
}


def is_on_s3(lake: Path | str) -> bool:
    """Tell whether the lake is on S3, or in what speaks as S3 does."""
    return str(lake).startswith("s3://")


def refuse_missing_jars(settings: Settings, obstacle: str | None) -> None:
    """Refuse to let Spark write what it cannot reach.

    Args:
        settings: Where the lake and the jars are.
        obstacle: Why the engine ``local`` does not write; ``None`` where Spark was asked for.

    Raises:
        SetupError: the lake is on S3, and the jars for it are not there.
    """
    if is_on_s3(settings.lake) and not store_jars(settings.jars):
        why = obstacle or "it is told to"
        raise SetupError(
            f"Spark is to write to {settings.lake} ({why}), and has no jars for S3 in "
            f"{settings.jars / 's3'}. Next: oncelake jars --s3 (in a clone: make setup-s3)"
        )


def read_table(
    spark: SparkSession,
    table: Location,
    settings: Settings,
    *,
    version: int | None = None,
    within: pc.Expression | None = None,
) -> DataFrame:
    """Return a table's rows as a frame, at a version or at the newest.

    Where Spark has no jars for the store, the rows come by way of this process: those ``within``.
    """
    if is_on_s3(settings.lake) and not store_jars(settings.jars):
        return frame_of(spark, open_rows(table, version).to_table(filter=within))
    reader = spark.read.format("delta")
    if version is not None:
        reader = reader.option("versionAsOf", version)
    return reader.load(str(table))


def read_rows(
    spark: SparkSession,
    paths: StreamPaths,
    settings: Settings,
    *,
    version: int,
    since_seq: int,
) -> DataFrame:
    """Return the rows that a batch or a later one has written, as a frame, whatever keeps them.

    Few rows of a Delta table come by way of this process, too: Spark would read its log first.
    """
    columns, is_delta = paths.table.columns(), paths.sink.name == "delta"
    if is_delta and _is_sparks(paths.data, columns):
        return _rows_by_spark(spark, paths.data, settings, version, since_seq)
    names = [column.name for column in columns]
    batches, size = list[pa.RecordBatch](), 0
    for batch in paths.table.scan(names, version, since_seq=since_seq):
        batches.append(batch)
        size += batch.nbytes
        if is_delta and size > _FEW_BYTES:
            return _rows_by_spark(spark, paths.data, settings, version, since_seq)
    nothing = pa.table({name: pa.nulls(0) for name in names})
    return frame_of(spark, pa.Table.from_batches(batches) if batches else nothing)


def _is_sparks(table: Location, columns: Iterable[DeclaredColumn]) -> bool:
    """Tell whether a Delta table has what Arrow reads as something else, or not at all."""
    words = {part.word for column in columns for part in column.type.walk()}
    return "VARIANT" in words or bool(unwritable_features(read_delta(table)))


def _rows_by_spark(
    spark: SparkSession, table: Location, settings: Settings, version: int, since_seq: int
) -> DataFrame:
    within = pc.field("_seq") >= since_seq
    frame = read_table(spark, table, settings, version=version, within=within)
    return frame.where(frame["_seq"] >= since_seq)


def append_store_jars(settings: Settings) -> None:
    """Let a JVM that is started from here find the jars for S3, where they are needed and there.

    They come last on its class path: so Java can still start from the archive of classes, which
    was made without them.
    """
    if is_on_s3(settings.lake):
        jars = [str(jar) for jar in store_jars(settings.jars)]
        others = [each for each in os.environ.get(_APPENDED, "").split(":") if each not in jars]
        os.environ[_APPENDED] = ":".join(filter(None, [*others, *jars]))


def store_config(settings: Settings, scratch: Path) -> dict[str, str]:
    """Return the settings of Spark for a lake on S3; none for another.

    Args:
        settings: Where the lake is.
        scratch: Where a file is kept until it is uploaded.
    """
    if not is_on_s3(settings.lake):
        return {}
    endpoint, region = endpoint_of_s3(os.environ)
    by_host = os.environ.get("AWS_VIRTUAL_HOSTED_STYLE_REQUEST", "").lower() == "true"
    found = {
        "endpoint": endpoint,
        "endpoint.region": region or (endpoint and "us-east-1"),
        "path.style.access": "true" if endpoint and not by_host else None,
        # Executors have a folder of their own.
        "buffer.dir": None if settings.on_cluster else f"{scratch}/s3a",
    }
    return {
        **_ALWAYS,
        **{f"spark.hadoop.fs.s3a.{name}": value for name, value in found.items() if value},
    }
