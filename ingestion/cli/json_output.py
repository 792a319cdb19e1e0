"""The JSON forms of ledger rows and of a run's report, which programs rely on."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ingestion.kafka.offsets import Offsets
from ingestion.lake.books import COUNTS
from ingestion.lake.commit_metadata import CountedRange
from ingestion.lake.ledger import LedgerRow
from ingestion.pipeline.report import RunReport


def row_document(row: LedgerRow) -> dict[str, Any]:
    """Return a ledger row: its columns, ranges as objects, the time in ISO 8601, UTC."""
    return {
        "table_id": row.table_id,
        "seq": row.seq,
        "kind": row.kind,
        "epoch": row.epoch,
        "committed_at": row.committed_at.isoformat(),
        "run_id": row.run_id,
        "delta_version": row.delta_version,
        "ranges": ranges_document(row.ranges),
        "counts": dict(row.counts),
        "balanced": row.balanced,
        "accepted": row.accepted,
    }


def batch_document(row: LedgerRow) -> dict[str, Any]:
    """Return the ledger row of a batch just written, with what does not balance in it."""
    return {**row_document(row), "problems": list(row.problems)}


def report_document(report: RunReport) -> dict[str, Any]:
    """Return what a run did; ``counts`` and ``ranges`` are sums over its batches."""
    return {
        "stream": report.stream,
        "run_id": report.run_id,
        "balanced": report.is_balanced,
        "seq": report.seq,
        "epoch": report.epoch,
        "delta_version": report.delta_version,
        "row_count": report.row_count,
        "table": report.table,
        "lag": report.lag,
        "counts": {name: report.total(name) for name in COUNTS},
        "ranges": ranges_document(report.ranges),
        "next": next_document(report.next),
        "batches": [batch_document(row) for row in report.batches],
        "recovered": [row_document(row) for row in report.recovered],
        "notices": list(report.notices),
    }


def ranges_document(ranges: Iterable[CountedRange]) -> list[dict[str, Any]]:
    """Return ranges as a list of objects."""
    return [counted.as_row() for counted in ranges]


def next_document(reached: Offsets) -> list[dict[str, Any]]:
    """Return the next offset of each partition as a list of objects."""
    return [
        {"topic": at.topic, "partition": at.partition, "offset": offset}
        for at, offset in reached.items()
    ]
