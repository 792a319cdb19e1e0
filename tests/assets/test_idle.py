"""What starts runs is read from Dagster's files as Dagster itself tells it, and in less time."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest

# Dagster has no public names to write what its daemon and its pages write.
from dagster._core.remote_origin import (
    RegisteredCodeLocationOrigin,
    RemoteInstigatorOrigin,
    RemoteRepositoryOrigin,
)
from dagster._core.scheduler.instigation import (
    InstigatorState,
    InstigatorStatus,
    InstigatorType,
    SensorInstigatorData,
)
from dagster._core.test_utils import create_run_for_test
from dagster._daemon.types import DaemonHeartbeat

from oncelake.assets.doctor.idle import diagnose_starters, read_starters
from oncelake.assets.doctor.instance import read_instance
from tests.support.world import ROOT, settings_in


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[dg.DagsterInstance]:
    """An instance with files, as Dagster makes it by default."""
    (tmp_path / "home").mkdir()
    with dg.DagsterInstance.from_config(str(tmp_path / "home")) as made:
        made.get_runs()
        made.all_instigator_state()
        yield made


def switch(instance: dg.DagsterInstance, sensor: str, status: InstigatorStatus) -> None:
    """Leave a sensor as somebody switched it."""
    location = RegisteredCodeLocationOrigin("oncelake")
    repository = RemoteRepositoryOrigin(location, "__repository__")
    origin = RemoteInstigatorOrigin(repository_origin=repository, instigator_name=sensor)
    data = SensorInstigatorData()
    instance.add_instigator_state(InstigatorState(origin, InstigatorType.SENSOR, status, data))


def test_the_files_tell_what_dagster_tells(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    """Which sensors are on, when the daemon lived last, which runs wait, and what started them."""
    settings = settings_in(tmp_path, "k:1")
    settings.streams.mkdir(parents=True, exist_ok=True)
    now = time.time()
    switch(instance, "lag", InstigatorStatus.STOPPED)
    switch(instance, "nightly", InstigatorStatus.RUNNING)
    switch(instance, "declared", InstigatorStatus.DECLARED_IN_CODE)
    for kind, ago in (("SENSOR", 5.0), ("SCHEDULER", 500.0)):
        instance.add_daemon_heartbeat(DaemonHeartbeat(now - ago, kind, "id", []))
    queued = create_run_for_test(instance)
    started = create_run_for_test(instance, tags={"dagster/sensor_name": "nightly"})
    by_hand = create_run_for_test(instance)

    runs = {"orders": [started.run_id], "bills": [by_hand.run_id, "of no Dagster"]}
    told = read_instance(instance, "h", settings)
    # Dagster itself would ask for the job of a queued run.
    with sqlite3.connect(tmp_path / "home" / "history" / "runs.db") as runs_file:
        sql = "UPDATE runs SET status = 'QUEUED' WHERE run_id = ?"
        runs_file.execute(sql, [queued.run_id])
    facts, waiting = read_starters(tmp_path / "home", runs, "h")
    assert (facts.heartbeat, facts.switched_on) == (told.heartbeat, told.switched_on)
    assert (facts.heartbeat, facts.switched_on) == (now - 5.0, ("declared", "nightly"))
    assert (facts.prefix, facts.workspace) == (told.prefix, told.workspace)
    assert waiting == [queued.run_id]
    assert facts.sensed == ("bills",)
    assert [each.about for each in diagnose_starters(facts, waiting)] == ["bills"]


def ask(home: Path, folder: Path) -> tuple[dict[str, object], bool]:
    """Ask in a process of its own; return its answer, and whether it imported Dagster."""
    code = (
        "import json, runpy, sys\n"
        "runpy.run_module('oncelake.assets.doctor.idle', run_name='__main__')\n"
        "print('dagster' in sys.modules, file=sys.stderr)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(folder), json.dumps({"orders": []})],
        env={**os.environ, "DAGSTER_HOME": str(home), "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout), done.stderr.split()[-1] == "True"


def test_it_is_told_without_dagster(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    """The import alone would take longer than all of `oncelake status`."""
    answer, is_imported = ask(tmp_path / "home", tmp_path / "home")

    assert "dagster sensor start lag" in json.dumps(answer)
    assert not is_imported


@pytest.mark.parametrize(
    "change",
    [
        pytest.param("DROP TABLE instigators", id="no table"),
        pytest.param("UPDATE instigators SET instigator_body = '{}'", id="another body"),
    ],
)
def test_what_is_not_as_this_dagster_writes_it_is_asked_of_dagster(
    tmp_path: Path, instance: dg.DagsterInstance, change: str
) -> None:
    """Another version may keep it elsewhere: then nothing is guessed."""
    switch(instance, "lag", InstigatorStatus.RUNNING)
    with sqlite3.connect(tmp_path / "home" / "schedules" / "schedules.db") as schedules:
        schedules.execute(change)

    with pytest.raises((sqlite3.Error, KeyError)):
        read_starters(tmp_path / "home", {}, "h")


def test_dagster_is_asked_where_there_are_no_such_files(
    tmp_path: Path, instance: dg.DagsterInstance
) -> None:
    """Its answer is the same."""
    (tmp_path / "assets" / "streams").mkdir(parents=True)
    (tmp_path / "assets" / "streams" / "orders.yaml").write_text(
        "topic: orders\nschema: id INT NOT NULL\nkeys: [id]\n"
    )

    there, _ = ask(tmp_path / "home", tmp_path / "home")
    elsewhere, is_imported = ask(tmp_path / "home", tmp_path / "none")

    assert is_imported
    assert there == elsewhere
