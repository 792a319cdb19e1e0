"""Writes a batch to a Delta table by Spark: Delta's MERGE carries out what was decided.

The decision is made on the version before the batch. What somebody else changes in between is their
commit, and makes the batch red.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from functools import cached_property, reduce
from operator import and_
from typing import Any, Final

from delta.tables import DeltaTable
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from oncelake.ingestion.declaration.sql import quoted
from oncelake.ingestion.delta.description import partitions_in
from oncelake.ingestion.delta.files import read_delta
from oncelake.ingestion.delta.log import DeltaLog
from oncelake.ingestion.delta.partitions import (
    StoredPartition,
    computed,
    taken_for_null,
    unnamed_partition,
)
from oncelake.ingestion.modes import sql
from oncelake.ingestion.modes.engines.engine import Decision
from oncelake.ingestion.modes.engines.idempotent_commit import (
    append_rows,
    from_materialized,
    idempotent,
    retry_on_conflict,
)
from oncelake.ingestion.modes.engines.spark import SparkEngine, translate
from oncelake.ingestion.storage.location import Location
from oncelake.ingestion.tables.commit_metadata import CommitMetadata

# What comes from foreachBatch has no known size: without a hint Spark broadcasts the table's key
# columns instead, or sorts both sides.
_BROADCAST_BYTES: Final = 32 * 1024 * 1024
# In fewer files there is little to skip, and literals that change with every batch make Spark
# compile the join anew.
_PRUNE_FROM_FILES: Final = 16
# What Spark calls the folder of rows whose partition is null.
_NULL_FOLDER: Final = "__HIVE_DEFAULT_PARTITION__"


class SparkWriter:
    """Writes to a Delta table by Spark's own commits; see ``TableWriter``."""

    def __init__(self, engine: SparkEngine, stream: str, path: Location, version: int) -> None:
        """Take the version that the batch is measured against."""
        self._engine, self._spark = engine, engine.spark
        self._stream, self._path, self._version = stream, path, version

    @cached_property
    def _before(self) -> DataFrame:
        """The version before the batch."""
        self._engine.open_table("table_before", self._path, self._version)
        return self._engine.frame("table_before")

    @property
    def columns(self) -> Sequence[str]:
        """Ask the version before the batch; Delta computes what only partitions it."""
        without = computed(self._partitions)
        return [name for name in self._before.columns if name not in without]

    @cached_property
    def _partitions(self) -> list[StoredPartition]:
        return partitions_in(read_delta(self._path, self._version))

    def open_before(
        self, keys: str, *, columns: Sequence[str] | None = None, size_bytes: int = 0
    ) -> None:
        """Join the version before the batch with the keys; Spark reads what is asked for."""
        del columns
        wanted = self._engine.query(keys)
        same = F.expr(translate(sql.equal(wanted.columns, "t", "k")))
        if size_bytes < _BROADCAST_BYTES:
            wanted = F.broadcast(wanted)
        rows = self._before.alias("t").join(wanted.alias("k"), same, "left_semi")
        rows.createOrReplaceTempView("before")

    def commit(self, decision: Decision, metadata: CommitMetadata) -> None:
        """Let Delta merge the rows, or append them where rows are only added."""
        if not decision.count(decision.changes):
            rows = self._spark.read.format("delta").load(str(self._path)).where(F.lit(False))
        else:
            is_change = _is_any_of("_what", decision.changes)
            rows = self._engine.frame("decided").where(is_change)
            is_written = _is_any_of("_what", (*decision.inserted, *decision.updated))
            self._refuse_nulls(rows.where(is_written))
            if decision.keys:
                return self._merge(rows, decision, metadata)
            rows = rows.select(*map(quoted, self.columns))
        append_rows(rows, self._stream, self._path, metadata)

    def _refuse_nulls(self, rows: DataFrame) -> None:
        """Make sure that Delta takes no text of a partition for NULL, which it says nothing of."""
        texts = {name for name, type_ in rows.dtypes if type_ == "string"}
        for name in (each.name for each in self._partitions if each.name in texts):
            if rows.where(F.col(quoted(name)).isin("", _NULL_FOLDER)).limit(1).count():
                error = taken_for_null(name, f"an empty text, or {_NULL_FOLDER}")
                raise unnamed_partition(self._stream, error)

    def close(self) -> None:
        """Do nothing: what is not committed is nowhere."""

    def _merge(self, rows: DataFrame, decision: Decision, metadata: CommitMetadata) -> None:
        is_small = decision.size_bytes < _BROADCAST_BYTES
        source = (F.broadcast(rows) if is_small else rows.hint("shuffle_hash")).alias("s")
        values: dict[str, str | Column] = {
            quoted(name): F.col(f"s.{quoted(name)}") for name in self.columns
        }
        deleted, updated, inserted = (
            _is_any_of("s._what", each)
            for each in (decision.deleted, decision.updated, decision.inserted)
        )

        def execute() -> None:
            table = DeltaTable.forPath(self._spark, str(self._path)).alias("t")
            merger = table.merge(source, self._on(decision))
            if decision.count(decision.deleted):
                merger = merger.whenMatchedDelete(deleted)
            if decision.count(decision.updated):
                merger = merger.whenMatchedUpdate(updated, values)
            merger = merger.whenNotMatchedInsert(inserted, values)
            with idempotent(self._spark, self._stream, metadata):
                merger.execute()

        with from_materialized(self._spark):
            retry_on_conflict(execute, stream=self._stream)

    def _on(self, decision: Decision) -> Column:
        """Equal keys, and in a table of many files the literal ranges that prune them."""
        on = F.expr(translate(sql.equal(decision.keys, "t", "s")))
        if not decision.key_ranges or DeltaLog(self._path).file_count() < _PRUNE_FROM_FILES:
            return on
        within = (
            F.col(f"t.{quoted(name)}").between(_literal(low), _literal(high))
            for name, (low, high) in decision.key_ranges.items()
        )
        return reduce(and_, within, on)


def _is_any_of(column: str, dispositions: Sequence[str]) -> Column:
    return F.col(column).isin(list(dispositions))


def _literal(value: Any) -> Column:
    """Return a value as a literal; of a day before the year 1000 py4j makes a text that is none."""
    return F.lit(str(value)).cast("date") if isinstance(value, dt.date) else F.lit(value)
