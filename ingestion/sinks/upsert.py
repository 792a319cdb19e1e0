"""Upsert: the newest record of each key is the row; deletes are remembered.

One MERGE with a monotone guard: a winner changes the table only when it is newer than the row that
is there, or than the delete that the tombstones remember. So any record may be delivered again, in
any order, and the table ends the same.

Rows to records: a row written is one record; inserted + updated rows carry the batch's seq.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from operator import and_
from typing import Any

from delta.tables import DeltaTable
from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F

from ingestion.declaration.sql import quoted
from ingestion.lake.commit_metadata import CommitMetadata
from ingestion.lake.table_log import Commit, TableLog
from ingestion.sinks.idempotent_commit import (
    commit_without_rows,
    from_materialized,
    idempotent,
    retry_on_conflict,
)
from ingestion.sinks.ordering import (
    examine_keys,
    is_newer,
    latest_per_key,
    sort_key,
    translate_ordering_errors,
    two_partitions,
)
from ingestion.sinks.sink import Good, Target, WriteResult, merge_counts
from ingestion.sinks.tombstones import latest_deletes, remember_deletes

LEFT_ALONE = ("stale", "unchanged", "deleted_absent")
_BROADCAST_BYTES = 32 * 1024 * 1024
# In fewer files there is little to skip, and literals that change with every batch make Spark
# compile the join anew.
_PRUNE_FROM_FILES = 16


class UpsertSink:
    """One batch on its way into an upsert table."""

    def __init__(self, target: Target, good: Good) -> None:
        """Take the good records of a batch; nothing is read or written yet."""
        self._target = target
        self._good = good
        self._keys = target.spec.keys
        self._has_order = bool(target.spec.sequence_by)
        self._line = target.spec.order_columns
        self._winners = good.records
        self._winner_count = 0
        self._key_ranges: Mapping[str, tuple[Any, Any]] = {}
        self._dead = latest_deletes(target) if good.count else None

    def prepare(self) -> Mapping[str, int]:
        """Choose the winners, and remember the deletes among them.

        Raises:
            KeyInTwoPartitionsError: two records of one key cannot be ordered.
        """
        if self._good.count:
            facts = examine_keys(self._good.records, self._keys)
            if facts.split is not None and not self._has_order:
                raise two_partitions(self._target.spec.name, facts.split)
            self._winner_count, self._key_ranges = facts.distinct, facts.ranges
            self._winners = self._choose_winners()
        if self._good.deletes:
            remember_deletes(self._target, self._winners.where("_delete"))
        superseded = self._good.count - self._winner_count
        return {"superseded": superseded, "winners": self._winner_count}

    def commit(self, metadata: CommitMetadata) -> None:
        """MERGE the winners, or commit the metadata alone when there are none.

        Raises:
            KeyInTwoPartitionsError: a winner and the table cannot be ordered.
        """
        spark, name = self._target.spark, self._target.spec.name
        if not self._winner_count:
            commit_without_rows(spark, name, self._target.paths.data, metadata)
            return
        # Without repeats and joins the source is the materialised copy itself: a second one
        # would be waste.
        is_copy = self._winner_count == self._good.count and self._dead is None
        with from_materialized(spark, is_copy=is_copy), translate_ordering_errors(name):
            retry_on_conflict(lambda: self._merge(metadata), stream=name)

    def account(self, commit: Commit) -> WriteResult:
        """Take what MERGE counted, look up the winners it left alone, and audit the deletes."""
        counts = merge_counts(commit)
        rows_expected = counts["inserted"] + counts["updated"]
        if self._winner_count != sum(counts.values()):
            found = self._classify(commit.version - 1)
            counts |= {name: found.get(name, 0) for name in LEFT_ALONE}
        problems = []
        if self._good.deletes and (undead := self._rows_that_outlived_their_delete(commit)):
            problems.append(f"{undead} deleted keys are still in the table")
        return WriteResult(counts=counts, rows_expected=rows_expected, problems=tuple(problems))

    @staticmethod
    def recount(commit: Commit) -> WriteResult:
        """Say what the commit alone tells; winners it did not apply were stale, by inference."""
        counts = merge_counts(commit)
        winners = commit.metadata.counts["winners"] if commit.metadata else 0
        left_alone = winners - sum(counts.values())
        rows_expected = counts["inserted"] + counts["updated"]
        if left_alone:
            counts |= {"stale": left_alone, "derived": left_alone}
        return WriteResult(counts=counts, rows_expected=rows_expected)

    def _winner_per_key(self, records: DataFrame) -> DataFrame:
        return latest_per_key(records, self._keys, self._line)

    def _choose_winners(self) -> DataFrame:
        records = self._good.records
        if self._winner_count < self._good.count:
            records = self._winner_per_key(records)
        winners = (
            records.withColumn("_delete", F.col("_disposition") == "delete")
            .withColumn("_epoch", F.lit(self._target.epoch))
            .withColumn("_seq", F.lit(self._target.seq).cast("long"))
            .drop("_disposition", "_bytes")
        )
        if self._dead is None:
            return winners
        return winners.join(self._dead, on=list(self._keys), how="left")

    def _merge(self, metadata: CommitMetadata) -> None:
        table = DeltaTable.forPath(self._target.spark, str(self._target.paths.data))
        columns: dict[str, str | Column] = {
            quoted(name): F.col(f"s.{quoted(name)}") for name in table.toDF().columns
        }
        newer = self._wins_over(sort_key("t", self._line))
        merge = table.alias("t").merge(self._source().alias("s"), self._same_key())
        if self._good.deletes:
            merge = merge.whenMatchedDelete(F.col("s._delete") & newer)
        merge = merge.whenMatchedUpdate(~F.col("s._delete") & newer, self._updated(columns))
        merge = merge.whenNotMatchedInsert(self._is_alive(), columns)
        with idempotent(self._target.spark, self._target.spec.name, metadata):
            merge.execute()

    def _updated(self, columns: Mapping[str, str | Column]) -> dict[str, str | Column]:
        """Say what each column of a row becomes that is there already."""
        return dict(columns)

    def _source(self) -> DataFrame:
        # A source from foreachBatch has no known size: without the hint Spark broadcasts the
        # table's key columns instead.
        is_small = self._good.size_bytes < _BROADCAST_BYTES
        return F.broadcast(self._winners) if is_small else self._winners

    def _same_key(self) -> Column:
        """Equal keys, and in a table of many files the literal ranges that prune them."""
        equal = [F.col(f"t.{quoted(k)}") == F.col(f"s.{quoted(k)}") for k in self._keys]
        if TableLog(self._target.paths.data).file_count() < _PRUNE_FROM_FILES:
            return reduce(and_, equal)
        within = [
            F.col(f"t.{quoted(name)}").between(F.lit(low), F.lit(high))
            for name, (low, high) in self._key_ranges.items()
        ]
        return reduce(and_, [*equal, *within])

    def _wins_over(self, other: Column) -> Column:
        mine = sort_key("s", self._line)
        return is_newer(mine, other, has_order=self._has_order, key=self._key())

    def _key(self) -> Column:
        return F.struct(*(F.col(f"s.{quoted(name)}") for name in self._keys))

    def _is_alive(self) -> Column:
        """Tell winners that may be inserted: no delete, and no newer delete remembered."""
        if self._dead is None:
            return ~F.col("s._delete")
        return ~F.col("s._delete") & self._wins_over(F.col("s._dead"))

    def _classify(self, version: int) -> Mapping[str, int]:
        """Count what each winner was, measured against the table as it was before the commit."""
        before = self._table_at(version)
        is_absent = F.col("t._offset").isNull()
        mine, theirs = sort_key("s", self._line), sort_key("t", self._line)
        what = (
            F.when(is_absent & F.col("s._delete"), "deleted_absent")
            .when(is_absent & self._is_alive(), "inserted")
            .when(is_absent, "stale")
            .when(mine == theirs, "unchanged")
            .when(~self._wins_over(theirs), "stale")
            .when(F.col("s._delete"), "deleted")
            .otherwise("updated")
        )
        compared = self._winners.alias("s").join(before.alias("t"), self._same_key(), "left")
        rows: list[Row] = compared.groupBy(what.alias("what")).count().collect()
        return {row["what"]: row["count"] for row in rows}

    def _rows_that_outlived_their_delete(self, commit: Commit) -> int:
        """Count rows that a delete of this batch should have removed: 0, or the batch is red."""
        deletes = self._winners.where("_delete").alias("s")
        after = self._table_at(commit.version).alias("t")
        older = self._wins_over(sort_key("t", self._line))
        return after.join(F.broadcast(deletes), self._same_key()).where(older).count()

    def _table_at(self, version: int) -> DataFrame:
        reader = self._target.spark.read.format("delta").option("versionAsOf", version)
        return reader.load(str(self._target.paths.data))


SINK = UpsertSink
