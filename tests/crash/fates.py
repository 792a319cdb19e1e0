"""What becomes of a process at a failpoint: the hook that ``ingestion.lake.failpoints`` calls.

Every kill is real. The plan comes from the environment, so that it also reaches a process that
Dagster started.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from pyspark import SparkContext

from ingestion.lake.failpoints import Failpoint

_PLAN = "ONCELAKE_FATE"
_PATIENCE_SECONDS = 20.0
# The one place that is Dagster's own.
EVENT_WRITTEN = "event_written"


class PlannedError(RuntimeError):
    """The exception of the way ``exception``."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Fate:
    """Where, when and how a process ends.

    Attributes:
        place: Name of a place; one that no run reaches lets it live.
        nth: At which of the times that it gets there.
        way: A name in ``ALL_WAYS``.
        diary: File that gets a line for every place reached.
        volume: Folder on the disk that ``disk_full`` fills.
    """

    place: str
    nth: int
    way: str
    diary: str
    volume: str = ""

    def environment(self) -> dict[str, str]:
        """Return the variables that make a process meet this fate."""
        return {
            "ONCELAKE_CHAOS": f"{__name__}:meet",
            "ONCELAKE_TESTING": "1",
            _PLAN: json.dumps(asdict(self)),
        }


def meet(place: Failpoint) -> None:
    """Note down that the process got here, and end it if this is where."""
    fate = _disposition()
    _note(fate, place)
    if place == fate.place and _reached[place] == fate.nth:
        ALL_WAYS[fate.way](fate)
    if place == Failpoint.EVIDENCE_GATHERED and fate.place == EVENT_WRITTEN:
        _wait_for_the_event(fate)


_reached: Counter[str] = Counter()


def _note(fate: Fate, place: str) -> None:
    _reached[place] += 1
    with Path(fate.diary).open("a") as diary:
        diary.write(f"{place}\n")


def _wait_for_the_event(fate: Fate) -> None:
    """Meet the fate when Dagster has stored the materialization, and no check yet."""
    from dagster import DagsterInstance

    store = DagsterInstance.handle_new_event

    def storing(instance: Any, event: Any, **named: Any) -> None:
        store(instance, event, **named)
        told = event.dagster_event
        if told is not None and told.event_type_value == "ASSET_MATERIALIZATION":
            _note(fate, EVENT_WRITTEN)
            ALL_WAYS[fate.way](fate)

    DagsterInstance.handle_new_event = storing  # type: ignore[method-assign]


@cache
def _disposition() -> Fate:
    return Fate(**json.loads(os.environ[_PLAN]))


def _kill_group(_: Fate) -> None:
    os.killpg(os.getpgrp(), signal.SIGKILL)


def _kill_python(_: Fate) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _kill_jvm(_: Fate) -> None:
    """Kill the JVM alone; where there is none yet, Python."""
    gateway = SparkContext._gateway
    os.kill(gateway.proc.pid if gateway else os.getpid(), signal.SIGKILL)


def _raise(fate: Fate) -> None:
    raise PlannedError(fate.place)


def _freeze_group(_: Fate) -> None:
    os.killpg(os.getpgrp(), signal.SIGSTOP)


def _fill_disk(fate: Fate) -> None:
    """Leave no byte on the volume; whoever planned it takes the ballast away again."""
    assert os.path.ismount(fate.volume), "only a disk of the test's own may be filled"
    free = shutil.disk_usage(fate.volume).free
    with (Path(fate.volume) / "ballast").open("wb") as ballast:
        os.posix_fallocate(ballast.fileno(), 0, max(free, 1))


def _meet_the_other(fate: Fate) -> None:
    """Wait until another process has got here, too, or for as long as it may take it not to."""
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while time.monotonic() < deadline:
        diaries = list(Path(fate.diary).parent.glob("diary.*"))
        if sum(fate.place in each.read_text().split() for each in diaries) > 1:
            return
        time.sleep(0.01)


WAYS: Mapping[str, Callable[[Fate], None]] = {
    "kill_group": _kill_group,
    "kill_python": _kill_python,
    "kill_jvm": _kill_jvm,
    "exception": _raise,
    "freeze": _freeze_group,
    "disk_full": _fill_disk,
}
ALL_WAYS: Mapping[str, Callable[[Fate], None]] = {**WAYS, "meet_the_other": _meet_the_other}
