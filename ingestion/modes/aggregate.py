"""Aggregate: one row a group, into which every record is folded exactly once.

The batch is reduced to one state a group, and one MERGE folds those into the table's. Applying a
batch twice would count it twice, so all that protects a row is the fence: state and ``txn`` are one
commit. Nothing here can be replayed; ``oncelake rebuild`` makes the table anew.

Rows to records: a row is any number of records. ``inserted`` are the records of groups that were
new, ``updated`` those of groups that were there; ``groups`` rows carry the batch's seq, of which
``groups_new`` were new.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import reduce
from operator import and_

from delta.tables import DeltaTable
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from ingestion.declaration.aggregates import aggregates_of
from ingestion.declaration.modes import WINDOW_COLUMNS
from ingestion.declaration.sql import quoted
from ingestion.errors import NotReplayableError
from ingestion.modes.aggregate_functions import folded, of_records, place_in
from ingestion.modes.engines.idempotent_commit import (
    from_materialized,
    idempotent,
    retry_on_conflict,
)
from ingestion.modes.engines.spark import SparkEngine
from ingestion.modes.mode import Good, Target, WriteMode, WriteResult, merge_counts, unlike
from ingestion.modes.watermark import clocks_after
from ingestion.sinks.commit_log import Commit
from ingestion.sinks.commit_metadata import CommitMetadata
from ingestion.sinks.delta.log import DeltaLog


class AggregateMode(WriteMode):
    """One batch on its way into a table of groups."""

    def __init__(self, target: Target, good: Good) -> None:
        """Take the good records of a batch; nothing is read or written yet."""
        super().__init__(target, good)
        assert isinstance(target.engine, SparkEngine), "groups are folded by Spark alone"
        self._spark, self._frames = target.engine.spark, target.engine.frames
        self._records = target.engine.frame("good")
        self._groups = self._records
        self._aggregates = aggregates_of(target.spec)
        self._provenance = ("_epoch", *target.spec.origin, "_timestamp")
        by_time = WINDOW_COLUMNS if target.spec.window else ()
        self._keys = (*target.spec.keys, *by_time)
        self._told: Mapping[str, int] = {"groups": 0, "groups_new": 0}

    def prepare(self) -> Mapping[str, int]:
        """Reduce the batch to its groups, and look up which of them are there."""
        clocks = clocks_after(self._target, self._records) if self._target.spec.window else {}
        if not self._good.count:
            return {**self._told, **clocks}
        self._groups = self._frames.keep(self._reduced())
        groups = self._groups.count()
        there, records = self._look_up()
        self._told = {"groups": groups, "groups_new": groups - there}
        return {
            "inserted": self._good.count - records,
            "updated": records,
            **self._told,
            **clocks,
        }

    def commit(self, metadata: CommitMetadata) -> None:
        """Fold the groups into the table, or commit the metadata alone when there are none.

        Raises:
            NotReplayableError: the commit would fold records that may have been folded before.
        """
        name = self._target.spec.name
        if metadata.kind == "replay":
            raise NotReplayableError(
                name,
                "a record that is read again would be counted twice.",
                remedy=f"oncelake rebuild {name}, which folds the topic into a new table",
            )
        if not self._good.count:
            self._table.commit_nothing(metadata)
            return
        # The groups are materialised already.
        with from_materialized(self._spark):
            retry_on_conflict(lambda: self._merge(metadata), stream=name)

    def account(self, commit: Commit) -> WriteResult:
        """Hold what MERGE counted against what was looked up before it."""
        result, merged = self.recount(commit), merge_counts(commit)
        written = {"groups": result.rows_expected, "groups_new": merged["inserted"]}
        return replace(result, problems=unlike(written, self._told))

    @classmethod
    def recount(cls, commit: Commit) -> WriteResult:
        """Say what the commit alone tells: the metadata counts the records, MERGE the groups."""
        merged = merge_counts(commit)
        return WriteResult(counts={}, rows_expected=merged["inserted"] + merged["updated"])

    def _reduced(self) -> DataFrame:
        """Return one row a group: its state, the newest record's place, and how many records."""
        spec = self._target.spec
        records = self._records.withColumn("_epoch", F.lit(self._target.epoch))
        if spec.window:
            window = F.window(quoted(spec.window.column), f"{spec.window.every_seconds} seconds")
            records = records.withColumns(
                {"window_start": window["start"], "window_end": window["end"]}
            )
        place = place_in(spec)
        states = {
            name: state
            for each in self._aggregates
            for name, state in of_records(each, place).items()
        }
        reduced = records.groupBy(*map(quoted, self._keys)).agg(
            *(state.alias(name) for name, state in states.items()),
            F.max(F.struct(*self._provenance)).alias("_newest"),
            F.count(F.lit(1)).alias("_records"),
        )
        newest = {name: F.col(f"_newest.{name}") for name in self._provenance}
        seq = F.lit(self._target.seq).cast("long")
        return reduced.withColumns({**newest, "_seq": seq}).drop("_newest")

    def _look_up(self) -> tuple[int, int]:
        """Return how many groups are in the table, and how many records they get."""
        table = self._spark.read.format("delta").load(str(self._target.paths.data))
        if not DeltaLog(self._target.paths.data).file_count():
            return 0, 0
        groups = self._groups.select(*map(quoted, self._keys), "_records").alias("s")
        there = table.alias("t").join(F.broadcast(groups), self._same_group())
        row = there.agg(
            F.count(F.lit(1)).alias("groups"), F.sum("s._records").alias("records")
        ).collect()[0]
        return row["groups"], row["records"] or 0

    def _merge(self, metadata: CommitMetadata) -> None:
        table = DeltaTable.forPath(self._spark, str(self._target.paths.data))
        inserted: dict[str, str | Column] = {
            quoted(name): F.col(f"s.{quoted(name)}") for name in table.toDF().columns
        }
        merge = table.alias("t").merge(self._groups.alias("s"), self._same_group())
        merge = merge.whenMatchedUpdate(set=self._together())
        merge = merge.whenNotMatchedInsert(values=inserted)
        with idempotent(self._spark, self._target.spec.name, metadata):
            merge.execute()

    def _together(self) -> dict[str, str | Column]:
        """Return the columns of a group that was there: both states folded into one."""
        mine, theirs = (
            F.struct(*(F.col(f"{side}.{name}") for name in self._provenance)) for side in "st"
        )
        newest: dict[str, str | Column] = {
            name: F.when(mine > theirs, F.col(f"s.{name}")).otherwise(F.col(f"t.{name}"))
            for name in self._provenance
        }
        states = {
            name: state
            for each in self._aggregates
            for name, state in folded(each, "t", "s").items()
        }
        return {**states, **newest, "_seq": F.col("s._seq")}

    def _same_group(self) -> Column:
        return reduce(
            and_, (F.col(f"t.{quoted(k)}") == F.col(f"s.{quoted(k)}") for k in self._keys)
        )


MODE = AggregateMode
