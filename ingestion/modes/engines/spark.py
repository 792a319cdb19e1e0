"""The engine that goes where Spark goes: its SQL, over frames."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, Final

import sqlglot
from delta.tables import DeltaTable
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from ingestion.kafka.offsets import Range
from ingestion.lake.attempts import MARKS, Attempt
from ingestion.lake.side_tables import overwrite_attempt
from ingestion.modes import sql as text
from ingestion.modes.engines.engine import marks, translate_failure
from ingestion.modes.engines.frame_cache import FrameCache
from ingestion.modes.engines.idempotent_commit import (
    retry_on_conflict,
)
from ingestion.modes.engines.rows import Rows
from ingestion.sinks.delta.durability import seal_commits
from ingestion.sinks.delta.log_files import log_files
from ingestion.storage.location import Location

# By which Spark says that a statement has failed.
_FAILURES: Final = (PySparkException, Py4JJavaError)


class SparkEngine:
    """Holds one batch in Spark; see ``ingestion.modes.engines.engine.Engine``."""

    def __init__(self, spark: SparkSession) -> None:
        """Take the query's own session; settings made elsewhere are invisible to its statements."""
        self.spark = spark
        self.frames = FrameCache()

    def materialize(self, validated: Rows) -> bool:
        """Compute a batch once: every action on foreachBatch's frame reads Kafka again."""
        self.hold(validated.in_spark())
        return False

    def parts(self, planned: Sequence[Range]) -> Iterator[Sequence[Range]]:
        """Yield the ranges of the batch, which is never too large for Spark."""
        yield planned

    def hold(self, batch: DataFrame) -> None:
        """Take a batch that is a frame already."""
        self.frames.keep(batch).createOrReplaceTempView("batch")

    def define(self, name: str, sql: str, *, keep: bool = False) -> None:
        """Give the rows of a query a name; what is not kept is computed where it is asked for."""
        frame = self.query(sql)
        with translate_failure(*_FAILURES):
            (self.frames.keep(frame) if keep else frame).createOrReplaceTempView(name)

    def open_table(self, name: str, path: Location, version: int | None = None) -> None:
        """Give a Delta table a name."""
        reader = self.spark.read.format("delta")
        if version is not None:
            reader = reader.option("versionAsOf", version)
        reader.load(str(path)).createOrReplaceTempView(name)

    def rows(self, sql: str) -> list[dict[str, Any]]:
        """Return the rows of a query."""
        with translate_failure(*_FAILURES):
            return [row.asDict(recursive=True) for row in self.query(sql).collect()]

    def columns(self, name: str) -> list[str]:
        """Return a named table's columns."""
        return self.spark.table(name).columns

    def frame(self, name: str) -> DataFrame:
        """Return a named table as a frame, for write modes that are not written in SQL."""
        return self.spark.table(name)

    def replace_attempt(
        self, sql: str, path: Location, attempt: Attempt, *, stats_on: tuple[str, ...]
    ) -> None:
        """Replace an attempt's rows, or make the table."""
        rows = self.query(sql)
        retry_on_conflict(
            lambda: overwrite_attempt(rows, path, attempt, stats_on=stats_on), stream=path.name
        )

    def mark_redriven(
        self, sql: str, quarantine: Location, attempt: Attempt, *, within: str
    ) -> None:
        """Set seq and name of the redrive."""
        records, marked = self.query(sql).alias("s"), zip(MARKS, attempt, strict=True)
        values: dict[str, str | Column] = {
            name: F.lit(value).cast("long") for name, value in marked
        }

        def mark() -> None:
            table = DeltaTable.forPath(self.spark, str(quarantine)).alias("t")
            merger = table.merge(records, translate(marks(within)))
            merger.whenMatchedUpdate(set=values).execute()

        retry_on_conflict(mark, stream=quarantine.name)
        seal_commits(quarantine)
        log_files(quarantine).forget()

    def close(self) -> None:
        """Let go of the batch."""
        self.frames.close()

    def query(self, sql: str) -> DataFrame:
        """Return the rows of a query as a frame."""
        return self.spark.sql(translate(sql))


@lru_cache(maxsize=500)
def translate(sql: str) -> str:
    """Write the common dialect as Spark's."""
    written = sqlglot.transpile(sql, read="duckdb", write="spark")[0]
    return written.replace(text.FAIL, f"RAISE_ERROR('{text.FAILED}')")
