"""A real Kafka broker on this machine, for the laptop and for the tests.

One JVM is broker and controller (KRaft), bound to loopback. Everything about it is in one
folder, and that folder is its identity: whoever asks with the same folder gets the same broker,
and after a stop the same cluster id, the same records and, where it is free, the same port.
Starting and stopping happen under a lock, so two callers at once start one broker.
"""

from __future__ import annotations

import fcntl
import secrets
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from ingestion.errors import DependencyError, SetupError
from ingestion.kafka.java import find_java
from ingestion.lake.processes import ProcessId
from ingestion.local.broker_config import port_in, properties, server_properties
from ingestion.local.process import launch, recorded_process, stop

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
        folder: Where everything about the broker is kept; made when missing.
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
    with _locked(folder):
        if _process(folder) is None:
            classpath = _classpath(jars)
            _file(folder).write_text(server_properties(folder, port=port, settings=settings or {}))
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
        cluster_id=properties(_identity(folder)).get("cluster.id", ""),
    )


def down(folder: Path) -> bool:
    """Stop the broker of ``folder``, keep its records, and tell whether one was running."""
    folder = folder.resolve()
    if not folder.is_dir():
        return False
    with _locked(folder):
        process = _process(folder)
        if process is not None:
            stop(process, grace_seconds=_STOP_TIMEOUT_SECONDS)
        (folder / "address").unlink(missing_ok=True)
        (folder / "pid").unlink(missing_ok=True)
        return process is not None


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _file(folder: Path) -> Path:
    return folder / "server.properties"


def _identity(folder: Path) -> Path:
    return folder / "data" / "meta.properties"


def _address(folder: Path) -> str:
    return f"127.0.0.1:{port_in(_file(folder), 'PLAINTEXT')}"


def _process(folder: Path) -> ProcessId | None:
    command_end = f" kafka.Kafka {_file(folder)}"
    return recorded_process(folder / "pid", command_ends_with=command_end)


def _classpath(jars: Path) -> str:
    if not any((jars / "broker").glob("kafka_*.jar")):
        raise SetupError(f"no jars for the embedded Kafka in {jars / 'broker'}. Next: make setup")
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
    done = subprocess.run(
        _java(classpath, *format_storage, *chosen), capture_output=True, text=True, check=False
    )
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
        if _answers(client):
            (folder / "address").write_text(broker.address + "\n")
            return broker
    tail = "\n".join((folder / "broker.log").read_text(errors="replace").splitlines()[-20:])
    problem = f"did not answer within {_START_TIMEOUT_SECONDS} s" if status(folder) else "died"
    raise DependencyError(
        f"the embedded Kafka at {_address(folder)} {problem}. The end of its log "
        f"({folder / 'broker.log'}):\n{tail}"
    )


def _answers(client: AdminClient) -> bool:
    try:
        return bool(client.list_topics(timeout=1).brokers)
    except KafkaException:
        return False
