"""What must hold of a stream that was read to its end, and evidence where it does not."""

from __future__ import annotations

from collections.abc import Iterator

from ingestion.operations.apply_transformation import spark_transformation
from ingestion.verify.verdict import Verdict
from ingestion.verify.verify import verify
from tests.support.world import World


def prove(world: World) -> Verdict:
    """Prove a stream, with Spark where only Spark can evaluate what is declared."""
    return verify(world.spec, world.settings, apply_transformation=spark_transformation)


def find_problems(world: World) -> tuple[str, ...]:
    """Return what is wrong, in words; nothing when each record was applied exactly once."""
    return tuple(_problems(world))


def _problems(world: World) -> Iterator[str]:
    idle = world.run()
    if idle.batches:
        yield f"an idle run wrote batches {[each.seq for each in idle.batches]}"
    if idle.lag:
        yield f"{idle.lag} offsets are unread"
    verdict = prove(world)
    if not verdict.holds or verdict.limits:
        yield f"{verdict.headline}; {'; '.join(verdict.limits)}"
    yield from map(str, verdict.differences)
