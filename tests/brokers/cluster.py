"""Three brokers, each also a controller and a host of its own, whose network can be cut."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from oncelake.ingestion.local import broker
from oncelake.ingestion.local.process import launch, recorded_process, run_and_capture, stop
from oncelake.ingestion.storage.processes import ProcessId
from tests.support.world import JARS, wait_until

NUMBERS = (1, 2, 3)
# The host of producers and runs.
CLIENTS = 0
# Its disk is a file system of its own, which can be full.
SMALL_DISK = 3
_DISK_MB = 1024
# A hardware address that nobody has: what is sent there is lost, and nobody is told.
_NOBODY = "02:00:00:00:ff:ff"
# What timeout(1) ends with.
_TIMED_OUT = 124
_REPLICATED = {
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    "transaction.state.log.num.partitions": "3",
    "replica.lag.time.max.ms": "4000",
    "unclean.leader.election.enable": "false",
    "auto.create.topics.enable": "false",
}


@dataclass(kw_only=True)
class ReplicatedCluster:
    """Three brokers in network namespaces, with three replicas of each topic, two in sync.

    Attributes:
        classpath: The jars of the brokers' version.
    """

    folder: Path
    classpath: str = field(default_factory=lambda: broker._classpath(JARS))
    # Unlike those of another cluster on this machine.
    name: str = field(default_factory=lambda: f"o{secrets.token_hex(3)}")

    @classmethod
    @contextmanager
    def up(cls, folder: Path) -> Iterator[ReplicatedCluster]:
        """Lay the network, start the brokers, and end both in the end."""
        cluster, cluster_id = cls(folder=folder), secrets.token_urlsafe(16)
        with ExitStack() as ends:
            ends.callback(cluster._remove_network)
            cluster._lay_network()
            for number in NUMBERS:
                at = folder / str(number)
                (at / "disk").mkdir(parents=True)
                if number == SMALL_DISK:
                    size = ("-o", f"size={_DISK_MB}m")
                    _call("mount", "-t", "tmpfs", *size, "tmpfs", str(at / "disk"))
                    ends.callback(_call, "umount", "-l", str(at / "disk"))
                cluster._format(number, cluster_id)
                ends.callback(cluster.stop, number)
                cluster.start(number)
            wait_until(lambda: len(cluster._brokers()) == len(NUMBERS), "they never met")
            yield cluster

    @property
    def address(self) -> str:
        """Where clients begin."""
        return ",".join(f"{self._ip(number)}:9092" for number in NUMBERS)

    def admin(self) -> AdminClient:
        """Return a client of all of them."""
        return AdminClient({"bootstrap.servers": self.address, "log_level": 0})

    def make_topic(self, name: str, **config: str) -> None:
        """Make a topic of three partitions."""
        topic, admin = NewTopic(name, 3, 3, config=config), self.admin()
        admin.create_topics([topic])[name].result(30)
        wait_until(self.is_whole, f"{name} never had all its replicas")

    def start(self, number: int) -> None:
        """Start one of them, unless it runs."""
        if self._process(number) is None:
            at, inside = self.folder / str(number), ("ip", "netns", "exec", self._host(number))
            java = broker._java(self.classpath, "kafka.Kafka", str(at / "properties"))
            launch([*inside, *java], pid_file=at / "pid", log=at / "log", tied=True)

    def stop(self, number: int) -> None:
        """Stop one of them, and wait for its end."""
        if process := self._process(number):
            stop(process, grace_seconds=15)

    def signal(self, number: int, what: signal.Signals) -> bool:
        """Send one of them a signal; tell whether it was there."""
        process = self._process(number)
        if process is not None:
            os.kill(process.pid, what)
        return process is not None

    def cut(self, number: int, *others: int) -> None:
        """Let whatever a broker sends to others, or to the clients, be lost."""
        for other in others:
            self._neighbour(number, "replace", other, "lladdr", _NOBODY, "nud", "permanent")
            assert self._is_lost(number, other), f"{number} still reaches {other}"

    def join(self, number: int) -> None:
        """Undo ``cut`` and ``slow``."""
        for other in {CLIENTS, *NUMBERS} - {number}:
            with suppress(subprocess.CalledProcessError):
                self._neighbour(number, "del", other)
        with suppress(subprocess.CalledProcessError):
            _call("tc", "-n", self._host(number), "qdisc", "del", "dev", "eth", "root")

    def slow(self, number: int, rate: str) -> None:
        """Let one of them send at a rate, to brokers and clients."""
        shape = ("tbf", "rate", rate, "burst", "16kb", "latency", "2s")
        _call("tc", "-n", self._host(number), "qdisc", "add", "dev", "eth", "root", *shape)

    @property
    def controller(self) -> int:
        """Which of them the newest election has made the controller, by their own files."""
        states = []
        for number in NUMBERS:
            file = self._log_dir(number) / "__cluster_metadata-0" / "quorum-state"
            with suppress(OSError, ValueError):
                state = json.loads(file.read_text())
                states.append((state["leaderEpoch"], state["leaderId"]))
        return max((*states, (0, NUMBERS[0])))[1] or NUMBERS[0]

    def configure(self, *words: str) -> None:
        """Run Kafka's own tool for configurations."""
        tool = ("kafka.admin.ConfigCommand", "--bootstrap-server", self.address, *words)
        run_and_capture(broker._java(self.classpath, *tool), seconds=60)

    def is_whole(self) -> bool:
        """Tell whether each broker is there, and has all of each partition."""
        with suppress(KafkaException):
            found = self.admin().list_topics(timeout=5)
            parts = [part for topic in found.topics.values() for part in topic.partitions.values()]
            is_in_sync = all(len(part.isrs) == len(part.replicas) for part in parts)
            return is_in_sync and len(found.brokers) == len(NUMBERS)
        return False

    def _brokers(self) -> Sequence[int]:
        with suppress(KafkaException):
            return list(self.admin().list_topics(timeout=5).brokers)
        return ()

    def _ip(self, number: int) -> str:
        second, third = (int(self.name[at : at + 2], 16) for at in (1, 3))
        return f"10.{second}.{third}.{number or 254}"

    def _host(self, number: int) -> str:
        return f"{self.name}-{number}"

    def _log_dir(self, number: int) -> Path:
        return self.folder / str(number) / "disk" / "data"

    def _neighbour(self, number: int, what: str, other: int, *how: str) -> None:
        _call("ip", "-n", self._host(number), "neigh", what, self._ip(other), "dev", "eth", *how)

    def _is_lost(self, number: int, other: int) -> bool:
        """Tell whether a broker that knocks at another is not even refused."""
        knock = ("timeout", "1", "bash", "-c", f": <>/dev/tcp/{self._ip(other)}/9092")
        inside = ("ip", "netns", "exec", self._host(number))
        return subprocess.run((*inside, *knock), capture_output=True).returncode == _TIMED_OUT

    def _lay_network(self) -> None:
        _call("ip", "link", "add", self.name, "type", "bridge")
        _call("ip", "addr", "add", f"{self._ip(CLIENTS)}/24", "dev", self.name)
        _call("ip", "link", "set", self.name, "up")
        for number in NUMBERS:
            host, cable = self._host(number), f"{self.name}v{number}"
            _call("ip", "netns", "add", host)
            _call("ip", "link", "add", cable, "type", "veth", "peer", "name", "eth", "netns", host)
            _call("ip", "link", "set", cable, "master", self.name, "up")
            _call("ip", "-n", host, "addr", "add", f"{self._ip(number)}/24", "dev", "eth")
            for device in ("eth", "lo"):
                _call("ip", "-n", host, "link", "set", device, "up")

    def _remove_network(self) -> None:
        for number in NUMBERS:
            with suppress(subprocess.CalledProcessError):
                _call("ip", "netns", "del", self._host(number))
        with suppress(subprocess.CalledProcessError):
            _call("ip", "link", "del", self.name)

    def _process(self, number: int) -> ProcessId | None:
        at = self.folder / str(number)
        return recorded_process(at / "pid", command_ends_with=f" kafka.Kafka {at / 'properties'}")

    def _format(self, number: int, cluster_id: str) -> None:
        at, ip = self.folder / str(number), self._ip(number)
        settings = {
            **broker._ALONE_SMALL_AND_QUICK,
            **_REPLICATED,
            "node.id": str(number),
            "listeners": f"PLAINTEXT://{ip}:9092,CONTROLLER://{ip}:9093",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "controller.quorum.voters": ",".join(f"{n}@{self._ip(n)}:9093" for n in NUMBERS),
            "log.dirs": str(self._log_dir(number)),
        }
        (at / "properties").write_text("".join(f"{k}={v}\n" for k, v in settings.items()))
        tool = ("kafka.tools.StorageTool", "format", f"--cluster-id={cluster_id}")
        command = broker._java(self.classpath, *tool, f"--config={at / 'properties'}")
        done = run_and_capture(command)
        assert done.returncode == 0, done.stdout + done.stderr


def await_true(is_so: Callable[[], bool], *, seconds: float) -> bool:
    """Wait until something is so, and tell whether it came to that in time."""
    with suppress(AssertionError):
        wait_until(is_so, "", seconds=seconds)
        return True
    return False


def _call(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True)
