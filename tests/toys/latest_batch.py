"""A write mode as somebody would add it: the table is the newest batch that had records."""

from __future__ import annotations

from collections.abc import Mapping

from ingestion.modes import sql
from ingestion.modes.engines.engine import Clause, Merge
from ingestion.modes.mode import WriteMode, WriteResult, merge_counts
from ingestion.sinks.commit_log import Commit
from ingestion.sinks.commit_metadata import CommitMetadata


class LatestBatch(WriteMode):
    """One batch on its way to replace the one before."""

    def prepare(self) -> Mapping[str, int]:
        """Look up the rows of every earlier batch; every record is a row."""
        seqs = f"SELECT CAST(n AS BIGINT) AS _seq FROM range({self._target.seq}) r(n)"
        self._table.open_before(seqs)
        return {"winners": self._good.count}

    def commit(self, metadata: CommitMetadata) -> None:
        """Replace the rows, by one row of the source that is the partner of all that are there."""
        if not self._good.count:
            self._table.commit_nothing(metadata)
            return
        names = self._table.columns
        new = ", ".join(self._given().get(name, sql.name(name)) for name in names)
        nothing = ", ".join(f"NULL AS {sql.name(name)}" for name in names)
        merge = Merge(
            source=f"SELECT {new}, FALSE AS _clears FROM good "
            f"UNION ALL SELECT {nothing}, TRUE AS _clears",
            on='s."_clears" AND t."_seq" >= 0',
            matched=(Clause(when="TRUE", assign=None),),
            insert=Clause(when='NOT s."_clears"', assign=self._columns()),
        )
        self._table.merge(merge, metadata)

    def account(self, commit: Commit) -> WriteResult:
        """Take what Delta counted."""
        return self.recount(commit)

    @classmethod
    def recount(cls, commit: Commit) -> WriteResult:
        """Say what the commit alone tells."""
        inserted = merge_counts(commit)["inserted"]
        return WriteResult(counts={"inserted": inserted}, rows_expected=inserted)

    def _given(self) -> dict[str, str]:
        return {
            "_epoch": f"CAST({self._target.epoch} AS INTEGER) AS _epoch",
            "_seq": f"CAST({self._target.seq} AS BIGINT) AS _seq",
        }


MODE = LatestBatch
