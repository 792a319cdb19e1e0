"""A topic, a stream and a lake, and short words for what tests do to them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import pytest
from confluent_kafka import Producer
from confluent_kafka import TopicPartition as ClientTopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic
from pydantic import SecretStr
from pyspark.sql import SparkSession

from oncelake.ingestion.declaration.spec import StreamSpec
from oncelake.ingestion.delta.files import open_rows
from oncelake.ingestion.delta.log import DeltaLog
from oncelake.ingestion.kafka.admin import Kafka
from oncelake.ingestion.kafka.offsets import TopicPartition
from oncelake.ingestion.lake.ledger import Ledger, LedgerRow
from oncelake.ingestion.lake.paths import StreamPaths
from oncelake.ingestion.operations.history.rebuild import Rebuild, RebuildReport
from oncelake.ingestion.operations.history.replay import Replay, ReplayReport
from oncelake.ingestion.operations.quarantine.redrive import Redrive, RedriveReport
from oncelake.ingestion.operations.run import Run
from oncelake.ingestion.pipeline.report import RunReport
from oncelake.ingestion.settings import Settings
from oncelake.ingestion.storage.location import Location

COLUMNS = "id INT NOT NULL, name STRING, at INT"
ROOT = Path(__file__).parents[2]
# Resolved: a copy of the project that links to them shares the archive of ``quick_jvm``, too.
JARS = (ROOT / ".jars").resolve()


def settings_in(folder: Path, kafka_address: str, **more: Any) -> Settings:
    """Return the settings of a lake, a state folder and declarations of a test's own."""
    return Settings(
        kafka=kafka_address,
        lake=folder / "lake",
        state=folder / "state",
        streams=folder / "streams",
        jars=JARS,
        **{
            "spark_master": "local[2]",
            "spark_driver_memory": "1g",
            "kafka_timeout_seconds": 10,
            **more,
        },
    )


def written(settings: Settings) -> dict[str, Any]:
    """Return the values of the settings by the names that their variables have."""
    clusters = (settings.kafka, settings.sink_kafka)
    nested = {
        each.setting_of(field): value
        for each in clusters
        for field, value in each.model_dump().items()
    }
    return {**settings.model_dump(exclude={"kafka", "sink_kafka"}), **nested}


def changed(settings: Settings, **given: Any) -> Settings:
    """Return the settings with others in the place of some, by the names of their variables."""
    return Settings(**{**written(settings), **given})


def environment_of(settings: Settings) -> dict[str, str]:
    """Return the environment that gives another process these settings, and this project."""
    given = {
        f"ONCELAKE_{name.upper()}": value.get_secret_value()
        if isinstance(value, SecretStr)
        else str(value)
        for name, value in written(settings).items()
        if value is not None
    }
    return {**os.environ, **given, "PYTHONPATH": str(ROOT)}


@dataclass(kw_only=True)
class World:
    """One stream under test; ``declare`` changes its declaration.

    Attributes:
        operation: What ``command`` does to it: a command of ``oncelake``, and its options.
    """

    settings: Settings
    spark: SparkSession
    admin: AdminClient
    producer: Producer
    topic: str
    declared: dict[str, Any] = field(default_factory=dict)
    operation: Sequence[str] = ("run",)
    runs: int = 0

    @classmethod
    @contextmanager
    def made(cls, settings: Settings, spark: SparkSession) -> Iterator[World]:
        """Make a topic of two partitions, and delete it in the end."""
        world = cls.over(f"t{uuid.uuid4().hex[:12]}", settings, spark)
        world.create_topic()
        try:
            yield world
        finally:
            world.delete_topic(*world.topics_beside)

    @classmethod
    def over(cls, topic: str, settings: Settings, spark: SparkSession | None = None) -> World:
        """Connect to a topic, which need not be there yet."""
        address = {"bootstrap.servers": settings.bootstrap_servers(), "log_level": 0}
        options = {**address, "linger.ms": 1, "queue.buffering.max.messages": 1_000_000}
        return cls(
            settings=settings,
            spark=cast("SparkSession", spark),
            admin=AdminClient(address),
            producer=Producer(options),
            topic=topic,
        )

    @property
    def spec(self) -> StreamSpec:
        """The stream as declared: an upsert by ``id``, ordered by nothing but offsets."""
        base = {"name": self.name, "topic": self.topic, "schema": COLUMNS, "keys": ["id"]}
        return StreamSpec.model_validate({**base, **self.declared})

    @property
    def name(self) -> str:
        """The stream's name: its topic's, unless one is declared."""
        return str(self.declared.get("name", self.topic))

    @property
    def paths(self) -> StreamPaths:
        """Where its tables lie."""
        return StreamPaths.of(self.name, self.settings, self.spec.sink)

    @property
    def log(self) -> DeltaLog:
        """The data table's log."""
        return DeltaLog(self.paths.data)

    @property
    def ledger(self) -> tuple[LedgerRow, ...]:
        """The ledger's rows."""
        return Ledger(self.paths.ledger).rows()

    def declare(self, **fields: Any) -> None:
        """Change the declaration."""
        self.declared |= fields

    def copied_to(self, lake: Path | str, **places: Path) -> World:
        """Copy its tables into another lake, to be damaged or declared otherwise there.

        Args:
            lake: A folder or, where its own lake is in a store, a URL of the same bucket.
        """
        if isinstance(lake, Path):
            shutil.copytree(self.settings.lake, lake)
        else:
            Location.of(self.settings.lake).copy_to(Location.of(lake))
        settings = self.settings.model_copy(update={"lake": lake, **places})
        return replace(self, settings=settings, declared=dict(self.declared))

    def create_topic(self, partitions: int = 2, **config: str) -> None:
        """Create the topic, and wait until the broker tells of it: that comes a moment later."""
        topic = NewTopic(self.topic, partitions, 1, config=config)
        self.admin.create_topics([topic])[self.topic].result(30)
        wait_until(lambda: self._partitions() > 0, "the topic never appeared")

    def add_topic(self, suffix: str, *records: dict[str, object], partitions: int = 1) -> str:
        """Create a topic beside the stream's own, and send records; return its name."""
        other = replace(self, topic=f"{self.topic}{suffix}")
        other.create_topic(partitions)
        other.wait_for_end(0)
        other.send(*records)
        return other.topic

    @property
    def topics_beside(self) -> tuple[str, ...]:
        """Topics that were made beside its own: by the test, or by a stream that writes to one."""
        names = self.admin.list_topics(timeout=30).topics
        return tuple(each for each in names if self.topic in each and each != self.topic)

    def delete_topic(self, *beside: str) -> None:
        """Delete the topic, and others."""
        for deleted in self.admin.delete_topics([self.topic, *beside]).values():
            deleted.result(30)

    def add_partitions(self, total: int) -> None:
        """Raise the number of partitions."""
        self.admin.create_partitions([NewPartitions(self.topic, total)])[self.topic].result(30)
        wait_until(lambda: self._partitions() >= total, "the new partitions never appeared")

    def _partitions(self) -> int:
        return len(self.producer.list_topics(self.topic, timeout=10).topics[self.topic].partitions)

    def forget_before(self, partition: int, offset: int) -> None:
        """Delete records as retention would, up to ``offset``."""
        at = ClientTopicPartition(self.topic, partition, offset)
        self.admin.delete_records([at])[at].result(30)

    def send(self, *records: dict[str, Any] | bytes | None, partition: int = 0, **key: Any) -> None:
        """Produce to one partition: a dict as JSON, ``None`` with its key as a tombstone."""
        raw_key = json.dumps(key).encode() if key else None
        for record in records:
            value = json.dumps(record).encode() if isinstance(record, dict) else record
            self.producer.produce(self.topic, value=value, key=raw_key, partition=partition)
        assert self.producer.flush(30) == 0

    def wait_for_end(self, offset: int, partition: int = 0) -> None:
        """Wait until partition ends at ``offset``: markers are written after the client is told."""
        at = TopicPartition(self.topic, partition)
        # The test's wait is its own, and longer than the engine's patience may be.
        patient = Kafka(self.settings.model_copy(update={"kafka_timeout_seconds": 10.0}))
        wait_until(lambda: patient.stable_end([at])[at] >= offset, f"{at} never reached {offset}")

    def write_declaration(self) -> None:
        """Write the stream's file, for runs in another process."""
        declared = {"topic": self.topic, "schema": COLUMNS, "keys": ["id"], **self.declared}
        declared.pop("name", None)
        self.settings.streams.mkdir(parents=True, exist_ok=True)
        (self.settings.streams / f"{self.name}.yaml").write_text(json.dumps(declared))

    def environment(self) -> dict[str, str]:
        """Return the environment that gives another process this world's settings."""
        return environment_of(self.settings)

    def set_environment(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Give the commands of this process this world's settings."""
        for name, value in self.environment().items():
            if name.startswith("ONCELAKE_"):
                monkeypatch.setenv(name, value)

    @property
    def command(self) -> list[str]:
        """What operates on the stream in another process; it needs the declaration's file."""
        name, *options = self.operation
        return [sys.executable, "-m", "ingestion", *name.split(), self.name, *options]

    def run_elsewhere(self, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run the stream once in another process, as a person would, and wait for its end."""
        return subprocess.run(
            self.command,
            cwd=ROOT,
            env={**self.environment(), **environment},
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )

    def run(self, **parts: Any) -> RunReport:
        """Run the stream once."""
        return Run(**self._parts(**parts)).execute()

    def redrive(self, **parts: Any) -> RedriveReport:
        """Send in again what waits in quarantine."""
        return Redrive(**self._parts(**parts)).execute()

    def replay(self, begin: str = "earliest", **parts: Any) -> ReplayReport:
        """Read again what the table has read."""
        return Replay(begin=begin, **self._parts(**parts)).execute()

    def rebuild(self, **parts: Any) -> RebuildReport:
        """Make the table anew by the declaration of now."""
        without_lost = parts.pop("without_lost", False)
        run = Run(**self._parts(run_id="rebuild", **parts))
        return Rebuild(run=run, without_lost=without_lost).execute()

    def _parts(self, **parts: Any) -> dict[str, Any]:
        """Return what an operation is made of, the next run id included."""
        self.runs += 1
        given = {"spec": self.spec, "settings": self.settings, "spark": lambda _: self.spark}
        return {**given, "run_id": f"run-{self.runs}", **parts}

    def rows(self) -> list[dict[str, Any]]:
        """Read the user's columns of the table, by key."""
        names = [column.name for column in self.spec.columns]
        found = [row for each in self.paths.table.scan(names) for row in each.to_pylist()]
        return sorted(found, key=lambda row: [str(row[key]) for key in self.spec.keys])

    def quarantined(self) -> list[dict[str, Any]]:
        """Read the quarantine by delta-rs, in the order of the offsets."""
        found = open_rows(self.paths.quarantine).to_table().to_pylist()
        return sorted(found, key=lambda row: (row["_partition"], row["_offset"]))


def wait_until(is_so: Callable[[], bool], otherwise: str, *, seconds: float = 60) -> None:
    """Wait until something is so; fail with what is said ``otherwise``."""
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline, otherwise
        time.sleep(0.02)


def row(id: int, name: str | None, at: int | None = None) -> dict[str, Any]:
    """One row, or the record that says it."""
    return {"id": id, "name": name, "at": at}


def transactional(world: World, **options: Any) -> Producer:
    """A producer whose records count only when it commits."""
    address = {"bootstrap.servers": world.settings.bootstrap_servers(), "log_level": 0}
    producer = Producer({**address, "transactional.id": world.topic, **options})
    producer.init_transactions(30)
    return producer
