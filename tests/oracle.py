"""What must hold of a stream that was read to its end, and evidence where it does not."""

from __future__ import annotations

from collections.abc import Iterator

from ingestion.verify import verify
from tests.world import World


def evidence_against(world: World) -> tuple[str, ...]:
    """Return what is wrong, in words; nothing when each record was applied exactly once."""
    return tuple(_evidence(world))


def _evidence(world: World) -> Iterator[str]:
    verdict = verify(world.spec, world.settings)
    yield from (str(each) for each in verdict.differences)
    yield from verdict.obstacles
    report = world.run()
    if report.total("quarantined") or report.batches:
        yield f"an idle run wrote batches {[each.seq for each in report.batches]}"
    if verdict.seq != report.seq:
        yield f"proven through batch {verdict.seq}, the table is at {report.seq}"
    if report.lag:
        yield f"{report.lag} offsets are unread"
