"""What may happen to the lake: a ledger lost, commits aged out, other writers, clocks."""

from __future__ import annotations

from random import Random

from oncelake.ingestion.kafka.offsets import Offsets
from oncelake.ingestion.lake.ledger import next_offsets
from tests.model.cluster import TOPIC
from tests.model.lake import Table
from tests.model.world import World


def lose_the_ledger(world: World, dice: Random) -> bool:
    """The ledger is deleted, or an older copy of it comes back."""
    table = world.paths.data.table
    if not world.ledger or (table is not None and table.kept_from):
        return False
    kept = sorted(world.ledger)[: dice.randrange(len(world.ledger))]
    world.paths.ledger.rows = {key: world.ledger[key] for key in kept}
    world.happens("ledger lost" if not kept else "ledger rolled back")
    return True


def let_commits_age(world: World, dice: Random) -> bool:
    """Delta's log forgets commits, of which the ledger knows as much."""
    table = world.paths.data.table
    if table is None or not _ledger_tells_the_offsets(world, table):
        return False
    table.kept_from = dice.randint(table.kept_from, len(table.commits) - 2)
    world.happens("commits aged out")
    return True


def set_the_clock_back(world: World, dice: Random) -> bool:
    """The writer's clock jumps back."""
    world.clock_ms -= dice.randint(1_000, 86_400_000)
    world.happens("clock set back")
    return True


def commit_by_somebody_else(world: World, dice: Random) -> bool:
    """An OPTIMIZE lands between our commits, or overtakes one that is about to land."""
    if world.processes and dice.random() < 0.5:
        process = dice.choice(world.processes)
        while not process.has_ended and process.at != "land the commit":
            process.advance()
    table = world.paths.data.table
    if table is None:
        return False
    now = len(table.commits) - 1
    table.land(table.states[now], None, clock_ms=1, read_at=now, operation="OPTIMIZE")
    world.happens("another writer")
    return True


def spoil_the_checkpoint(world: World, dice: Random) -> bool:
    """The checkpoint is lost, rolled back or another stream's: nothing may depend on it."""
    if world.checkpoint is None:
        return False
    older = Offsets({at: dice.randint(0, to) for at, to in world.checkpoint.items()})
    foreign = Offsets({at: dice.randint(0, 9) for at in world.checkpoint})
    world.checkpoint = dice.choice((None, older, foreign))
    world.happens("checkpoint spoilt")
    return True


def _ledger_tells_the_offsets(world: World, table: Table) -> bool:
    """Tell whether the ledger could stand in for the newest commit.

    It has no row of seq 0, and no topic ids: what only the commits know must not be at stake.
    """
    metadata = next((each.metadata for each in reversed(table.commits) if each.metadata), None)
    if metadata is None or not 0 < metadata.seq <= len(world.ledger):
        return False
    if metadata.identity.topic_ids.get(TOPIC) != world.cluster.topic_id:
        return False
    rows = [world.ledger["table", seq] for seq in range(1, metadata.seq + 1)]
    return {at: to for at, to in next_offsets(rows).items() if to} == {
        at: to for at, to in metadata.next.items() if to
    }
