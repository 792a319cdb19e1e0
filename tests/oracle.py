"""What must hold of a stream that was read to its end, and evidence where it does not."""

from __future__ import annotations

from collections.abc import Iterator

from assets.contiguity import breaks
from ingestion.local.compare import differences, table_rows
from ingestion.local.fold import fold
from ingestion.local.topic import records
from tests.traffic import GONE
from tests.world import World


def evidence_against(world: World) -> tuple[str, ...]:
    """Return what is wrong, in words; nothing when each record was applied exactly once."""
    return tuple(_evidence(world))


def _evidence(world: World) -> Iterator[str]:
    spec = world.spec
    is_delete = (lambda row: row["name"] == GONE) if spec.apply_as_deletes else None
    said = fold(records(world.settings, spec.subscribed), spec, is_delete=is_delete)
    yield from differences(said, spec, table_rows(world.paths.data, spec))
    ledger = world.ledger
    report = world.run()
    bad = sum(said.bad.values())
    if report.total("quarantined") or report.batches:
        yield f"an idle run wrote batches {[each.seq for each in report.batches]}"
    if (quarantined := sum(row.counts.get("quarantined", 0) for row in ledger)) != bad:
        yield f"{bad} records are bad, the ledger counts {quarantined}"
    held = len(world.quarantined()) if world.paths.quarantine.exists() else 0
    if held != bad:
        yield f"{bad} records are bad, the quarantine holds {held}"
    if red := [row.seq for row in ledger if not row.balanced]:
        yield f"the books of {red} do not balance"
    if [row.seq for row in ledger] != list(range(1, report.seq + 1)):
        yield f"the ledger holds {[row.seq for row in ledger]}, the table is at {report.seq}"
    yield from (f"{at}: {what}" for at, what in breaks(ledger, epoch=1, reached=report.next))
    if report.lag:
        yield f"{report.lag} offsets are unread"
