"""A lake in memory: a Delta-like table with ``txn`` fences, its ledger, and its side tables."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from ingestion.declaration.sinks import SinkSpec
from ingestion.lake.attempts import MARKS, ROWS, Attempt, Columns
from ingestion.lake.ledger import Ledger, LedgerRow
from ingestion.lake.quarantine import Waiting
from ingestion.sinks.commit_log import Commit
from ingestion.sinks.commit_metadata import CommitMetadata, app_id
from ingestion.sinks.delta.log import DeltaLog
from ingestion.storage.location import Location
from tests.model.data_table import ModelData
from tests.model.process import CallFailedError, step

STREAM = "s"
APP = app_id(STREAM)


class Row(NamedTuple):
    """A row, or a remembered delete: its place in the order, and the batch that wrote it."""

    epoch: int
    at: int
    partition: int
    offset: int
    seq: int

    @property
    def place(self) -> tuple[int, int, int, int]:
        """What says which of two is newer."""
        return self[:4]


Rows = Mapping[int, Row]


@dataclass(slots=True)
class Table:
    """A Delta table: every version of its rows, and the highest ``txn`` of our application."""

    id: str
    commits: list[Commit] = field(default_factory=list)
    states: list[Rows] = field(default_factory=list)
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
        if metadata is not None:
            self.txn = metadata.seq


@dataclass(slots=True, eq=False)
class Side:
    """A side table: what each attempt wrote.

    Attributes:
        marks: The redrive that has sent a row of the quarantine in, by its attempt and place.
    """

    name: str
    world: Any = None
    rows: dict[Attempt, tuple[Any, ...]] = field(default_factory=dict)
    marks: dict[tuple[Attempt, int, int], Attempt] = field(default_factory=dict)

    def __str__(self) -> str:
        """Name the folder, as a path would."""
        return f"lake/{self.name}"

    def replace(self, attempt: Attempt, rows: tuple[Any, ...]) -> None:
        """Replace the rows of an attempt."""
        step("write beside the table")
        self.rows[attempt] = rows

    def attempts(self, columns: Columns) -> set[Attempt]:
        """Return the attempts that have rows, or marks."""
        step("look beside the table")
        return set(self.rows if columns == ROWS else self.marks.values())

    def delete(self, condition: str) -> None:
        """Remove the rows of attempts that a condition of the product names, with their marks."""
        step("remove beside the table")
        names = names_in(condition)
        self.rows = {each: rows for each, rows in self.rows.items() if each.name not in names}
        self.marks = {at: mark for at, mark in self.marks.items() if at[0].name not in names}

    def update(self, updates: Mapping[str, str], predicate: str) -> None:
        """Remove the marks of attempts that a condition of the product names."""
        assert set(updates) == set(MARKS), updates
        step("remove beside the table")
        names = names_in(predicate)
        self.marks = {at: mark for at, mark in self.marks.items() if mark.name not in names}

    def waiting(self, leftovers: Waiting) -> tuple[tuple[Attempt, Any], ...]:
        """Return the rows that no redrive has sent in, each with its attempt."""
        return tuple(
            (attempt, row)
            for attempt, rows in sorted(self.rows.items())
            for row in rows
            if attempt not in leftovers.rows.attempts
            and self.marks.get((attempt, *row[:2])) in {None, *leftovers.marks.attempts}
        )

    def version(self) -> int:
        """Return the newest version: what is read of it is read at once."""
        return 0


def names_in(condition: str) -> set[int]:
    """Read the names of attempts out of a condition that the product has written."""
    found = re.search(r"_attempt\", -1\) IN \(([\d, ]*)\)", condition)
    return set(map(int, found[1].split(", "))) if found else set()


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
    def lock_outlives_commits(self) -> bool:
        """Tell whether nobody else can commit where the lock is free."""
        locking: str = self.world.locking
        return locking == "kernel"

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
            return bool(self.path.rows)
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
