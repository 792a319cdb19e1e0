"""The hook that kills a part of a cluster when a run gets to a place; see ``PlannedCrash``."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections import Counter
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

import psutil

from ingestion.storage.failpoints import Failpoint

_PLAN = "KILL_PLAN"
# What their command lines have; a run is this process and its JVM.
VICTIMS = {"executor": "CoarseGrainedExecutorBackend", "worker": "deploy.worker", "run": ""}


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedKill:
    """What dies, and when.

    Attributes:
        victim: A name in ``VICTIMS``.
        within: The address of the master, which its own and its workers' command lines have.
        place: The step before it.
        nth: At which of the times that the run gets there.
        delay_seconds: How long after that.
        done: File that gets a line for every kill.
    """

    victim: str
    within: str
    place: str
    nth: int = 1
    delay_seconds: float = 0.0
    done: str

    @staticmethod
    def environment(*kills: PlannedKill) -> dict[str, str]:
        """Return the variables that plan kills in a process."""
        return {
            "ONCELAKE_CHAOS": f"{__name__}:act",
            "ONCELAKE_TESTING": "1",
            _PLAN: json.dumps([asdict(each) for each in kills]),
        }


def act(place: Failpoint) -> None:
    """Kill what is to die here, now or in a moment."""
    _reached[place] += 1
    for kill in _planned():
        if (place, _reached[place]) == (kill.place, kill.nth):
            threading.Timer(kill.delay_seconds, _carry_out, (kill,)).start()


_reached: Counter[str] = Counter()


@cache
def _planned() -> tuple[PlannedKill, ...]:
    return tuple(PlannedKill(**each) for each in json.loads(os.environ[_PLAN]))


def _carry_out(kill: PlannedKill) -> None:
    if kill.victim == "run":
        _note(kill, os.getpid())
        os.killpg(os.getpgrp(), signal.SIGKILL)
    for process in psutil.process_iter():
        try:
            command = " ".join(process.cmdline())
            lineage = " ".join([command, *(process.parent() or process).cmdline()])
        except psutil.Error:
            continue
        if VICTIMS[kill.victim] in command and kill.within in lineage:
            _note(kill, process.pid)
            process.send_signal(signal.SIGKILL)
            return


def _note(kill: PlannedKill, pid: int) -> None:
    with Path(kill.done).open("a") as done:
        done.write(f"{kill.victim} {pid} {kill.delay_seconds:.1f} s after {kill.place}\n")
