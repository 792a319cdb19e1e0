"""The crash matrix at full size: places x ways to die x follow-ups, other records each time.

Each trial is appended to a file of JSON lines as soon as it is over, so the matrix may be stopped
at any time, goes on where it was, and is counted as it stands. A trial of another engine, that is
of other source text, is not counted.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import random
import shutil
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from itertools import cycle, product
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

from ingestion.local import broker
from ingestion.pipeline.session import start_session
from ingestion.settings import Settings
from ingestion.storage.failpoints import Failpoint
from tests.crash.child_process import NTH_RENAME
from tests.crash.failpoint_hook import EVENT_WRITTEN, WAYS
from tests.crash.trial import FOLLOW_UPS, Cell, attempt
from tests.power.cuts import DONE, POWER_CUT, RANDOM, SYNCS
from tests.power.disk import mounted_disk
from tests.support.world import JARS, ROOT, World, settings_in

KILLS = ("kill_group", "kill_python", "kill_jvm")
# What no run executes.
_BESIDE = {"local", "console", "proof", "verify", "doctor"}
# No run passes these: they are of a person's decision and of upkeep, which have tests of their own.
_OF_OPERATIONS = {
    *(Failpoint.DECIDED, Failpoint.SIDES_CLEARED, Failpoint.SWAP_BEGUN, Failpoint.SWAP_CLEARED),
    *(Failpoint.COMPACTED, Failpoint.VACUUMED, Failpoint.RETIRED),
}
# A lake in a store, under which each trial has one of its own: ``tests.support.in_a_store``.
STORE = os.environ.get("ONCELAKE_LAKE")
# A run that is killed is seen to be dead; one that is frozen is not, and is waited for.
_LEASE_SECONDS = 5
PLACES = (*(str(at) for at in Failpoint if at not in _OF_OPERATIONS), EVENT_WRITTEN)


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


def engine_version() -> str:
    """Return a short name for the engine's source text as it is now."""
    told = hashlib.sha256()
    for path in sorted((ROOT / "ingestion").rglob("*.py")):
        if not _BESIDE & {path.stem, path.parent.name}:
            told.update(path.read_bytes())
    return told.hexdigest()[:12]


def results(file: Path) -> list[dict[str, Any]]:
    """Return the trials of this engine that are in the file."""
    if not file.exists():
        return []
    version = engine_version()
    told = (json.loads(line) for line in file.read_text().splitlines())
    return [each for each in told if each["engine"] == version]


def work(file: Path, todo: Iterable[Cell], address: str, over: Event) -> None:
    """Try cells one after another in one warm Spark until ``over``, and write down each outcome."""
    with tempfile.TemporaryDirectory(prefix="crash-") as folder, _spark(folder, address) as spark:
        for number, cell in enumerate(todo):
            if over.is_set() or _is_orphaned():
                return
            settings = _settings(Path(folder) / str(number), address)
            began = time.monotonic()
            try:
                with _volume(settings, cell), World.made(settings, spark) as world:
                    outcome: Mapping[str, Any] = asdict(attempt(world, cell))
            except Exception as error:  # noqa: BLE001 (one that breaks is evidence, too)
                outcome = {"ended": "broke", "evidence": [f"{type(error).__name__}: {error}"[:800]]}
            told = {
                **asdict(cell),
                "engines": cell.engines,
                **outcome,
                "took": time.monotonic() - began,
            }
            with file.open("a") as out:
                out.write(json.dumps({**told, "engine": engine_version()}) + "\n")
            if not outcome["evidence"]:
                shutil.rmtree(Path(folder) / str(number), ignore_errors=True)


def _is_orphaned() -> bool:
    """Tell whether whoever started this worker was killed, and its broker with it."""
    parent = multiprocessing.parent_process()
    return parent is not None and not parent.is_alive()


def summary(found: list[dict[str, Any]]) -> dict[str, Counter[str]]:
    """Return, for each place, how often it was met in each way, and how often in vain."""
    table: dict[str, Counter[str]] = {place: Counter() for place in PLACES}
    for each in found:
        at = table.setdefault(each["place"].rstrip("0123456789 "), Counter())
        at[each["way"]] += each["ended"] != "not reached"
        at["not reached"] += each["ended"] == "not reached"
        at["wrong"] += bool(each["evidence"])
    return table


def _settings(folder: Path, address: str) -> Settings:
    settings = settings_in(folder, address, kafka_timeout_seconds=20, lease_seconds=_LEASE_SECONDS)
    if STORE is None:
        return settings
    return settings.model_copy(update={"lake": f"{STORE}/{folder.parent.name}/{folder.name}"})


@contextmanager
def _volume(settings: Settings, cell: Cell) -> Iterator[None]:
    """Give a lake that is to run full, or dark, a small disk of its own, which takes root."""
    if cell.way == POWER_CUT:
        with mounted_disk(Path(settings.lake).parent, megabytes=256):
            yield
        return
    if cell.way != "disk_full":
        yield
        return
    lake = Path(settings.lake)
    lake.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", lake], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", lake], check=True)


@contextmanager
def _spark(folder: str, address: str) -> Iterator[Any]:
    spark = start_session(_settings(Path(folder) / "warm", address))
    try:
        yield spark
    finally:
        spark.stop()


@contextmanager
def broker_of_its_own() -> Iterator[str]:
    """Run a broker that dies with this process."""
    folder = Path(tempfile.mkdtemp(prefix="crash-kafka-"))
    try:
        yield broker.up(folder, jars=JARS, tied_to_caller=True).address
        broker.down(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def workers() -> int:
    """Return how many trials run at once: as many as this machine has cores, three at most."""
    return min(3, int(os.environ.get("TRIALS_AT_ONCE", os.cpu_count() or 1)))
