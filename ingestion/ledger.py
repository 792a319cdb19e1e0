"""The ledger: one row a batch, and the memory that outlives Delta's log.

It is a projection: every row can be made again from the commit it describes, so it is written
after the commit, by MERGE on (table id, seq), and a crash in between is healed by the next run.
It is written by delta-rs, which takes milliseconds where a Spark MERGE takes a second.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable

from ingestion.commits import TableLog
from ingestion.damage import damaged, told_as_damage
from ingestion.integrity import refuse_damaged
from ingestion.kafka.offsets import Offsets
from ingestion.ledger_row import SCHEMA, LedgerRow

__all__ = ["SCHEMA", "Ledger", "LedgerRow", "next_offsets"]


class Ledger:
    """The ledger table of one stream."""

    def __init__(self, path: Path) -> None:
        """Take the table's folder; nothing is read yet."""
        self.path = path

    @property
    def exists(self) -> bool:
        """Tell whether the ledger has been written at least once."""
        return DeltaTable.is_deltatable(str(self.path))

    def rows(self) -> tuple[LedgerRow, ...]:
        """Read every row, in the order in which the batches were committed.

        Raises:
            DamagedTableError: the ledger was written, and cannot be read any more.
        """
        log = TableLog(self.path)
        if log.has_lost_its_log:
            raise damaged(self.path, "its _delta_log is gone")
        if not log.exists:
            return ()
        refuse_damaged(self.path)
        with told_as_damage(self.path):
            raw = DeltaTable(self.path).to_pyarrow_table().to_pylist(maps_as_pydicts="strict")
            return tuple(
                sorted(map(LedgerRow.of_record, raw), key=lambda row: (row.committed_at, row.seq))
            )

    def rows_of(self, table_id: str) -> tuple[LedgerRow, ...]:
        """Read the rows of one table, by seq."""
        mine = (row for row in self.rows() if row.table_id == table_id)
        return tuple(sorted(mine, key=lambda row: row.seq))

    def put(self, *rows: LedgerRow) -> None:
        """Write rows, replacing those of the same table and seq; doing it twice changes nothing."""
        if not rows:
            return
        written = pa.Table.from_pylist([row.as_record() for row in rows], schema=SCHEMA)
        table = DeltaTable.create(self.path, SCHEMA, mode="ignore")
        (
            table.merge(
                written,
                "t.table_id = s.table_id AND t.seq = s.seq",
                source_alias="s",
                target_alias="t",
                merge_schema=True,
            )
            .when_matched_update_all()
            .when_not_matched_insert_all()
            .execute()
        )


def next_offsets(rows: Sequence[LedgerRow]) -> Offsets:
    """Return the next offset of each partition that ``rows``, in order, have reached.

    Only those of the newest epoch count: the offsets of an earlier one mean other records.
    """
    reached = Offsets()
    for row in (each for each in rows if each.epoch == rows[-1].epoch):
        reached = reached.advanced_by(counted.range for counted in row.ranges)
    return reached
