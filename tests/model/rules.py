"""What may happen next: the rules that a schedule draws from, in the two ways of drawing.

A rule is a function of a world and dice, and returns whether it did anything. ``explore`` draws
them by ``random.Random``, quickly; ``test_model`` lets hypothesis draw and shrink them.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from ingestion.ledger import next_offsets
from ingestion.offsets import Offsets
from tests.model.cluster import TOPIC, Partition, Record
from tests.model.lake import Table
from tests.model.process import Process
from tests.model.world import World

Rule = Callable[[World, Random], bool]

KEYS = 4


def produce(world: World, dice: Random) -> bool:
    """Records come, of few keys and in any order."""
    part = dice.choice(world.cluster.partitions)
    for _ in range(dice.randint(1, 3)):
        part.slots.append(_record(world, dice))
    return True


def _record(world: World, dice: Random) -> Record:
    # Rows beside the table have no fence but the lock, so a world that can lose it has none.
    kinds = ("row",) if world.has_lease else ("row", "row", "row", "delete", "bad", "ignored")
    return Record(dice.choice(kinds), dice.randrange(KEYS), dice.randrange(6))


def leave_a_gap(world: World, dice: Random) -> bool:
    """A marker, or aborted records."""
    dice.choice(world.cluster.partitions).slots.extend([None] * dice.randint(1, 2))
    world.happens("gap")
    return True


def open_a_transaction(world: World, dice: Random) -> bool:
    """Nothing behind it can be read until it ends."""
    part = dice.choice(world.cluster.partitions)
    if part.open_from is not None:
        return False
    part.open_from = len(part.slots)
    part.slots.append(_record(world, dice))
    world.happens("open transaction")
    return True


def end_a_transaction(world: World, dice: Random) -> bool:
    """It commits, or aborts; a marker says so."""
    part = dice.choice(world.cluster.partitions)
    if part.open_from is None:
        return False
    if dice.random() < 0.5:
        part.slots[part.open_from] = None
    part.slots.append(None)
    part.open_from = None
    return True


def add_a_partition(world: World, dice: Random) -> bool:
    """The topic grows by one."""
    if len(world.cluster.partitions) >= 4:
        return False
    world.cluster.partitions.append(Partition())
    world.happens("partition added")
    return True


def retain_less(world: World, dice: Random) -> bool:
    """Retention deletes the beginning of a partition."""
    part = dice.choice(world.cluster.partitions)
    if part.stable_end <= part.first:
        return False
    part.first = dice.randint(part.first + 1, part.stable_end)
    world.happens("retention")
    return True


def recreate_the_topic(world: World, dice: Random) -> bool:
    """Somebody deletes the topic and makes it again: shorter, equal or longer than before."""
    if not _identity_is_known(world):
        return False
    world.cluster.create(dice.randint(1, 3))
    for part in world.cluster.partitions:
        part.slots += [_record(world, dice) for _ in range(dice.randint(0, 6))]
    world.happens("topic re-created")
    return True


def start_a_run(world: World, dice: Random) -> bool:
    """A run starts, also beside another."""
    if len(world.processes) >= 3:
        return False
    if world.processes:
        world.happens("two at once")
    world.start_run().advance(dice.randint(0, 8))
    return True


def accept(world: World, dice: Random) -> bool:
    """A person accepts, needed or not."""
    if len(world.processes) >= 3:
        return False
    world.happens("accept")
    world.start_accept().advance(dice.randint(0, 8))
    return True


def adopt(world: World, dice: Random) -> bool:
    """A person adopts the topic, needed or not."""
    if len(world.processes) >= 3:
        return False
    world.happens("adopt")
    world.start_adopt().advance(dice.randint(0, 8))
    return True


def go_on(world: World, dice: Random) -> bool:
    """A process does a few steps."""
    return _one(world, dice, lambda process: process.advance(dice.randint(1, 12)))


def finish(world: World, dice: Random) -> bool:
    """A process goes on to its end."""
    return _one(world, dice, Process.finish)


def kill(world: World, dice: Random) -> bool:
    """A process dies where it is, and its lock with it."""
    return _one(world, dice, lambda process: _at(world, "kill", process, Process.kill))


def fail(world: World, dice: Random) -> bool:
    """A call raises: what it asked for has happened, or has not."""
    return _one(world, dice, lambda process: _at(world, "failure", process, Process.fail))


def lose_the_lock(world: World, dice: Random) -> bool:
    """The lock is free, its holder does not know, and another run takes it: a zombie."""
    if not world.has_lease or world.lock is None:
        return False
    world.lock = None
    world.happens("zombie")
    world.start_run().advance(dice.randint(1, 30))
    return True


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
    """An OPTIMIZE lands between our commits."""
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


def arm(*faults: str) -> Rule:
    """Return the rule that arms one of Spark's faults."""

    def arm_one(world: World, dice: Random) -> bool:
        world.armed.add(dice.choice(faults))
        return True

    return arm_one


def change_the_batch_size(world: World, dice: Random) -> bool:
    """Batches become larger or smaller."""
    world.batch_limit = dice.randint(1, 5)
    return True


# Each rule and its weight: how often a schedule draws it.
RULES: tuple[tuple[Rule, int], ...] = (
    (produce, 12),
    (leave_a_gap, 3),
    (open_a_transaction, 2),
    (end_a_transaction, 2),
    (add_a_partition, 2),
    (retain_less, 1),
    (recreate_the_topic, 2),
    (start_a_run, 14),
    (accept, 1),
    (adopt, 1),
    (go_on, 24),
    (finish, 8),
    (kill, 7),
    (fail, 4),
    (lose_the_lock, 4),
    (lose_the_ledger, 2),
    (let_commits_age, 1),
    (set_the_clock_back, 1),
    (commit_by_somebody_else, 2),
    (spoil_the_checkpoint, 2),
    (arm("batch repeated", "reordered", "record skipped", "record doubled", "winner dropped"), 3),
    (change_the_batch_size, 2),
)


def _one(world: World, dice: Random, act: Callable[[Process], object]) -> bool:
    if not world.processes:
        return False
    act(dice.choice(world.processes))
    return True


def _at(world: World, what: str, process: Process, act: Callable[[Process], None]) -> None:
    world.happens(what)
    world.happens(f"{what}: {process.at}")
    act(process)


def _ledger_tells_the_offsets(world: World, table: Table) -> bool:
    """Tell whether the ledger could stand in for the newest commit.

    It has no row of seq 0, and no topic ids: what only the commits know must not be at stake.
    """
    note = next((each.note for each in reversed(table.commits) if each.note), None)
    if note is None or len(world.ledger) < note.seq or len(table.commits) < 3:
        return False
    if note.identity.topic_ids.get(TOPIC) != world.cluster.topic_id:
        return False
    rows = (world.ledger["table", seq] for seq in range(1, note.seq + 1))
    return {at: to for at, to in next_offsets(rows).items() if to} == {
        at: to for at, to in note.next.items() if to
    }


def _identity_is_known(world: World) -> bool:
    """Tell whether a commit of ours is in the log: the ledger alone does not know topic ids."""
    table = world.paths.data.table
    return table is None or any(each.note for each in table.commits[table.kept_from :])
