"""An upsert of partial updates: a column that a record leaves null keeps what is there.

Each column of a row is the last value that was not null since the key's last delete. Without
``sequence_by`` that fold goes by the offsets of one partition, in which records arrive: so it
is the same however the batches are cut. With a declared order a late record would need an order of
its own for every column, which is why the two together are refused when the file is loaded.

Rows to records: as in an upsert. A superseded record lost its place, and not what it said.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from ingestion.declaration.sql import quoted
from ingestion.sinks.upsert import UpsertSink


class PartialUpsertSink(UpsertSink):
    """One batch on its way into a table of rows that grow column by column."""

    def _winner_per_key(self, records: DataFrame) -> DataFrame:
        """Take the newest record of each key, with what older ones said since the last delete."""
        keys = [F.col(quoted(name)) for name in self._keys]
        deleted_at = F.max(F.when(F.col("_disposition") == "delete", F.col("_offset")))
        last = records.groupBy(*keys).agg(deleted_at.alias("_deleted_at"))
        since = records.join(last, list(self._keys))
        is_living = F.col("_deleted_at").isNull() | (F.col("_offset") > F.col("_deleted_at"))
        others = [name for name in records.columns if name not in self._keys]
        said = [
            F.max_by(
                quoted(name), F.when(is_living & F.col(quoted(name)).isNotNull(), F.col("_offset"))
            )
            if name in self._folded
            else F.max_by(quoted(name), "_offset")
            for name in others
        ]
        named = (column.alias(name) for name, column in zip(others, said, strict=True))
        return since.groupBy(*keys).agg(*named, F.first("_deleted_at").alias("_deleted_at"))

    def _choose_winners(self) -> DataFrame:
        winners = super()._choose_winners()
        if "_deleted_at" in winners.columns:
            return winners
        return winners.withColumn("_deleted_at", F.lit(None).cast("long"))

    def _updated(self, columns: Mapping[str, str | Column]) -> dict[str, str | Column]:
        begins_anew = F.col("s._deleted_at").isNotNull()
        kept = {
            quoted(name): F.when(begins_anew, F.col(f"s.{quoted(name)}")).otherwise(
                F.coalesce(F.col(f"s.{quoted(name)}"), F.col(f"t.{quoted(name)}"))
            )
            for name in self._folded
        }
        return {**columns, **kept}

    @property
    def _folded(self) -> list[str]:
        return [each.name for each in self._target.spec.columns if each.name not in self._keys]


SINK = PartialUpsertSink
