"""``oncelake maintain``: what keeps a stream's tables quick to read, and small.

    lock → where does the table stand? → of each table: forget what nobody needs any more
         → put small files together → VACUUM beyond the rewind window → checkpoint of the log

No row of the data table changes, and no batch's books. Killed anywhere, run it again: every step
may be repeated.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import takewhile

import duckdb
from deltalake import write_deltalake
from deltalake.exceptions import DeltaError

from oncelake.ingestion.declaration.spec import StreamSpec
from oncelake.ingestion.delta.commits import is_unwritable
from oncelake.ingestion.delta.durability import seal_commits
from oncelake.ingestion.delta.files import as_arrow, is_delta, open_delta, open_rows
from oncelake.ingestion.delta.vacuum import checkpoint, vacuum
from oncelake.ingestion.errors import RefusedError, first_line
from oncelake.ingestion.lake.ledger import LedgerRow, copy_ledger, standing_rows
from oncelake.ingestion.lake.lock import held, refuse_lost_lease
from oncelake.ingestion.lake.paths import StreamPaths
from oncelake.ingestion.lake.quarantine import remove_payloads
from oncelake.ingestion.lake.withheld import forget_withheld
from oncelake.ingestion.modes import sql
from oncelake.ingestion.operations.history.rewind import read_history
from oncelake.ingestion.recovery.standing import OF_BATCHES, heal_stream
from oncelake.ingestion.recovery.withheld import waiting_at
from oncelake.ingestion.settings import Settings
from oncelake.ingestion.sinks.delta.compaction import TableSize, TableUpkeep, compact
from oncelake.ingestion.storage.failpoints import Failpoint, hit
from oncelake.ingestion.storage.location import Location
from oncelake.ingestion.storage.processes import sweep_scratch
from oncelake.ingestion.tables.table import NamedTable

_MEGABYTE = 1024 * 1024


@dataclass(frozen=True, kw_only=True, slots=True)
class UpkeepReport:
    """The result of maintenance.

    Attributes:
        tables: Each table of the stream that there is; none before its first run.
        payloads_removed: Quarantined records of which only place and reason are left, now.
        swept: Folders of dead runs that were removed.
    """

    stream: str
    tables: tuple[TableUpkeep, ...]
    payloads_removed: int
    swept: int

    @property
    def bytes_saved(self) -> int:
        """How much less lies on the disk; 0 where it is more."""
        return max(0, -self._growth)

    @property
    def bytes_added(self) -> int:
        """How much more lies on the disk, for checkpoints and what older versions still need."""
        return max(0, self._growth)

    @property
    def _growth(self) -> int:
        return sum(each.after.bytes_on_disk - each.before.bytes_on_disk for each in self.tables)


def maintain(
    spec: StreamSpec,
    settings: Settings,
    *,
    run_id: str,
    tell: Callable[[str], None] = lambda step: None,
    window: dt.timedelta | None = None,
) -> UpkeepReport:
    """Maintain a stream's tables.

    Args:
        tell: Called with each step.
        window: How long what left a table stays on the disk; default: the declared rewind window.

    Raises:
        RefusedError: a table is damaged, is not the one that was left there, or has a feature that
            delta-rs does not write; or mode, keys or order are not those that it was written with.
        TableBusyError: somebody else changed a table meanwhile.
        StreamLockedError: a run holds the stream.
    """
    paths = StreamPaths.of(spec.name, settings, spec.sink)
    with held(paths, run_id):
        standing = heal_stream(spec, paths)
        if standing.position is None:
            return UpkeepReport(stream=spec.name, tables=(), payloads_removed=0, swept=0)
        # By other keys, or another order, another delete would be the newest of a key.
        standing.refuse(*OF_BATCHES)
        # Copies that a restore left that was cut short.
        paths.restored.delete_all(partial(refuse_lost_lease, paths))
        if waiting_at(standing.position, paths) is None:
            forget_withheld(paths, spec.publish.branch)
        rows = standing_rows(standing.rows)
        keep = window if window is not None else dt.timedelta(days=spec.rewind_window_days)
        forgotten = _forget_deletes(spec, paths, rows)
        bare = _remove_old_payloads(spec, paths, rows)
        copy_ledger(paths)
        hit(Failpoint.RETIRED)
        target_bytes = spec.maintenance.target_file_mb * _MEGABYTE
        # Not before an alter that is due.
        is_clustered = bool(spec.cluster_by) and spec.cluster_by == paths.table.sort_by()
        if isinstance(paths.table, NamedTable):
            done = paths.table.maintain(keep, target_bytes, is_clustered=is_clustered)
            for what, count in done.items():
                tell(f"{spec.name}: {what} {count:,}…")
        tables = []
        for path in (paths.data, paths.quarantine, paths.tombstones, paths.ledger):
            if is_delta(path):
                tell(f"{spec.name}: {path.name}…")
                is_ours = is_clustered and path == paths.data
                kept = _maintain_table(spec, path, keep, is_clustered=is_ours)
                removed = forgotten if path == paths.tombstones else 0
                tables.append(replace(kept, removed_rows=removed))
        return UpkeepReport(
            stream=spec.name,
            tables=tuple(tables),
            payloads_removed=bare,
            swept=len(sweep_scratch(settings.state)),
        )


def _maintain_table(
    spec: StreamSpec, path: Location, keep: dt.timedelta, *, is_clustered: bool
) -> TableUpkeep:
    before = TableSize.of(path)
    try:
        target_bytes = spec.maintenance.target_file_mb * _MEGABYTE
        compact(path, target_bytes=target_bytes, is_clustered=is_clustered)
        vacuumed = vacuum(path, window=keep)
    except DeltaError as error:
        if not is_unwritable(error):
            raise
        raise RefusedError(
            spec.name,
            f"delta-rs, by which {path} is maintained, cannot write it: {first_line(error)}.",
            remedy=f"let Spark do it: OPTIMIZE delta.`{path}`; VACUUM delta.`{path}`",
        ) from error
    checkpoint(path)
    seal_commits(path)
    return TableUpkeep(name=path.name, before=before, after=TableSize.of(path), vacuumed=vacuumed)


def _forget_deletes(spec: StreamSpec, paths: StreamPaths, rows: Sequence[LedgerRow]) -> int:
    """Forget the deletes that a newer one of their key covers, or that are older than declared.

    History needs every one, and so does a stream whose rows may take columns along from a row that
    has moved. A rewind finds what it needs: nothing changes in the newest batch that wrote deletes
    before the oldest savepoint, nor behind it.
    """
    path = paths.tombstones
    needs_all = spec.mode == "scd2" or spec.unavailable == "keep" or spec.moved_by
    if needs_all or not is_delta(path):
        return 0
    limit = _settled_seq(paths, rows)
    if limit is None:
        return 0
    aged = _seq_before(rows, spec.maintenance.keep_tombstones_days)
    table = open_delta(path)
    newest_first = sql.ranked(("_epoch", *spec.order_columns), "DESC")
    with duckdb.connect() as tables:
        tables.execute("SET TimeZone = 'UTC'")
        tables.register("deletes", as_arrow(open_rows(path)))
        kept = tables.sql(
            "SELECT * EXCLUDE (_rank) FROM (SELECT *, row_number() OVER (PARTITION BY "
            f"_seq <= {limit}, {sql.names(spec.keys)} ORDER BY {newest_first}) AS _rank "
            "FROM deletes) d "
            f"WHERE _seq > {limit} OR (_rank = 1 AND _seq > {min(aged, limit)})"
        ).to_arrow_table()
    forgotten: int = table.count() - kept.num_rows
    if forgotten:
        refuse_lost_lease(paths)
        write_deltalake(table, kept, mode="overwrite")
        seal_commits(path)
    return forgotten


def _settled_seq(paths: StreamPaths, rows: Sequence[LedgerRow]) -> int | None:
    """Return the last batch whose deletes no rewind can need one by one; ``None`` without any.

    From where the stream stands, and from every savepoint that can be reached, the newest batch
    that wrote deletes must be whole: the next run compares it with its books.
    """
    known = (row for row in standing_rows(rows) if row.balanced)
    deletes = ("deleted", "deleted_absent", "left_absent")
    wrote = [row.seq for row in known if any(row.counts.get(name) for name in deletes)]
    reached = [row.seq for row in rows[-1:]]
    reached += [point.seq for point in read_history(paths) if point.obstacle is None]
    needed = (max((seq for seq in wrote if seq <= at), default=None) for at in reached)
    return min((seq - 1 for seq in needed if seq is not None), default=None)


def _remove_old_payloads(spec: StreamSpec, paths: StreamPaths, rows: Sequence[LedgerRow]) -> int:
    refuse_lost_lease(paths)
    days = spec.maintenance.keep_quarantine_days
    aged = _seq_before(rows, days)
    why = f"maintenance.keep_quarantine_days: {days}"
    return remove_payloads(paths.quarantine, f"_seq <= {aged}", why) if aged else 0


def _seq_before(rows: Sequence[LedgerRow], days: int | None) -> int:
    """Return the last batch before the first that is younger; 0 when there is none.

    One batch that a wrong clock dated back makes no earlier one old.
    """
    if days is None:
        return 0
    since = dt.datetime.now(dt.UTC) - dt.timedelta(days=days)
    aged = takewhile(lambda row: row.committed_at < since, rows)
    return max((row.seq for row in aged), default=0)
