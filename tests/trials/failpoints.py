"""The hook that ``ingestion.storage.failpoints`` calls: it carries out planned crashes.

In a child process every kill is real; the plan comes from the environment, so that it also reaches
a process that Dagster started. In this process a run ends by an exception, which costs no JVM and
leaves the same tables to be healed.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import psutil
from pyspark import SparkContext

from oncelake.ingestion.storage import failpoints
from oncelake.ingestion.storage.failpoints import Failpoint

# Begins the line of a kill in the file of visits.
_KILLED = "killed: "
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
        visits: File that gets a line for every place reached, and for every kill of a group
            or of a part of a cluster.
        volume: Folder on the disk that ``disk_full`` fills.
        master: Address of the cluster whose executor or worker is killed.
        delay_seconds: How long after it got there.
    """

    place: str
    nth: int = 1
    way: str
    visits: str
    volume: str = ""
    master: str = ""
    delay_seconds: float = 0.0

    def environment(self, *others: PlannedCrash) -> dict[str, str]:
        """Return the variables that plan this crash, and others, in a process."""
        return {
            "ONCELAKE_CHAOS": f"{__name__}:act",
            "ONCELAKE_TESTING": "1",
            _PLAN: json.dumps([asdict(crash) for crash in (self, *others)]),
        }

    def note(self, line: object) -> None:
        """Add a line to the file of visits."""
        with Path(self.visits).open("a") as visits:
            visits.write(f"{line}\n")

    def note_kill(self, pid: int) -> None:
        """Note that a process is about to be killed."""
        victim = self.way.removeprefix("kill_")
        self.note(f"{_KILLED}{victim} {pid} {self.delay_seconds:.1f} s after {self.place}")


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


def kills_in(visits: Path) -> list[str]:
    """Return a line for each kill that was noted: what was killed, and when."""
    lines = visits.read_text().splitlines() if visits.exists() else []
    return [line.removeprefix(_KILLED) for line in lines if line.startswith(_KILLED)]


def act(place: Failpoint) -> None:
    """Record that the process got here, and crash it if this is where, now or in a moment."""
    _reached[place] += 1
    for crash in _planned():
        crash.note(place)
        if (place, _reached[place]) == (crash.place, crash.nth):
            end = partial(ALL_WAYS[crash.way], crash)
            if crash.delay_seconds:
                threading.Timer(crash.delay_seconds, end).start()
            else:
                end()
        if place == Failpoint.EVIDENCE_GATHERED and crash.place == EVENT_WRITTEN:
            _wait_for_the_event(crash)


_reached: Counter[str] = Counter()


def _wait_for_the_event(crash: PlannedCrash) -> None:
    """Crash when Dagster has stored the materialization, and no check yet."""
    from dagster import DagsterInstance

    store = DagsterInstance.handle_new_event

    def storing(instance: Any, event: Any, **named: Any) -> None:
        store(instance, event, **named)
        stored = event.dagster_event
        if stored is not None and stored.event_type_value == "ASSET_MATERIALIZATION":
            crash.note(EVENT_WRITTEN)
            ALL_WAYS[crash.way](crash)

    DagsterInstance.handle_new_event = storing  # type: ignore[method-assign]


@cache
def _planned() -> tuple[PlannedCrash, ...]:
    return tuple(PlannedCrash(**crash) for crash in json.loads(os.environ[_PLAN]))


def _kill_group(crash: PlannedCrash) -> None:
    crash.note_kill(os.getpid())
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


def _kill_in_cluster(command: str, crash: PlannedCrash) -> None:
    """Kill a process that has the master's address in its own or its parent's command line."""
    for process in psutil.process_iter():
        try:
            own = " ".join(process.cmdline())
            lineage = " ".join([own, *(process.parent() or process).cmdline()])
        except psutil.Error:
            continue
        if command in own and crash.master in lineage:
            crash.note_kill(process.pid)
            process.send_signal(signal.SIGKILL)
            return


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
    "kill_executor": partial(_kill_in_cluster, "CoarseGrainedExecutorBackend"),
    "kill_worker": partial(_kill_in_cluster, "deploy.worker"),
}
