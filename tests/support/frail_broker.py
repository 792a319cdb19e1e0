"""A second broker, which tests may kill, stop, restart, or cut off behind a proxy."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from oncelake.ingestion.local import broker
from oncelake.ingestion.settings import Settings
from tests.support.proxy import Proxy
from tests.support.world import JARS, World, changed

# What the engine may wait for one answer; these tests are about what comes after.
PATIENCE_SECONDS = 2.0


@dataclass(kw_only=True)
class FrailBroker:
    """A broker of which clients hear only by way of a proxy, and tests without one."""

    folder: Path
    configuration: dict[str, str]
    proxy: Proxy
    pid: int = 0

    @property
    def address(self) -> str:
        """Where it listens without the proxy."""
        return self.configuration["listeners"].split(",")[0].removeprefix("PLAINTEXT://")

    @property
    def proxied(self) -> str:
        """Where clients reach it through the proxy."""
        return f"127.0.0.1:{self.proxy.port}"

    def start(self) -> None:
        """Start it, again under its own addresses and with its records."""
        found = broker.up(self.folder, jars=JARS, tied_to_caller=True, settings=self.configuration)
        self.pid = found.pid

    def stop(self) -> None:
        """Stop it, and keep its records."""
        broker.down(self.folder)

    def kill(self) -> None:
        """Kill it."""
        os.kill(self.pid, signal.SIGKILL)
        deadline = time.monotonic() + 20
        while broker.status(self.folder):
            assert time.monotonic() < deadline, "the broker survived SIGKILL"

    def freeze(self) -> None:
        """Let it stand still: its connections stay open, and nothing moves."""
        os.kill(self.pid, signal.SIGSTOP)

    def mend(self) -> None:
        """Undo whatever was done to it."""
        self.proxy.switch("none")
        if broker.status(self.folder):
            os.kill(self.pid, signal.SIGCONT)
        self.start()


@pytest.fixture(scope="module")
def frail_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FrailBroker]:
    """One such broker a module: idle, it would look for work of its log all the time."""
    folder = tmp_path_factory.mktemp("frail")
    direct, behind, controller, proxied = free_ports(4)
    configuration = {
        "listeners": f"PLAINTEXT://127.0.0.1:{direct},PROXIED://127.0.0.1:{behind},"
        f"CONTROLLER://127.0.0.1:{controller}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{direct},PROXIED://127.0.0.1:{proxied}",
        "controller.quorum.bootstrap.servers": f"127.0.0.1:{controller}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,PROXIED:PLAINTEXT,"
        "CONTROLLER:PLAINTEXT",
        # Compaction looks for work every 15 seconds by default.
        "log.cleaner.backoff.ms": "100",
        # Retention looks for work every five minutes by default, and first after half of one.
        "log.retention.check.interval.ms": "200",
        "log.initial.task.delay.ms": "500",
    }
    with Proxy.between(behind, port=proxied) as proxy:
        made = FrailBroker(folder=folder, configuration=configuration, proxy=proxy)
        made.start()
        yield made
        broker.down(folder)
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def frail(frail_broker: FrailBroker) -> Iterator[FrailBroker]:
    """The broker that tests may kill; it is well again when they are done."""
    yield frail_broker
    frail_broker.mend()


@pytest.fixture
def frail_world(frail: FrailBroker, settings: Settings, spark: SparkSession) -> Iterator[World]:
    """A world on that broker: its runs go through the proxy, its producer and admin do not."""
    direct = changed(settings, kafka=frail.address)
    with World.made(direct, spark) as made:
        made.settings = changed(
            settings, kafka=frail.proxied, kafka_timeout_seconds=PATIENCE_SECONDS
        )
        yield made
        frail.mend()


def free_ports(count: int) -> list[int]:
    """Return ports of loopback on which nobody listens."""
    probes = [socket.socket() for _ in range(count)]
    for probe in probes:
        probe.bind(("127.0.0.1", 0))
    ports = [int(probe.getsockname()[1]) for probe in probes]
    for probe in probes:
        probe.close()
    return ports
