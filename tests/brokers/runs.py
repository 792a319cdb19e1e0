"""Runs of all streams, one after the other, in processes that may be killed."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.world import ROOT

_PATIENCE_SECONDS = 400.0
# Done; Kafka did not answer.
_ALLOWED = {0, 5}
_FOR_SPARK = 0.1


@dataclass(kw_only=True)
class Runs:
    """A loop of ``oncelake run``, by librdkafka and at times by Spark.

    Attributes:
        process: The run that works now.
        codes: How often each exit code came, by reader.
        wrong: What no run may end with.
    """

    streams: Sequence[str]
    environment: Mapping[str, str]
    log: Path
    dice: random.Random
    codes: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    process: subprocess.Popen[bytes] | None = None
    kills: int = 0

    def begin(self) -> None:
        """Start the loop."""
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def rest(self) -> None:
        """Let the last run end."""
        self._over.set()
        self._thread.join(_PATIENCE_SECONDS)

    def kill(self) -> None:
        """Kill the run that works now, its JVM with it."""
        process = self.process
        if process is not None and process.poll() is None:
            # Before its end is seen.
            self.kills += 1
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)

    def once(self, reader: str) -> int:
        """Run all streams once."""
        command = [sys.executable, "-m", "ingestion", "run", *self.streams]
        environment = {**self.environment, "ONCELAKE_READER": reader}
        kills, began = self.kills, self.log.stat().st_size if self.log.exists() else 0
        with self.log.open("ab") as out:
            self.process = subprocess.Popen(
                command, cwd=ROOT, env=environment, start_new_session=True, stdout=out, stderr=out
            )
        try:
            code = self.process.wait(_PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            self.wrong.append(f"a run had not ended after {_PATIENCE_SECONDS:g} s")
            self.kill()
            code = self.process.wait(30)
        self.process = None
        self.codes[f"{reader} {code}"] += 1
        was_killed = code == -signal.SIGKILL and self.kills > kills
        if code not in _ALLOWED and not was_killed:
            said = self.log.read_bytes()[began:].decode(errors="replace").splitlines()
            why = [line for line in said if "Next: " in line and "quarantine" not in line]
            self.wrong.append(f"a run ended with {code}: {why or said[-3:]}")
        return code

    def _work(self) -> None:
        while not self._over.is_set():
            self.once("spark" if self.dice.random() < _FOR_SPARK else "librdkafka")
            time.sleep(0.5)
