"""SCD2: every record is a version of its key, valid until the next one.

The order of a key's events is ``sequence_by``, epoch, topic, partition, offset. For the keys of a
batch, the versions in the table, the deletes remembered and the batch's records are put in that
order, and each version is valid until the event behind it. One MERGE inserts the new versions and
corrects those whose end has changed: so late events take their place in the middle, and the table
does not depend on how the batches were cut.

Rows to records: a version is one record, and carries its batch's seq for good; ``inserted`` are the
new ones. A delete writes no row: ``deleted`` ended a version, ``deleted_absent`` found none before
it. ``closed`` counts the older rows whose end was corrected, and is no disposition.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from operator import and_

from delta.tables import DeltaTable
from pyspark.sql import Column, DataFrame, Row, Window
from pyspark.sql import functions as F

from ingestion.declaration.modes import CURRENT, VALID_FROM, VALID_TO
from ingestion.declaration.sql import quoted
from ingestion.lake.commit_metadata import CommitMetadata
from ingestion.lake.table_log import Commit
from ingestion.sinks.idempotent_commit import (
    commit_without_rows,
    from_materialized,
    idempotent,
    retry_on_conflict,
)
from ingestion.sinks.sink import Good, Target, WriteResult, merge_counts
from ingestion.sinks.tombstones import all_deletes, remember_deletes


class HistorySink:
    """One batch on its way into a table of versions."""

    def __init__(self, target: Target, good: Good) -> None:
        """Take the good records of a batch; nothing is read or written yet."""
        self._target = target
        self._good = good
        self._keys = target.spec.keys
        self._sequence = target.spec.sequence_by[0]
        self._identity = ("_epoch", *target.spec.origin)
        self._changes = good.records
        self._told: Mapping[str, int] = {"versions": 0, "closed": 0}

    def prepare(self) -> Mapping[str, int]:
        """Put the events of the batch's keys in order, and remember the deletes among them."""
        if not self._good.count:
            return {}
        # What is written and what is counted come from one copy.
        self._changes = self._events().where("_what IS NOT NULL").localCheckpoint(eager=True)
        rows: list[Row] = self._changes.groupBy("_what").count().collect()
        found = {row["_what"]: row["count"] for row in rows}
        if self._good.deletes:
            is_new = F.col("_what").isin("deleted", "deleted_absent")
            remember_deletes(self._target, self._changes.where(is_new))
        counts = {name: found.get(name, 0) for name in ("deleted", "deleted_absent", "unchanged")}
        self._told = {
            "versions": found.get("inserted", 0),
            "closed": found.get("closed", 0),
        }
        return {**counts, **self._told}

    def commit(self, metadata: CommitMetadata) -> None:
        """MERGE the new versions and the corrected ends, or commit the metadata alone."""
        spark, name = self._target.spark, self._target.spec.name
        if not sum(self._told.values()):
            commit_without_rows(spark, name, self._target.paths.data, metadata)
            return
        with from_materialized(spark):
            retry_on_conflict(lambda: self._merge(metadata), stream=name)

    def account(self, commit: Commit) -> WriteResult:
        """Hold what MERGE counted against what was decided before it."""
        written, merged = self.recount(commit), merge_counts(commit)
        pairs = (("versions", merged["inserted"]), ("closed", merged["updated"]))
        problems = tuple(
            f"MERGE wrote {found} {name}, expected {self._told[name]}"
            for name, found in pairs
            if found != self._told[name]
        )
        if self._good.count:
            self._changes._jdf.queryExecution().logical().rdd().unpersist(False)
        return WriteResult(
            counts=written.counts, rows_expected=written.rows_expected, problems=problems
        )

    @staticmethod
    def recount(commit: Commit) -> WriteResult:
        """Say what the commit alone tells: the metadata counts the deletes, MERGE the versions."""
        inserted = merge_counts(commit)["inserted"]
        return WriteResult(counts={"inserted": inserted}, rows_expected=inserted)

    def _events(self) -> DataFrame:
        """Return every event of the batch's keys, with the next one's time and what it comes to."""
        records = self._of_batch()
        keys = F.broadcast(records.select(*map(quoted, self._keys)).distinct())
        known = [
            each.join(keys, list(self._keys), "left_semi").withColumn("_is_new", F.lit(False))
            for each in (self._of_table(), all_deletes(self._target))
            if each is not None
        ]
        events = reduce(lambda a, b: a.unionByName(b, allowMissingColumns=True), [records, *known])
        events = events.withColumn("_delete", F.coalesce("_delete", F.col(CURRENT).isNull()))
        order = [F.col(quoted(self._sequence)), *map(F.col, self._identity)]
        keyed = [F.col(quoted(name)) for name in self._keys]
        # Of two that are the same record, the one that was known comes first, and counts.
        beside = Window.partitionBy(*keyed).orderBy(*order, "_is_new")
        is_same = (F.lag(name).over(beside).eqNullSafe(F.col(name)) for name in self._identity)
        line = Window.partitionBy(*keyed, "_again").orderBy(*order)
        return (
            events.withColumn("_again", reduce(and_, is_same))
            .withColumn("_ends_one", F.lag(~F.col("_delete")).over(line))
            .withColumn("_next", F.lead(quoted(self._sequence)).over(line))
            .withColumn("_what", _what())
        )

    def _of_batch(self) -> DataFrame:
        return self._good.records.withColumns(
            {
                "_delete": F.col("_disposition") == "delete",
                "_epoch": F.lit(self._target.epoch),
                "_seq": F.lit(self._target.seq).cast("long"),
                "_is_new": F.lit(True),
                CURRENT: F.lit(None).cast("boolean"),
            }
        ).drop("_disposition", "_bytes")

    def _of_table(self) -> DataFrame:
        reader = self._target.spark.read.format("delta")
        return reader.load(str(self._target.paths.data))

    def _merge(self, metadata: CommitMetadata) -> None:
        table = DeltaTable.forPath(self._target.spark, str(self._target.paths.data))
        ends = {VALID_TO: F.col("_next"), CURRENT: F.col("_next").isNull()}
        source = self._changes.where(F.col("_what").isin("inserted", "closed"))
        source = source.withColumns({VALID_FROM: F.col(quoted(self._sequence)), **ends})
        columns: dict[str, str | Column] = {
            quoted(name): F.col(f"s.{quoted(name)}") for name in table.toDF().columns
        }
        merge = table.alias("t").merge(source.alias("s"), self._is_same())
        merge = merge.whenMatchedUpdate(set={name: columns[quoted(name)] for name in ends})
        merge = merge.whenNotMatchedInsert(F.col("s._what") == "inserted", columns)
        with idempotent(self._target.spark, self._target.spec.name, metadata):
            merge.execute()

    def _is_same(self) -> Column:
        names = (*self._keys, *self._identity)
        return reduce(and_, (F.col(f"t.{quoted(n)}") == F.col(f"s.{quoted(n)}") for n in names))


def _what() -> Column:
    """Say what an event comes to: a disposition, ``closed``, or null where nothing changes."""
    is_new, is_delete, behind = F.col("_is_new"), F.col("_delete"), F.col("_next")
    stays = behind.eqNullSafe(F.col(VALID_TO)) & (F.col(CURRENT) == behind.isNull())
    return (
        F.when(F.col("_again"), F.when(is_new, "unchanged"))
        .when(is_new & is_delete, F.when(F.col("_ends_one"), "deleted").otherwise("deleted_absent"))
        .when(is_new, "inserted")
        .when(~is_delete & ~stays, "closed")
    )


SINK = HistorySink
