"""Where a table stands: its seq, its epoch, and the next offset of every partition.

The table's log is the truth, and the ledger its memory once the log has aged. Nothing here guesses:
a table that is not the one we left is refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from oncelake.ingestion.errors import (
    ForeignTableError,
    IdentityChangedError,
    OffsetsUnknownError,
    RefusedError,
    TableReplacedError,
    TableRolledBackError,
    UnbalancedBatchError,
)
from oncelake.ingestion.kafka.last_record import LastRecords
from oncelake.ingestion.kafka.offsets import Offsets
from oncelake.ingestion.lake.ledger import LedgerRow, last_records, next_offsets, standing_rows
from oncelake.ingestion.lake.paths import StreamPaths
from oncelake.ingestion.recovery.foreign_commits import foreign_change
from oncelake.ingestion.recovery.snapshot import Source, TableSnapshot, TableState, read_snapshot
from oncelake.ingestion.tables.commit_metadata import (
    CONSTRAINTS,
    UNKNOWN,
    CommitMetadata,
    CountedRange,
    Identity,
    Kind,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Position:
    """Where a table stands.

    Attributes:
        seq: Number of its last batch; 0 before the first.
        columns: The declared columns it was last written with; empty when nothing remembers.
        declaration: What else decided what a record says, by field; ``None`` likewise.
        source: What said so: the newest commit, the ledger once that has aged out, or the
            rows themselves, which give a lower bound.
        last: The last record that was read of each partition, as far as anything remembers.
    """

    table_id: str
    seq: int
    epoch: int
    identity: Identity
    columns: str
    next: Offsets
    source: Source
    declaration: Mapping[str, Any] | None = None
    last: LastRecords = field(default_factory=dict)

    @property
    def constraints(self) -> Mapping[str, str]:
        """The table's constraints on rows: see ``SinkTable.rules``."""
        return (self.declaration or {}).get(CONSTRAINTS) or {}

    def next_metadata(
        self,
        run_id: str,
        *,
        kind: Kind = "ingest",
        ranges: tuple[CountedRange, ...] = (),
        counts: Mapping[str, int] | None = None,
    ) -> CommitMetadata:
        """Begin the metadata of the commit that follows."""
        return CommitMetadata(
            kind=kind,
            seq=self.seq + 1,
            run_id=run_id,
            epoch=self.epoch,
            identity=self.identity,
            columns=self.columns,
            declaration=self.declaration,
            ranges=ranges,
            next=self.next.advanced_by(counted.range for counted in ranges),
            last=self.last,
            counts=counts or {},
        )

    def after(self, metadata: CommitMetadata) -> Position:
        """Return the position once ``metadata`` is committed."""
        return replace(
            self,
            seq=metadata.seq,
            epoch=metadata.epoch,
            identity=metadata.identity,
            declaration=metadata.declaration,
            next=metadata.next,
            last=metadata.last,
            source="commit",
        )


def read_position(paths: StreamPaths, *tolerated: type[RefusedError]) -> Position | None:
    """Read where a stream's table stands, without its lock; see ``position_of``."""
    return position_of(read_snapshot(paths), *tolerated)


def is_ledger_behind(snapshot: TableSnapshot) -> bool:
    """Tell whether a run died between its commit and its ledger row, which the next one writes."""
    recorded = snapshot.rows[-1].seq if snapshot.rows else 0
    return snapshot.table is not None and (snapshot.table.seq or 0) > recorded


def position_of(snapshot: TableSnapshot, *tolerated: type[RefusedError]) -> Position | None:
    """Return where the table stands, if it is the one that was left there.

    Args:
        snapshot: The table and its ledger.
        tolerated: Kinds of ``findings_of`` that do not matter. A table whose offsets nothing
            remembers has a position without any, and an unknown identity.

    Returns:
        The position, or ``None`` when there is no table, or only an empty one that is not ours.

    Raises:
        RefusedError: the table is not the one that the ledger remembers, holds rows that are not
            ours, was changed by somebody else, or contradicts the ingestion by its settings.
    """
    table, paths = snapshot.table, snapshot.paths
    refuse_replaced(paths, snapshot.ledger.rows, table.table_id if table else None)
    if table is None:
        if snapshot.ledger.rows or snapshot.ledger.damage:
            raise replaced_table(paths, "is gone")
        if snapshot.has_stray_files:
            raise stray_files(paths)
        return None
    _refuse_older_copy(snapshot, table)
    if table.seq is None and not table.is_empty:
        raise foreign_table(paths, "and no commit in its log is of this stream")
    if table.settings_error is not None:
        raise table.settings_error
    if table.seq is None:
        return None
    for finding in findings_of(snapshot):
        if not isinstance(finding, tolerated):
            raise finding
    return _position(snapshot, table, table.seq)


def findings_of(snapshot: TableSnapshot) -> Iterator[RefusedError]:
    """Yield what is wrong with a table of ours, and leaves known where it stands.

    Yields:
        TableAlteredError, TableRestoredError: somebody else changed its rows.
        OffsetsUnknownError: nothing remembers what was read.
    """
    table, paths = snapshot.table, snapshot.paths
    if table is None or table.seq is None:
        return
    if finding := foreign_change(paths.stream, table.newest, table.others):
        yield finding
    if snapshot.source == "rows":
        yield OffsetsUnknownError(
            paths.stream,
            f"the commits of {paths.table.where} have aged out of its log, and the ledger has no "
            f"row of seq {table.seq}: what was read, and from which topic, is unknown.",
            remedy=f"restore {paths.ledger} (an older one may be in {paths.archive}), or oncelake "
            f"adopt-topic {paths.stream} --yes: the rows stay, and the topic is read again from "
            "its start, in a new epoch",
        )


def _position(snapshot: TableSnapshot, table: TableState, seq: int) -> Position:
    # Of the rows alone: enough to begin a new epoch, and no more.
    epoch, identity, columns, reached = max(1, table.highest_epoch), UNKNOWN, "", Offsets()
    declaration: Mapping[str, Any] | None = None
    read: LastRecords = {}
    if snapshot.source == "commit":
        assert table.newest is not None
        assert table.newest.metadata is not None
        last = table.newest.metadata
        epoch, identity, columns, reached = last.epoch, last.identity, last.columns, last.next
        declaration, read = last.declaration, last.last
    elif snapshot.source == "ledger":
        # The ledger's rows have the columns only as far as an identity was written with them.
        row = snapshot.rows[-1]
        epoch, identity, reached = row.epoch, row.identity, next_offsets(snapshot.rows)
        declaration, read = row.declaration, last_records(snapshot.rows)
    return Position(
        table_id=table.table_id,
        seq=seq,
        epoch=epoch,
        identity=identity,
        columns=columns,
        declaration=declaration,
        next=reached,
        last=read,
        source=snapshot.source,
    )


def is_elsewhere(paths: StreamPaths, known: Sequence[LedgerRow], table_id: str | None) -> bool:
    """Tell whether the rows are in another sink, or another table of it, than the file declares.

    What was renamed by hand is still the same table.
    """
    if not known or known[-1].table_id == table_id:
        return False
    if known[-1].sink != paths.sink.name:
        return True
    declared = "sink" in (known[-1].declaration or {})
    return declared and paths.at(known[-1].declared_sink).table.where != paths.table.where


def refuse_replaced(paths: StreamPaths, known: Sequence[LedgerRow], table_id: str | None) -> None:
    """Make sure that the rows are where the file says, in the table that the ledger remembers.

    Args:
        paths: The places of the stream.
        known: The ledger's rows, of all its tables.
        table_id: The table that is there, if one is.
    """
    if is_elsewhere(paths, known, table_id):
        was, now = (f"`sink: {each}`" for each in (known[-1].sink, paths.sink.name))
        if was == now:
            was, now = paths.at(known[-1].declared_sink).table.where, paths.table.where
        raise IdentityChangedError(
            paths.stream,
            f"its rows are in a table of {was}; the file declares {now}.",
            remedy=f"oncelake rebuild {paths.stream}, which reads the topic into the new sink and "
            f"then moves the stream there; or oncelake reset {paths.stream} --yes, and the next "
            "run reads it; or put `sink` back",
        )
    if known and table_id is not None and known[-1].table_id != table_id:
        raise replaced_table(paths, f"has id {table_id}, the ledger knows {known[-1].table_id}")


def _refuse_older_copy(snapshot: TableSnapshot, table: TableState) -> None:
    """Make sure that the table is no older copy of the one that the ledger remembers."""
    rows, paths = snapshot.rows, snapshot.paths
    if rows and rows[-1].seq > (table.seq or 0):
        seq, known, version = table.seq or 0, rows[-1].seq, rows[-1].delta_version
        where = paths.table.where
        raise TableRolledBackError(paths.stream, where, seq=seq, known=known, version=version)


def red_batches(paths: StreamPaths, rows: Sequence[LedgerRow]) -> Iterator[UnbalancedBatchError]:
    """Name the batches that do not balance and that nobody has accepted, with their ranges."""
    stream = paths.stream
    for row in standing_rows(rows):
        if row.is_red:
            ways = {
                "rewind": f"oncelake rewind {stream} --to seq:{row.seq - 1} --reason '…' --yes",
                "rebuild": f"oncelake rebuild {stream}",
            }
            able = [way for ability, way in ways.items() if ability not in paths.sink.kind.cannot]
            able = able or [f"declare another table or topic in `sink`, and {ways['rebuild']}"]
            ranges = ", ".join(str(counted.range) for counted in row.ranges if len(counted.range))
            yield UnbalancedBatchError(
                stream,
                f"the books of batch {row.seq} ({ranges}) do not balance: {row.says()}.",
                remedy=f"oncelake verify {stream} shows the rows that differ. If they are wrong, "
                f"{', or '.join(able)}; if they are right, and you know why the books are not, "
                f"oncelake accept {stream} --reason '…'",
            )


def replaced_table(paths: StreamPaths, what: str) -> RefusedError:
    """Return the error of a table that is not the one that the ledger records."""
    problem = f"the ledger records a table at {paths.table.where}, which {what}."
    return TableReplacedError(paths.stream, problem)


def foreign_table(paths: StreamPaths, why: str) -> RefusedError:
    """Return the error of rows that are somebody else's."""
    return ForeignTableError(paths.stream, f"{paths.table.where} holds rows, {why}.")


def stray_files(paths: StreamPaths) -> RefusedError:
    """Return the error of files without a log, which are no table that could be adopted."""
    problem = f"{paths.table.where} holds rows, and there is no Delta log beside them."
    ways = "restore it from a backup, or make one (CONVERT TO DELTA in Spark), then oncelake "
    ways += f"adopt-table {paths.stream}; or move the files away"
    return ForeignTableError(paths.stream, problem, remedy=ways)
