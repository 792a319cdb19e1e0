"""What may happen to processes: they start, go on, end, die, fail, and lose their lock."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import get_args

from oncelake.ingestion.modes.engines.choose import EngineName
from tests.model.evolution import HOSTS
from tests.model.process import Process
from tests.model.world import World

Rule = Callable[[World, Random], bool]


def start_a_run(world: World, dice: Random) -> bool:
    """A run starts, also beside another."""
    if len(world.processes) >= 3:
        return False
    if world.processes:
        world.happens("two at once")
    world.engine = dice.choice(get_args(EngineName))
    world.host = dice.randrange(HOSTS)
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


def redrive(world: World, dice: Random) -> bool:
    """A person mends the declaration, mostly, and sends in what waits."""
    if len(world.processes) >= 3 or not world.paths.quarantine.rows:
        return False
    world.is_mended = dice.random() < 0.8
    world.happens("redrive")
    world.start_redrive().advance(dice.randint(0, 30))
    return True


def rewind(world: World, dice: Random) -> bool:
    """A person sets the stream back, by a batch or a few."""
    table = world.paths.data.table
    if len(world.processes) >= 3 or table is None:
        return False
    world.happens("rewind")
    world.start_rewind(max(0, (table.txn or 0) - dice.randint(0, 3))).advance(dice.randint(0, 8))
    return True


def maintain(world: World, dice: Random) -> bool:
    """Files that no log names are removed."""
    if len(world.processes) >= 3:
        return False
    world.happens("maintain")
    world.start_maintain().advance(dice.randint(0, 8))
    return True


def erase(world: World, dice: Random) -> bool:
    """Also those that somebody may be about to name, whose seq is taken first."""
    if len(world.processes) >= 3:
        return False
    world.happens("erase")
    world.start_erase().advance(dice.randint(0, 8))
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
    """The lock is free, its holder does not know, and another host takes it: a zombie.

    It sleeps wherever it is, and goes on whenever a rule picks it, after whatever was done since.
    """
    if world.locking != "lease" or world.lock is None:
        return False
    zombie = world.lock
    world.zombies.add(zombie)
    world.lock = None
    world.happens("zombie")
    world.happens(f"zombie: {zombie.partition('-')[0]}")
    successor = dice.choice((start_a_run, start_a_run, redrive, rewind, accept, adopt, erase))
    if successor(world, dice):
        world.processes[-1].advance(dice.randint(1, 30))
    return True


def change_the_batch_size(world: World, dice: Random) -> bool:
    """Batches become larger or smaller."""
    world.batch_limit = dice.randint(1, 5)
    return True


def arm(*faults: str) -> Rule:
    """Return the rule that arms one of Spark's faults."""

    def arm_one(world: World, dice: Random) -> bool:
        world.armed.add(dice.choice(faults))
        return True

    return arm_one


def _one(world: World, dice: Random, act: Callable[[Process], object]) -> bool:
    if not world.processes:
        return False
    act(dice.choice(world.processes))
    return True


def _at(world: World, what: str, process: Process, act: Callable[[Process], None]) -> None:
    world.happens(what)
    world.happens(f"{what}: {process.at}")
    act(process)
