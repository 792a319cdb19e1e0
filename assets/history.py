"""Unreported batches: those in the ledger that no materialization reports.

A run that dies between its last commit and its result leaves its batches in the table and, at the
latest after the next run, in the ledger. Dagster's metadata is a projection of that as well, so
batches that are missing there, because of a crash, a run outside Dagster or a wiped event log, are
found here.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import dagster as dg

if TYPE_CHECKING:
    from oncelake.ingestion.lake.ledger import LedgerRow


COMPLETE: Final = "complete"
_PAGE: Final = 100
# So far back a table is looked for that was put away and came back.
_MOST_EVENTS: Final = 5_000


@dataclass(frozen=True, kw_only=True, slots=True)
class UnreportedBatches:
    """Batches that are in the table, and in no materialization.

    Attributes:
        rows: Their ledger rows, by seq, without those of the run that asks.
        unknown: Why Dagster's history could not be read; then nothing is known of earlier batches.
    """

    rows: tuple[LedgerRow, ...] = ()
    unknown: str = ""

    @property
    def history(self) -> str:
        """Say how far a materialization reports the batches before its own."""
        return f"unknown: {self.unknown}" if self.unknown else COMPLETE


def find_unreported(
    instance: dg.DagsterInstance,
    key: dg.AssetKey,
    ledger: Sequence[LedgerRow],
    *,
    table_id: str,
    mine: Collection[int],
    up_to: int,
) -> UnreportedBatches:
    """Find the batches that no materialization reports.

    Args:
        instance: Holds the event log, which may have been wiped.
        key: The stream's asset.
        ledger: Every row of the table, by seq.
        table_id: Delta's id of the table; what is known of another one does not count.
        mine: Seqs that the asking run reports by itself.
        up_to: Seq at which that run ended; what lies beyond is somebody else's to report.
    """
    try:
        reported = list(_reported_seqs(instance, key, table_id))
    except Exception as error:  # noqa: BLE001 (the batches are committed: it is told, not thrown)
        return UnreportedBatches(unknown=f"{type(error).__name__}: {error}")
    known = [*reported, mine, range(up_to + 1, sys.maxsize)]
    return UnreportedBatches(
        rows=tuple(row for row in ledger if not any(row.seq in seqs for seqs in known))
    )


def _reported_seqs(
    instance: dg.DagsterInstance, key: dg.AssetKey, table_id: str
) -> Iterator[range]:
    """Yield the seqs that materializations report, back to one that covers all before it."""
    for metadata in _materializations(instance, key):
        # Checks judge what a run recovered only behind that: it may have died before.
        if metadata.get("table_id") != table_id or metadata.get("recovered"):
            continue
        last = int(metadata["seq"])
        if metadata["history"] == COMPLETE:
            yield range(last + 1)
            return
        yield range(last - int(metadata["batches"]) + 1, last + 1)


def _materializations(instance: dg.DagsterInstance, key: dg.AssetKey) -> Iterator[dict[str, Any]]:
    """Yield the metadata of the asset's materializations, newest first."""
    cursor = None
    for _ in range(0, _MOST_EVENTS, _PAGE):
        page = instance.fetch_materializations(key, limit=_PAGE, cursor=cursor)
        for record in page.records:
            event = record.asset_materialization
            if event is not None:
                yield {name: entry.value for name, entry in event.metadata.items()}
        if not page.has_more:
            return
        cursor = page.cursor
