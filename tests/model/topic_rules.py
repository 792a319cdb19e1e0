"""What may happen to the topic: records, gaps, transactions, partitions, retention, a new life."""

from __future__ import annotations

from random import Random

from oncelake.ingestion.declaration.derived import as_ddl, united
from tests.model.cluster import Partition, Record
from tests.model.evolution import Shape, parsed, types_of
from tests.model.world import World

KEYS = 4


def produce(world: World, dice: Random) -> bool:
    """Records come, of few keys and in any order."""
    part = dice.choice(world.cluster.partitions)
    for _ in range(dice.randint(1, 3)):
        part.slots.append(_record(world, dice))
    return True


def _record(world: World, dice: Random) -> Record:
    kinds = ("row", "row", "row", "delete", "bad", "ignored")
    world.cluster.sent += 1
    # Not all who write have the newest schema.
    shape = world.shape if dice.random() < 0.8 else Shape()
    key, at = dice.randrange(KEYS), dice.randrange(6)
    return Record(dice.choice(kinds), key, at, world.cluster.sent, shape)


def move_the_schema(world: World, dice: Random) -> bool:
    """Records have a column more from now on, or a wider one; a person may write that down."""
    if not world.follows:
        return False
    world.shape = world.shape.moved(dice)
    world.happens("schema moved")
    if dice.random() < 0.2:
        host = dice.randrange(len(world.files))
        known = parsed(world.files[host])
        world.files[host] = as_ddl(united(known, types_of(world.shape)))
    return True


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


def change_the_leader(world: World, dice: Random) -> bool:
    """A partition gets another leader, or its broker is started again: nothing is lost."""
    dice.choice(world.cluster.partitions).change_leader()
    world.happens("leader changed")
    return True


def cut_a_log(world: World, dice: Random) -> bool:
    """A leader that lacks the newest records takes over, and others come in their place."""
    part = dice.choice(world.cluster.partitions)
    if len(part.slots) <= part.first or not _identity_is_known(world):
        return False
    length = len(part.slots)
    part.lose_end(dice.randint(part.first, length - 1))
    # Shorter than before, as long, or longer; of equal length mostly, which shows the least.
    grown = length - len(part.slots) + dice.choice((-1, 0, 0, 1, 2))
    # Its first ones may be markers, of transactions that the old leader had begun.
    part.slots += [None] * dice.choice((0, 0, 0, 1, 2))
    part.slots += [_record(world, dice) for _ in range(max(0, grown))]
    world.happens("log cut")
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


def _identity_is_known(world: World) -> bool:
    """Tell whether a commit of ours is in the log: the ledger alone does not know topic ids."""
    table = world.paths.data.table
    return table is None or any(each.metadata for each in table.commits[table.kept_from :])
