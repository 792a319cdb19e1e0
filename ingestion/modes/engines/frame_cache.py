"""Frames of a batch that are computed once: every action on them would read Kafka again."""

from __future__ import annotations

import datetime as dt
import re
from typing import Any, Final

import pyarrow as pa
from pyspark import SparkContext, StorageLevel
from pyspark.sql import DataFrame

from oncelake.ingestion.modes.engines.rows import Records

# Where copies lie that must outlive an executor: a folder of a store or of a shared file system.
COPIES: Final = "spark.oncelake.copies"
_DAY: Final = re.compile(r"\d{4}-\d\d-\d\d")
_LONGEST_BATCH: Final = dt.timedelta(days=3)


class FrameCache:
    """Keeps frames until the batch is done.

    On one machine Spark's blocks hold them. On a cluster these die with their executor, and could
    only be computed by reading Kafka again, which may have deleted the records meanwhile; so there
    a copy is written where every executor reaches it.
    """

    def __init__(self) -> None:
        self._kept: list[DataFrame] = []

    def keep(self, frame: DataFrame) -> DataFrame:
        """Compute a frame now, and return its copy."""
        context = frame.sparkSession.sparkContext
        if is_local(context):
            return self._keep(frame.localCheckpoint(eager=True))
        _choose_folder(context)
        return self._keep(frame.checkpoint(eager=True))

    def keep_bytes(self, records: Records) -> Records:
        """Return a copy of raw records that, on one machine, the first job to read them makes.

        It is on disk, since they are read twice and in order. A table is its own copy.
        """
        if isinstance(records, pa.Table):
            return records
        if not is_local(records.sparkSession.sparkContext):
            return self.keep(records)
        return self._keep(records.localCheckpoint(eager=False, storageLevel=StorageLevel.DISK_ONLY))

    def close(self) -> None:
        """Let go of what was kept."""
        while self._kept:
            copy = self._kept.pop()
            rdd = copy._jdf.queryExecution().logical().rdd()
            written = rdd.getCheckpointFile()
            if written.isDefined():
                files, folder = _hadoop(copy.sparkSession.sparkContext, written.get())
                files.delete(folder, True)
            else:
                rdd.unpersist(False)

    def _keep(self, copy: DataFrame) -> DataFrame:
        self._kept.append(copy)
        return copy


def _hadoop(context: SparkContext, folder: str) -> tuple[Any, Any]:
    """Return the file system that a folder is in, a store or not, and the folder there."""
    jvm, jvm_context = context._jvm, context._jsc
    assert jvm is not None
    assert jvm_context is not None
    path: Any = jvm.org.apache.hadoop.fs.Path(folder)
    return path.getFileSystem(jvm_context.hadoopConfiguration()), path


def is_local(context: SparkContext) -> bool:
    """Tell whether tasks run in the driver's own process, and not on a cluster."""
    return (context.master or "").startswith("local")


def _choose_folder(context: SparkContext) -> None:
    """Let Spark write to a folder of today, and delete what runs that were killed left behind.

    No host can tell whether a run of another host is alive; but no batch takes so many days.
    """
    today = dt.datetime.now(dt.UTC).date()
    # To the folder, Spark adds a name of its own.
    if str(today) in (context.getCheckpointDir() or "").split("/")[-2:]:
        return
    parent = context.getConf().get(COPIES)
    context.setCheckpointDir(f"{parent}/{today}")
    files, folder = _hadoop(context, str(parent))
    for path in (each.getPath() for each in files.listStatus(folder)):
        if _DAY.fullmatch(path.getName()) and path.getName() < str(today - _LONGEST_BATCH):
            files.delete(path, True)
