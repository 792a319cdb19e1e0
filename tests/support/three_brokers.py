"""Three brokers, one of them the controller, whose leaders may lose what others never had."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic, PartitionMetadata

from oncelake.ingestion.local import broker
from oncelake.ingestion.local.process import launch, recorded_process, run_and_capture, stop
from oncelake.ingestion.storage.processes import ProcessId
from tests.support.frail_broker import free_ports
from tests.support.proxy import Proxy
from tests.support.world import JARS

_CONTROLLER, _FIRST, _SECOND = 1, 2, 3
_WITHIN_SECONDS = 90


@dataclass(kw_only=True)
class ThreeBrokers:
    """A cluster; topics are on its brokers 2 and 3, and either may take over without the other.

    Attributes:
        line: Between broker 2 and the controller.
    """

    folder: Path
    addresses: dict[int, str]
    line: Proxy

    @classmethod
    @contextmanager
    def up(cls, folder: Path) -> Iterator[ThreeBrokers]:
        """Start them, and stop them in the end."""
        controller, line, *clients = free_ports(5)
        addresses = {n: f"127.0.0.1:{port}" for n, port in enumerate(clients, 1)}
        cluster_id = secrets.token_urlsafe(16)
        with ExitStack() as ends:
            proxy = ends.enter_context(Proxy.between(controller, port=line))
            made = cls(folder=folder, addresses=addresses, line=proxy)
            ends.callback(shutil.rmtree, folder, ignore_errors=True)
            for number in addresses:
                made._format(number, cluster_id, controller, line)
                ends.callback(made.stop, number)
                made.start(number)
            made._await(lambda: len(made.admin(_CONTROLLER).list_topics(timeout=5).brokers) == 3)
            yield made

    def admin(self, number: int) -> AdminClient:
        """Return a client of one of them."""
        return AdminClient({"bootstrap.servers": self.addresses[number], "log_level": 0})

    def make_topic(self, name: str) -> None:
        """Make a topic whose first leader is broker 2."""
        config = {"min.insync.replicas": "1", "unclean.leader.election.enable": "true"}
        topic = NewTopic(name, 1, replica_assignment=[[_FIRST, _SECOND]], config=config)
        admin = self.admin(_CONTROLLER)
        admin.create_topics([topic])[name].result(30)
        self.await_leader(name, _FIRST)
        self.await_all(name)

    def start(self, number: int) -> None:
        """Start one of them."""
        at = self.folder / str(number)
        command = broker._java(broker._classpath(JARS), "kafka.Kafka", str(at / "properties"))
        launch(command, pid_file=at / "pid", log=at / "log", tied=True)

    def stop(self, number: int) -> None:
        """Stop one of them, and wait for its end."""
        if process := self._process(number):
            stop(process, grace_seconds=20)

    def kill(self, number: int) -> None:
        """Kill one of them."""
        process = self._process(number)
        assert process is not None, "it ran until now"
        os.kill(process.pid, signal.SIGKILL)

    def await_leader(self, topic: str, number: int) -> None:
        """Wait until the controller names a leader."""
        self._await(lambda: self._partition(topic).leader == number)

    def await_alone(self, topic: str, number: int) -> None:
        """Wait until a leader has no follower left."""
        self._await(lambda: self._partition(topic).isrs == [number])

    def await_all(self, topic: str) -> None:
        """Wait until either broker has all of a topic."""
        self._await(lambda: sorted(self._partition(topic).isrs) == [_FIRST, _SECOND])

    def send(self, number: int, topic: str, *values: str) -> None:
        """Produce by way of one of them, which need not know that it is no leader any more."""
        options = {"bootstrap.servers": self.addresses[number], "log_level": 0, "acks": "all"}
        producer = Producer({**options, "message.timeout.ms": 60_000})
        failed: list[str] = []
        for value in values:
            told = lambda error, _: failed.append(str(error)) if error else None  # noqa: E731
            producer.produce(topic, value=value, on_delivery=told)
        assert (producer.flush(70), failed) == (0, [])

    def _partition(self, topic: str) -> PartitionMetadata:
        found = self.admin(_CONTROLLER).list_topics(topic, timeout=10).topics[topic]
        partition: PartitionMetadata = found.partitions[0]
        return partition

    def _await(self, is_so: Callable[[], bool]) -> None:
        deadline = time.monotonic() + _WITHIN_SECONDS
        while time.monotonic() < deadline:
            # One that has just been started does not answer yet.
            with suppress(KafkaException):
                if is_so():
                    return
            time.sleep(0.2)
        raise AssertionError("the cluster never became so")

    def _process(self, number: int) -> ProcessId | None:
        at = self.folder / str(number)
        return recorded_process(at / "pid", command_ends_with=f" kafka.Kafka {at / 'properties'}")

    def _format(self, number: int, cluster_id: str, controller: int, line: int) -> None:
        at = self.folder / str(number)
        at.mkdir(parents=True)
        is_controller = number == _CONTROLLER
        listeners = [f"PLAINTEXT://{self.addresses[number]}"]
        listeners += [f"CONTROLLER://127.0.0.1:{controller}"] if is_controller else []
        asked = line if number == _FIRST else controller
        settings = {
            **broker._ALONE_SMALL_AND_QUICK,
            "process.roles": "broker,controller" if is_controller else "broker",
            "node.id": str(number),
            "listeners": ",".join(listeners),
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            # Named one by one, each broker asks the controller at the address that it was given.
            "controller.quorum.voters": f"{_CONTROLLER}@127.0.0.1:{asked}",
            "log.dirs": str(at / "data"),
            "auto.create.topics.enable": "false",
            # A follower that was stopped is no longer waited for.
            "replica.lag.time.max.ms": "2000",
            # So long a leader that is cut off from the controller is asked for what it has.
            "broker.session.timeout.ms": "15000",
        }
        (at / "properties").write_text("".join(f"{k}={v}\n" for k, v in settings.items()))
        tool = ("kafka.tools.StorageTool", "format", f"--cluster-id={cluster_id}")
        command = broker._java(broker._classpath(JARS), *tool, f"--config={at / 'properties'}")
        done = run_and_capture(command)
        assert done.returncode == 0, done.stdout + done.stderr
