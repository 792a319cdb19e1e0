"""The hook that ``ingestion.storage.failpoints`` calls: it carries out a planned crash.

In a child process every kill is real; the plan comes from the environment, so that it also reaches
a process that Dagster started. In this process a run ends by an exception, which costs no JVM and
leaves the same tables to be healed.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

from pyspark import SparkContext

from ingestion.storage import failpoints
from ingestion.storage.failpoints import Failpoint

_PLAN = "CRASH_PLAN"
_PATIENCE_SECONDS = 20.0
# The one place that is Dagster's own.
EVENT_WRITTEN = "event_written"


class PlannedError(RuntimeError):
    """Ends a run at a place."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedCrash:
    """Where, when and how a process ends.

    Attributes:
        place: Name of a place; one that no run reaches lets it live.
        nth: At which of the times that it gets there.
        way: A name in ``ALL_WAYS``.
        visits: File that gets a line for every place reached.
        volume: Folder on the disk that ``disk_full`` fills.
    """

    place: str
    nth: int
    way: str
    visits: str
    volume: str = ""

    def environment(self) -> dict[str, str]:
        """Return the variables that plan this crash in a process."""
        return {
            "ONCELAKE_CHAOS": f"{__name__}:act",
            "ONCELAKE_TESTING": "1",
            _PLAN: json.dumps(asdict(self)),
        }


@contextmanager
def crashing_at(place: str, nth: int = 1) -> Iterator[Callable[[], int]]:
    """Let this process's runs end at a place, the N-th time that they get there.

    Yields:
        What counts how often they did.
    """
    visits = 0

    def crash(at: Failpoint) -> None:
        nonlocal visits
        visits += at == place
        if at == place and visits == nth:
            raise PlannedError(place)

    with patch.object(failpoints, "_hook", lambda: crash):
        yield lambda: visits


def act(place: Failpoint) -> None:
    """Record that the process got here, and crash it if this is where."""
    crash = _planned()
    _record_visit(crash, place)
    if place == crash.place and _reached[place] == crash.nth:
        ALL_WAYS[crash.way](crash)
    if place == Failpoint.EVIDENCE_GATHERED and crash.place == EVENT_WRITTEN:
        _wait_for_the_event(crash)


_reached: Counter[str] = Counter()


def _record_visit(crash: PlannedCrash, place: str) -> None:
    _reached[place] += 1
    with Path(crash.visits).open("a") as visits:
        visits.write(f"{place}\n")


def _wait_for_the_event(crash: PlannedCrash) -> None:
    """Crash when Dagster has stored the materialization, and no check yet."""
    from dagster import DagsterInstance

    store = DagsterInstance.handle_new_event

    def storing(instance: Any, event: Any, **named: Any) -> None:
        store(instance, event, **named)
        stored = event.dagster_event
        if stored is not None and stored.event_type_value == "ASSET_MATERIALIZATION":
            _record_visit(crash, EVENT_WRITTEN)
            ALL_WAYS[crash.way](crash)

    DagsterInstance.handle_new_event = storing  # type: ignore[method-assign]


@cache
def _planned() -> PlannedCrash:
    return PlannedCrash(**json.loads(os.environ[_PLAN]))


def _kill_group(_: PlannedCrash) -> None:
    os.killpg(os.getpgrp(), signal.SIGKILL)


def _kill_python(_: PlannedCrash) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _kill_jvm(_: PlannedCrash) -> None:
    """Kill the JVM alone; where there is none yet, Python."""
    gateway = SparkContext._gateway
    os.kill(gateway.proc.pid if gateway else os.getpid(), signal.SIGKILL)


def _raise(crash: PlannedCrash) -> None:
    raise PlannedError(crash.place)


def _freeze_group(_: PlannedCrash) -> None:
    os.killpg(os.getpgrp(), signal.SIGSTOP)


def _fill_disk(crash: PlannedCrash) -> None:
    """Leave no byte on the volume; whoever planned it takes the ballast away again."""
    assert os.path.ismount(crash.volume), "only a disk of the test's own may be filled"
    free = shutil.disk_usage(crash.volume).free
    with (Path(crash.volume) / "ballast").open("wb") as ballast:
        os.posix_fallocate(ballast.fileno(), 0, max(free, 1))


def _wait_for_the_other(crash: PlannedCrash) -> None:
    """Wait until another process has got here, too, or for as long as it may take it not to."""
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while time.monotonic() < deadline:
        files = list(Path(crash.visits).parent.glob("visits.*"))
        if sum(crash.place in file.read_text().split() for file in files) > 1:
            return
        time.sleep(0.01)


WAYS: Mapping[str, Callable[[PlannedCrash], None]] = {
    "kill_group": _kill_group,
    "kill_python": _kill_python,
    "kill_jvm": _kill_jvm,
    "exception": _raise,
    "freeze": _freeze_group,
    "disk_full": _fill_disk,
}
ALL_WAYS: Mapping[str, Callable[[PlannedCrash], None]] = {
    **WAYS,
    "wait_for_the_other": _wait_for_the_other,
}
