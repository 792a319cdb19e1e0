"""Where a table stands, learned from the table itself, without Spark and without Kafka.

The table's log is the truth; the ledger is its memory once the log has aged. Nothing here guesses:
a table that is not the one we left is refused.
"""

from __future__ import annotations

from ingestion.commits import Commit, TableLog
from ingestion.errors import (
    ForeignTableError,
    TableReplacedError,
    TableRestoredError,
    UnbalancedBatchError,
)
from ingestion.lake import StreamPaths
from ingestion.ledger import Ledger, LedgerRow, next_offsets
from ingestion.notes import UNKNOWN, Note
from ingestion.position import Position


def read_position(
    stream: str, paths: StreamPaths, *, even_if_restored: bool = False
) -> Position | None:
    """Learn where a stream's table stands.

    Returns:
        The position, or ``None`` when there is no table, or only an empty one that is not ours.
        Its identity is ``UNKNOWN`` when the commits that knew it have aged out of the log.

    Raises:
        RefusedError: the table is not the one that the ledger remembers, holds rows that are not
            ours, or was restored by somebody to an older version.
    """
    log, remembered = TableLog(paths.data), Ledger(paths.ledger).rows()
    if not log.exists:
        if remembered:
            raise _replaced(stream, paths, "is gone")
        return None
    table_id = log.table_id()
    if remembered and remembered[-1].table_id != table_id:
        raise _replaced(
            stream, paths, f"has id {table_id}, the ledger knows {remembered[-1].table_id}"
        )
    seq = log.last_seq(stream)
    if seq is None:
        if log.file_count():
            raise _foreign(stream, paths)
        return None
    ours, others = log.since_our_newest(stream)
    if not even_if_restored:
        _refuse_restored(stream, ours, others)
    if ours is None or ours.note is None:
        # By seq: the order of commits by the writer's clock is not that of the batches.
        by_seq = sorted(remembered, key=lambda row: row.seq)
        mine = tuple(row for row in by_seq if row.table_id == table_id)
        return _from_memory(table_id, seq, mine, log)
    return _from_commit(table_id, ours.note)


def refuse_red(stream: str, rows: tuple[LedgerRow, ...]) -> None:
    """Refuse to go on while an earlier batch is red and nobody has accepted it.

    Raises:
        UnbalancedBatchError: there is one; names its seq and its ranges.
    """
    for row in rows:
        if row.is_red:
            ranges = ", ".join(str(counted.range) for counted in row.ranges if len(counted.range))
            raise UnbalancedBatchError(
                stream,
                f"the books of batch {row.seq} ({ranges}) do not balance: {row.says()}.",
                remedy=f"oncelake ledger {stream} shows the batch; once you know why, "
                f"oncelake accept {stream} --reason '…'",
            )


def _from_commit(table_id: str, note: Note) -> Position:
    return Position(
        table_id=table_id,
        seq=note.seq,
        epoch=note.epoch,
        identity=note.identity,
        columns=note.columns,
        next=note.next,
        learned_from="commit",
    )


def _from_memory(table_id: str, seq: int, rows: tuple[LedgerRow, ...], log: TableLog) -> Position:
    """Stand in for commits that have aged out: by the ledger, and failing that by the rows."""
    return Position(
        table_id=table_id,
        seq=seq,
        epoch=rows[-1].epoch if rows else 1,
        identity=UNKNOWN,
        columns="",
        next=next_offsets(rows) if rows else log.highest_offsets(),
        learned_from="ledger" if rows else "rows",
    )


def _refuse_restored(stream: str, ours: Commit | None, others: tuple[Commit, ...]) -> None:
    restored = next((each for each in others if each.operation == "RESTORE"), None)
    if restored is None:
        return
    last = f"version {ours.version}" if ours else "a version that has aged out of the log"
    raise TableRestoredError(
        stream,
        f"somebody restored the table (version {restored.version}) after our last commit "
        f"({last}), so rows that its offsets count may be missing.",
        remedy=f"oncelake reset {stream}, to ingest the topic again; or, if the table is as you "
        f"want it, oncelake accept {stream} --reason '…'",
    )


def _replaced(stream: str, paths: StreamPaths, what: str) -> TableReplacedError:
    return TableReplacedError(
        stream,
        f"the ledger remembers a table at {paths.data}, which {what}.",
        remedy=f"put the table back, or oncelake reset {stream}, to begin again from the topic",
    )


def _foreign(stream: str, paths: StreamPaths) -> ForeignTableError:
    return ForeignTableError(
        stream,
        f"{paths.data} holds rows, and no commit in its log is of this stream.",
        remedy="rename the stream's file, or move that table away",
    )
