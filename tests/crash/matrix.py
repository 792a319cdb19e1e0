"""The crash matrix at full size: places x ways to die x follow-ups, other records each time."""

from __future__ import annotations

import multiprocessing
import os
import random
import shutil
import tempfile
import time
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from itertools import cycle, product
from pathlib import Path
from typing import Any

import pytest

from oncelake.ingestion.settings import Settings
from oncelake.ingestion.storage.failpoints import Failpoint
from tests.crash.trial import FOLLOW_UPS, Cell, attempt
from tests.power.cuts import DONE, POWER_CUT, RANDOM, SYNCS
from tests.support.volumes import mounted
from tests.support.world import World, settings_in
from tests.trials.failpoints import EVENT_WRITTEN, WAYS
from tests.trials.kills import NTH_RENAME
from tests.trials.main import within
from tests.trials.power import mounted_disk
from tests.trials.record import results_of_engine
from tests.trials.world import spark_of

KILLS = ("kill_group", "kill_python", "kill_jvm")
# No run here passes these, which have tests of their own: a schema that moves, a truncate, a
# person's decision, upkeep, a proof.
_ELSEWHERE = {
    *(Failpoint.FILE_REWRITTEN, Failpoint.ALTERED, Failpoint.SCHEMA_NOTED, Failpoint.COLUMNS_KEPT),
    Failpoint.SOURCE_TRUNCATED,
    *(Failpoint.DECIDED, Failpoint.SIDES_CLEARED, Failpoint.SWAP_BEGUN, Failpoint.SWAP_CLEARED),
    *(Failpoint.COMPACTED, Failpoint.VACUUMED, Failpoint.RETIRED, Failpoint.PROOF_WRITTEN),
}
# A lake in a store, under which each trial has one of its own: ``tests.support.in_a_store``.
STORE = os.environ.get("ONCELAKE_LAKE")
# A run that is killed is seen to be dead; one that is frozen is not, and is waited for.
_LEASE_SECONDS = 5
PLACES = (*(str(at) for at in Failpoint if at not in _ELSEWHERE), EVENT_WRITTEN)


def cells(seed: int) -> list[Cell]:
    """Return every cell once, in an order of the seed's choice, each with a seed of its own.

    In a store there is no disk to fill.
    """
    every = [
        Cell(place=place, way=way, follow_up=follow_up, seed=seed * 10_000 + number)
        for number, (way, place, follow_up) in enumerate(product(WAYS, PLACES, FOLLOW_UPS))
        if way != "disk_full" or STORE is None
    ]
    random.Random(seed).shuffle(every)
    # Real kills first: whoever stops early should have those.
    return sorted(every, key=lambda cell: cell.way not in KILLS)


def renames(seed: int, *, up_to: int = 40) -> list[Cell]:
    """Return a trial for each rename that a run may make: of a checkpoint's file, or a commit's."""
    return [
        Cell(place=f"rename {nth}", way=NTH_RENAME, follow_up=follow_up, seed=seed * 10_000 + nth)
        for nth, follow_up in zip(range(1, up_to + 1), cycle(FOLLOW_UPS), strict=False)
    ]


def power_cuts(seed: int) -> list[Cell]:
    """Return a trial for each place, each sync and many moments at which the power may be cut."""
    of_another_process = {EVENT_WRITTEN, Failpoint.EVIDENCE_GATHERED, Failpoint.BEFORE_LOCK}
    places = [place for place in PLACES if place not in of_another_process]
    every = [*places * 2, *[DONE, RANDOM] * 40, *SYNCS]
    random.Random(seed).shuffle(every)
    return [
        Cell(place=place, way=POWER_CUT, follow_up=follow_up, seed=seed * 10_000 + number)
        for number, (place, follow_up) in enumerate(zip(every, cycle(FOLLOW_UPS), strict=False))
    ]


def work(file: Path, todo: Iterable[Cell], address: str, minutes: float) -> None:
    """Try cells one after another in one warm Spark, and write down each outcome."""
    with (
        tempfile.TemporaryDirectory(prefix="crash-") as name,
        spark_of(_settings(Path(name) / "warm", address)) as spark,
    ):
        for number, cell in enumerate(within(minutes, todo)):
            if _is_orphaned():
                return
            folder, began = Path(name) / str(number), time.monotonic()
            settings = _settings(folder, address)
            try:
                with _volume(settings, cell), World.made(settings, spark) as world:
                    outcome: Mapping[str, Any] = asdict(attempt(world, cell))
            except (Exception, pytest.skip.Exception) as error:  # noqa: BLE001 (it is evidence, too)
                outcome = {"ended": "broke", "evidence": [f"{type(error).__name__}: {error}"[:800]]}
            result = {**asdict(cell), "engines": cell.engines, **outcome}
            results_of_engine(file).add({**result, "took": time.monotonic() - began})
            if not outcome["evidence"]:
                shutil.rmtree(folder, ignore_errors=True)


def _is_orphaned() -> bool:
    """Tell whether whoever started this worker was killed, and its broker with it."""
    parent = multiprocessing.parent_process()
    return parent is not None and not parent.is_alive()


def _settings(folder: Path, address: str) -> Settings:
    settings = settings_in(folder, address, kafka_timeout_seconds=20, lease_seconds=_LEASE_SECONDS)
    if STORE is None:
        return settings
    return settings.model_copy(update={"lake": f"{STORE}/{folder.parent.name}/{folder.name}"})


def _volume(settings: Settings, cell: Cell) -> AbstractContextManager[object]:
    """Give a lake that is to run full, or dark, a small disk of its own, which takes root."""
    if cell.way == POWER_CUT:
        return mounted_disk(Path(settings.lake).parent, megabytes=256)
    if cell.way == "disk_full":
        return mounted(Path(settings.lake), options="size=64m")
    return nullcontext()
