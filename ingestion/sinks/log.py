"""Upsert into a log: each batch adds the newest record of each of its keys behind what is there.

A log is not looked up, so nothing is compared with what it holds: of two batches the later one
wins, and within one the newest record. A consumer that keeps the last record of each key has the
table; a record without a value says that its key is gone.

Rows to records: a record written is one record, a delete's included.
"""

from __future__ import annotations

from collections.abc import Mapping

from ingestion.lake.commit_log import Commit
from ingestion.lake.commit_metadata import CommitMetadata
from ingestion.sinks import sql
from ingestion.sinks.ordering import examine_keys
from ingestion.sinks.sink import Sink, WriteResult, merge_counts
from ingestion.sinks.upsert import winner_per_key


class LogSink(Sink):
    """One batch on its way into a log that others read key by key."""

    def prepare(self) -> Mapping[str, int]:
        """Choose the newest record of each key.

        Raises:
            KeyInTwoPartitionsError: two records of one key cannot be ordered.
        """
        if not self._good.count:
            return {"superseded": 0, "winners": 0}
        distinct = examine_keys(self._target, has_order=False).distinct
        chosen = winner_per_key(self._target, "DESC")
        stamp = sql.stamp(self._target.epoch, self._target.seq)
        winners = f"SELECT *, {stamp} FROM ({chosen}) w"
        self._engine.define("winners", winners, keep=distinct < self._good.count)
        return {"superseded": self._good.count - distinct, "winners": distinct}

    def commit(self, metadata: CommitMetadata) -> None:
        """Add the records, or commit the metadata alone when there are none."""
        if not self._good.count:
            self._table.commit_nothing(metadata)
            return
        rows = "SELECT * FROM winners WHERE _disposition <> 'delete'"
        gone = f"SELECT {sql.names(self._keys)} FROM winners WHERE _disposition = 'delete'"
        self._table.append(rows, metadata, gone=gone)

    def account(self, commit: Commit) -> WriteResult:
        """Take what was acknowledged."""
        return self.recount(commit)

    @classmethod
    def recount(cls, commit: Commit) -> WriteResult:
        """Take what the commit says: nothing else decides what became of a winner."""
        counts = merge_counts(commit)
        return WriteResult(counts=counts, rows_expected=counts["inserted"])


SINK = LogSink
