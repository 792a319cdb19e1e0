"""Where a table stands, learned from the table itself, without Spark and without Kafka.

The table's log is the truth; the ledger is its memory once the log has aged. Nothing here guesses:
a table that is not the one we left is refused.
"""

from __future__ import annotations

from collections.abc import Sequence

from ingestion.errors import (
    ForeignTableError,
    MemoryLostError,
    RefusedError,
    TableReplacedError,
    TableRolledBackError,
    UnbalancedBatchError,
)
from ingestion.kafka.offsets import Offsets
from ingestion.lake.archive import refuse_half_swapped
from ingestion.lake.commit_metadata import UNKNOWN, CommitMetadata
from ingestion.lake.foreign_commits import refuse_foreign_commits
from ingestion.lake.integrity import refuse_damaged, refuse_settings
from ingestion.lake.ledger import LedgerRow, next_offsets
from ingestion.lake.paths import StreamPaths
from ingestion.lake.table_log import TableLog
from ingestion.recovery.ledger import LoadedLedger, load_ledger
from ingestion.recovery.position import Position


def read_position(
    stream: str,
    paths: StreamPaths,
    memory: LoadedLedger | None = None,
    *,
    even_if_altered: bool = False,
    even_if_forgotten: bool = False,
) -> Position | None:
    """Learn where a stream's table stands.

    Args:
        stream: Its name.
        paths: Its tables.
        memory: What the ledger remembers, where the caller knows it already.
        even_if_altered: Let a table pass that somebody else has changed or restored.
        even_if_forgotten: Let a table pass of which nothing remembers what was read: its position
            then has no offsets and an unknown identity.

    Returns:
        The position, or ``None`` when there is no table, or only an empty one that is not ours.

    Raises:
        RefusedError: the table is damaged, is not the one that the ledger remembers, holds rows
            that are not ours, or was changed by somebody else.
    """
    refuse_half_swapped(stream, paths)
    memory = memory or load_ledger(paths)
    log = TableLog(paths.data)
    if not log.exists:
        _refuse_traces(stream, paths, memory)
        return None
    refuse_damaged(paths.data)
    table_id = log.table_id()
    ours, others = log.since_our_newest(stream)
    seq = log.last_seq(stream)
    _refuse_another(stream, paths, table_id, memory)
    mine = memory.rows_of(table_id)
    if mine and mine[-1].seq > (seq or 0):
        raise _rolled_back(stream, paths, seq or 0, mine[-1])
    if seq is None:
        if log.file_count():
            raise _foreign(stream, paths, "and no commit in its log is of this stream")
        return None
    refuse_settings(stream, log)
    if not even_if_altered:
        refuse_foreign_commits(stream, ours, others)
    if ours is not None and ours.metadata is not None and ours.metadata.seq == seq:
        return _from_commit(table_id, ours.metadata)
    if mine and mine[-1].seq == seq and mine[-1].identity != UNKNOWN:
        return _from_ledger(table_id, mine)
    if not even_if_forgotten:
        raise _forgotten(stream, paths, seq)
    return _from_rows(table_id, seq, paths)


def refuse_red(stream: str, rows: Sequence[LedgerRow]) -> None:
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


def _from_commit(table_id: str, metadata: CommitMetadata) -> Position:
    return Position(
        table_id=table_id,
        seq=metadata.seq,
        epoch=metadata.epoch,
        identity=metadata.identity,
        columns=metadata.columns,
        next=metadata.next,
        source="commit",
    )


def _from_ledger(table_id: str, mine: Sequence[LedgerRow]) -> Position:
    """Stand in for commits that have aged out of the log."""
    last = mine[-1]
    return Position(
        table_id=table_id,
        seq=last.seq,
        epoch=last.epoch,
        identity=last.identity,
        columns="",
        next=next_offsets(mine),
        source="ledger",
    )


def _from_rows(table_id: str, seq: int, paths: StreamPaths) -> Position:
    """Say the little that the rows themselves tell: enough to begin a new epoch, no more."""
    logs = (TableLog(table) for table in (paths.data, paths.tombstones))
    return Position(
        table_id=table_id,
        seq=seq,
        epoch=max(1, *(log.highest_epoch() for log in logs if log.exists)),
        identity=UNKNOWN,
        columns="",
        next=Offsets(),
        source="rows",
    )


def _refuse_traces(stream: str, paths: StreamPaths, memory: LoadedLedger) -> None:
    """Make sure that no table has ever been where none is now."""
    if memory.rows or memory.damage:
        raise _replaced(stream, paths, "is gone")
    if TableLog(paths.data).has_lost_its_log:
        raise _foreign(stream, paths, "and there is no Delta log beside them")


def _refuse_another(stream: str, paths: StreamPaths, table_id: str, memory: LoadedLedger) -> None:
    if memory.rows and memory.rows[-1].table_id != table_id:
        known = memory.rows[-1].table_id
        raise _replaced(stream, paths, f"has id {table_id}, the ledger knows {known}")


def _rolled_back(stream: str, paths: StreamPaths, seq: int, last: LedgerRow) -> RefusedError:
    return TableRolledBackError(
        stream,
        f"{paths.data} ends with seq {seq}, and the ledger remembers seq {last.seq} (version "
        f"{last.delta_version}): an older copy of the table came back, or its newest commits are "
        "gone.",
        remedy=f"put the newer files back, or oncelake reset {stream}, to ingest the topic again",
    )


def _forgotten(stream: str, paths: StreamPaths, seq: int) -> RefusedError:
    return MemoryLostError(
        stream,
        f"the commits of {paths.data} have aged out of its log, and the ledger does not remember "
        f"seq {seq}: nobody knows what was read, and of which topic.",
        remedy=f"put {paths.ledger} back (an older one may lie in {paths.archive}), or "
        f"oncelake adopt-topic {stream}: the rows stay, and the topic is read again from its "
        "start, in a new epoch",
    )


def _replaced(stream: str, paths: StreamPaths, what: str) -> RefusedError:
    return TableReplacedError(
        stream,
        f"the ledger remembers a table at {paths.data}, which {what}.",
        remedy=f"put the table back, or oncelake reset {stream}, to begin again from the topic",
    )


def _foreign(stream: str, paths: StreamPaths, why: str) -> RefusedError:
    return ForeignTableError(
        stream,
        f"{paths.data} holds rows, {why}.",
        remedy="rename the stream's file, or move that table away",
    )
