"""The configuration of the embedded Kafka: one broker, on loopback."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from pathlib import Path

from ingestion.errors import SetupError

# Kafka would give its internal topics three replicas, and each of them many partitions.
_ALONE = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "share.coordinator.state.topic.num.partitions": "1",
}
_SMALL_AND_QUICK = {
    "num.network.threads": "2",
    "num.io.threads": "4",
    "background.threads": "2",
    "log.cleaner.dedupe.buffer.size": str(16 * 1024 * 1024),
    "group.initial.rebalance.delay.ms": "0",
    # A killed broker may not register again before its old session has expired.
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "500",
}
_STRICT = {"auto.create.topics.enable": "false"}


def server_properties(folder: Path, *, port: int | None, settings: Mapping[str, str]) -> str:
    """Write the configuration of the broker that lives in ``folder``.

    Args:
        folder: The broker's folder; its present configuration has the previous ports.
        port: Where clients connect; default: the port of last time if free, else a free one.
        settings: Further settings, which win.

    Raises:
        SetupError: somebody else listens on ``port``.
    """
    if port is not None and not _is_free(port):
        raise SetupError(
            f"port {port} of 127.0.0.1 is taken. Next: choose another with --port, or none at all"
        )
    before = folder / "server.properties"
    client = port or _free_port(preferred=port_in(before, "PLAINTEXT"))
    controller = _free_port(preferred=port_in(before, "CONTROLLER"), other_than=client)
    chosen = {
        **_ALONE,
        **_SMALL_AND_QUICK,
        **_STRICT,
        "listeners": f"PLAINTEXT://127.0.0.1:{client},CONTROLLER://127.0.0.1:{controller}",
        "controller.quorum.bootstrap.servers": f"127.0.0.1:{controller}",
        "log.dirs": str(folder / "data"),
        **settings,
    }
    return "".join(f"{key}={value}\n" for key, value in chosen.items())


def properties(path: Path) -> dict[str, str]:
    """Read a properties file; a missing one is empty."""
    lines = path.read_text().splitlines() if path.exists() else []
    pairs = (line.partition("=") for line in lines if not line.startswith("#"))
    return {key: value for key, equals, value in pairs if equals}


def port_in(path: Path, listener: str) -> int | None:
    """Return the port of a listener in a server's configuration, if there is one."""
    for address in properties(path).get("listeners", "").split(","):
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
