"""The JSON forms of ledger rows and of a run's report, which programs rely on."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from ingestion.kafka.offsets import Offsets
from ingestion.lake.books import COUNTS
from ingestion.lake.commit_metadata import CountedRange
from ingestion.lake.ledger import LedgerRow
from ingestion.pipeline.report import RunReport

_COLUMNS: Final = (
    *("table_id", "seq", "kind", "epoch", "committed_at", "run_id", "delta_version", "ranges"),
    *("counts", "balanced", "accepted"),
)


def row_document(row: LedgerRow) -> dict[str, Any]:
    """Return a ledger row: its columns, ranges as objects, the time in ISO 8601, UTC."""
    columns = {name: getattr(row, name) for name in _COLUMNS}
    return {**columns, "ranges": ranges_document(row.ranges)}


def batch_document(row: LedgerRow) -> dict[str, Any]:
    """Return the ledger row of a batch just written, with what does not balance in it."""
    return {**row_document(row), "problems": row.problems}


def report_document(report: RunReport) -> dict[str, Any]:
    """Return what a run did; ``counts`` and ``ranges`` are sums over its batches."""
    names = ("seq", "epoch", "delta_version", "row_count", "table", "lag")
    return {
        "stream": report.stream,
        "run_id": report.run_id,
        "balanced": report.is_balanced,
        **{name: getattr(report, name) for name in names},
        "counts": {name: report.total(name) for name in COUNTS},
        "ranges": ranges_document(report.ranges),
        "next": next_document(report.next),
        "batches": [batch_document(row) for row in report.batches],
        "recovered": [row_document(row) for row in report.recovered],
        "notices": report.notices,
    }


def ranges_document(ranges: Iterable[CountedRange]) -> list[dict[str, Any]]:
    """Return ranges as a list of objects."""
    return [counted.as_row() for counted in ranges]


def next_document(reached: Offsets) -> list[dict[str, Any]]:
    """Return the next offset of each partition as a list of objects."""
    return [{**at._asdict(), "offset": offset} for at, offset in reached.items()]
