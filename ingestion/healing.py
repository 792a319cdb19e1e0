"""What a crash left half-done, healed from the commits: ledger rows, rows of dead attempts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ingestion.audit import rows_of_seq
from ingestion.books import imbalances
from ingestion.commits import Commit, TableLog
from ingestion.lake import StreamPaths
from ingestion.ledger import Ledger, LedgerRow
from ingestion.notes import app_id
from ingestion.position import Position
from ingestion.side_table import remove_beyond
from ingestion.sinks.protocol import sink_class
from ingestion.spec import StreamSpec


def heal(spec: StreamSpec, paths: StreamPaths, position: Position) -> tuple[LedgerRow, ...]:
    """Write the ledger rows that a crash swallowed, and remove what dead attempts left.

    Returns:
        The rows that were missing, by seq. Their counts come from the commits; what only the lost
        run could know is marked: ``derived`` counts the records whose disposition was inferred.
    """
    ledger = Ledger(paths.ledger)
    known = {row.seq for row in ledger.rows_of(position.table_id)}
    unknown = commits_without_row(spec.name, paths, known)
    accepted = {seq: each.note.reason for each in unknown if each.note for seq in each.note.accepts}
    missing = [_row(spec, paths, position, each, accepted) for each in unknown]
    ledger.put(*missing)
    for side in (paths.quarantine, paths.tombstones):
        remove_beyond(side, position.seq)
    return tuple(sorted(missing, key=lambda row: row.seq))


def commits_without_row(stream: str, paths: StreamPaths, known: set[int]) -> list[Commit]:
    """Walk our commits back to the newest that the ledger knows; seq 0 opened the table."""
    found = []
    for commit in TableLog(paths.data).newest_first():
        if commit.note is None or app_id(stream) not in commit.txns:
            continue
        if commit.note.seq in known or commit.note.seq == 0:
            break
        found.append(commit)
    return found


def _row(
    spec: StreamSpec,
    paths: StreamPaths,
    position: Position,
    commit: Commit,
    accepted: Mapping[int, str | None],
) -> LedgerRow:
    note = commit.note
    assert note is not None
    if note.kind != "ingest":
        return LedgerRow.of(note, commit, position.table_id, counts=note.counts)
    written = sink_class(spec.mode).recount(commit)
    counts = {**note.counts, **written.counts}
    held = rows_of_seq(paths.data, note.seq, version=commit.version)
    problems = imbalances(counts, rows_of_seq=held, rows_expected=written.rows_expected)
    row = LedgerRow.of(note, commit, position.table_id, counts=counts, problems=problems)
    return replace(row, accepted=accepted.get(note.seq))
