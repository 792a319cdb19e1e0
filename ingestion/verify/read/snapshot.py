"""What is on disk, as of one moment: one version of the table, its log, and its ledger.

A run may be committing right now. Then its last commit has no ledger row yet, and the proof stops
before it; when nobody holds the stream, such a commit is left over from a crash.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deltalake import DeltaTable
from pyarrow.dataset import ParquetReadOptions

from ingestion.declaration.spec import StreamSpec
from ingestion.errors import InvalidSpecError, SchemaChangedError, TableReplacedError
from ingestion.lake.commit_metadata import UNKNOWN, Identity
from ingestion.lake.lock import Holder, holder_of
from ingestion.lake.paths import StreamPaths
from ingestion.lake.table_log import open_dataset
from ingestion.verify.read.delta_log import Batch, LoggedCommit, read_ledger, read_log
from ingestion.verify.read.record import SYSTEM_COLUMNS

_ROWS = 8_192
# Moments of 96 bits, of which files may be older than this version, reach beyond nanoseconds.
_MICROS = ParquetReadOptions(coerce_int96_timestamp_unit="us")


@dataclass(frozen=True, kw_only=True, slots=True)
class Snapshot:
    """What is on disk.

    Attributes:
        version: The version to prove: the newest, or the one before the first unfinished commit.
        ledger: Every row of the ledger up to there.
        commits: What is left of the log up to the newest version, oldest first.
        unfinished: Commits of ours after the ledger's last row, oldest first.
        holder: The run that holds the stream, if there are such commits and it still runs.
    """

    table_id: str
    version: int
    ledger: tuple[Batch, ...]
    commits: tuple[LoggedCommit, ...]
    unfinished: tuple[LoggedCommit, ...]
    holder: Holder | None

    @property
    def identity(self) -> Identity:
        """What the newest commit of ours says of topics, keys and order."""
        rows = [commit.metadata.get("identity") for commit in self.commits if commit.metadata]
        return next((Identity.of_row(row) for row in reversed(rows) if row is not None), UNKNOWN)

    @property
    def ledger_of_table(self) -> tuple[Batch, ...]:
        """The ledger's rows of this table, by seq."""
        return tuple(batch for batch in self.ledger if batch.table_id == self.table_id)

    @property
    def finished(self) -> tuple[LoggedCommit, ...]:
        """What is left of the log up to the version to prove."""
        return tuple(commit for commit in self.commits if commit.version <= self.version)

    @property
    def batches(self) -> tuple[Batch, ...]:
        """The batches of this table, by seq, with the ranges of their commits where those are left.

        A batch whose ledger row is missing is here as its commit tells of it.
        """
        commits = {c.seq: c for c in self.finished if c.metadata and c.seq > 0}
        batches = {batch.seq: batch for batch in self.ledger_of_table}
        return tuple(
            _corrected(batches.get(seq), commits.get(seq), self.table_id)
            for seq in sorted(batches.keys() | commits.keys())
        )


def take_snapshot(spec: StreamSpec, paths: StreamPaths) -> Snapshot:
    """Read the logs of a stream's tables.

    Raises:
        InvalidSpecError: there is no table yet.
        TableReplacedError: the table is gone, and its ledger is not.
        SchemaChangedError: the table's columns are not the declared ones.
    """
    ledger = read_ledger(paths.ledger)
    if not DeltaTable.is_deltatable(str(paths.data)):
        raise _no_table(spec, paths, ledger)
    table = DeltaTable(paths.data)
    _refuse_other_columns(spec, table)
    newest = table.version()
    commits = read_log(paths.data, spec.name, through=newest)
    # Read again: a batch that was committed meanwhile is in the ledger, too.
    unfinished, holder = _unfinished(commits, read_ledger(paths.ledger)), None
    if unfinished:
        holder = holder_of(paths)
        unfinished = _unfinished(commits, read_ledger(paths.ledger))
    version = unfinished[0].version - 1 if unfinished else newest
    return Snapshot(
        table_id=str(table.metadata().id),
        version=version,
        ledger=_until(version, read_ledger(paths.ledger), commits),
        commits=commits,
        unfinished=unfinished,
        holder=holder,
    )


def rows_of(path: Path, version: int | None, columns: Sequence[str]) -> Iterator[list[Any]]:
    """Yield a table's rows in chunks, by delta-rs; nothing when there is no table."""
    if not DeltaTable.is_deltatable(str(path)):
        return
    dataset = open_dataset(DeltaTable(path, version=version), _MICROS)
    batches = dataset.to_batches(
        columns=list(columns), batch_size=_ROWS, batch_readahead=2, fragment_readahead=1
    )
    for batch in batches:
        if batch.num_rows:
            columns_of_values = (c.to_pylist(maps_as_pydicts="lossy") for c in batch.columns)
            yield list(zip(*columns_of_values, strict=True))


def row_count(path: Path, version: int) -> int:
    """Count a table's rows, from the statistics of its files."""
    return int(DeltaTable(path, version=version).count())


def _unfinished(
    commits: Sequence[LoggedCommit], ledger: Sequence[Batch]
) -> tuple[LoggedCommit, ...]:
    last = max((batch.seq for batch in ledger), default=0)
    return tuple(commit for commit in commits if commit.is_ours and commit.seq > last)


def _until(
    version: int, ledger: Sequence[Batch], commits: Sequence[LoggedCommit]
) -> tuple[Batch, ...]:
    """Leave out the batches that were committed after ``version``."""
    last = max((c.seq for c in commits if c.version <= version), default=0)
    return tuple(b for b in ledger if b.seq <= last or b.delta_version <= version)


def _corrected(batch: Batch | None, commit: LoggedCommit | None, table_id: str) -> Batch:
    if batch is not None and commit is None:
        return batch
    assert commit is not None
    metadata = commit.metadata or {}
    columns = str(metadata.get("columns") or (batch.columns if batch else ""))
    return Batch(
        table_id=table_id,
        seq=commit.seq,
        kind=metadata["kind"],
        epoch=metadata["epoch"],
        run_id=metadata["run_id"],
        delta_version=commit.version,
        ranges=commit.ranges,
        counts=batch.counts if batch else metadata["counts"],
        balanced=batch.balanced if batch else True,
        accepted=batch.accepted if batch else metadata["reason"],
        columns=columns,
    )


def _no_table(
    spec: StreamSpec, paths: StreamPaths, ledger: Sequence[Batch]
) -> InvalidSpecError | TableReplacedError:
    if not ledger:
        return InvalidSpecError(
            f"{spec.name}: there is no table yet. Next: oncelake run {spec.name}"
        )
    return TableReplacedError(
        spec.name,
        f"the ledger remembers a table at {paths.data}, which is gone.",
        remedy=f"put the table back, or oncelake reset {spec.name}, to begin again from the topic",
    )


def _refuse_other_columns(spec: StreamSpec, table: DeltaTable) -> None:
    declared = {column.name for column in spec.table_columns} | set(SYSTEM_COLUMNS)
    found = {field.name for field in table.schema().fields}
    if declared == found:
        return
    both = ", ".join(sorted(declared ^ found))
    raise SchemaChangedError(
        spec.name,
        f"table and declaration do not have the same columns; only one of them has: {both}.",
        remedy=f"oncelake plan {spec.name} shows what the next run would do about it",
    )
