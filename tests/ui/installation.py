"""An installation as a person has it: Dagster, a broker, a lake, and some streams."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import dagster as dg
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from oncelake.ingestion.settings import Settings
from tests.assets.shell import DAGSTER_YAML, background_process, environment_in
from tests.support.world import ROOT

PATIENCE_SECONDS = 180
LOCATION = "oncelake"
_WORKSPACE = """
load_from:
  - python_module:
      module_name: assets.definitions
      working_directory: {root}
      location_name: oncelake
"""
_LOCATIONS = """{ workspaceOrError { ... on Workspace { locationEntries {
  loadStatus locationOrLoadError { __typename ... on PythonError { message } } } } } }"""
_TIME = "2026-01-05T10:00:00Z"


@dataclass(frozen=True, kw_only=True)
class Installation:
    """What runs, and what somebody does to it beside the browser."""

    settings: Settings
    home: Path
    url: str

    def declare(self, stream: str, **fields: Any) -> None:
        """Write a stream's file."""
        self.settings.streams.mkdir(parents=True, exist_ok=True)
        (self.settings.streams / f"{stream}.yaml").write_text(json.dumps(fields))

    def create_topic(self, topic: str, partitions: int = 2) -> None:
        """Create a topic, and wait until the broker tells of it."""
        admin = self._admin()
        admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(30)
        self.wait_until(lambda: topic in admin.list_topics(timeout=10).topics, f"the topic {topic}")

    def delete_topic(self, topic: str) -> None:
        """Delete a topic, and wait until the broker has forgotten it."""
        admin = self._admin()
        admin.delete_topics([topic])[topic].result(30)
        self.wait_until(
            lambda: topic not in admin.list_topics(timeout=10).topics, f"the end of {topic}"
        )

    def send(self, topic: str, *values: dict[str, Any] | bytes) -> None:
        """Produce values: a dict as JSON, bytes as they are."""
        producer = Producer({"bootstrap.servers": self.settings.bootstrap_servers()})
        for number, value in enumerate(values):
            raw = json.dumps(value).encode() if isinstance(value, dict) else value
            producer.produce(topic, value=raw, partition=number % 2)
            producer.poll(0)
        assert producer.flush(30) == 0

    def runs(self, job: str | None = None) -> list[dg.DagsterRun]:
        """Return the runs that Dagster knows, newest first."""
        with dg.DagsterInstance.from_config(str(self.home)) as instance:
            return list(instance.get_runs(dg.RunsFilter(job_name=job)))

    def report(self, evaluation: dg.AssetCheckEvaluation) -> None:
        """Report what a check says, as if a run had."""
        with dg.DagsterInstance.from_config(str(self.home)) as instance:
            instance.report_runless_asset_event(evaluation)

    def has_ended(self, job: str) -> bool:
        """Tell whether a job has run, and runs no more."""
        runs = self.runs(job)
        return bool(runs) and all(run.is_finished for run in runs)

    def events_of(self, run_id: str) -> list[str]:
        """Return what a run has told Dagster, errors and their traces included."""
        with dg.DagsterInstance.from_config(str(self.home)) as instance:
            return [str(event) for event in instance.all_logs(run_id)]

    def output_of(self, run_id: str) -> str:
        """Return what a run has written to stdout and stderr, libraries included."""
        logs = (self.home / "storage" / run_id).rglob("*.*")
        written = [log.read_text() for log in logs if log.suffix in {".out", ".err"}]
        assert written, "the run's output is not where it was"
        return "\n".join(written)

    def observations(self, *key: str) -> int:
        """Count the observations of an asset."""
        with dg.DagsterInstance.from_config(str(self.home)) as instance:
            return len(instance.fetch_observations(dg.AssetKey(key), limit=100).records)

    def materializations(self, key: str) -> int:
        """Count the materializations of an asset."""
        with dg.DagsterInstance.from_config(str(self.home)) as instance:
            return len(instance.fetch_materializations(dg.AssetKey(key), limit=100).records)

    def type(self, *words: str) -> None:
        """Type a command of ``oncelake`` beside the browser."""
        command = [sys.executable, "-m", "ingestion", *words]
        environment = environment_in(self.settings, self.home)
        subprocess.run(command, check=True, cwd=ROOT, env=environment)

    def last_skip(self, sensor: str) -> str:
        """Return why the latest tick of a sensor started nothing."""
        with dg.DagsterInstance.from_config(str(self.home)) as instance:
            for state in instance.all_instigator_state():
                if state.instigator_name == sensor:
                    (tick,) = instance.get_ticks(
                        state.instigator_origin_id, state.selector_id, limit=1
                    )
                    return tick.tick_data.skip_reason or ""
        return ""

    def wait_until(self, fact: Any, what: str) -> None:
        """Wait for what another process is to bring about; show what it wrote when it does not."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not fact():
            assert time.monotonic() < deadline, f"{what} never came about:\n{self.log[-3000:]}"
            time.sleep(0.3)

    @property
    def log(self) -> str:
        """What the web server, the daemon and the runs have written so far."""
        return (self.home / "log").read_text()

    def is_loaded(self) -> bool:
        """Tell whether the web server answers and has loaded the streams, which must succeed."""
        asked = urllib.request.Request(
            f"{self.url}/graphql",
            data=json.dumps({"query": _LOCATIONS}).encode(),
            headers={"Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(asked, timeout=10) as answer:
                (location,) = json.load(answer)["data"]["workspaceOrError"]["locationEntries"]
        except (urllib.error.URLError, OSError):
            return False
        loaded = location["locationOrLoadError"] or {}
        assert "message" not in loaded, loaded["message"]
        return bool(location["loadStatus"] == "LOADED" and loaded)

    def _admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.settings.bootstrap_servers()})


def order(number: int, status: str = "new", total: Any = 10) -> dict[str, Any]:
    """One order, as its record says it."""
    return {"id": number, "status": status, "total": total, "updated_at": _TIME}


@contextmanager
def installed(folder: Path, settings: Settings) -> Iterator[Installation]:
    """Prepare an installation with a home of its own; nothing of it runs yet."""
    home = folder / "dagster"
    home.mkdir(parents=True)
    (home / "dagster.yaml").write_text(DAGSTER_YAML)
    (home / "workspace.yaml").write_text(_WORKSPACE.format(root=ROOT))
    (home / "log").touch()
    # Two processes that make its databases at once get in each other's way.
    with dg.DagsterInstance.from_config(str(home)) as instance:
        instance.get_runs()
        instance.all_instigator_state()
    yield Installation(settings=settings, home=home, url=f"http://127.0.0.1:{_free_port()}")


@contextmanager
def running(place: Installation) -> Iterator[None]:
    """Let the web server and the daemon run; both end with whatever they started."""
    workspace = str(place.home / "workspace.yaml")
    port = place.url.rpartition(":")[2]
    server = ["dagster-webserver", "-h", "127.0.0.1", "-p", port, "-w", workspace]
    daemon = ["dagster-daemon", "run", "-w", workspace]
    in_background = partial(
        background_process,
        log=place.home / "log",
        environment=environment_in(place.settings, place.home),
    )
    with in_background(server), in_background(daemon):
        place.wait_until(place.is_loaded, "the streams in the web server")
        yield


def _free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
        return port
