"""Where a soak plays: a broker, a lake, the real Dagster daemon with its sensor, and a producer."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic
from ruamel.yaml import YAML

from ingestion.declaration.loader import find_stream
from ingestion.declaration.spec import StreamSpec
from ingestion.lake.paths import StreamPaths
from ingestion.local import broker
from tests.support.traffic import GONE, Traffic
from tests.support.world import JARS, ROOT, environment_of, settings_in

STREAM = "soaked"
PARTITIONS = 3
_WORDS = ("-m", "dagster", "sensor", "start", f"{STREAM}_lag", "-m", "assets.definitions")


@dataclass(kw_only=True)
class Stage:
    """Everything that runs during a soak; ``folder`` holds all of its files.

    Attributes:
        folder: Broker, lake, state and Dagster's home.
        seed: What makes the records repeatable.
        rate: Records a second.
        records: How many to send in all.
    """

    folder: Path
    seed: int
    rate: float
    records: int
    failures: list[str] = field(default_factory=list)
    paused: threading.Event = field(default_factory=threading.Event)
    over: threading.Event = field(default_factory=threading.Event)
    daemon: subprocess.Popen[bytes] | None = None
    producer: threading.Thread | None = None

    def set_up(self) -> None:
        """Start all of it."""
        address = self.raise_broker()
        self.settings = settings_in(
            self.folder,
            address,
            spark_driver_memory="2g",
            kafka_timeout_seconds=15,
        )
        admin = AdminClient({"bootstrap.servers": address, "log_level": 0})
        admin.create_topics([NewTopic(STREAM, PARTITIONS, 1)])[STREAM].result(30)
        self._declare()
        self.traffic = Traffic(
            settings=self.settings, topic=STREAM, partitions=PARTITIONS, seed=self.seed
        )
        # Before the daemon: two processes that make the tables of Dagster at once fail.
        subprocess.run(
            [sys.executable, *_WORDS], cwd=ROOT, env=self._environment(), check=True, timeout=120
        )
        self.raise_daemon()
        self.producer = threading.Thread(target=self._produce, daemon=True)
        self.producer.start()

    def tear_down(self) -> None:
        """End all of it, and delete its files unless something was wrong."""
        self.over.set()
        if self.producer is not None:
            self.producer.join(60)
        if self.daemon is not None:
            self._end_daemon(self.daemon)
        broker.down(self.folder / "kafka")
        if not self.failures:
            shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def spec(self) -> StreamSpec:
        """The stream."""
        return find_stream(self.settings.streams, STREAM)

    @property
    def paths(self) -> StreamPaths:
        """Where its tables lie."""
        return StreamPaths.of(STREAM, self.settings)

    @property
    def is_fed(self) -> bool:
        """Tell whether every record has been sent."""
        return self.sent >= self.records

    @property
    def sent(self) -> int:
        """Records sent so far, those of aborted transactions too."""
        return sum(self.traffic.sent.values())

    def raise_broker(self) -> str:
        """Start the broker if it is down; it dies with this process."""
        return broker.up(self.folder / "kafka", jars=JARS, tied_to_caller=True).address

    def raise_daemon(self) -> None:
        """Start Dagster's daemon if it is down."""
        if self.daemon is not None and self.daemon.poll() is None:
            return
        with (self.folder / "daemon.log").open("ab") as log:
            self.daemon = subprocess.Popen(
                [sys.executable, "-m", "dagster._daemon", "run", "-m", "assets.definitions"],
                cwd=ROOT,
                env=self._environment(),
                start_new_session=True,
                stdout=log,
                stderr=log,
            )

    @property
    def home(self) -> Path:
        """Dagster's home."""
        return self.folder / "dagster"

    @staticmethod
    def _end_daemon(daemon: subprocess.Popen[bytes]) -> None:
        """End the daemon and every process under it."""
        is_up = daemon.poll() is None
        under = psutil.Process(daemon.pid).children(recursive=True) if is_up else []
        daemon.send_signal(signal.SIGINT)
        try:
            daemon.wait(20)
        except subprocess.TimeoutExpired:
            daemon.kill()
            daemon.wait(20)
        for process in under:
            if process.is_running():
                process.kill()

    def _environment(self) -> dict[str, str]:
        return {**environment_of(self.settings), "DAGSTER_HOME": str(self.home)}

    def _declare(self) -> None:
        """Write the stream's file, and an instance that notices dead runs within seconds."""
        for made in (self.settings.streams, self.settings.lake, self.settings.state, self.home):
            made.mkdir(parents=True, exist_ok=True)
        declared = {
            "topic": STREAM,
            "schema": "id INT NOT NULL, name STRING, at INT",
            "keys": ["id"],
            "sequence_by": ["at"],
            "apply_as_deletes": f"name = '{GONE}'",
            "max_offsets_per_trigger": 5000,
            "sensor_seconds": 5,
        }
        (self.settings.streams / f"{STREAM}.yaml").write_text(json.dumps(declared))
        yaml = YAML()
        instance = yaml.load(ROOT / "dagster.yaml")
        instance["storage"]["sqlite"]["base_dir"] = str(self.home)
        instance["local_artifact_storage"]["config"]["base_dir"] = str(self.home)
        instance["compute_logs"]["config"]["base_dir"] = str(self.home / "storage")
        instance["run_monitoring"]["poll_interval_seconds"] = 5
        instance["run_monitoring"]["free_slots_after_run_end_seconds"] = 5
        instance["run_retries"] = {"enabled": False}
        yaml.dump(instance, self.home / "dagster.yaml")

    def _produce(self) -> None:
        """Send at the rate until all is sent; a broker that is down is waited for."""
        while not self.over.is_set() and not self.is_fed:
            if self.paused.is_set():
                time.sleep(0.1)
                continue
            began = time.monotonic()
            some = min(int(self.rate) or 1, self.records - self.sent)
            try:
                self.traffic.send(some, at_once=max(some // 3, 1))
            except (KafkaException, BufferError):
                with suppress(KafkaException):
                    self.traffic.begin_again()
            time.sleep(max(0.0, 1.0 - (time.monotonic() - began)))
