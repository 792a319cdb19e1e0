"""A batch's frames, computed once: Kafka would be read again by every action on them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from pyspark import StorageLevel
from pyspark.sql import DataFrame

from ingestion.declaration.spec import StreamSpec

Materialize = Callable[[DataFrame], DataFrame]


@contextmanager
def cached_bytes(records: DataFrame, spec: StreamSpec) -> Iterator[DataFrame]:
    """Cache raw bytes while the block runs, where schema ids must be known before decoding.

    On disk, since they are read twice and in order; the first look, which is one job, puts them
    there. Other formats are passed as they are.
    """
    if not (spec.format.options.uses_registry or spec.key_format.options.uses_registry):
        yield records
        return
    raw = records.localCheckpoint(eager=False, storageLevel=StorageLevel.DISK_ONLY)
    try:
        yield raw
    finally:
        raw._jdf.queryExecution().logical().rdd().unpersist(False)


@contextmanager
def materialized(validated: DataFrame) -> Iterator[DataFrame]:
    """Compute a batch once, and keep it while the block runs.

    Every action on the frame that foreachBatch hands over reads Kafka again.
    """
    copy = validated.localCheckpoint(eager=True)
    try:
        yield copy
    finally:
        copy._jdf.queryExecution().logical().rdd().unpersist(False)


@contextmanager
def materializing() -> Iterator[Materialize]:
    """Give out a function that computes frames once and keeps them while the block runs."""
    with ExitStack() as stack:
        yield lambda frame: stack.enter_context(materialized(frame))
