"""What goes wrong during a soak: faults picked at random, none included, and their undoing."""

from __future__ import annotations

import os
import random
import shutil
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress

import psutil
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from ingestion.lake.ledger import Ledger
from ingestion.lake.lock import holder_of
from ingestion.local import broker
from tests.soak.runners import Runner
from tests.soak.stage import Stage


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
        """Stop, and put back what only a person would: the broker and what runs the stream."""
        self._resting.set()
        assert self._thread is not None
        self._thread.join()
        self._stage.raise_broker()
        _runner(self._stage).start()

    def _work(self) -> None:
        while not self._resting.wait(self._dice.uniform(5, 20)):
            how_many = self._dice.choice((0, 1, 1, 1, 2))
            for name in self._dice.sample(list(FAULTS), how_many) or ["none"]:
                # A fault whose victim is not there just now does no harm, and is not counted.
                self.done[name] += FAULTS[name](self._stage) if name in FAULTS else 1


def _worker(stage: Stage) -> psutil.Process | None:
    """Return the Python of the run that holds the stream now."""
    holder = holder_of(stage.paths)
    with suppress(psutil.NoSuchProcess):
        return psutil.Process(holder.pid) if holder else None
    return None


def _jvm(stage: Stage) -> psutil.Process | None:
    worker = _worker(stage)
    with suppress(psutil.NoSuchProcess):
        found = worker.children(recursive=True) if worker else []
        return next((each for each in found if each.name() == "java"), None)
    return None


def _kill(process: psutil.Process | None) -> bool:
    with suppress(psutil.NoSuchProcess):
        if process is not None:
            process.kill()
            return True
    return False


def _kill_worker(stage: Stage) -> bool:
    return _kill(_worker(stage))


def _kill_jvm(stage: Stage) -> bool:
    return _kill(_jvm(stage))


def _kill_both(stage: Stage) -> bool:
    jvm, worker = _jvm(stage), _worker(stage)
    return _kill(jvm) & _kill(worker)


def _freeze_jvm(stage: Stage) -> bool:
    jvm = _jvm(stage)
    with suppress(psutil.NoSuchProcess):
        if jvm is not None:
            jvm.suspend()
            time.sleep(8)
            jvm.resume()
            return True
    return False


def _kill_runner(stage: Stage) -> bool:
    process = _runner(stage).process
    assert process is not None
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(20)
    time.sleep(3)
    _runner(stage).start()
    return True


def _runner(stage: Stage) -> Runner:
    assert stage.runner is not None
    return stage.runner


def _kill_broker(stage: Stage) -> bool:
    up = broker.status(stage.folder / "kafka")
    if up is not None:
        os.kill(up.pid, signal.SIGKILL)
        time.sleep(3)
    stage.raise_broker()
    return up is not None


def _pause_broker(stage: Stage) -> bool:
    up = broker.status(stage.folder / "kafka")
    if up is not None:
        os.kill(up.pid, signal.SIGSTOP)
        time.sleep(8)
        os.kill(up.pid, signal.SIGCONT)
    return up is not None


def _lose_checkpoints(stage: Stage) -> bool:
    there = stage.paths.checkpoints.exists()
    shutil.rmtree(stage.paths.checkpoints, ignore_errors=True)
    return there


def _lose_ledger_row(stage: Stage) -> bool:
    """Delete the newest row of the ledger while nobody holds the stream."""
    ledger = Ledger(stage.paths.ledger)
    if holder_of(stage.paths) or not ledger.exists:
        return False
    with suppress(DeltaError):
        DeltaTable(ledger.path).delete(f"seq = {max(row.seq for row in ledger.rows())}")
        return True
    return False


def _compact(stage: Stage) -> bool:
    """Rewrite the table's files as a stranger would, also under a run's hands."""
    with suppress(DeltaError):
        DeltaTable(stage.paths.data.path).optimize.compact()
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
