"""The rows that quarantine and tombstones must still hold: neither can be made again from anything.

A quarantined record is nowhere else but in Kafka, as long as retention keeps it; a forgotten delete
lets a late update resurrect a deleted key. So the newest batch that wrote to one of them must find
its rows there, and a person must accept it, in writing, when they are gone for good.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Any, Final

import pyarrow.compute as pc

from oncelake.ingestion.declaration.sinks import LOGS
from oncelake.ingestion.delta.integrity import damages_of, refuse_damaged
from oncelake.ingestion.delta.log import DeltaLog
from oncelake.ingestion.errors import (
    DamagedTableError,
    RefusedError,
    SideTableIncompleteError,
    counted,
)
from oncelake.ingestion.lake.ledger import LedgerRow, standing_rows
from oncelake.ingestion.lake.paths import StreamPaths
from oncelake.ingestion.lake.quarantine import scan_quarantine
from oncelake.ingestion.lake.side_tables import count_rows
from oncelake.ingestion.recovery.position import is_ledger_behind
from oncelake.ingestion.recovery.snapshot import TableSnapshot
from oncelake.ingestion.storage.damage import remedy_for
from oncelake.ingestion.storage.location import Location
from oncelake.ingestion.tables.commit_metadata import SideName

# Each record with one of these dispositions has a row of its batch's seq there.
_WRITTEN: Final[Mapping[SideName, tuple[str, ...]]] = {
    "quarantine": ("quarantined",),
    "tombstones": ("deleted", "deleted_absent", "left_absent", "untracked", "withdrawn"),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Held:
    """Rows of one batch in a side table: how many it wrote, and how many are there."""

    seq: int
    written: int
    there: int


@dataclass(frozen=True, kw_only=True, slots=True)
class SideTable:
    """A side table as it was found, beside the ledger's rows.

    Attributes:
        damage: Why its files cannot be trusted.
        newest: Rows of the newest batch that wrote to it.
        redriven: Records that the newest redrive has marked; of the quarantine alone.
    """

    path: Location
    damage: DamagedTableError | None = None
    newest: Held | None = None
    redriven: Held | None = None

    @property
    def shortfall(self) -> str | None:
        """The missing rows, in a sentence without its subject."""
        what = "the table is gone, or was replaced by an older copy"
        if (rows := self.newest) and rows.there < rows.written:
            found = f"{counted(rows.there, 'row')} of batch {rows.seq}, which wrote {rows.written}"
        elif (marks := self.redriven) and marks.there < marks.written:
            redriven = f"{counted(marks.there, 'record')} that batch {marks.seq} has redriven"
            found = f"{redriven}, of {marks.written}"
        else:
            return None
        return f"holds {found}: {what}"

    @property
    def problem(self) -> RefusedError | None:
        """Why a run is refused: it is damaged, or short of rows."""
        if self.damage is not None or self.shortfall is None:
            return self.damage
        stream = self.path.name.partition("__")[0]
        return SideTableIncompleteError(
            stream, f"{self.path} {self.shortfall}.", remedy=remedy_for(self.path)
        )


SideTables = Mapping[SideName, SideTable]


def read_side_tables(paths: StreamPaths, rows: Sequence[LedgerRow]) -> SideTables:
    """Read quarantine and tombstones, as far as the ledger's rows say what must be there."""
    return {name: _read(name, path, rows) for name, path in paths.sides.items()}


def refuse_incomplete(side: SideTable) -> None:
    """Make sure that the newest batch that wrote to a side table finds its rows there.

    Raises:
        DamagedTableError: its files are not those that were committed.
        SideTableIncompleteError: it does not: the table is gone, or an older copy replaced it.
    """
    if side.problem is not None:
        raise side.problem


def quarantined(
    snapshot: TableSnapshot, columns: Sequence[str], *, only: pc.Expression | None = None
) -> Iterator[dict[str, Any]]:
    """Yield the records in quarantine, with those of a commit whose run died before its row.

    See ``scan_quarantine`` for the arguments.
    """
    table, note = snapshot.table, None
    if table and table.newest and is_ledger_behind(snapshot):
        note = table.newest.metadata
    table_id = table.table_id if table else ""
    return scan_quarantine(snapshot.paths, columns, note, table_id, only=only)


def written_off_counts(names: Iterable[SideName], rows: Sequence[LedgerRow]) -> dict[str, int]:
    """Return the counts that write side tables off: how many rows the books say they held.

    Later runs go by them, and no longer ask for what lies before.
    """
    return {
        _marker(name): sum(_written(name, row) for row in _since_written_off(name, rows))
        for name in names
    }


def _read(name: SideName, path: Location, rows: Sequence[LedgerRow]) -> SideTable:
    since = list(_since_written_off(name, rows))
    newest = next((row for row in since if _written(name, row)), None)
    redrive = next((row for row in since if row.kind == "redrive"), None)
    try:
        if exists := (log := DeltaLog(path)).exists:
            refuse_damaged(log)

        def held(row: LedgerRow, written: int, column: str = "_seq") -> Held:
            there = count_rows(path, row.seq, column) if exists else 0
            return Held(seq=row.seq, written=written, there=there)

        side = SideTable(
            path=path,
            newest=held(newest, _left(name, newest, rows)) if newest else None,
            redriven=held(redrive, redrive.counts["read"], "redriven_seq")
            if redrive and name == "quarantine"
            else None,
        )
        # A flipped bit in a file's statistics hides its rows from a reader, which does not mind.
        damage = next(damages_of(log), None) if side.shortfall else None
        return replace(side, damage=damage)
    except DamagedTableError as error:
        return SideTable(path=path, damage=error)


def _since_written_off(name: SideName, rows: Sequence[LedgerRow]) -> Iterator[LedgerRow]:
    """Walk the balanced rows back to where a person wrote the side table off."""
    later = takewhile(lambda row: _marker(name) not in row.counts, reversed(standing_rows(rows)))
    return (row for row in later if row.balanced)


def _written(name: SideName, row: LedgerRow) -> int:
    if name == "tombstones" and row.sink in LOGS:
        return 0
    return sum(row.counts.get(disposition, 0) for disposition in _WRITTEN[name])


def _left(name: SideName, row: LedgerRow, rows: Iterable[LedgerRow]) -> int:
    """Count the rows that a batch wrote, but for those that were erased since."""
    erased = sum(each.counts.get(f"{name}_erased.{row.seq}", 0) for each in rows)
    return _written(name, row) - erased


def _marker(name: SideName) -> str:
    return f"{name}_written_off"
