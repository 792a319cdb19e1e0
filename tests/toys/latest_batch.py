"""A write mode as somebody would add it: the table is the newest batch that had records."""

from __future__ import annotations

from collections.abc import Mapping

from oncelake.ingestion.modes import sql
from oncelake.ingestion.modes.mode import WriteMode
from oncelake.ingestion.tables.commit_metadata import Kind


class LatestBatch(WriteMode):
    """One batch on its way to replace the one before."""

    updates = ()
    deletes = ("replaced",)

    def decide(self, kind: Kind) -> Mapping[str, int]:
        """Let every record be a row, and every row of earlier batches go."""
        del kind
        if self._good.count:
            seqs = f"SELECT CAST(n AS BIGINT) AS _seq FROM range({self._target.seq}) r(n)"
            self._table.open_before(seqs)
            ours = sql.stamp(self._target.epoch, self._target.seq)
            names = sql.names(self._table.columns)
            self._decide(
                f"SELECT {names}, 'inserted' AS _what FROM (SELECT *, {ours} FROM good) g "
                f"UNION ALL SELECT {names}, 'replaced' AS _what FROM \"before\""
            )
        return self._counts("inserted", "replaced")


MODE = LatestBatch
