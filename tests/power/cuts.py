"""A run whose disk loses its power: at a place, at a sync, at a random moment, or in the end."""

from __future__ import annotations

import random
from pathlib import Path

from oncelake.ingestion.storage.failpoints import Failpoint
from tests.support.world import World
from tests.trials.judge import Acknowledged, committed_in
from tests.trials.power import Disk, PlannedCut, cut_while

POWER_CUT = "power_cut"
# After the run has said that it is done, and at any moment of it.
DONE, RANDOM = "done", "random"
# About as many as a run of two batches makes.
_MOST_SYNCS = 48
SYNCS = tuple(f"sync {nth}" for nth in range(1, _MOST_SYNCS + 1))
_RANDOM_SECONDS = 6.0
# A run goes on from what is in the ledger by then.
_ACKNOWLEDGING = {Failpoint.LEDGER_WRITTEN, Failpoint.LEDGER_HEALED}


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
    acknowledged = committed_in(world.ledger)

    def watch(at: Failpoint) -> None:
        if at in _ACKNOWLEDGING:
            acknowledged.update(committed_in(world.ledger))

    cut = PlannedCut(
        place=place,
        nth=nth,
        sync=nth if place in SYNCS else None,
        seconds=dice.uniform(0, _RANDOM_SECONDS) if place == RANDOM else None,
        watch=watch,
    )
    disk = Disk(Path(world.settings.lake).parent)
    ended, has_cut = cut_while(disk, cut, dice, lambda _: world.run())
    world.settings.state.mkdir(parents=True, exist_ok=True)
    return ended if has_cut or place in {DONE, RANDOM} else "not reached", acknowledged
