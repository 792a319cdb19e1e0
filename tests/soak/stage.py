"""Where a soak plays: a broker, a lake, what runs the stream, and a producer."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from confluent_kafka import KafkaException

from oncelake.ingestion.local import broker
from tests.soak.runners import RUNNERS, Runner
from tests.support.traffic import GONE, Traffic
from tests.support.world import World, settings_in
from tests.trials.world import open_world, raise_broker

_STREAM = "soaked"
_PARTITIONS = 3


@dataclass(kw_only=True)
class Stage:
    """Everything that runs during a soak; ``folder`` holds all of its files.

    Attributes:
        folder: Broker, lake, state and Dagster's home.
        rate: Records a second.
        records: How many to send in all.
        paused: Says that nothing is sent for now.
    """

    folder: Path
    world: World
    runner: Runner
    traffic: Traffic
    rate: float
    records: int
    paused: threading.Event = field(default_factory=threading.Event)

    @classmethod
    @contextmanager
    def started(
        cls, folder: Path, runs_by: str, *, seed: int, rate: float, records: int
    ) -> Iterator[Stage]:
        """Start all of it, and end it behind the block; the files stay.

        Args:
            folder: Where all of it lies.
            runs_by: What runs the stream; see ``RUNNERS``.
            seed: What makes the records repeatable.
            rate: Records a second.
            records: How many to send in all.
        """
        address = raise_broker(folder / "kafka")
        settings = settings_in(folder, address, spark_driver_memory="2g", kafka_timeout_seconds=15)
        world = open_world(settings, _STREAM, partitions=_PARTITIONS)
        world.declare(
            sequence_by=["at"],
            apply_as_deletes=f"name = '{GONE}'",
            max_offsets_per_trigger=5000,
            sensor_seconds=5,
        )
        world.write_declaration()
        traffic = Traffic(settings=settings, topic=_STREAM, partitions=_PARTITIONS, seed=seed)
        runner = RUNNERS[runs_by](folder, world.environment())
        stage = cls(
            folder=folder,
            world=world,
            runner=runner,
            traffic=traffic,
            rate=rate,
            records=records,
        )
        over = threading.Event()
        producer = threading.Thread(target=stage._produce, args=(over,), daemon=True)
        try:
            runner.set_up()
            runner.start()
            producer.start()
            yield stage
        finally:
            over.set()
            producer.join(60)
            runner.stop()
            broker.down(folder / "kafka")

    @property
    def sent(self) -> int:
        """Records sent so far, those of aborted transactions too."""
        return self.traffic.sent.total()

    def _produce(self, over: threading.Event) -> None:
        """Send at the rate until all is sent; a broker that is down is waited for."""
        while not over.is_set() and self.sent < self.records:
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
