"""What a crash left half-done, healed from the commits: ledger rows, rows of dead attempts."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from ingestion.declaration.spec import StreamSpec
from ingestion.errors import DamagedTableError
from ingestion.lake.books import imbalances
from ingestion.lake.commit_metadata import app_id
from ingestion.lake.failpoints import Failpoint, hit
from ingestion.lake.foreign_commits import foreign_commits_before
from ingestion.lake.ledger import Ledger, LedgerRow
from ingestion.lake.paths import StreamPaths
from ingestion.lake.quarantine import clear_marks_beyond
from ingestion.lake.side_tables import remove_beyond, rows_of_seq
from ingestion.lake.table_log import Commit, TableLog
from ingestion.recovery.position import Position
from ingestion.sinks.sink import sink_class


@dataclass(frozen=True, kw_only=True, slots=True)
class Healed:
    """The ledger, as the commits say it must be.

    Attributes:
        rows: Every row of the table, by seq.
        recovered: Those of them that were missing. Their counts come from the commits; what only
            the lost run could know is marked: ``derived`` counts the records whose disposition
            was inferred.
    """

    rows: tuple[LedgerRow, ...]
    recovered: tuple[LedgerRow, ...]


def heal(
    spec: StreamSpec, paths: StreamPaths, position: Position, known: Collection[LedgerRow]
) -> Healed:
    """Write the ledger rows that a crash swallowed, and remove what dead attempts left."""
    healed = heal_ledger(spec, paths, position, known)
    remove_leftovers(paths, position)
    return healed


def remove_leftovers(paths: StreamPaths, position: Position) -> None:
    """Remove the side rows, and the marks, of every seq that was never committed."""
    for side in (paths.quarantine, paths.tombstones):
        remove_beyond(side, position.seq)
    clear_marks_beyond(paths.quarantine, position.seq)


def heal_ledger(
    spec: StreamSpec, paths: StreamPaths, position: Position, known: Collection[LedgerRow]
) -> Healed:
    """Write the ledger rows that a crash swallowed, and the acceptances.

    Args:
        spec: The declared stream.
        paths: Its tables.
        position: Where the table stands.
        known: The ledger's rows of this table.
    """
    unhealed = set(range(1, position.seq + 1)) - {row.seq for row in known}
    unknown = commits_of(spec.name, paths, unhealed)
    accepted = {
        seq: each.metadata.reason
        for each in unknown
        if each.metadata
        for seq in each.metadata.accepts
    }
    missing = [_row(spec, paths, position, each, accepted) for each in unknown]
    # A word that was given counts, also when the crash came before it was written beside the batch.
    taken = [
        replace(row, accepted=accepted[row.seq])
        for row in known
        if row.is_red and accepted.get(row.seq) is not None
    ]
    Ledger(paths.ledger).put(*missing, *taken)
    hit(Failpoint.LEDGER_HEALED)
    by_seq = {row.seq: row for row in (*known, *missing, *taken)}
    rows = tuple(by_seq[seq] for seq in sorted(by_seq))
    unheard = {row.seq for row in missing}
    return Healed(rows=rows, recovered=tuple(row for row in rows if row.seq in unheard))


def commits_of(stream: str, paths: StreamPaths, missing: set[int]) -> list[Commit]:
    """Walk our commits back to the oldest that the ledger misses, or as far as the log reaches.

    Seq 0 opened the table, and is no batch.
    """
    found: list[Commit] = []
    log = TableLog(paths.data)
    for version in log.versions() if missing else ():
        try:
            commit = log.read(version)
        except DamagedTableError:
            # Readers begin at a checkpoint behind it, or the start would have been refused.
            break
        if commit.metadata is None or app_id(stream) not in commit.txns:
            continue
        if commit.metadata.seq in missing:
            found.append(commit)
        if commit.metadata.seq <= min(missing):
            break
    return found


def _row(
    spec: StreamSpec,
    paths: StreamPaths,
    position: Position,
    commit: Commit,
    accepted: Mapping[int, str | None],
) -> LedgerRow:
    metadata = commit.metadata
    assert metadata is not None
    if metadata.kind not in {"ingest", "redrive"}:
        return LedgerRow.of(metadata, commit, position.table_id, counts=metadata.counts)
    written = sink_class(spec).recount(commit)
    counts = {**metadata.counts, **written.counts}
    held = rows_of_seq(paths.data, metadata.seq, version=commit.version)
    problems = (
        *imbalances(
            counts, rows_of_seq=held, rows_expected=written.rows_expected, kind=metadata.kind
        ),
        *foreign_commits_before(spec.name, TableLog(paths.data), commit),
    )
    row = LedgerRow.of(metadata, commit, position.table_id, counts=counts, problems=problems)
    return replace(row, accepted=accepted.get(metadata.seq))
