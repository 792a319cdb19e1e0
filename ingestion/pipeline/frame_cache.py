"""Frames of a batch that are computed once: every action on them would read Kafka again."""

from __future__ import annotations

from types import TracebackType

from pyspark import StorageLevel
from pyspark.sql import DataFrame


class FrameCache:
    """Keeps frames until the batch is done; made for a ``with`` block."""

    def __init__(self) -> None:
        self._kept: list[DataFrame] = []

    def __enter__(self) -> FrameCache:
        """Begin a batch."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Let go of what was kept."""
        while self._kept:
            self._kept.pop()._jdf.queryExecution().logical().rdd().unpersist(False)

    def keep(self, frame: DataFrame) -> DataFrame:
        """Compute a frame now, and return its copy."""
        return self._keep(frame.localCheckpoint(eager=True))

    def keep_bytes(self, records: DataFrame) -> DataFrame:
        """Return a copy of raw records that the first job to read them puts on disk.

        On disk, since they are read twice and in order.
        """
        return self._keep(records.localCheckpoint(eager=False, storageLevel=StorageLevel.DISK_ONLY))

    def _keep(self, copy: DataFrame) -> DataFrame:
        self._kept.append(copy)
        return copy
