"""A write mode as somebody would add it: the table is the newest batch that had records."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import functions as F

from ingestion.lake.commit_metadata import CommitMetadata, app_id
from ingestion.lake.table_log import Commit
from ingestion.sinks.idempotent_commit import commit_without_rows
from ingestion.sinks.sink import Good, Target, WriteResult


class LatestBatch:
    """One batch on its way to replace the one before."""

    def __init__(self, target: Target, good: Good) -> None:
        """Take the good records of a batch."""
        self._target = target
        self._good = good

    def prepare(self) -> Mapping[str, int]:
        """Decide nothing: every record is a row."""
        return {"winners": self._good.count}

    def commit(self, metadata: CommitMetadata) -> None:
        """Overwrite the table, idempotent by ``txn``."""
        spark, path, name = self._target.spark, self._target.paths.data, self._target.spec.name
        if not self._good.count:
            commit_without_rows(spark, name, path, metadata)
            return
        columns = spark.read.format("delta").load(str(path)).columns
        rows = self._good.records.withColumns(
            {"_epoch": F.lit(self._target.epoch), "_seq": F.lit(self._target.seq).cast("long")}
        )
        options = {
            "txnAppId": app_id(name),
            "txnVersion": str(metadata.seq),
            "userMetadata": metadata.to_json(),
        }
        rows.select(*columns).write.format("delta").mode("overwrite").options(**options).save(
            str(path)
        )

    def account(self, commit: Commit) -> WriteResult:
        """Take what Delta counted."""
        return self.recount(commit)

    @staticmethod
    def recount(commit: Commit) -> WriteResult:
        """Say what the commit alone tells."""
        inserted = commit.metrics.get("numOutputRows", 0)
        return WriteResult(counts={"inserted": inserted}, rows_expected=inserted)


SINK = LatestBatch
