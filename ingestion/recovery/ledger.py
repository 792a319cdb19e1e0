"""The ledger as a run finds it: read once, and put aside where it cannot be read any more.

It is a projection, so a damaged one is no reason to stop while the table's commits are there: it
moves into the archive, whole, and is made again from them.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ingestion.errors import DamagedTableError
from ingestion.lake.archive import archive_table
from ingestion.lake.ledger import Ledger, LedgerRow
from ingestion.lake.paths import StreamPaths
from ingestion.lake.table_log import TableLog


@dataclass(frozen=True, kw_only=True, slots=True)
class LoadedLedger:
    """What the ledger remembers.

    Attributes:
        rows: Its rows, in the order in which they were committed; none when it is damaged.
        damage: Why it could not be read, or ``None``.
        archived: Where the damaged one was put, or ``None``.
    """

    rows: tuple[LedgerRow, ...]
    damage: str | None = None
    archived: Path | None = None

    def rows_of(self, table_id: str) -> tuple[LedgerRow, ...]:
        """Return the rows of one table, by seq."""
        mine = (row for row in self.rows if row.table_id == table_id)
        return tuple(sorted(mine, key=lambda row: row.seq))


def load_ledger(paths: StreamPaths) -> LoadedLedger:
    """Read the ledger, and leave it as it is."""
    try:
        return LoadedLedger(rows=Ledger(paths.ledger).rows())
    except DamagedTableError as error:
        return LoadedLedger(rows=(), damage=error.problem)


def load_or_archive_ledger(paths: StreamPaths) -> LoadedLedger:
    """Read the ledger; put a damaged one aside, so that it can be made again.

    Needs the stream's lock. Beside a table that is gone the ledger stays: it is the last trace.
    """
    memory = load_ledger(paths)
    if memory.damage is None or not TableLog(paths.data).exists:
        return memory
    (archived,) = archive_table(paths, [paths.ledger])
    return LoadedLedger(rows=(), damage=memory.damage, archived=archived)


def ledger_notices(memory: LoadedLedger, healed: tuple[LedgerRow, ...]) -> tuple[str, ...]:
    """Say what became of a damaged ledger, for the run's report."""
    if memory.damage is None:
        return ()
    again = (
        f"made again from the commits in the table's log, seq {healed[0].seq} to {healed[-1].seq}"
        if healed
        else "the table's log holds no batch to make it again from"
    )
    return (f"{memory.damage} It was put aside as {memory.archived}, and {again}",)
