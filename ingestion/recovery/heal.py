"""Healing of what a crash left half-done, from the commits: side tables, and ledger rows."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from oncelake.ingestion.declaration.spec import StreamSpec
from oncelake.ingestion.delta.durability import find_half_written, undo_half_written
from oncelake.ingestion.delta.integrity import translate_read_errors
from oncelake.ingestion.delta.log_files import log_files
from oncelake.ingestion.errors import DamagedTableError
from oncelake.ingestion.lake.archive import archive_table
from oncelake.ingestion.lake.erasure import finish_erasures
from oncelake.ingestion.lake.ledger import (
    Ledger,
    LedgerRow,
    lacking_seqs,
    refuse_newer_table,
    written_seqs,
)
from oncelake.ingestion.lake.lock import refuse_lost_lease
from oncelake.ingestion.lake.paths import StreamPaths
from oncelake.ingestion.lake.side_tables import project
from oncelake.ingestion.modes.mode import audit, mode_class
from oncelake.ingestion.recovery.foreign_commits import foreign_commits_before
from oncelake.ingestion.recovery.position import Position, is_ledger_behind
from oncelake.ingestion.recovery.snapshot import TableSnapshot
from oncelake.ingestion.storage.failpoints import Failpoint, hit
from oncelake.ingestion.tables.commit_log import Commit, CommitLog
from oncelake.ingestion.tables.commit_metadata import app_id
from oncelake.ingestion.tables.table import SealedTable


@dataclass(frozen=True, kw_only=True, slots=True)
class UnrecordedCommit:
    """A commit of ours that the ledger does not have.

    Attributes:
        rows_of_seq: Rows that carry its seq in the table at its version; ``None`` where a VACUUM
            has removed that version's files.
        foreign: What others did to the rows before it, a sentence each.
    """

    commit: Commit
    rows_of_seq: int | None
    foreign: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Healing:
    """The rows that the ledger lacks.

    Attributes:
        rows: Every row of the table, by seq, the lacking ones included.
        recovered: Rows that were missing. Their counts come from the commits.
        accepted: Rows that were there, with an acceptance that the crash kept from them.
    """

    rows: tuple[LedgerRow, ...]
    recovered: tuple[LedgerRow, ...] = ()
    accepted: tuple[LedgerRow, ...] = ()


def undo_half_written_commits(paths: StreamPaths) -> Iterator[str]:
    """Undo the newest commits that a power cut has left half-written; needs the stream's lock.

    A table of which nothing else is there goes, into the archive if it has files of rows.

    Yields:
        What was undone, and why, a sentence each.
    """
    for table in paths.tables:
        while half_written := find_half_written(table):
            # What is whole of a newer version's is not for this one to judge.
            refuse_newer_table(paths)
            problem = half_written.problem
            why = f"{table}: {problem}, as a power cut leaves it: undone, as it was not yet needed"
            if half_written.is_first:
                has_rows = any(n for name, n in table.files().items() if name.endswith("parquet"))
                for moved in archive_table(paths, [table], why=why):
                    if not has_rows:
                        moved.parent.delete_all()
            else:
                undo_half_written(half_written.file)
            log_files(table).forget()
            yield why


def heal_ledger(spec: StreamSpec, snapshot: TableSnapshot, position: Position) -> Healing:
    """Project the commits whose ledger rows a crash swallowed, write those, end what they began.

    That a side table is damaged is refused by whoever needs it.
    """
    paths, recorded = snapshot.paths, snapshot.rows
    unrecorded = read_unrecorded(paths, position.seq, recorded)
    healing = plan_healing(spec, position.table_id, recorded, unrecorded)
    refuse_lost_lease(paths)
    if healing.recovered and isinstance(paths.table, SealedTable):
        paths.table.seal()
    for commit in sorted((each.commit for each in unrecorded), key=lambda each: each.version):
        if commit.metadata:
            with suppress(DamagedTableError):
                project(paths, commit.metadata, position.table_id)
    ledger = Ledger(paths.ledger)
    ledger.add(*snapshot.ledger.copied, *healing.recovered)
    ledger.put(*healing.accepted)
    hit(Failpoint.LEDGER_HEALED)
    with suppress(DamagedTableError), translate_read_errors(paths.tombstones):
        finish_erasures(paths.tombstones, healing.rows)
    return healing


def known_rows(snapshot: TableSnapshot) -> tuple[LedgerRow, ...]:
    """Return the ledger's rows, and what the log says of commits that died before theirs.

    Writes nothing. Of a rewind, an erase or an acceptance a run learns no more; the books of a
    batch are in the row that it writes.
    """
    table = snapshot.table
    if table is None:
        return snapshot.rows
    known = {row.seq: row for row in snapshot.rows}
    lacking = lacking_seqs(known.keys(), table.seq or 0)
    for commit in commits_of(snapshot.paths.table.log(), snapshot.paths.stream, lacking):
        if (made := commit.metadata) and made.seq in lacking:
            known[made.seq] = LedgerRow.of(commit, table.table_id)
    return tuple(known[seq] for seq in sorted(known))


def projected_rows(snapshot: TableSnapshot, rows: tuple[LedgerRow, ...]) -> tuple[LedgerRow, ...]:
    """Return of the ``known_rows`` all but that of a batch whose side rows may be still to come."""
    is_open = rows and rows[-1].kind in _BATCHES and is_ledger_behind(snapshot)
    return rows[:-1] if is_open else rows


def unknown_seqs(snapshot: TableSnapshot) -> tuple[int, ...]:
    """Return the batches of which neither the ledger, nor its copy, nor the log tells."""
    last = (snapshot.table.seq if snapshot.table else None) or 0
    return seqs_without_row(known_rows(snapshot), last)


def seqs_without_row(rows: Iterable[LedgerRow], last: int) -> tuple[int, ...]:
    """Return the batches up to the last that none of some rows is of."""
    return tuple(sorted(set(range(1, last + 1)) - {row.seq for row in rows}))


def unknown_batches(stream: str, seqs: Sequence[int]) -> str:
    """Say that nothing tells of batches any more, and what can be done."""
    return (
        f"neither the ledger, nor its copy, nor the table's log has seq {written_seqs(seqs)}: what "
        "they read cannot be proven. Next: restore the ledger from a backup, or oncelake rebuild "
        f"{stream}"
    )


def plan_healing(
    spec: StreamSpec,
    table_id: str,
    recorded: Collection[LedgerRow],
    unrecorded: Sequence[UnrecordedCommit],
) -> Healing:
    """Project the commits that the ledger lacks, and what they accept."""
    metadata = [each.commit.metadata for each in unrecorded if each.commit.metadata]
    accepted = {seq: made.reason for made in metadata for seq in made.accepts}
    known = {row.seq for row in recorded}
    missing = [
        replace(row, accepted=accepted.get(row.seq, row.accepted))
        for row in (_row(spec, table_id, each) for each in unrecorded)
        if row.seq not in known
    ]
    # An acceptance counts, also when the crash came before it was written beside the batch.
    changed = [
        replace(row, accepted=accepted[row.seq])
        for row in recorded
        if row.is_red and accepted.get(row.seq) is not None
    ]
    by_seq = {row.seq: row for row in (*recorded, *missing, *changed)}
    return Healing(
        rows=tuple(by_seq[seq] for seq in sorted(by_seq)),
        recovered=tuple(sorted(missing, key=lambda row: row.seq)),
        accepted=tuple(changed),
    )


def read_unrecorded(
    paths: StreamPaths, last_seq: int, recorded: Collection[LedgerRow]
) -> list[UnrecordedCommit]:
    """Read every commit of ours that the ledger does not have, as far back as the log reaches.

    Beside them, those that accept one of them.
    """
    log = paths.table.log()
    missing = lacking_seqs({row.seq for row in recorded}, last_seq)
    return [
        UnrecordedCommit(
            commit=commit,
            rows_of_seq=_rows_of(paths, commit),
            foreign=foreign_commits_before(paths.stream, log, commit),
        )
        if commit.metadata and commit.metadata.kind in _BATCHES
        else UnrecordedCommit(commit=commit, rows_of_seq=0)
        for commit in commits_of(log, paths.stream, missing)
    ]


def _rows_of(paths: StreamPaths, commit: Commit) -> int | None:
    """Count a batch's rows as of its commit, if the files of then can be read.

    Those of the newest version can, or the start would have been refused.
    """
    assert commit.metadata is not None, "a batch of ours says which it is"
    with suppress(DamagedTableError):
        return paths.table.rows_of_seq(commit.metadata.seq, commit=commit)
    return None


def commits_of(log: CommitLog, stream: str, missing: Collection[int]) -> list[Commit]:
    """Walk our commits back to the oldest that is missing, or as far as the log reaches.

    Beside those that are missing, return those that accept one of them. Seq 0 opened the table, and
    is no batch, unless the table was adopted by it.
    """
    found: list[Commit] = []
    for version in log.versions() if missing else ():
        try:
            commit = log.read(version)
        except DamagedTableError:
            # Readers begin at a checkpoint behind it, or the start would have been refused.
            break
        if commit.metadata is None or app_id(stream) not in commit.txns:
            continue
        is_batch = commit.metadata.seq > 0 or commit.metadata.adopted is not None
        if is_batch and not {commit.metadata.seq, *commit.metadata.accepts}.isdisjoint(missing):
            found.append(commit)
        if commit.metadata.seq <= min(missing):
            break
    return found


_BATCHES = frozenset({"ingest", "redrive", "replay"})


def _row(spec: StreamSpec, table_id: str, unrecorded: UnrecordedCommit) -> LedgerRow:
    commit, metadata = unrecorded.commit, unrecorded.commit.metadata
    assert metadata is not None
    if metadata.kind not in _BATCHES:
        return LedgerRow.of(commit, table_id)
    problems = (*audit(mode_class(spec), commit, unrecorded.rows_of_seq), *unrecorded.foreign)
    return LedgerRow.of(commit, table_id, problems=problems)
