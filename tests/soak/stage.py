"""Where a soak plays: a broker, a lake, what runs the stream, and a producer."""

from __future__ import annotations

import json
import shutil
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from ingestion.declaration.loader import find_stream
from ingestion.declaration.spec import StreamSpec
from ingestion.lake.paths import StreamPaths
from ingestion.local import broker
from tests.soak.runners import RUNNERS, Runner
from tests.support.traffic import GONE, Traffic
from tests.support.world import JARS, environment_of, settings_in

STREAM = "soaked"
PARTITIONS = 3


@dataclass(kw_only=True)
class Stage:
    """Everything that runs during a soak; ``folder`` holds all of its files.

    Attributes:
        folder: Broker, lake, state and Dagster's home.
        runs_by: What runs the stream; see ``RUNNERS``.
        seed: What makes the records repeatable.
        rate: Records a second.
        records: How many to send in all.
    """

    folder: Path
    runs_by: str
    seed: int
    rate: float
    records: int
    failures: list[str] = field(default_factory=list)
    paused: threading.Event = field(default_factory=threading.Event)
    over: threading.Event = field(default_factory=threading.Event)
    runner: Runner | None = None
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
        environment = environment_of(self.settings)
        self.runner = RUNNERS[self.runs_by](self.folder, STREAM, environment)
        self.runner.set_up()
        self.runner.start()
        self.producer = threading.Thread(target=self._produce, daemon=True)
        self.producer.start()

    def tear_down(self) -> None:
        """End all of it, and delete its files unless something was wrong."""
        self.over.set()
        if self.producer is not None:
            self.producer.join(60)
        if self.runner is not None:
            self.runner.stop()
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

    def _declare(self) -> None:
        """Write the stream's file."""
        for made in (self.settings.streams, self.settings.lake, self.settings.state):
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
