"""What runs the stream during a soak: Dagster's daemon with its sensor, or ``oncelake follow``."""

from __future__ import annotations

import datetime as dt
import json
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

import dagster as dg
import psutil
from ruamel.yaml import YAML

from tests.support.world import ROOT


class Runner:
    """A process that ingests, and whatever it starts; it is started again whenever it has ended.

    Attributes:
        words: What Python is given to start it.
    """

    words: Sequence[str]

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        """Take the folder for its log and its home; ``start`` starts it."""
        self._log = folder / "runner.log"
        self._home = folder / "dagster"
        self._environment = {**environment, "DAGSTER_HOME": str(self._home)}
        self._over = threading.Event()
        self._keeper = threading.Thread(target=self._keep_alive, daemon=True)

    def set_up(self) -> None:
        """Prepare what it needs."""

    def runs_since(self, moment: float) -> int:
        """Return how many runs have ended since then, or still work."""
        raise NotImplementedError

    def start(self) -> None:
        """Start it, and what watches over it as a supervisor would."""
        self._launch()
        self._keeper.start()

    def stop(self) -> None:
        """End it for good, and every process under it."""
        if not self._keeper.is_alive():
            return
        self._over.set()
        self._keeper.join()
        under = self.tree()[1:] if self.process.poll() is None else []
        self.process.send_signal(signal.SIGINT)
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(20)
        for process in under:
            if process.is_running():
                process.kill()

    def tree(self) -> list[psutil.Process]:
        """Return its processes."""
        root = psutil.Process(self.process.pid)
        return [root, *root.children(recursive=True)]

    def _launch(self) -> None:
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", *self.words],
                cwd=ROOT,
                env=self._environment,
                start_new_session=True,
                stdout=log,
                stderr=log,
            )

    def _keep_alive(self) -> None:
        while not self._over.wait(1):
            if self.process.poll() is not None:
                self._launch()


class Daemon(Runner):
    """Dagster's daemon; its sensor launches a run whenever the stream is behind."""

    words = ("dagster._daemon", "run", "-m", "assets.definitions")

    def set_up(self) -> None:
        """Make Dagster's tables, an instance that notices dead runs soon, and start the sensor."""
        self._home.mkdir(parents=True, exist_ok=True)
        yaml = YAML()
        instance = yaml.load(ROOT / "dagster.yaml")
        instance["storage"]["sqlite"]["base_dir"] = str(self._home)
        instance["local_artifact_storage"]["config"]["base_dir"] = str(self._home)
        instance["compute_logs"]["config"]["base_dir"] = str(self._home / "storage")
        instance["run_monitoring"]["poll_interval_seconds"] = 5
        instance["run_monitoring"]["free_slots_after_run_end_seconds"] = 5
        instance["run_retries"] = {"enabled": False}
        yaml.dump(instance, self._home / "dagster.yaml")
        # Before the daemon: two processes that make the tables of Dagster at once fail.
        words = ["dagster", "sensor", "start", "lag", "-m", "assets.definitions"]
        subprocess.run(
            [sys.executable, "-m", *words],
            cwd=ROOT,
            env=self._environment,
            check=True,
            timeout=120,
        )

    def runs_since(self, moment: float) -> int:
        """Count what Dagster has recorded."""
        with dg.DagsterInstance.from_config(str(self._home)) as instance:
            records = instance.get_run_records()
        return sum((record.end_time or moment) >= moment for record in records)


class Follow(Runner):
    """``oncelake follow``."""

    words = ("ingestion", "follow", "--json", "--every", "2s")

    def runs_since(self, moment: float) -> int:
        """Count the lines of its log that report a run with a batch, or a failure."""
        lines = self._log.read_text(errors="replace").splitlines()
        documents = [json.loads(line) for line in lines if line.startswith('{"at"')]
        recent = [
            each for each in documents if dt.datetime.fromisoformat(each["at"]).timestamp() > moment
        ]
        return sum(bool(each.get("batches") or each["exit_code"]) for each in recent)


RUNNERS: Mapping[str, type[Runner]] = {"sensor": Daemon, "follow": Follow}
