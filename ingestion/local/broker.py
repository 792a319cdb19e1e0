"""A real Kafka broker on this machine, for the laptop and for the tests.

One JVM is broker and controller (KRaft), bound to loopback. Everything about it is in one
folder, and that folder is its identity: whoever asks with the same folder gets the same broker,
and after a stop the same cluster id, the same records and, where it is free, the same port.
Starting and stopping happen under a lock, so two callers at once start one broker.
"""

from __future__ import annotations

import secrets
import socket
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from oncelake.ingestion.errors import DependencyError, SetupError
from oncelake.ingestion.kafka.java import find_java
from oncelake.ingestion.local.process import (
    file_lock,
    launch,
    recorded_process,
    run_and_capture,
    stop,
)
from oncelake.ingestion.storage.processes import ProcessId

_START_TIMEOUT_SECONDS = 60
_STOP_TIMEOUT_SECONDS = 20
_JVM = (
    "-Xmx512m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Djava.awt.headless=true",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
    "-Dorg.slf4j.simpleLogger.dateTimeFormat=yyyy-MM-dd HH:mm:ss.SSS",
)

_ALONE_SMALL_AND_QUICK = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    # Kafka would give its internal topics three replicas, and each of them many partitions.
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "share.coordinator.state.topic.num.partitions": "1",
    "num.network.threads": "2",
    "num.io.threads": "4",
    "background.threads": "2",
    "log.cleaner.dedupe.buffer.size": str(16 * 1024 * 1024),
    "group.initial.rebalance.delay.ms": "0",
    # A killed broker may not register again before its old session has expired.
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "500",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Broker:
    """A running broker; its folder has its configuration, cluster id, records, log and pid."""

    address: str
    pid: int
    folder: Path
    cluster_id: str


def up(
    folder: Path,
    *,
    jars: Path,
    port: int | None = None,
    tied_to_caller: bool = False,
    settings: Mapping[str, str] | None = None,
) -> Broker:
    """Start the broker of ``folder`` and wait until it answers; a running one is returned.

    Args:
        jars: The folder with ``broker/*.jar``.
        port: Where to listen; default: the port of last time, or a free one.
        tied_to_caller: Let the broker die with this process, however that ends. Otherwise it
            outlives it, and ``down`` stops it.
        settings: Broker settings that win over ours. A broker that runs already keeps its own.

    Raises:
        SetupError: no Java, no jars, or the port is taken.
        DependencyError: the broker did not answer in time, or died; quotes the end of its log.
    """
    folder = folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    with file_lock(folder / "lock"):
        if _process(folder) is None:
            classpath = _classpath(jars)
            _file(folder).write_text(_server_properties(folder, port=port, settings=settings or {}))
            _format(folder, classpath)
            command = _java(classpath, "kafka.Kafka", str(_file(folder)))
            launch(command, pid_file=folder / "pid", log=folder / "broker.log", tied=tied_to_caller)
        return _await_answer(folder)


def status(folder: Path) -> Broker | None:
    """Return the broker of ``folder`` if its process is alive."""
    folder = folder.resolve()
    process = _process(folder)
    if process is None:
        return None
    return Broker(
        address=_address(folder),
        pid=process.pid,
        folder=folder,
        cluster_id=_properties(_identity(folder)).get("cluster.id", ""),
    )


def down(folder: Path) -> bool:
    """Stop the broker of ``folder``, keep its records, and tell whether one was running."""
    folder = folder.resolve()
    if not folder.is_dir():
        return False
    with file_lock(folder / "lock"):
        process = _process(folder)
        if process is not None:
            stop(process, grace_seconds=_STOP_TIMEOUT_SECONDS)
        (folder / "address").unlink(missing_ok=True)
        (folder / "pid").unlink(missing_ok=True)
        return process is not None


def _file(folder: Path) -> Path:
    return folder / "server.properties"


def _identity(folder: Path) -> Path:
    return folder / "data" / "meta.properties"


def _address(folder: Path) -> str:
    return f"127.0.0.1:{_port_in(_file(folder), 'PLAINTEXT')}"


def _process(folder: Path) -> ProcessId | None:
    command_end = f" kafka.Kafka {_file(folder)}"
    return recorded_process(folder / "pid", command_ends_with=command_end)


def _classpath(jars: Path) -> str:
    if not any((jars / "broker").glob("kafka_*.jar")):
        raise SetupError(
            f"no jars for the embedded Kafka in {jars / 'broker'}. Next: oncelake jars"
        )
    return f"{jars.resolve() / 'broker'}/*"


def _java(classpath: str, *arguments: str) -> list[str]:
    return [find_java(), *_JVM, "-cp", classpath, *arguments]


def _format(folder: Path, classpath: str) -> None:
    """Give an empty folder its cluster id; a folder that has one keeps it."""
    if _identity(folder).exists():
        return
    cluster_id = secrets.token_urlsafe(16)
    format_storage = ("kafka.tools.StorageTool", "format", "--standalone", "--ignore-formatted")
    chosen = (f"--cluster-id={cluster_id}", f"--config={_file(folder)}")
    done = run_and_capture(_java(classpath, *format_storage, *chosen))
    if done.returncode != 0:
        raise SetupError(
            f"the embedded Kafka could not prepare {folder}:\n{done.stdout}{done.stderr}"
            "Next: delete that folder if its records are not needed"
        )


def _await_answer(folder: Path) -> Broker:
    """Wait until the broker answers clients, publish its address, and return it."""
    patience = {"reconnect.backoff.ms": 50, "reconnect.backoff.max.ms": 100}
    client = AdminClient({"bootstrap.servers": _address(folder), "log_level": 0, **patience})
    deadline = time.monotonic() + _START_TIMEOUT_SECONDS
    while time.monotonic() < deadline and (broker := status(folder)):
        # A client that got no answer asks again until the deadline.
        with suppress(KafkaException):
            if client.list_topics(timeout=1).brokers:
                (folder / "address").write_text(broker.address + "\n")
                return broker
    tail = "\n".join((folder / "broker.log").read_text(errors="replace").splitlines()[-20:])
    problem = f"did not answer within {_START_TIMEOUT_SECONDS} s" if status(folder) else "died"
    raise DependencyError(
        f"the embedded Kafka at {_address(folder)} {problem}. The end of its log "
        f"({folder / 'broker.log'}):\n{tail}"
    )


def _server_properties(folder: Path, *, port: int | None, settings: Mapping[str, str]) -> str:
    """Write the configuration; without a ``port``, with that of last time if it is free.

    Raises:
        SetupError: somebody else listens on ``port``.
    """
    if port is not None and not _is_free(port):
        raise SetupError(
            f"port {port} of 127.0.0.1 is taken. Next: choose another with --port, or none at all"
        )
    before = _file(folder)
    client = port or _free_port(preferred=_port_in(before, "PLAINTEXT"))
    controller = _free_port(preferred=_port_in(before, "CONTROLLER"), other_than=client)
    chosen = {
        **_ALONE_SMALL_AND_QUICK,
        "auto.create.topics.enable": "false",
        "listeners": f"PLAINTEXT://127.0.0.1:{client},CONTROLLER://127.0.0.1:{controller}",
        "controller.quorum.bootstrap.servers": f"127.0.0.1:{controller}",
        "log.dirs": str(folder / "data"),
        **settings,
    }
    return "".join(f"{key}={value}\n" for key, value in chosen.items())


def _properties(path: Path) -> dict[str, str]:
    """Read a properties file; a missing one is empty."""
    lines = path.read_text().splitlines() if path.exists() else []
    pairs = (line.partition("=") for line in lines if not line.startswith("#"))
    return {key: value for key, equals, value in pairs if equals}


def _port_in(path: Path, listener: str) -> int | None:
    """Return the port of a listener in a server's configuration, if there is one."""
    for address in _properties(path).get("listeners", "").split(","):
        if address.startswith(f"{listener}://"):
            return int(address.rpartition(":")[2])
    return None


def _free_port(*, preferred: int | None, other_than: int | None = None) -> int:
    if preferred and preferred != other_than and _is_free(preferred):
        return preferred
    while True:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port: int = probe.getsockname()[1]
        if port != other_than:
            return port


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
