"""A stream's files, read once when an operation begins and judged afterwards.

Reading fails only where files cannot be read for what they are. What to refuse and what to heal
is decided by functions of the snapshot alone.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from oncelake.ingestion.delta.log import DeltaLog
from oncelake.ingestion.errors import TableSettingsError
from oncelake.ingestion.lake.archive import refuse_half_swapped
from oncelake.ingestion.lake.ledger import LedgerRow, LoadedLedger, load_ledger
from oncelake.ingestion.lake.paths import StreamPaths
from oncelake.ingestion.tables.commit_log import Commit, CommitLog
from oncelake.ingestion.tables.commit_metadata import UNKNOWN

Source = Literal["commit", "ledger", "rows"]


@dataclass(frozen=True, kw_only=True, slots=True)
class TableState:
    """The data table, by its log.

    Attributes:
        seq: The highest seq that it has recorded for the stream; ``None`` when it never did.
        is_empty: Whether it has no data file.
        newest: Our newest commit that is still in the log.
        others: What others committed after that, newest first.
        settings_error: What on the table contradicts the ingestion.
        highest_epoch: Newest epoch of any row; read only where nothing else tells the position.
    """

    table_id: str
    seq: int | None
    is_empty: bool = False
    newest: Commit | None = None
    others: tuple[Commit, ...] = ()
    settings_error: TableSettingsError | None = None
    highest_epoch: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class TableSnapshot:
    """A stream's table and ledger, as they were found.

    Attributes:
        has_stray_files: Whether data files lie there without a Delta log.
    """

    paths: StreamPaths
    table: TableState | None
    ledger: LoadedLedger
    has_stray_files: bool = False

    @property
    def rows(self) -> tuple[LedgerRow, ...]:
        """The ledger's rows of this table, by seq."""
        return self.ledger.rows_of(self.table.table_id) if self.table else ()

    @property
    def source(self) -> Source:
        """The source of the position: a commit, the ledger once that has aged out, or the rows."""
        table, rows = self.table, self.rows
        metadata = table.newest.metadata if table and table.newest else None
        if table and metadata and metadata.seq == table.seq:
            return "commit"
        is_in_ledger = rows and table and rows[-1].seq == table.seq
        return "ledger" if is_in_ledger and rows[-1].identity != UNKNOWN else "rows"


def read_snapshot(
    paths: StreamPaths, ledger: LoadedLedger | None = None, *, is_swap_finished: bool = False
) -> TableSnapshot:
    """Read the table's log, and the ledger unless the caller has read it.

    Raises:
        DamagedTableError: the table's files are not as they were written.
        TableReplacedError: a rebuilt table was on its way into this one's place.
    """
    if not is_swap_finished:
        refuse_half_swapped(paths)
    ledger, table, log = ledger or load_ledger(paths), paths.table, paths.table.log()
    if not log.exists:
        return TableSnapshot(
            paths=paths, table=None, ledger=ledger, has_stray_files=log.has_lost_its_log
        )
    settings_error = table.check(log)
    newest, others = log.since_our_newest(paths.stream)
    state = TableState(
        table_id=log.table_id(),
        seq=log.last_seq(paths.stream),
        is_empty=log.is_empty,
        newest=newest,
        others=others,
        settings_error=settings_error,
    )
    ledger = ledger.completed(paths, state.table_id, state.seq or 0)
    snapshot = TableSnapshot(paths=paths, table=state, ledger=ledger)
    if state.seq is not None and snapshot.source == "rows":
        logs: tuple[CommitLog, ...] = (log, DeltaLog(paths.tombstones))
        highest = max(log.highest_epoch() for log in logs if log.exists)
        state = replace(state, highest_epoch=highest)
    return replace(snapshot, table=state)
