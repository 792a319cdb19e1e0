"""A run whose disk loses its power: at a named place, at a sync, at a random moment, or behind it.

The run is of this process. From the cut on every call to its disk fails, so that it makes no
difference that the process lives on: what it knew is not asked for.
"""

from __future__ import annotations

import errno
import os
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from unittest.mock import patch

from ingestion.storage import failpoints
from ingestion.storage.failpoints import Failpoint
from tests.crash.failpoint_hook import PlannedError
from tests.power.disk import Disk, cut_power
from tests.support.world import World

POWER_CUT = "power_cut"
# After the run has said that it is done, and at any moment of it.
DONE, RANDOM = "done", "random"
# About as many as a run of two batches makes.
_MOST_SYNCS = 48
SYNCS = tuple(f"sync {nth}" for nth in range(1, _MOST_SYNCS + 1))
_RANDOM_SECONDS = 6.0

# The batches that a run has gone on from, by seq, each with the run that made it.
Acknowledged = dict[int, str]


def run_and_cut(
    world: World, place: str, nth: int, dice: random.Random
) -> tuple[str, Acknowledged]:
    """Run the stream, cut the power of its disk, and switch that on again.

    Args:
        world: The stream; lake and state are on the disk.
        place: Where to cut.
        nth: At which of the times that the run gets there.
        dice: Chooses the moment, and whether others sync files of theirs meanwhile.

    Returns:
        How the run ended, and what it had acknowledged before the cut.
    """
    disk = Disk(Path(world.settings.lake).parent)
    acknowledged: Acknowledged = {row.seq: row.run_id for row in world.ledger}
    with ExitStack() as stack:
        if dice.random() < 0.5:
            stack.enter_context(disk.busy())
        has_cut = stack.enter_context(_cutting(world, disk, place, nth, dice, acknowledged))
        try:
            world.run()
            ended = "done"
        except Exception as error:  # noqa: BLE001 (whatever a run makes of a dead disk)
            ended = f"cut ({type(error).__name__})"
        if not has_cut() and place not in {DONE, RANDOM}:
            ended = "not reached"
    disk.lose_power()
    world.settings.state.mkdir(parents=True, exist_ok=True)
    return ended, acknowledged


def lost_of(world: World, acknowledged: Acknowledged) -> Iterator[str]:
    """Yield each batch that was acknowledged, and is not there by that run."""
    there = {row.seq: row.run_id for row in world.ledger}
    for seq, run_id in acknowledged.items():
        if there.get(seq, "none") != run_id:
            yield f"batch {seq} was acknowledged as {run_id}, and is now {there.get(seq)}"


@contextmanager
def _cutting(
    world: World,
    disk: Disk,
    place: str,
    nth: int,
    dice: random.Random,
    acknowledged: Acknowledged,
) -> Iterator[Callable[[], bool]]:
    """Cut the power at a place; yields what tells whether that was."""
    over, visits, fsync = threading.Event(), 0, os.fsync

    def cut() -> None:
        over.set()
        cut_power(disk.path)

    def arrive(at: Failpoint) -> None:
        nonlocal visits
        if at in {Failpoint.LEDGER_WRITTEN, Failpoint.LEDGER_HEALED} and not over.is_set():
            acknowledged.update({row.seq: row.run_id for row in world.ledger})
        visits += at == place
        if at == place and visits == nth and not over.is_set():
            cut()
            raise PlannedError(place)

    def sync(opened: int) -> None:
        nonlocal visits
        visits += place in SYNCS
        if place in SYNCS and visits == int(place.split()[1]):
            cut()
            raise OSError(errno.EIO, "the power was cut")
        fsync(opened)

    timer = threading.Timer(dice.uniform(0, _RANDOM_SECONDS), cut)
    with patch.object(failpoints, "_hook", lambda: arrive), patch.object(os, "fsync", sync):
        if place == RANDOM:
            timer.start()
        try:
            yield over.is_set
        finally:
            timer.cancel()
