"""What a crash kept from Dagster, told by the next run: materializations marked as recovered.

Each run that was swallowed gets one of its own, in the order of the batches, before the run that
tells them speaks of itself. They are bounded: a wiped event log has forgotten every run there was.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any, Final

import dagster as dg

from assets.evidence import Evidence
from assets.history import COMPLETE
from assets.reported import metadata_of_batches
from ingestion.lake.ledger import LedgerRow

MOST_RUNS: Final = 20


def recovered(evidence: Evidence, *, by: str) -> Iterator[dg.AssetMaterialization]:
    """Yield a materialization a swallowed run; one stands for all but the last ``MOST_RUNS``.

    Args:
        evidence: What is known when the run that tells them has ended.
        by: Id of that run.
    """
    runs = [tuple(rows) for _, rows in groupby(evidence.untold.rows, key=lambda row: row.run_id)]
    older = [row for rows in runs[:-MOST_RUNS] for row in rows]
    if older:
        dead = f"{len(runs) - MOST_RUNS} runs"
        yield _materialization(evidence, older, runs=dead, by=by)
    for rows in runs[-MOST_RUNS:]:
        yield _materialization(evidence, rows, runs=f"run {rows[0].run_id}", by=by)


def _materialization(
    evidence: Evidence, rows: Sequence[LedgerRow], *, runs: str, by: str
) -> dg.AssetMaterialization:
    first, last = rows[0], rows[-1]
    batches = f"batch {last.seq}" if first is last else f"batches {first.seq} to {last.seq}"
    return dg.AssetMaterialization(
        asset_key=evidence.spec.name,
        description=f"Recovered: {batches} of {runs}, of which Dagster had not been told",
        metadata={
            **metadata_of_batches(rows),
            **_place(rows),
            "recovered": True,
            "recovered_by": by,
            "run_id": runs.removeprefix("run "),
            "history": COMPLETE,
            "table_id": evidence.table_id,
        },
    )


def _place(rows: Sequence[LedgerRow]) -> dict[str, Any]:
    """Return where in the table's life batches stand."""
    first, last = rows[0], rows[-1]
    return {
        "first_seq": first.seq,
        "seq": last.seq,
        "epoch": last.epoch,
        "delta_version": last.delta_version,
        "kinds": ", ".join(dict.fromkeys(row.kind for row in rows)),
        "red_batches": sum(row.is_red for row in rows),
        "committed_at": dg.MetadataValue.timestamp(last.committed_at),
    }
