"""Where a stream stands: the one value with which every command on its tables begins.

It has the position, what was healed just now, and the findings: refusals that leave the position
known, each of a class that says its kind, with the facts and the remedy. A command names the kinds
that it tolerates, and is refused for the first of the others. ``heal_stream`` holds the lock and
ends, in one order for all commands, what another process left half-done; ``read_standing`` changes
nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from oncelake.ingestion.declaration.spec import StreamSpec
from oncelake.ingestion.delta.durability import find_half_written
from oncelake.ingestion.errors import (
    DamagedTableError,
    OffsetsUnknownError,
    RefusedError,
    SideTableIncompleteError,
    TableAlteredError,
    TableRestoredError,
    UnbalancedBatchError,
)
from oncelake.ingestion.lake.archive import finish_swap, is_half_swapped
from oncelake.ingestion.lake.erasure import unfinished
from oncelake.ingestion.lake.ledger import (
    LedgerRow,
    LoadedLedger,
    load_or_archive_ledger,
    written_seqs,
)
from oncelake.ingestion.lake.paths import StreamPaths
from oncelake.ingestion.recovery.heal import (
    Healing,
    heal_ledger,
    known_rows,
    projected_rows,
    seqs_without_row,
    undo_half_written_commits,
    unknown_batches,
)
from oncelake.ingestion.recovery.position import Position, findings_of, position_of, red_batches
from oncelake.ingestion.recovery.side_tables import SideTables, read_side_tables
from oncelake.ingestion.recovery.snapshot import TableSnapshot, read_snapshot
from oncelake.ingestion.recovery.topics import changed_identity

# Somebody else changed or restored the rows.
ALTERED = (TableAlteredError, TableRestoredError)
# The same, or nothing remembers what was read.
NOT_PLACED = (*ALTERED, OffsetsUnknownError)
# What stands in the way of new batches alone.
OF_BATCHES = (UnbalancedBatchError, SideTableIncompleteError)
# The same, for commands that need nothing of the side tables.
BESIDE = (*OF_BATCHES, DamagedTableError)


@dataclass(frozen=True, kw_only=True, slots=True)
class Standing:
    """Where a stream stands.

    Attributes:
        snapshot: Its table and ledger as they were found.
        position: ``None`` before the first run.
        rows: The ledger's rows of the table, by seq, with those that a crash swallowed.
        sides: Quarantine and tombstones, as they were found.
        findings: What is wrong, the gravest first; none hides the position.
        recovered: Rows of the ledger that were written just now.
        unknown: Batches of which nothing tells any more.
        notices: What was healed just now, and what was not, for people.
    """

    snapshot: TableSnapshot
    position: Position | None = None
    rows: tuple[LedgerRow, ...] = ()
    sides: SideTables
    findings: tuple[RefusedError, ...] = ()
    recovered: tuple[LedgerRow, ...] = ()
    unknown: tuple[int, ...] = ()
    notices: tuple[str, ...] = ()

    def has(self, *kinds: type[RefusedError]) -> bool:
        """Tell whether there is a finding of some kinds."""
        return any(isinstance(finding, kinds) for finding in self.findings)

    def refuse(self, *tolerated: type[RefusedError]) -> None:
        """Refuse to go on for the first finding of a kind that is not tolerated."""
        for finding in self.findings:
            if not isinstance(finding, tolerated):
                raise finding


def heal_stream(spec: StreamSpec, paths: StreamPaths) -> Standing:
    """End what others left half-done, and read where the stream stands; needs the lock, no Spark.

    Of a table that was written by another mode or other keys, only that is told: its books cannot
    be projected by those of today.

    Raises:
        RefusedError: nothing tells where it stands; see ``position_of``.
    """
    undone = end_half_done(paths)
    snapshot = read_snapshot(paths, load_or_archive_ledger(paths), is_swap_finished=True)
    position = position_of(snapshot, *NOT_PLACED)
    if position is None:
        return Standing(snapshot=snapshot, sides={}, notices=undone)
    if finding := changed_identity(spec, position.identity):
        standing = _as_found(snapshot, position)
        return replace(standing, findings=(finding, *standing.findings), notices=undone)
    healing = heal_ledger(spec, snapshot, position)
    standing = _standing(snapshot, position, healing.rows, healing.rows)
    notices = (*undone, *_notices(snapshot, healing, standing.unknown))
    return replace(standing, recovered=healing.recovered, notices=notices)


def read_standing(paths: StreamPaths, ledger: LoadedLedger | None = None) -> Standing:
    """Read where a stream stands, without its lock; changes nothing.

    Args:
        ledger: Where the caller has read it.

    Raises:
        RefusedError: nothing tells where it stands; see ``position_of``.
    """
    snapshot = read_snapshot(paths, ledger)
    position = position_of(snapshot, *NOT_PLACED)
    if position is None:
        return Standing(snapshot=snapshot, sides={})
    return _as_found(snapshot, position)


def end_half_done(paths: StreamPaths) -> tuple[str, ...]:
    """End a swap that was cut short, and undo commits that a power cut left half-written.

    Needs the stream's lock. Returns what was undone, a sentence each.
    """
    finish_swap(paths)
    return tuple(undo_half_written_commits(paths))


def is_half_done(paths: StreamPaths) -> bool:
    """Tell whether there is something that ``end_half_done`` would end."""
    return is_half_swapped(paths) or any(map(find_half_written, paths.tables))


def _as_found(snapshot: TableSnapshot, position: Position) -> Standing:
    rows = known_rows(snapshot)
    return _standing(snapshot, position, rows, projected_rows(snapshot, rows))


def _standing(
    snapshot: TableSnapshot,
    position: Position,
    rows: tuple[LedgerRow, ...],
    projected: tuple[LedgerRow, ...],
) -> Standing:
    sides = read_side_tables(snapshot.paths, projected)
    return Standing(
        snapshot=snapshot,
        position=position,
        rows=rows,
        sides=sides,
        findings=tuple(_findings(snapshot, rows, sides)),
        unknown=seqs_without_row(rows, position.seq),
    )


def _findings(
    snapshot: TableSnapshot, rows: tuple[LedgerRow, ...], sides: SideTables
) -> Iterator[RefusedError]:
    yield from findings_of(snapshot)
    yield from (side.damage for side in sides.values() if side.damage)
    yield from red_batches(snapshot.paths, rows)
    yield from (side.problem for side in sides.values() if side.problem and not side.damage)


def _notices(snapshot: TableSnapshot, healing: Healing, unknown: tuple[int, ...]) -> Iterator[str]:
    """Report what became of a ledger that was damaged or had lost rows, and of a begun erase."""
    ledger = snapshot.ledger
    if ledger.damage is not None:
        batches = written_seqs(row.seq for row in healing.recovered)
        again = f"rebuilt from the commits in the table's log, seq {batches}"
        again = again if batches else "the table's log holds no batch to rebuild it from"
        yield f"{ledger.damage} It was archived as {ledger.archived}, and {again}"
    if ledger.copied:
        batches = written_seqs(row.seq for row in ledger.copied)
        yield f"the ledger had lost seq {batches}: restored from {snapshot.paths.ledger_copy}"
    if unknown:
        yield unknown_batches(snapshot.paths.stream, unknown)
    for erasure in unfinished(healing.rows):
        yield (
            f"the erase of batch {erasure.seq} was cut short: older versions may hold the key. "
            "Next: the same oncelake erase again"
        )
