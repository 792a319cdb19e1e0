"""The log of an Iceberg table: the snapshots that its current one stands on, and their notes.

A note is in its snapshot's summary; the last seq and epoch are properties of the table, too, set by
the same commit, so that they outlive the snapshots. A version is a snapshot's sequence number. The
past is the chain of parents: the table's list also has what somebody has rolled back.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from itertools import count
from typing import Final

from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.snapshots import (
    ADDED_FILE_SIZE,
    TOTAL_DELETE_FILES,
    TOTAL_RECORDS,
    Operation,
    Snapshot,
)

from oncelake.ingestion.sinks.iceberg.branches import SEQ as LAST_SEQ
from oncelake.ingestion.sinks.iceberg.branches import TABLE_ID, id_of
from oncelake.ingestion.sinks.iceberg.catalog import CatalogEntry, ShownTable
from oncelake.ingestion.sinks.iceberg.files import count_in
from oncelake.ingestion.tables.commit_log import DELETED, INSERTED, UPDATED, Commit, CommitLog
from oncelake.ingestion.tables.commit_metadata import CommitMetadata, DamagedMetadataError, app_id

STREAM: Final = "oncelake.stream"
SEQ: Final = LAST_SEQ
EPOCH: Final = "oncelake.epoch"
NOTE: Final = "oncelake.note"
OPERATION: Final = "oncelake.operation"
# Of a snapshot on a branch that shows a batch which is withheld: the stream.
WITHHELD: Final = "oncelake.withheld"
COUNTS: Final = {
    INSERTED: "oncelake.inserted",
    UPDATED: "oncelake.updated",
    DELETED: "oncelake.deleted",
}
RESTORE: Final = "RESTORE"


def history(metadata: TableMetadata, ref: str = MAIN_BRANCH) -> list[Snapshot]:
    """Walk from the newest snapshot to its parents, as far back as they are there."""
    by_id = {snapshot.snapshot_id: snapshot for snapshot in metadata.snapshots}
    head = metadata.refs.get(ref)
    chain, id_ = list[Snapshot](), head.snapshot_id if head else None
    while id_ is not None and (snapshot := by_id.get(id_)):
        chain.append(snapshot)
        id_ = snapshot.parent_snapshot_id
    return chain


def by_version(metadata: TableMetadata) -> dict[int, Snapshot]:
    """Return the snapshots of the history, newest first, by their sequence numbers."""
    return {snapshot.sequence_number or 0: snapshot for snapshot in history(metadata)}


def needed(metadata: TableMetadata) -> list[Snapshot]:
    """Walk back to our newest commit, which has the table's position."""
    past = history(metadata)
    ours = (at for at, snapshot in enumerate(past) if seq_of(snapshot) is not None)
    return past[: next(ours, len(past)) + 1]


def summary_of(snapshot: Snapshot) -> Mapping[str, str]:
    """Return a snapshot's summary."""
    return snapshot.summary.additional_properties if snapshot.summary else {}


def seq_of(snapshot: Snapshot) -> int | None:
    """Return the seq of a commit of ours."""
    seq = summary_of(snapshot).get(SEQ)
    return None if seq is None else int(seq)


def last_seq(table: Table | None, stream: str) -> int | None:
    """Return the highest seq that the table has recorded for a stream."""
    if table is None or table.properties.get(STREAM) != stream:
        return None
    seq = table.properties.get(SEQ)
    return None if seq is None else int(seq)


class IcebergLog(CommitLog):
    """The log of a table.

    Where somebody has rolled the table back, so that commits of ours are no longer in it, a commit
    of theirs, ``RESTORE``, stands in the place of those.
    """

    def __init__(self, entry: CatalogEntry) -> None:
        self._entry = entry

    def look_again(self) -> None:
        """Forget what was read."""
        for name in ("_table", "_snapshots", "_rollbacks"):
            self.__dict__.pop(name, None)

    @cached_property
    def _table(self) -> ShownTable | None:
        table = self._entry.load()
        self._entry.table_id = id_of(table.metadata) if table else None
        return table

    def since(self, snapshot_id: int | None) -> tuple[ShownTable, list[Commit] | None]:
        """Return the table, and the commits that lead from a snapshot to its newest, newest first.

        ``None`` where they do not: it was rolled back, or one of them has expired. Of a table
        without a snapshot the id is ``None``.
        """
        chain, newer = history(self._there.metadata), list[Snapshot]()
        for each in chain:
            if each.snapshot_id == snapshot_id:
                break
            newer.append(each)
        else:
            if (chain[-1].parent_snapshot_id if chain else None) != snapshot_id:
                return self._there, None
        return self._there, [self._commit(each.sequence_number or 0, each) for each in newer]

    @property
    def _there(self) -> ShownTable:
        if self._table is None:
            raise FileNotFoundError(f"{self._entry.where} is not there")
        return self._table

    @cached_property
    def _snapshots(self) -> dict[int, Snapshot]:
        return by_version(self._table.metadata) if self._table else {}

    @cached_property
    def _rollbacks(self) -> dict[int, int]:
        """Return a version, and when, for each gap in our seqs, which nothing but a rollback makes.

        The properties that hold the last seq, and the id, are not rolled back; to a table that a
        rebuild has replaced, which a tag keeps, ``main`` can be.
        """
        last, chain = self.last_seq(self._entry.stream), self._snapshots.items()
        if last is None:
            return {}
        ours = [(seq, version) for version, at in chain if (seq := seq_of(at)) is not None]
        if not chain:
            ours = [(-1, -1)]
        rollbacks, above = dict[int, int](), last + 1
        id_ = id_of(self._there.metadata)
        for seq, version in ours:
            made_for = summary_of(self._snapshots[version]).get(TABLE_ID, id_) if chain else id_
            if seq != above - 1 or made_for != id_:
                free = next(each for each in count(version + 1) if each not in self._snapshots)
                rollbacks[free] = self._there.metadata.last_updated_ms
            above = seq
        return rollbacks

    @property
    def exists(self) -> bool:
        """Tell whether the catalog has the table."""
        return self._table is not None

    @property
    def is_empty(self) -> bool:
        """Tell whether the table has no row."""
        current = self._table.current_snapshot() if self._table else None
        return current is None or summary_of(current).get(TOTAL_RECORDS) == "0"

    def table_id(self) -> str:
        """Return the id that the table was given when it was made."""
        return f"iceberg:{id_of(self._there.metadata)}"

    def versions(self) -> list[int]:
        """List the sequence numbers of the snapshots, newest first."""
        return sorted({*self._snapshots, *self._rollbacks}, reverse=True)

    def read(self, version: int) -> Commit:
        """Read what a snapshot says of itself."""
        if version in self._rollbacks:
            return Commit(
                version=version,
                timestamp_ms=self._rollbacks[version],
                operation=RESTORE,
                metrics={},
                txns={},
                changes_rows=True,
                metadata=None,
            )
        if version not in self._snapshots:
            raise FileNotFoundError(f"{self._entry.where} has no version {version}")
        return self._commit(version, self._snapshots[version])

    def _commit(self, version: int, snapshot: Snapshot) -> Commit:
        summary = summary_of(snapshot)
        try:
            note, entry = summary.get(NOTE), self._entry
            metadata = CommitMetadata.from_json(note, entry.stream, entry.where)
        except DamagedMetadataError as error:
            raise self._entry.damaged(f"version {version}: {error}") from error
        seq, operation = seq_of(snapshot), Operation.OVERWRITE
        if snapshot.summary:
            operation = snapshot.summary.operation
        metrics = {name: int(summary[key]) for name, key in COUNTS.items() if key in summary}
        ours = summary.get(OPERATION)
        is_changed = any(metrics.values()) or ours == RESTORE
        return Commit(
            version=version,
            timestamp_ms=snapshot.timestamp_ms,
            operation=ours or operation.value,
            metrics=metrics,
            txns={} if seq is None else {app_id(summary[STREAM]): seq},
            changes_rows=is_changed if ours else operation != Operation.REPLACE,
            metadata=metadata,
            added_bytes=int(summary.get(ADDED_FILE_SIZE, "0")),
        )

    def last_seq(self, stream: str) -> int | None:
        """Return the table's property, which each commit of ours has set."""
        return last_seq(self._table, stream)

    def row_count(self) -> int:
        """Return what the snapshot has summed up; with delete files, which it cannot, ask them."""
        current = self._there.current_snapshot()
        if current is None:
            return 0
        summary = summary_of(current)
        if TOTAL_RECORDS in summary and summary.get(TOTAL_DELETE_FILES, "0") == "0":
            return int(summary[TOTAL_RECORDS])
        with self._entry.translated():
            files, io = self._entry.data_files(self._there, current), self._there.io
            return sum(count_in(io, file) for file in files)

    def highest_epoch(self) -> int:
        """Return the table's property, which each commit of ours has set."""
        return int(self._there.properties.get(EPOCH, 0))

    def refuse_torn(self, stream: str, commit: Commit) -> None:
        """Compare the seq of a snapshot with that of its note."""
        if commit.is_torn(stream):
            fence = commit.txns[app_id(stream)]
            raise self._entry.damaged(
                f"version {commit.version} is of seq {fence}, and its note says another"
            )
