"""Two code servers, a queue and a daemon, with Dagster's storage in PostgreSQL."""

from __future__ import annotations

import json
import socket
import subprocess
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from pathlib import Path

import dagster as dg
import pytest
from dagster._core.run_coordinator import QueuedRunCoordinator

from oncelake.ingestion.settings import Settings
from tests.assets.shell import ROOT, background_process, environment_in, reported_in
from tests.support.long import only_long
from tests.support.world import World, changed, row, wait_until

HOME = """
telemetry: {{enabled: false}}
storage: {{postgres: {{postgres_url: '{url}'}}}}
concurrency: {{runs: {{max_concurrent_runs: 1}}, pools: {{default_limit: 1, granularity: op}}}}
"""
SERVER = """
  - grpc_server: {{host: 127.0.0.1, port: {port}, location_name: {name}}}
"""


class Servers:
    """Two code servers, of one stream each, whose runs a daemon takes from one queue."""

    def __init__(self, home: Path, url: str, locations: dict[str, Settings]) -> None:
        home.mkdir()
        self.home, self.locations = home, locations
        self.ports = dict(zip(locations, _free_ports(len(locations)), strict=True))
        (home / "dagster.yaml").write_text(HOME.format(url=url))
        servers = (SERVER.format(name=name, port=port) for name, port in self.ports.items())
        (home / "workspace.yaml").write_text("load_from:" + "".join(servers))
        with dg.DagsterInstance.from_config(str(home)) as instance:
            assert isinstance(instance.run_coordinator, QueuedRunCoordinator)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Let all of them run; each code server has an environment of its own."""
        server = ["dagster", "code-server", "start", "-m", "assets.definitions", "-d", str(ROOT)]
        commands = {
            name: [*server, "-h", "127.0.0.1", "-p", str(port), "--location-name", name]
            for name, port in self.ports.items()
        }
        daemon = ["dagster-daemon", "run", "-w", f"{self.home}/workspace.yaml"]
        with ExitStack() as stack:
            for name, command in commands.items():
                stack.enter_context(self._process(command, name))
            for port in self.ports.values():
                wait_until(partial(_answers, port), f"see {self.home}/log", seconds=120)
            stack.enter_context(self._process(daemon, next(iter(self.locations))))
            yield

    def launch(self, name: str) -> None:
        """Put a run of all streams of a code location into the queue."""
        command = ["dagster", "job", "launch", "-w", f"{self.home}/workspace.yaml"]
        environment = environment_in(next(iter(self.locations.values())), self.home)
        subprocess.run([*command, "-l", name, "-j", "ingest_job"], check=True, env=environment)

    def _process(self, command: list[str], name: str) -> AbstractContextManager[None]:
        environment = environment_in(self.locations[name], self.home)
        return background_process(command, log=self.home / "log", environment=environment)


def _free_ports(number: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(number)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@only_long
@pytest.mark.kafka
@pytest.mark.slow
def test_code_servers_share_a_queue_and_a_database(
    world: World, postgres_address: str, tmp_path: Path
) -> None:
    """Runs of both wait for one another, are green, and say which offsets they have read."""
    topics = {"shop": world.topic, "office": world.add_topic("_b", row(7, "b"))}
    world.send(row(1, "a"), row(2, "b"))
    locations = {}
    for name, topic in topics.items():
        folder = tmp_path / name
        (folder / "streams").mkdir(parents=True)
        fields = {"topic": topic, "schema": "id INT NOT NULL, name STRING", "keys": ["id"]}
        (folder / "streams" / f"{name}.yaml").write_text(json.dumps(fields))
        places = {each: folder / each for each in ("lake", "state", "streams")}
        locations[name] = changed(world.settings, reader="librdkafka", **places)
    servers = Servers(tmp_path / "home", postgres_address, locations)

    with (
        servers.running(),
        dg.DagsterInstance.from_config(str(servers.home)) as instance,
    ):
        for name in topics:
            servers.launch(name)

        def has_ended() -> bool:
            runs = instance.get_runs()
            return len(runs) == 2 and all(run.is_finished for run in runs)

        wait_until(has_ended, f"see {servers.home}/log", seconds=300)
        second, first = instance.get_run_records()
        assert [each.dagster_run.status.value for each in (first, second)] == ["SUCCESS"] * 2
        assert (second.start_time or 0) >= (first.end_time or 0)
        for name, records in (("shop", 2), ("office", 1)):
            assert reported_in(instance, name) == [(False, [1])]
            event = instance.get_latest_materialization_event(dg.AssetKey(name))
            assert event is not None
            assert event.asset_materialization is not None
            offsets = event.asset_materialization.metadata["offsets"].value.records  # type: ignore[union-attr]
            assert sum(each.data["records"] for each in offsets) == records
