"""Upsert into a log: each batch adds the newest record of each of its keys behind what is there.

A log is not looked up, so nothing is compared with what it holds: of two batches the later one
wins, and within one the newest record. A consumer that keeps the last record of each key has the
table; a record without a value says that its key is gone.

Rows to records: a record written is one record, a delete's included.
"""

from __future__ import annotations

from collections.abc import Mapping

from ingestion.modes.mode import WriteResult
from ingestion.modes.ordering import examine_keys
from ingestion.modes.upsert import UpsertMode
from ingestion.sinks.commit_log import Commit
from ingestion.sinks.commit_metadata import CommitMetadata


class LogMode(UpsertMode):
    """One batch on its way into a log that others read key by key."""

    def prepare(self) -> Mapping[str, int]:
        """Choose the newest record of each key; no delete needs to be remembered.

        Raises:
            KeyInTwoPartitionsError: two records of one key cannot be ordered.
        """
        if self._good.count:
            self._facts = examine_keys(self._target, has_order=False)
            self._define_winners()
        return self._prepared()

    def commit(self, metadata: CommitMetadata) -> None:
        """Add the records, or commit the metadata alone when there are none."""
        if not self._good.count:
            self._table.commit_nothing(metadata)
            return
        rows = "SELECT * FROM winners WHERE NOT _delete"
        gone = f"{self._winners_keys} WHERE _delete"
        self._table.append(rows, metadata, gone=gone)

    def account(self, commit: Commit) -> WriteResult:
        """Take what was acknowledged."""
        return self.recount(commit)

    @classmethod
    def recount(cls, commit: Commit) -> WriteResult:
        """Take what the commit says: nothing else decides what became of a winner."""
        return cls._written(commit)


MODE = LogMode
