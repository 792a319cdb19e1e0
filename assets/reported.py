"""What a run's report becomes in Dagster: the metadata of a materialization, and its log lines."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dagster as dg

from assets.described import column_schema
from ingestion.books import COUNTS
from ingestion.console.documents import ranges_document, ranges_of
from ingestion.ledger import LedgerRow
from ingestion.report import RunReport
from ingestion.spec import StreamSpec

# The table of ranges has that name already.
_RENAMED = {"offsets": "offsets_in_ranges"}


def metadata_of(report: RunReport, spec: StreamSpec) -> dict[str, Any]:
    """Return the metadata of a materialization: flat numbers, so that the UI plots them."""
    return {
        "offsets": offsets_table(report),
        **counts_of(report),
        "seq": report.seq,
        "delta_version": report.delta_version,
        "lag": report.lag,
        "epoch": report.epoch,
        "batches": len(report.batches),
        "recovered": ", ".join(str(row.seq) for row in report.recovered) or "none",
        "notices": "\n".join(report.notices) or "none",
        "dagster/row_count": report.row_count,
        "dagster/column_schema": column_schema(spec),
        "dagster/uri": Path(report.table).as_uri(),
        "dagster/table_name": spec.name,
    }


def counts_of(report: RunReport) -> dict[str, int]:
    """Return every count of a run under its name, those of 0 too."""
    further = (name for row in report.batches for name in row.counts)
    return {
        _RENAMED.get(name, name): report.total(name) for name in dict.fromkeys([*COUNTS, *further])
    }


def offsets_table(report: RunReport) -> dg.TableMetadataValue:
    """Return what a run read of each partition, as a table; without rows when it read nothing."""
    numbers = ("partition", "start", "end", "records", "gaps")
    columns = [dg.TableColumn("topic", "string"), *(dg.TableColumn(it, "int") for it in numbers)]
    return dg.MetadataValue.table(
        [dg.TableRecord(row) for row in ranges_document(ranges_of(report))],
        schema=dg.TableSchema(columns=columns),
    )


def telling_batches(say: Callable[[str], None]) -> Callable[[LedgerRow, int], None]:
    """Return what tells of each batch in one line: its records, their rate, and the lag left."""
    since = time.monotonic()

    def on_batch(row: LedgerRow, lag: int) -> None:
        nonlocal since
        now = time.monotonic()
        read, seconds = row.counts.get("read", 0), max(now - since, 0.001)
        since = now
        verdict = "" if not row.is_red else f" · RED: {row.says()}"
        say(
            f"batch {row.seq} committed as version {row.delta_version} · {read:,} records in "
            f"{seconds:.1f} s ({read / seconds:,.0f} records/s) · lag {lag:,}{verdict}"
        )

    return on_batch
