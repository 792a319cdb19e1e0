"""Insert only: the first record of each key is the row, whenever it comes.

Upsert's mirror image: of two records of a key the older one wins. By offset alone that is the one
that was read first, and the row never changes. With ``sequence_by``, an older record that comes
late replaces the row (``updated``), or the table would depend on how the batches were cut.

Rows to records: as in an upsert.
"""

from __future__ import annotations

from oncelake.ingestion.modes import sql
from oncelake.ingestion.modes.upsert import UpsertMode, winner_per_key


class InsertOnlyMode(UpsertMode):
    """Writes one batch to a table of first records."""

    def _winner_per_key(self) -> str:
        return winner_per_key(self._target, "ASC")

    def _wins_over(self, other: str) -> str:
        return sql.is_older(self._line, "s", other, has_order=self._has_order)


MODE = InsertOnlyMode
