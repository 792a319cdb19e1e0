"""Append: every good record is a row, and its place in Kafka is its identity.

A plain append, fenced by ``txn``: it reads nothing of the table. Any other kind of commit may bring
records that are there already, so it inserts what is missing and leaves the rest.

Rows to records: a row is one record; inserted rows carry the batch's seq.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from operator import and_

from delta.tables import DeltaTable
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from ingestion.declaration.sql import quoted
from ingestion.lake.commit_metadata import CommitMetadata, app_id
from ingestion.lake.table_log import Commit, TableLog
from ingestion.sinks.idempotent_commit import commit_without_rows, idempotent, retry_on_conflict
from ingestion.sinks.sink import Good, Target, WriteResult


class AppendSink:
    """One batch on its way into a table of records."""

    def __init__(self, target: Target, good: Good) -> None:
        """Take the good records of a batch; nothing is read or written yet."""
        self._target = target
        self._good = good

    def prepare(self) -> Mapping[str, int]:
        """Decide nothing: every record is a row."""
        return {"winners": self._good.count}

    def commit(self, metadata: CommitMetadata) -> None:
        """Append the records, or insert those that are missing where some may be there."""
        spark, name, path = self._target.spark, self._target.spec.name, self._target.paths.data
        if not self._good.count:
            commit_without_rows(spark, name, path, metadata)
        elif metadata.kind == "ingest":
            self._append(metadata)
        else:
            retry_on_conflict(lambda: self._insert_missing(metadata), stream=name)

    def account(self, commit: Commit) -> WriteResult:
        """Take what Delta counted; a record that is not inserted must have been there."""
        inserted = _inserted(commit)
        counts = {"inserted": inserted}
        if inserted != self._good.count:
            counts["unchanged"] = self._found_at(commit.version - 1)
        return WriteResult(counts=counts, rows_expected=inserted)

    @staticmethod
    def recount(commit: Commit) -> WriteResult:
        """Say what the commit alone tells: what it did not insert was there, by inference."""
        inserted = _inserted(commit)
        counts = {"inserted": inserted}
        there = (commit.metadata.counts["winners"] if commit.metadata else inserted) - inserted
        if there:
            counts |= {"unchanged": there, "derived": there}
        return WriteResult(counts=counts, rows_expected=inserted)

    def _rows(self) -> DataFrame:
        table = self._table().columns
        rows = self._good.records.withColumns(
            {
                "_epoch": F.lit(self._target.epoch),
                "_seq": F.lit(self._target.seq).cast("long"),
            }
        )
        return rows.select(*map(quoted, table))

    def _append(self, metadata: CommitMetadata) -> None:
        (
            self._rows()
            .write.format("delta")
            .mode("append")
            .option("txnAppId", app_id(self._target.spec.name))
            .option("txnVersion", metadata.seq)
            .option("userMetadata", metadata.to_json())
            .save(str(self._target.paths.data))
        )

    def _insert_missing(self, metadata: CommitMetadata) -> None:
        table = DeltaTable.forPath(self._target.spark, str(self._target.paths.data))
        merge = table.alias("t").merge(self._rows().alias("s"), self._is_same())
        with idempotent(self._target.spark, self._target.spec.name, metadata):
            merge.whenNotMatchedInsertAll().execute()

    def _found_at(self, version: int) -> int:
        """Count the records that the table held as of a version."""
        before = self._table(version).alias("t")
        return self._rows().alias("s").join(before, self._is_same(), "left_semi").count()

    def _is_same(self) -> Column:
        identity = ("_epoch", *self._target.spec.origin)
        return reduce(and_, (F.col(f"t.{name}") == F.col(f"s.{name}") for name in identity))

    def _table(self, version: int | None = None) -> DataFrame:
        reader = self._target.spark.read.format("delta")
        if version is not None:
            reader = reader.option("versionAsOf", version)
        return reader.load(str(TableLog(self._target.paths.data).path))


def _inserted(commit: Commit) -> int:
    """Take what Delta counted: MERGE's own word where it was one, else that of the append."""
    of = commit.metrics
    return of.get("numTargetRowsInserted", of.get("numOutputRows", 0))


SINK = AppendSink
