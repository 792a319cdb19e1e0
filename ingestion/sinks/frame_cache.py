"""Frames of a batch that are computed once: every action on them would read Kafka again."""

from __future__ import annotations

from pyspark import StorageLevel
from pyspark.sql import DataFrame


class FrameCache:
    """Keeps frames until the batch is done."""

    def __init__(self) -> None:
        self._kept: list[DataFrame] = []

    def keep(self, frame: DataFrame) -> DataFrame:
        """Compute a frame now, and return its copy."""
        return self._keep(frame.localCheckpoint(eager=True))

    def keep_bytes(self, records: DataFrame) -> DataFrame:
        """Return a copy of raw records that the first job to read them puts on disk.

        On disk, since they are read twice and in order.
        """
        return self._keep(records.localCheckpoint(eager=False, storageLevel=StorageLevel.DISK_ONLY))

    def close(self) -> None:
        """Let go of what was kept."""
        while self._kept:
            self._kept.pop()._jdf.queryExecution().logical().rdd().unpersist(False)

    def _keep(self, copy: DataFrame) -> DataFrame:
        self._kept.append(copy)
        return copy
