"""A lake in memory: a Delta-like table with ``txn`` fences, its ledger, and its side tables."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from deltalake.exceptions import CommitFailedError

from oncelake.ingestion.declaration.sinks import SinkSpec
from oncelake.ingestion.delta.log import DeltaLog
from oncelake.ingestion.lake.ledger import Ledger, LedgerRow
from oncelake.ingestion.storage.location import Location
from oncelake.ingestion.tables.commit_log import Commit
from oncelake.ingestion.tables.commit_metadata import CommitMetadata, app_id
from tests.model.data_table import ModelData
from tests.model.evolution import Shape
from tests.model.process import CallFailedError, step

STREAM = "s"
APP = app_id(STREAM)


class Row(NamedTuple):
    """A row, or a remembered delete: its place in the order, and the batch that wrote it.

    Of its record it has the columns of ``shape``.
    """

    epoch: int
    at: int
    partition: int
    offset: int
    seq: int
    shape: Shape = Shape()

    @property
    def place(self) -> tuple[int, int, int, int]:
        """What says which of two is newer."""
        return self[:4]


Rows = Mapping[int, Row]


@dataclass(slots=True)
class Table:
    """A Delta table: every version of its rows, and the highest ``txn`` of our application.

    Attributes:
        columns: Those of every version, as DDL.
    """

    id: str
    commits: list[Commit] = field(default_factory=list)
    states: list[Rows] = field(default_factory=list)
    columns: list[str] = field(default_factory=list)
    txn: int | None = None
    kept_from: int = 0
    fences: bool = True

    def skips(self, metadata: CommitMetadata) -> bool:
        """Tell whether Delta would skip a fenced statement, in silence."""
        return self.fences and self.txn is not None and self.txn >= metadata.seq

    def land(
        self,
        rows: Rows,
        metadata: CommitMetadata | None,
        *,
        clock_ms: int,
        read_at: int,
        metrics: Mapping[str, int] | None = None,
        operation: str = "MERGE",
        columns: str | None = None,
    ) -> None:
        """Commit optimistically, on what was read at version ``read_at``.

        Raises:
            CallFailedError: another commit of our application came in between.
        """
        since = self.commits[read_at + 1 :]
        if self.fences and metadata is not None and any(APP in each.txns for each in since):
            raise CallFailedError("ConcurrentTransactionException")
        self.commits.append(
            Commit(
                version=len(self.commits),
                timestamp_ms=clock_ms,
                operation=operation,
                metrics=metrics or {},
                txns={} if metadata is None else {APP: metadata.seq},
                changes_rows=False,
                metadata=metadata,
            )
        )
        self.states.append(rows)
        self.columns.append(self.columns[-1] if columns is None else columns)
        if metadata is not None:
            self.txn = metadata.seq


class SideRow(NamedTuple):
    """A row of a side table.

    Attributes:
        seq: The batch that wrote it.
        mark: The redrive that has sent it in.
        content: Of a record in quarantine, its place first; of a remembered delete, its key.
    """

    seq: int
    content: tuple[Any, ...]
    mark: int | None = None

    @property
    def place(self) -> tuple[Any, ...]:
        """What tells a record in quarantine from any other."""
        return (*self.content[:2], self.seq)


@dataclass(frozen=True, slots=True)
class File:
    """A file beside the table, which counts once a commit names it."""

    folder: Side
    name: str


@dataclass(slots=True, eq=False)
class Side:
    """A side table: its rows, and the files in its folder.

    Attributes:
        files: What each holds, and the process that wrote it.
        versions: How many commits its log has.
        txns: What they are fenced by.
    """

    name: str
    world: Any = None
    rows: list[SideRow] = field(default_factory=list)
    files: dict[str, tuple[tuple[Any, ...], str]] = field(default_factory=dict)
    versions: int = 0
    txns: dict[str, int] = field(default_factory=dict)

    def __str__(self) -> str:
        """Name the folder, as a path would."""
        return f"lake/{self.name}"

    def __truediv__(self, name: str) -> File:
        """Return a file in the folder."""
        return File(self, name)

    def version(self) -> int:
        """Return the newest version: what is read of it is read at once."""
        return self.versions

    def waiting(self) -> list[SideRow]:
        """Return the rows that no redrive has sent in."""
        return [row for row in self.rows if row.mark is None]

    def old_files(self) -> set[str]:
        """Return those that are older than any process: nobody sleeps for a rewind window."""
        living = {each.name for each in self.world.processes}
        return {name for name, (_, writer) in self.files.items() if writer not in living}

    def remove_files(self, names: Collection[str]) -> None:
        """Remove files, whoever is about to name them."""
        step("remove files beside the table")
        for name in names:
            self.files.pop(name, None)


@dataclass(slots=True)
class OpenedSide:
    """A version of a side table, on which delta-rs commits, or not at all."""

    side: Side
    read_at: int
    txns: Mapping[str, int]
    table_uri: str = "file:///of/the/model"

    @classmethod
    def of(cls, side: Side) -> OpenedSide:
        """Open the newest version."""
        step("look beside the table")
        return cls(side, side.versions, dict(side.txns))

    def transaction_version(self, application: str) -> int | None:
        """Return the recorded ``txn``, as of that version."""
        return self.txns.get(application)

    def delete(self, condition: str, **_: object) -> None:
        """Remove the rows of some batches."""
        self.land([row for row in self.side.rows if not holds(condition, row.seq)])

    def update(self, *, updates: Mapping[str, str], predicate: str, **_: object) -> None:
        """Remove the marks of some redrives."""
        assert updates == {"redriven_seq": "CAST(NULL AS BIGINT)"}, updates
        condition = predicate.replace("redriven_seq", "_seq")
        self.land(
            [
                row._replace(mark=None) if row.mark and holds(condition, row.mark) else row
                for row in self.side.rows
            ]
        )

    def land(self, rows: Sequence[SideRow], **fence: int) -> None:
        """Commit on exactly the version that was opened."""
        step("project")
        if self.side.versions != self.read_at:
            raise CommitFailedError("a commit of that version is there")
        self.side.rows, self.side.versions = [*rows], self.read_at + 1
        self.side.txns |= fence
        self.read_at += 1


def holds(condition: str, seq: int) -> bool:
    """Tell whether a condition on ``_seq`` holds; the product writes comparisons and AND."""
    return bool(eval(condition.replace("AND", "and"), {"__builtins__": {}}, {"_seq": seq}))


@dataclass(slots=True)
class LedgerStore:
    """The ledger's rows by table and seq, as plain records; the product sorts and reads them."""

    rows: dict[tuple[str, int], LedgerRow] = field(default_factory=dict)


@dataclass(slots=True)
class Place:
    """Where the data table lies, if there is one."""

    table: Table | None = None

    def __str__(self) -> str:
        """Name the folder, as a path would."""
        return f"lake/{STREAM}"


@dataclass(slots=True)
class Paths:
    """The places of the one stream, under the names of ``ingestion.lake.paths.StreamPaths``."""

    stream: str = STREAM
    sink: SinkSpec = field(default_factory=SinkSpec)
    data: Place = field(default_factory=Place)
    quarantine: Side = field(default_factory=lambda: Side(f"{STREAM}__quarantine"))
    tombstones: Side = field(default_factory=lambda: Side(f"{STREAM}__tombstones"))
    ledger: LedgerStore = field(default_factory=LedgerStore)
    ledger_copy: Location = field(default_factory=lambda: Location.of("no copy"))
    checkpoints: Any = None
    lock: str = "lock"
    holder: str = "holder"
    world: Any = None
    written: tuple[Any, ...] = ()
    tables: tuple[Any, ...] = ()
    archive: Any = None

    @property
    def sides(self) -> Mapping[str, Side]:
        """The side tables."""
        return {"quarantine": self.quarantine, "tombstones": self.tombstones}

    @property
    def table(self) -> ModelData:
        """The table of the rows."""
        return ModelData(self)


class ModelLog(DeltaLog):
    """The product's reader of a table's log, over a table in memory."""

    path: Any

    @property
    def _table(self) -> Table:
        table: Table = self.path.table
        return table

    @property
    def exists(self) -> bool:
        """Tell whether there is a table; a side table is one as soon as it was written."""
        if isinstance(self.path, Side):
            return self.path.versions > 0
        step("read the table's log")
        return self.path.table is not None

    def look_again(self) -> None:
        """Do nothing: the log in memory is always as it is."""

    def file_count(self) -> int:
        """Count files: one a row."""
        return len(self._table.states[-1])

    def versions(self) -> list[int]:
        """List the versions that the log still holds."""
        return list(range(len(self._table.commits) - 1, self._table.kept_from - 1, -1))

    def read(self, version: int) -> Commit:
        """Read one commit."""
        return self._table.commits[version]

    def last_seq(self, stream: str) -> int | None:
        """Return the recorded ``txn``."""
        return self._table.txn

    def row_count(self) -> int:
        """Count the rows."""
        return len(self._table.states[-1])

    @property
    def has_lost_its_log(self) -> bool:
        """Tell whether there are files without a log; here there are none."""
        return False

    def highest_epoch(self) -> int:
        """Return the newest epoch of the rows."""
        return max((row.epoch for row in self._table.states[-1].values()), default=0)

    def table_id(self) -> str:
        """Return the table's id."""
        return self._table.id


class ModelLedger(Ledger):
    """The product's ledger, over rows in memory."""

    path: Any

    @property
    def exists(self) -> bool:
        """Tell whether it has rows."""
        return bool(self.path.rows)

    def rows(self) -> tuple[LedgerRow, ...]:
        """Read every row, in the order that the product reads them in."""
        return tuple(sorted(self.path.rows.values(), key=lambda row: (row.committed_at, row.seq)))

    def _write(self, rows: Sequence[LedgerRow], *, is_over: bool) -> None:
        """Write rows in one commit."""
        if rows:
            step("write the ledger")
        for row in rows:
            at, there = (row.table_id, row.seq), self.path.rows
            if at not in there or is_over:
                accepted = there[at].accepted if at in there else None
                there[at] = replace(row, accepted=row.accepted or accepted)
