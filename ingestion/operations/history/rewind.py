"""``oncelake history`` and ``rewind``: table, side tables and offsets back to a batch, together.

    lock → where does the table stand? → heal → choose a savepoint, or refuse
         → one commit: the rows of then, and the offsets to go on from → side tables → ledger

That one commit is the intent, too: a rewind that dies behind it is finished by the next run, which
removes what the undone batches left in quarantine and tombstones, and writes the ledger's row. The
ledger is never set back: undone batches stay in it.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from pydantic import AwareDatetime, TypeAdapter, ValidationError

from oncelake.ingestion.declaration.spec import StreamSpec
from oncelake.ingestion.errors import (
    IdentityChangedError,
    InvalidSpecError,
    RewindError,
    counted,
    no_table_yet,
)
from oncelake.ingestion.kafka.offsets import Offsets
from oncelake.ingestion.lake.ledger import (
    LedgerRow,
    load_ledger,
    next_offsets,
    put_rows,
)
from oncelake.ingestion.lake.lock import held
from oncelake.ingestion.lake.paths import StreamPaths, refuse_unable
from oncelake.ingestion.lake.side_tables import project
from oncelake.ingestion.recovery.position import Position, position_of
from oncelake.ingestion.recovery.snapshot import read_snapshot
from oncelake.ingestion.recovery.standing import ALTERED, BESIDE, Standing, heal_stream
from oncelake.ingestion.settings import Settings
from oncelake.ingestion.sinks.delta.catalogs.register import register
from oncelake.ingestion.storage.failpoints import Failpoint, hit
from oncelake.ingestion.tables.commit_metadata import REWOUND_TO, CommitMetadata, Kind, ranges_at
from oncelake.ingestion.tables.table import RewindableTable


@dataclass(frozen=True, kw_only=True, slots=True)
class Savepoint:
    """The stream as one of its batches left it.

    Attributes:
        seq: The batch; 0 is the empty table before the first.
        delta_version: The table's version then.
        next: Next offset of every partition then; ``None`` when nothing remembers.
        obstacle: Why a rewind cannot go there; ``None`` where it can.
        restored_from: The version whose files a rewind takes: another one than the batch's own,
            with the same rows, where those have been put together since.
        metadata: What its commit says; ``None`` once that has aged out of the log.
    """

    seq: int
    kind: Kind
    epoch: int
    delta_version: int
    committed_at: dt.datetime
    next: Offsets | None
    obstacle: str | None
    restored_from: int | None = None
    metadata: CommitMetadata | None = None


def read_history(paths: StreamPaths) -> tuple[Savepoint, ...]:
    """Return what a stream's batches left, newest first; changes nothing.

    Raises:
        InvalidSpecError: there is no table of the stream.
        RefusedError: the table is gone; a commit is not as it was written.
    """
    ledger = load_ledger(paths)
    with paths.table.translate_read_errors():
        log = paths.table.log()
        if not log.exists:
            # One that is lost, or on its way, is refused in other words.
            position_of(read_snapshot(paths, ledger))
            raise no_table_yet(paths.stream)
        return _savepoints(paths, ledger.rows_of(log.table_id()))


def rewind(
    spec: StreamSpec, settings: Settings, *, to: str, reason: str, run_id: str
) -> tuple[Savepoint, LedgerRow]:
    """Set a stream back to a savepoint; the next run reads on from its offsets.

    Also undoes what somebody else did to the rows since, and red batches.

    Args:
        to: ``seq:41``, ``version:57``, or a moment with its zone, as ISO 8601: the last savepoint
            at or before it.

    Returns:
        The savepoint, and the ledger row of the rewind; of the newest batch, where the stream
        stands there already: a rewind that was killed has happened, or not.

    Raises:
        InvalidSpecError: ``to`` names no savepoint.
        RewindError: the stream cannot go back there; says why.
        RefusedError: the table is not the one that the ledger remembers, or is damaged.
        StreamLockedError: a run holds the stream.
    """
    is_meant, paths = _choice(spec.name, to), StreamPaths.of(spec.name, settings, spec.sink)
    refuse_unable(paths, "rewind")
    with held(paths, run_id):
        standing = heal_stream(spec, paths)
        if standing.position is None:
            raise no_table_yet(spec.name)
        standing.refuse(*ALTERED, *BESIDE, IdentityChangedError)
        point = next(filter(is_meant, _savepoints(paths, standing.rows)), None)
        if point is None:
            raise InvalidSpecError(
                f"{spec.name}: there is no savepoint {to}. Next: oncelake history {spec.name} "
                "lists them"
            )
        if _stands_at(standing, standing.position, point):
            return point, standing.rows[-1]
        _refuse_unreachable(paths, point)
        row = _commit(paths, standing.position, point, reason=reason, run_id=run_id)
    register(spec, settings)
    return point, row


def _choice(stream: str, to: str) -> Callable[[Savepoint], bool]:
    """Return what tells the savepoints that ``--to`` means; one that was undone only by its seq."""
    kind, _, number = to.partition(":")
    if kind == "seq" and number.isdecimal():
        return lambda point: point.seq == int(number)
    if kind == "version" and number.isdecimal():
        return lambda point: point.delta_version <= int(number) and not _is_undone(point)
    if (moment := moment_of(to)) is not None:
        return lambda point: point.committed_at <= moment and not _is_undone(point)
    raise InvalidSpecError(
        f"{stream}: --to {to!r} is none of seq:41, version:57, or a moment with its zone "
        f"such as 2026-11-22T10:00Z. Next: oncelake history {stream} lists the savepoints"
    )


def moment_of(text: str) -> dt.datetime | None:
    """Read a moment with its zone, in ISO 8601; ``None`` for any other text."""
    # A bare number would be taken for seconds since 1970.
    with suppress(ValidationError):
        return None if text.isdigit() else TypeAdapter(AwareDatetime).validate_python(text)
    return None


_UNDONE = "undone by the rewind"


def _is_undone(point: Savepoint) -> bool:
    return (point.obstacle or "").startswith(_UNDONE)


def _savepoints(paths: StreamPaths, rows: Sequence[LedgerRow]) -> tuple[Savepoint, ...]:
    """List a table's savepoints, newest first: those in its log, and what the ledger remembers."""
    in_log = list(_savepoints_in_log(paths))
    seqs = {point.seq for point in in_log}
    aged = (
        Savepoint(
            seq=row.seq,
            kind=row.kind,
            epoch=row.epoch,
            delta_version=row.delta_version,
            committed_at=row.committed_at,
            next=next_offsets(rows[: at + 1]) if row.kind in {"ingest", "redrive"} else None,
            obstacle="its commit is no longer in the table's log",
        )
        for at, row in enumerate(rows)
        if row.seq not in seqs
    )
    points = sorted([*in_log, *aged], key=lambda point: point.seq, reverse=True)
    return tuple(_barred(points, {row.seq: row.counts for row in rows}))


def _barred(
    points: Sequence[Savepoint], counts: Mapping[int, Mapping[str, int]]
) -> Iterator[Savepoint]:
    """Say of savepoints, newest first, whether what came behind lets a stream go back there."""
    since: str | None = None
    for point in points:
        if point.epoch != points[0].epoch:
            since = f"epoch {points[0].epoch} began since, with another topic"
        yield point if _is_undone(point) else replace(point, obstacle=since or point.obstacle)
        said = point.metadata.counts if point.metadata else counts[point.seq]
        if point.kind == "erase":
            since = "a key was erased since, whose records would be read again"
        elif any(name.endswith("_written_off") for name in said):
            since = "quarantine or tombstones were written off since, and are not as they were then"


def _savepoints_in_log(paths: StreamPaths) -> Iterator[Savepoint]:
    """Walk our commits back, and say of each whether its rows can come back."""
    undone_beyond, rewound_by = None, 0
    table, unable = paths.table, paths.sink.kind.cannot.get("rewind")
    alone = ((commit, None, 0) for commit in table.log().newest_first())
    for commit, restored_from, missing in alone if unable else _rewindable(paths).restorable():
        metadata, obstacle = commit.metadata, None
        if metadata is None:
            continue
        if undone_beyond is not None and metadata.seq > undone_beyond:
            obstacle = f"{_UNDONE} of seq {rewound_by}"
        elif metadata.kind == "rewind":
            undone_beyond, rewound_by = metadata.counts[REWOUND_TO], metadata.seq
        obstacle = obstacle or unable
        if obstacle is None and restored_from is None:
            removed = counted(
                missing, "of its data files was removed", "of its data files were removed"
            )
            obstacle = f"{removed} (VACUUM)"
        yield Savepoint(
            seq=metadata.seq,
            kind=metadata.kind,
            epoch=metadata.epoch,
            delta_version=commit.version,
            committed_at=commit.committed_at,
            next=metadata.next,
            obstacle=obstacle,
            restored_from=restored_from,
            metadata=metadata,
        )


def _stands_at(standing: Standing, position: Position, point: Savepoint) -> bool:
    """Tell whether there is nothing to undo since, and nothing that others did."""
    newest = standing.rows[-1:]
    is_there = bool(newest) and point.seq in {position.seq, newest[0].counts.get(REWOUND_TO)}
    return is_there and not standing.has(*ALTERED)


def _rewindable(paths: StreamPaths) -> RewindableTable:
    assert isinstance(paths.table, RewindableTable), "a sink that cannot rewind was refused"
    return paths.table


def _refuse_unreachable(paths: StreamPaths, point: Savepoint) -> None:
    """Make sure that the stream can go back there."""
    stream, obstacle = paths.stream, point.obstacle
    if obstacle is None and point.restored_from is not None:
        obstacle = next(_rewindable(paths).altered_since(point.restored_from), None)
    if obstacle is not None:
        raise RewindError(
            stream,
            f"it cannot go back to seq {point.seq} (version {point.delta_version}): {obstacle}.",
            remedy=f"oncelake history {stream} lists what can be reached; oncelake rebuild "
            f"{stream} makes the table anew from the topic",
        )


def _commit(
    paths: StreamPaths, position: Position, point: Savepoint, *, reason: str, run_id: str
) -> LedgerRow:
    assert point.metadata is not None, "a savepoint without its commit was refused"
    assert point.restored_from is not None, "a savepoint without its files was refused"
    undone = {REWOUND_TO: point.seq}
    metadata = replace(
        position.next_metadata(run_id, kind="rewind", counts=undone),
        identity=point.metadata.identity,
        columns=point.metadata.columns,
        declaration=point.metadata.declaration,
        next=point.metadata.next,
        last=point.metadata.last,
        ranges=ranges_at(point.metadata.next),
        reason=reason,
    )
    commit = _rewindable(paths).restore(point.restored_from, metadata)
    hit(Failpoint.DECIDED)
    project(paths, metadata, position.table_id)
    hit(Failpoint.SIDES_CLEARED)
    row = LedgerRow.of(commit, position.table_id)
    put_rows(paths, row)
    return row
