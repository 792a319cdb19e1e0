"""The engine that goes where Spark goes: its SQL, over frames."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, Final

import sqlglot
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from sqlglot import exp

from oncelake.ingestion.kafka.offsets import Range
from oncelake.ingestion.modes import sql as text
from oncelake.ingestion.modes.engines.engine import translate_failure
from oncelake.ingestion.modes.engines.frame_cache import FrameCache
from oncelake.ingestion.modes.engines.rows import Rows
from oncelake.ingestion.storage.location import Location

# By which Spark says that a statement has failed.
_FAILURES: Final = (PySparkException, Py4JJavaError)
# Whether Hadoop puts a file without content beside those that it has written.
_MARKER: Final = "mapreduce.fileoutputcommitter.marksuccessfuljobs"


class SparkEngine:
    """Holds one batch in Spark; see ``ingestion.modes.engines.engine.Engine``."""

    def __init__(self, spark: SparkSession) -> None:
        """Take the query's own session; settings made elsewhere are invisible to its statements."""
        self.spark = spark
        self.frames = FrameCache()

    def materialize(self, validated: Rows) -> bool:
        """Compute a batch once: every action on foreachBatch's frame reads Kafka again."""
        validated.frame().createOrReplaceTempView("decoded")
        self.hold(self.query(validated.sql))
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
        """Return a named table as a frame, which Delta's writer takes."""
        return self.spark.table(name)

    def write_parquet(self, sql: str, file: Location) -> None:
        """Write a folder by one task, whose file takes the name that is asked for."""
        folder = file.with_name(file.name.removesuffix(".parquet"))
        writer = self.query(sql).coalesce(1).write.option(_MARKER, "false")
        writer.parquet(str(folder))
        (part,) = (name for name in folder.files() if name.endswith(".parquet"))
        (folder / part).rename_to(file)
        folder.delete_all()

    def close(self) -> None:
        """Let go of the batch."""
        self.frames.close()

    def query(self, sql: str) -> DataFrame:
        """Return the rows of a query as a frame."""
        return self.spark.sql(translate(sql))


@lru_cache(maxsize=500)
def translate(sql: str) -> str:
    """Write the common dialect as Spark's."""
    statement = sqlglot.parse_one(sql, read="duckdb")
    for type_ in statement.find_all(exp.DataType):
        if type_.this == exp.DataType.Type.INT128:
            # It has none, and its widest DECIMAL holds as many digits.
            type_.replace(exp.DataType.build("DECIMAL(38, 0)"))
    return statement.sql("spark").replace(text.FAIL, f"RAISE_ERROR('{text.FAILED}')")
