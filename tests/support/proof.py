"""What must hold of a stream that was read to its end, and evidence where it does not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from ingestion.errors import counted
from ingestion.lake.attempts import ROWS
from ingestion.operations.apply_transformation import spark_transformation
from ingestion.sinks.delta.files import is_delta, open_rows
from ingestion.storage.location import Location
from ingestion.verify.verdict import Verdict
from ingestion.verify.verify import verify
from tests.support.world import World


def prove(world: World) -> Verdict:
    """Prove a stream, with Spark where only Spark can evaluate what is declared."""
    return verify(world.spec, world.settings, apply_transformation=spark_transformation)


def find_problems(world: World) -> tuple[str, ...]:
    """Return what is wrong, in words; nothing when each record was applied exactly once."""
    return tuple(_problems(world))


def rows_of_no_commit(world: World) -> tuple[str, ...]:
    """Return what a reader of the side tables would take for records that a batch has read."""
    committed = {(row.seq, row.attempt) for row in world.ledger}
    sides = (side for side in (world.paths.quarantine, world.paths.tombstones) if is_delta(side))
    return tuple(
        f"{side.name} has {counted(count, 'row')} of attempt {attempt}, which no commit names"
        for side in sides
        for attempt, count in Counter(_attempts_in(side)).items()
        if attempt not in committed
    )


def _attempts_in(side: Location) -> Iterator[tuple[int, int]]:
    for row in open_rows(side).to_table(columns=[*ROWS]).to_pylist():
        yield row[ROWS[0]], row[ROWS[1]]


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
