"""What quarantine and tombstones must still hold: neither can be made again from anything.

A quarantined record is nowhere else but in Kafka, as long as retention keeps it; a forgotten delete
lets a late update raise the dead. So the newest batch that wrote to one of them must find its rows
there, and a person must say so, in writing, when they are gone for good.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Final

from ingestion.errors import DamagedTableError, RecordsForgottenError
from ingestion.lake.damage import remedy_for
from ingestion.lake.integrity import refuse_damaged
from ingestion.lake.ledger import LedgerRow
from ingestion.lake.paths import StreamPaths
from ingestion.lake.quarantine import redrive_marks
from ingestion.lake.side_tables import rows_of_seq
from ingestion.lake.table_log import TableLog

# Each record with one of these dispositions has a row of its batch's seq there.
_WRITTEN: Final = {
    "quarantine": ("quarantined",),
    "tombstones": ("deleted", "deleted_absent"),
}


def refuse_damaged_side_tables(paths: StreamPaths) -> None:
    """Make sure that the files of quarantine and tombstones are those that were committed.

    Raises:
        DamagedTableError: one is missing, cut short or not as it was written.
    """
    for table in _tables(paths).values():
        if TableLog(table).exists:
            refuse_damaged(table)


def check_side_tables_complete(stream: str, paths: StreamPaths, rows: Sequence[LedgerRow]) -> None:
    """Make sure that the newest batch that wrote to a side table finds its rows there.

    Raises:
        RecordsForgottenError: it does not: the table is gone, or an older copy came back.
    """
    for name, table in _tables(paths).items():
        found = _shortfall(name, table, rows)
        if found is not None:
            raise RecordsForgottenError(stream, f"{table} {found}.", remedy=remedy_for(table))


def abandoned_seqs(paths: StreamPaths, rows: Sequence[LedgerRow]) -> dict[str, Path]:
    """Return the side tables that are damaged or short of rows, by name.

    They are what a person must give up where no backup can be put back.
    """
    damaged = _damaged(paths)
    return {
        name: table
        for name, table in _tables(paths).items()
        if table in damaged or _shortfall(name, table, rows)
    }


def written_off_seqs(names: Iterable[str], rows: Sequence[LedgerRow]) -> dict[str, int]:
    """Return the counts that write side tables off: how many rows the books say they held.

    Later runs go by them, and no longer ask for what lies before.
    """
    return {
        _marker(name): sum(_written(name, row) for row in _since_written_off(name, rows))
        for name in names
    }


def _damaged(paths: StreamPaths) -> set[Path]:
    found = set()
    for table in _tables(paths).values():
        try:
            if TableLog(table).exists:
                refuse_damaged(table)
        except DamagedTableError:
            found.add(table)
    return found


def _shortfall(name: str, table: Path, rows: Sequence[LedgerRow]) -> str | None:
    """Say which rows a side table should hold and does not."""
    newest = _newest_written(name, rows)
    if newest is None:
        return None
    seq, expected = newest
    held = rows_of_seq(table, seq) if TableLog(table).exists else 0
    if held < expected:
        return (
            f"holds {held} rows of batch {seq}, which wrote {expected}: the table is gone, or an "
            "older copy of it came back"
        )
    return _unmarked(table, rows) if name == "quarantine" else None


def _unmarked(table: Path, rows: Sequence[LedgerRow]) -> str | None:
    """Say which marks of a redrive are missing: its records would be sent in once more."""
    redrives = (row for row in _since_written_off("quarantine", rows) if row.kind == "redrive")
    newest = next(redrives, None)
    if newest is None:
        return None
    held = redrive_marks(table, newest.seq) if TableLog(table).exists else 0
    if held >= newest.counts["read"]:
        return None
    return (
        f"holds {held} records that batch {newest.seq} has redriven, which were "
        f"{newest.counts['read']}: the table is gone, or an older copy of it came back"
    )


def _newest_written(name: str, rows: Sequence[LedgerRow]) -> tuple[int, int] | None:
    """Return the newest batch that wrote to a side table, and how many rows."""
    found = ((row.seq, _written(name, row)) for row in _since_written_off(name, rows))
    return next(((seq, count) for seq, count in found if count), None)


def _since_written_off(name: str, rows: Sequence[LedgerRow]) -> Iterator[LedgerRow]:
    """Walk the balanced rows back to where a person wrote the side table off."""
    later = takewhile(lambda row: _marker(name) not in row.counts, reversed(rows))
    return (row for row in later if row.balanced)


def _written(name: str, row: LedgerRow) -> int:
    return sum(row.counts.get(disposition, 0) for disposition in _WRITTEN[name])


def _marker(name: str) -> str:
    return f"{name}_written_off"


def _tables(paths: StreamPaths) -> Mapping[str, Path]:
    return {"quarantine": paths.quarantine, "tombstones": paths.tombstones}
