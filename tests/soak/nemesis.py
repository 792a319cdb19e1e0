"""What goes wrong during a soak: faults picked at random, none included, and their undoing."""

from __future__ import annotations

import os
import random
import shutil
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress

import psutil
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from oncelake.ingestion.lake.lock import holder_of
from oncelake.ingestion.local import broker
from tests.soak.stage import Stage
from tests.support.world import wait_until
from tests.trials.world import raise_broker


class Nemesis:
    """Picks a few faults every few seconds, until it is told to rest."""

    def __init__(self, stage: Stage, dice: random.Random) -> None:
        """Take the stage; nothing goes wrong yet."""
        self._stage, self._dice = stage, dice
        self._resting = threading.Event()
        self._thread: threading.Thread | None = None
        self.done: Counter[str] = Counter()

    def begin(self) -> None:
        """Start to do harm."""
        self._resting.clear()
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def rest(self) -> None:
        """Stop, and put back what only a person would: the broker."""
        self._resting.set()
        assert self._thread is not None
        self._thread.join()
        raise_broker(self._stage.folder / "kafka")

    def _work(self) -> None:
        while not self._resting.wait(self._dice.uniform(5, 20)):
            how_many = self._dice.choice((0, 1, 1, 1, 2))
            for name in self._dice.sample(list(FAULTS), how_many) or ["none"]:
                # A fault whose victim is not there just now does no harm, and is not counted.
                self.done[name] += FAULTS[name](self._stage) if name in FAULTS else 1


def _run_of(stage: Stage) -> list[psutil.Process]:
    """Return the Python of the run that holds the stream now, and its JVM if it has one."""
    holder = holder_of(stage.world.paths)
    with suppress(psutil.NoSuchProcess):
        worker = psutil.Process(holder.pid) if holder else None
        below = worker.children(recursive=True) if worker else []
        return [*filter(None, [worker]), *(each for each in below if each.name() == "java")]
    return []


def _signal(processes: Iterable[psutil.Process], *signals: int) -> bool:
    """Send each some signals, eight seconds apart; tell whether there was one that got them."""
    has_come = False
    for number, sent in enumerate(signals):
        time.sleep(8 if number else 0)
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                process.send_signal(sent)
                has_come = True
    return has_come


def _kill_worker(stage: Stage) -> bool:
    return _signal(_run_of(stage)[:1], signal.SIGKILL)


def _kill_jvm(stage: Stage) -> bool:
    return _signal(_run_of(stage)[1:2], signal.SIGKILL)


def _kill_both(stage: Stage) -> bool:
    both = _run_of(stage)[:2]
    return _signal(reversed(both), signal.SIGKILL) and len(both) == 2


def _freeze_jvm(stage: Stage) -> bool:
    return _signal(_run_of(stage)[1:2], signal.SIGSTOP, signal.SIGCONT)


def _kill_runner(stage: Stage) -> bool:
    """Kill what runs the stream, with all that it has not put into a group of its own."""
    process = stage.runner.process
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    wait_until(lambda: stage.runner.process is not process, "it was not started again")
    return True


def _broker(stage: Stage) -> list[psutil.Process]:
    up = broker.status(stage.folder / "kafka")
    return [psutil.Process(up.pid)] if up else []


def _kill_broker(stage: Stage) -> bool:
    was_up = _signal(_broker(stage), signal.SIGKILL)
    time.sleep(3 if was_up else 0)
    raise_broker(stage.folder / "kafka")
    return was_up


def _pause_broker(stage: Stage) -> bool:
    return _signal(_broker(stage), signal.SIGSTOP, signal.SIGCONT)


def _lose_checkpoints(stage: Stage) -> bool:
    there = stage.world.paths.checkpoints.exists()
    shutil.rmtree(stage.world.paths.checkpoints, ignore_errors=True)
    return there


def _lose_ledger_row(stage: Stage) -> bool:
    """Delete the newest row of the ledger while nobody holds the stream."""
    rows = () if holder_of(stage.world.paths) else stage.world.ledger
    newest = max((row.seq for row in rows), default=None)
    with suppress(DeltaError):
        if newest is not None:
            DeltaTable(stage.world.paths.ledger.path).delete(f"seq = {newest}")
            return True
    return False


def _compact(stage: Stage) -> bool:
    """Rewrite the table's files as a stranger would, also under a run's hands."""
    with suppress(DeltaError):
        DeltaTable(stage.world.paths.data.path).optimize.compact()
        return True
    return False


FAULTS: Mapping[str, Callable[[Stage], bool]] = {
    "kill the worker": _kill_worker,
    "kill its JVM": _kill_jvm,
    "kill both": _kill_both,
    "freeze the JVM for 8 s": _freeze_jvm,
    "kill what runs the stream": _kill_runner,
    "kill the broker": _kill_broker,
    "pause the broker for 8 s": _pause_broker,
    "delete the checkpoints": _lose_checkpoints,
    "delete a ledger row": _lose_ledger_row,
    "compact the table": _compact,
}
