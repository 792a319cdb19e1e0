"""A snapshot for the proof: one version of the table, its log, and its ledger.

Ledger and log are read here a second time, by delta-rs and as plain JSON, into shapes of their own
that refuse nothing, since what is wrong must be reported and not raised.

A run may be committing right now. Then its last commit has no ledger row yet, and the proof stops
before it; when nobody holds the stream, such a commit is left over from a crash.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

import pyarrow as pa

from oncelake.ingestion.declaration.spec import ALTERED, StreamSpec
from oncelake.ingestion.delta.files import is_delta, open_whole, scan_rows
from oncelake.ingestion.errors import (
    InvalidSpecError,
    RefusedError,
    SchemaChangedError,
    TableBusyError,
    TableRolledBackError,
    TerminalError,
    no_table_yet,
)
from oncelake.ingestion.kafka.offsets import TopicPartition
from oncelake.ingestion.lake.archive import refuse_half_swapped
from oncelake.ingestion.lake.ledger import load_ledger
from oncelake.ingestion.lake.lock import Holder, holder_of
from oncelake.ingestion.lake.paths import StreamPaths
from oncelake.ingestion.recovery.position import foreign_table, refuse_replaced, replaced_table
from oncelake.ingestion.storage.damage import stream_of
from oncelake.ingestion.storage.location import Location
from oncelake.ingestion.tables.commit_log import CommitLog
from oncelake.ingestion.tables.commit_metadata import UNKNOWN, Identity
from oncelake.ingestion.tables.format import refuse_newer
from oncelake.ingestion.tables.table import Altered, SinkTable
from oncelake.ingestion.verify.decode.coerce import UnprovableError
from oncelake.ingestion.verify.read.record import SYSTEM_COLUMNS
from oncelake.ingestion.verify.read.variant import with_texts

# Batches of records, with books that must balance.
FOLDED: Final = ("ingest", "redrive", "replay")
# What the ledger keeps in one column with the identity.
_KEPT: Final = ("erased", "declaration", "adopted")


class OffsetRange(NamedTuple):
    """Offsets of one partition, end exclusive, and how many of them hold a record."""

    at: TopicPartition
    start: int
    end: int
    records: int
    gaps: int

    @property
    def span(self) -> int:
        """How many offsets there are."""
        return max(0, self.end - self.start)

    def __str__(self) -> str:
        """Write it as mathematics does."""
        return f"{self.at} [{self.start}, {self.end})"

    @classmethod
    def of_row(cls, row: Mapping[str, Any]) -> OffsetRange:
        """Read one as ledger and commits write it."""
        at = TopicPartition(row["topic"], row["partition"])
        return cls(at, row["start"], row["end"], row["records"], row["gaps"])


class LastRead(NamedTuple):
    """The last record read of a partition, as the note of a batch has it."""

    offset: int
    timestamp_ms: int
    leader_epoch: int
    digest: int


def _last_reads(
    rows: Mapping[str, Mapping[str, list[int]]],
) -> Iterator[tuple[TopicPartition, LastRead]]:
    for topic, of_topic in rows.items():
        for partition, row in of_topic.items():
            yield TopicPartition(topic, int(partition)), LastRead(*row)


@dataclass(frozen=True, kw_only=True, slots=True)
class Batch:
    """One row of the ledger.

    Attributes:
        identity: What the ledger has as JSON: beside the identity, what it keeps with it.
        last: The last record that had been read of each of its ranges.
    """

    table_id: str
    seq: int
    kind: str
    epoch: int
    run_id: str
    delta_version: int
    ranges: tuple[OffsetRange, ...]
    counts: Mapping[str, int]
    balanced: bool
    accepted: str | None
    identity: Mapping[str, Any] = field(default_factory=dict)
    columns: str = ""
    erased: Mapping[str, Any] | None = None
    declaration: Mapping[str, Any] | None = None
    adopted: Mapping[str, Any] | None = None
    last: Mapping[TopicPartition, LastRead] = field(default_factory=dict)

    @classmethod
    def of_row(cls, row: Mapping[str, Any]) -> Batch:
        """Read one as the ledger's table has it."""
        given = {name: row[name] for name in cls.__dataclass_fields__ if name in row}
        identity = json.loads(row.get("identity") or "{}")
        given |= {name: identity.get(name) for name in _KEPT}
        given |= {"identity": identity, "columns": identity.get("columns", "")}
        given["last"] = dict(_last_reads(identity.get("last") or {}))
        given["ranges"] = tuple(map(OffsetRange.of_row, row["ranges"] or ()))
        return cls(**{**given, "counts": row["counts"] or {}})


@dataclass(frozen=True, kw_only=True, slots=True)
class LoggedCommit:
    """One version of a table's log.

    Attributes:
        txn: The version that it records for our application id, if any.
        metadata: What a commit of ours says of itself.
        altered: Says that it is not as it was written, so that nothing else is known of it.
    """

    version: int
    txn: int | None
    metadata: Mapping[str, Any] | None
    altered: str = ""

    @property
    def is_ours(self) -> bool:
        """Tell whether the stream's engine made it."""
        return self.txn is not None or self.metadata is not None

    @property
    def seq(self) -> int:
        """Number of its batch; -1 when it is not ours."""
        return int((self.metadata or {}).get("seq", -1 if self.txn is None else self.txn))

    @property
    def ranges(self) -> tuple[OffsetRange, ...]:
        """The ranges that it has read."""
        return tuple(map(OffsetRange.of_row, (self.metadata or {}).get("ranges", ())))

    def fields_of_batch(self, reasons: Mapping[int, str | None]) -> dict[str, Any]:
        """Return what it says of its batch, by the names of ``Batch``.

        Args:
            reasons: Why a person accepted red batches, as ``reasons_in`` returns it.
        """
        said = self.metadata or {}
        last = _last_reads(said.get("last", {}))
        return {
            **{name: said[name] for name in ("kind", "epoch", "run_id")},
            **{name: said.get(name) for name in _KEPT},
            "columns": said.get("columns", ""),
            "identity": said.get("identity") or {},
            "accepted": reasons.get(self.seq, said.get("reason")),
            "ranges": self.ranges,
            "last": {at: read for at, read in last if at in {part.at for part in self.ranges}},
            "delta_version": self.version,
        }


def reasons_in(commits: Iterable[LoggedCommit]) -> dict[int, str | None]:
    """Return why a person accepted red batches, by seq, from the commits of the acceptances."""
    notes = [commit.metadata for commit in commits if commit.metadata]
    return {seq: note["reason"] for note in notes for seq in note.get("accepts", ())}


@dataclass(frozen=True, kw_only=True, slots=True)
class Snapshot:
    """The table, its log and its ledger, as of one moment.

    Attributes:
        version: The version to prove: the newest, or the one before the first unfinished commit.
        ledger: Every row of the ledger up to there.
        commits: What is left of the log up to the newest version, oldest first.
        unfinished: Commits of ours after the ledger's last row, oldest first.
        holder: The run that holds the stream, if there are such commits and it still runs.
        checkpoint: The version up to which no reader needs a commit; -1 where each is needed.
    """

    table_id: str
    version: int
    ledger: tuple[Batch, ...]
    commits: tuple[LoggedCommit, ...]
    unfinished: tuple[LoggedCommit, ...]
    holder: Holder | None
    checkpoint: int = -1

    @property
    def identity(self) -> Identity:
        """The identity in the newest commit of ours: topics, keys and order."""
        rows = [commit.metadata.get("identity") for commit in self.commits if commit.metadata]
        return next((Identity.of_row(row) for row in reversed(rows) if row is not None), UNKNOWN)

    @property
    def ledger_of_table(self) -> tuple[Batch, ...]:
        """The ledger's rows of this table, by seq."""
        return tuple(batch for batch in self.ledger if batch.table_id == self.table_id)

    @property
    def dropped(self) -> tuple[Batch, ...]:
        """The ledger's rows of commits that the log has dropped, though it has older ones.

        No reader needs a commit behind a checkpoint, but for the newest; and a clean-up of the log
        may end halfway. Only batches of records count, since the topic confirms what the ledger
        says of them, and of each version the one row that lies between its neighbours.
        """
        there = {commit.version for commit in self.commits}
        oldest, end = min(there, default=0), min(self.checkpoint + 1, max(there, default=0))
        rows = self.ledger_of_table
        versions = [oldest, *(each.delta_version for each in rows), end]
        return tuple(
            each
            for each, before, version, after in zip(
                rows, versions[:-2], versions[1:-1], versions[2:], strict=True
            )
            if max(before, oldest) < version < min(after, end)
            and version not in there
            and each.kind in FOLDED
            and (each.balanced or each.accepted is None)
        )

    @property
    def finished(self) -> tuple[LoggedCommit, ...]:
        """The commits that are left in the log up to the version to prove."""
        return tuple(commit for commit in self.commits if commit.version <= self.version)

    @property
    def unknown(self) -> tuple[int, ...]:
        """The batches that are neither in the ledger nor in the log, by seq."""
        known = {batch.seq for batch in self.ledger_of_table}
        known |= {commit.seq for commit in self.commits if commit.is_ours}
        return tuple(sorted(set(range(1, max(known, default=0))) - known))

    @property
    def batches(self) -> tuple[Batch, ...]:
        """The batches of this table, by seq, with the ranges of their commits where those are left.

        A batch whose ledger row is missing is here as its commit tells of it; one that a rewind
        has undone is not.
        """
        known = (c for c in self.finished if c.metadata)
        commits = {c.seq: c for c in known if c.seq > 0 or (c.metadata or {}).get("adopted")}
        batches = {batch.seq: batch for batch in self.ledger_of_table}
        reasons = reasons_in(self.finished)
        return without_undone(
            _corrected(batches.get(seq), commits.get(seq), self.table_id, reasons)
            for seq in sorted(batches.keys() | commits.keys())
        )


def without_undone(batches: Iterable[Batch]) -> tuple[Batch, ...]:
    """Leave out, of batches by seq, those that a rewind has taken back."""
    left: dict[int, Batch] = {}
    for batch in batches:
        if batch.kind == "rewind":
            left = {seq: kept for seq, kept in left.items() if seq <= batch.counts["rewound_to"]}
        left[batch.seq] = batch
    return tuple(left.values())


def take_snapshot(spec: StreamSpec, paths: StreamPaths) -> Snapshot:
    """Read the logs of a stream's tables.

    Raises:
        InvalidSpecError: there is no table yet, or no run has taken the empty one that is there.
        ForeignTableError: the table's rows are of somebody else.
        IdentityChangedError: the rows are in another sink, or table, than the file declares.
        TableReplacedError: the table is gone, or another, and its ledger is not.
        TableRolledBackError: the table ends before its ledger.
        TerminalError: the ledger is gone, and the log does not begin with the table.
        RefusedError, TableBusyError: a commit is unfinished, and what was before it is not kept.
        SchemaChangedError: the table's columns are not the declared ones.
    """
    ledger, log = read_ledger(paths.ledger), paths.table.log()
    table_id = log.table_id() if log.exists else None
    if ledger and ledger[-1].table_id != table_id:
        refuse_half_swapped(paths)
        refuse_replaced(paths, load_ledger(paths).rows, table_id)
    if table_id is None or log.last_seq(spec.name) is None:
        raise _not_ours(spec, paths, ledger, log)
    _refuse_other_columns(spec, paths.table)
    newest = max(log.versions(), default=0)
    commits = read_log(paths.table, through=newest)
    _refuse_older_copy(paths, table_id, newest, ledger, commits)
    # Read again: a batch that was committed meanwhile is in the ledger, too.
    unfinished, holder = _unfinished(commits, read_ledger(paths.ledger)), None
    if unfinished:
        holder = holder_of(paths)
        unfinished = _unfinished(commits, read_ledger(paths.ledger))
    if unfinished and unfinished[0] is commits[0]:
        raise TerminalError(
            f"{spec.name}: the ledger ends before the oldest commit of the table's log (seq "
            f"{unfinished[0].seq}), so that nothing can be proven. Next: oncelake run {spec.name}, "
            "which writes it again, as far as its copy and the log reach"
        )
    if unfinished:
        _refuse_past(paths, unfinished[0], holder)
    version = unfinished[0].version - 1 if unfinished else newest
    return Snapshot(
        table_id=table_id,
        version=version,
        ledger=_until(version, read_ledger(paths.ledger), commits),
        commits=commits,
        unfinished=unfinished,
        holder=holder,
        checkpoint=paths.table.checkpoint_version(version),
    )


def rows_in(batches: Iterable[pa.RecordBatch]) -> Iterator[list[Any]]:
    """Yield the rows of Arrow batches, as values of Python.

    Raises:
        UnprovableError: Python has no such value.
    """
    for batch in batches:
        if batch.num_rows:
            yield list(zip(*map(_values, batch.schema.names, batch.columns), strict=True))


def _values(name: str, column: pa.Array) -> list[Any]:
    try:
        return with_texts(column.to_pylist(maps_as_pydicts="lossy"), column.type)
    except OverflowError as error:
        what = "has a date or moment outside the years 1 to 9999, which is not provable"
        raise UnprovableError(f"column {name} {what}") from error


def rows_through(seq: int, path: Location, columns: Sequence[str]) -> Iterator[list[Any]]:
    """Yield rows of a side table, if it is there, without those of batches after one.

    ``columns`` has the rows' ``_seq``.
    """
    at = columns.index("_seq")
    if is_delta(path):
        for rows in rows_in(scan_rows(path, columns)):
            yield [row for row in rows if row[at] <= seq]


def read_ledger(path: Location) -> tuple[Batch, ...]:
    """Read every row of a ledger, by seq; none when there is no ledger."""
    if not is_delta(path):
        return ()
    rows = open_whole(path).to_table().to_pylist(maps_as_pydicts="lossy")
    for row in rows:
        refuse_newer(stream_of(path), path, row)
    return tuple(sorted(map(Batch.of_row, rows), key=lambda batch: batch.seq))


def read_log(table: SinkTable, *, through: int) -> tuple[LoggedCommit, ...]:
    """Read the notes that are still in a table's log, oldest first, up to a version."""
    commits = tuple(_logged(*each) for each in table.notes(through))
    for commit in commits:
        refuse_newer(table.stream, table.where, commit.metadata or {})
    return commits


def _logged(version: int, fence: int | None, note: str | Altered | None) -> LoggedCommit:
    altered = note.what if isinstance(note, Altered) else ""
    metadata = None if isinstance(note, Altered) else _metadata(note)
    said = {name: value for name, value in (metadata or {}).items() if name != "check"}
    checksum = zlib.crc32(json.dumps(said, sort_keys=True).encode())
    if metadata and metadata.get("check") != checksum:
        altered = f"the note of version {version} does not match its own checksum"
    if altered:
        return LoggedCommit(version=version, txn=None, metadata=None, altered=altered)
    return LoggedCommit(version=version, txn=fence, metadata=metadata)


def _metadata(text: str | None) -> Mapping[str, Any] | None:
    try:
        metadata = json.loads(text or "")
    except ValueError:
        return None
    return metadata if isinstance(metadata, dict) and "oncelake" in metadata else None


def _unfinished(
    commits: Sequence[LoggedCommit], ledger: Sequence[Batch]
) -> tuple[LoggedCommit, ...]:
    last = max((batch.seq for batch in ledger), default=0)
    return tuple(commit for commit in commits if commit.is_ours and commit.seq > last)


def _refuse_past(paths: StreamPaths, unfinished: LoggedCommit, holder: Holder | None) -> None:
    """Refuse where the rows before an unfinished commit cannot be read any more."""
    stream, table, why = paths.stream, paths.table, paths.sink.kind.cannot.get("time travel")
    note = unfinished.metadata or {}
    if note.get("kind") == "schema" and ALTERED in (note.get("declaration") or {}):
        why = "the columns of then had other names"
    if why and holder:
        raise TableBusyError(
            f"{stream}: run {holder.run_id} is committing to {table.where} right now, and {why}. "
            "Next: run the same command again"
        )
    if why:
        raise RefusedError(
            stream,
            f"seq {unfinished.seq} of {table.where} is not in the ledger, so that the proof would "
            f"stop before it, and {why}.",
            remedy=f"oncelake run {stream}, which finishes it, then the same command again",
        )


def _until(
    version: int, ledger: Sequence[Batch], commits: Sequence[LoggedCommit]
) -> tuple[Batch, ...]:
    """Leave out the batches that were committed after ``version``."""
    last = max((c.seq for c in commits if c.version <= version), default=0)
    return tuple(b for b in ledger if b.seq <= last or b.delta_version <= version)


def _refuse_older_copy(
    paths: StreamPaths,
    table_id: str,
    newest: int,
    ledger: Sequence[Batch],
    commits: Sequence[LoggedCommit],
) -> None:
    """Refuse a table that lacks a batch of its ledger, which was read before the table was."""
    mine = [batch for batch in ledger if batch.table_id == table_id]
    if len(_until(newest, mine, commits)) < len(mine):
        seq, known = max((commit.seq for commit in commits), default=0), mine[-1]
        raise TableRolledBackError(
            paths.stream, paths.table.where, seq=seq, known=known.seq, version=known.delta_version
        )


def _corrected(
    batch: Batch | None,
    commit: LoggedCommit | None,
    table_id: str,
    reasons: Mapping[int, str | None],
) -> Batch:
    if commit is None:
        assert batch is not None, "a batch is in the ledger, or has a commit"
        return batch
    metadata, own = commit.metadata or {}, commit.fields_of_batch(reasons)
    if batch is None or metadata["kind"] == "accept":
        # What a person has accepted is known before the commit, all of it.
        own["counts"] = metadata["counts"]
    if batch is None:
        return Batch(table_id=table_id, seq=commit.seq, balanced=True, **own)
    return replace(batch, **own)


def _not_ours(
    spec: StreamSpec, paths: StreamPaths, ledger: Sequence[Batch], log: CommitLog
) -> InvalidSpecError | RefusedError:
    """Return the error of a table that is not there, or has no commit of the stream."""
    none = "no commit in its log is of this stream"
    if ledger:
        return replaced_table(paths, f"is there, and {none}" if log.exists else "is gone")
    if not log.exists:
        return no_table_yet(spec.name)
    if log.is_empty:
        where = paths.table.where
        return InvalidSpecError(
            f"{spec.name}: {where} is empty, and {none}. Next: oncelake run {spec.name}"
        )
    return foreign_table(paths, f"and {none}")


def _refuse_other_columns(spec: StreamSpec, table: SinkTable) -> None:
    declared = {column.name for column in spec.table_columns} | set(SYSTEM_COLUMNS)
    # Of those that the table fills by itself no record says anything.
    found = {c.name for c in table.columns() if c.name in declared or not c.filled_by}
    if declared == found:
        return
    both = ", ".join(sorted(declared ^ found))
    raise SchemaChangedError(
        spec.name,
        f"table and declaration do not have the same columns; only one of them has: {both}.",
        remedy=f"oncelake plan {spec.name} shows what the next run would do about it",
    )
