"""A log, such as a topic: what comes is written behind what is there, and measured by nothing.

Of a batch each key's newest record by offset is written, where the stream has keys; else every
record. A delete says that its key is gone. Batches come in the order of the offsets, each once, so
a reader who keeps the newest record of each key has what an upsert would hold.

Rows to records: a row is one record; ``inserted`` rows carry the batch's seq. Whether a delete met
anything is not known: each counts as ``deleted``.
"""

from __future__ import annotations

from collections.abc import Mapping

from ingestion.lake.commit_log import Commit
from ingestion.lake.commit_metadata import CommitMetadata
from ingestion.sinks import sql
from ingestion.sinks.ordering import examine_keys
from ingestion.sinks.sink import Sink, WriteResult, merge_counts, unlike
from ingestion.sinks.upsert import winner_per_key


class LogSink(Sink):
    """One batch on its way into a log."""

    _written: Mapping[str, int]

    def prepare(self) -> Mapping[str, int]:
        """Choose each key's newest record.

        Raises:
            KeyInTwoPartitionsError: two records of one key cannot be ordered.
        """
        self._written = {"inserted": 0, "deleted": 0}
        if not self._good.count:
            return {"winners": 0}
        chosen, winners = "SELECT * FROM good", self._good.count
        if self._keys:
            winners = examine_keys(self._target, has_order=False).distinct
            chosen = winner_per_key(self._target, "DESC")
        ours = sql.stamp(self._target.epoch, self._target.seq)
        is_delete = "_disposition = 'delete' AS _delete"
        self._engine.define(
            "winners", f"SELECT *, {is_delete}, {ours} FROM ({chosen}) w", keep=True
        )
        (deleted,) = self._engine.rows("SELECT count(*) AS n FROM winners WHERE _delete")
        self._written = {"inserted": winners - deleted["n"], "deleted": deleted["n"]}
        superseded = {"superseded": self._good.count - winners} if self._keys else {}
        return {**superseded, "winners": winners}

    def commit(self, metadata: CommitMetadata) -> None:
        """Write the records and the deletes, or the metadata alone when there are none."""
        if not self._good.count:
            self._table.commit_nothing(metadata)
            return
        rows = f"SELECT {sql.names(self._table.columns)} FROM winners WHERE NOT _delete"
        gone = f"SELECT {sql.names(self._keys)} FROM winners WHERE _delete"
        self._table.append(rows, metadata, deleted=gone if self._written["deleted"] else "")

    def account(self, commit: Commit) -> WriteResult:
        """Hold what the log has acknowledged against what was chosen."""
        problems = unlike(merge_counts(commit), self._written)
        return WriteResult(
            counts=self.recount(commit).counts,
            rows_expected=self._written["inserted"],
            problems=problems,
        )

    @classmethod
    def recount(cls, commit: Commit) -> WriteResult:
        """Say what the commit alone tells, which is all."""
        written = merge_counts(commit)
        counts = {name: written[name] for name in ("inserted", "deleted") if written[name]}
        counts.setdefault("inserted", 0)
        return WriteResult(counts=counts, rows_expected=written["inserted"])


SINK = LogSink
