"""Batches that must be looked at before they are decoded, read from Kafka once all the same."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pyspark import StorageLevel
from pyspark.sql import DataFrame

from ingestion.declaration.spec import StreamSpec


@contextmanager
def cached_bytes(records: DataFrame, spec: StreamSpec) -> Iterator[DataFrame]:
    """Hold a batch's bytes while the block runs, where a schema registry must be asked about them.

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
