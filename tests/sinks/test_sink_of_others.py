"""A sink of another package: found by entry point, declared, run, killed, rebuilt, and proven."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from ingestion.sinks.conformance import Opener, SinkConformance
from ingestion.sinks.table import SinkTable
from tests.crash.failpoint_hook import PlannedCrash
from tests.support.world import ROOT, World, environment_of, row

PACKAGE = Path(__file__).parents[1] / "toys" / "sqlite_package"


class TestSqlite(SinkConformance):
    """It passes the battery like our own."""

    named = " ,;:{}()[]='\"%@-"

    @pytest.fixture
    def opened(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Opener:
        """Open a table of a file of its own."""
        monkeypatch.syspath_prepend(PACKAGE)
        from oncelake_sqlite.table import SqliteTable

        return partial(SqliteTable, "orders", tmp_path / "rows.sqlite", "orders")

    def remove(self, table: SinkTable) -> None:
        """Drop the tables."""
        with closing(sqlite3.connect(table.file)) as connection:  # type: ignore[attr-defined]
            for end in ("", "__notes", "__about"):
                connection.execute(f"DROP TABLE orders{end}")
            connection.commit()


def oncelake(world: World, *command: str, **more: str) -> subprocess.CompletedProcess[str]:
    """Run a command where the package is installed."""
    path = os.pathsep.join([str(PACKAGE), str(ROOT), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, **environment_of(world.settings), **more, "PYTHONPATH": path}
    asked = [sys.executable, "-m", "ingestion", *command]
    return subprocess.run(asked, env=environment, capture_output=True, text=True, check=False)


def rows(file: Path, table: str) -> list[tuple[Any, ...]]:
    """Read the rows, without Oncelake."""
    with closing(sqlite3.connect(file)) as connection:
        return connection.execute(f'SELECT id, name FROM "{table}" ORDER BY id').fetchall()


@pytest.mark.kafka
@pytest.mark.spark
def test_a_sink_of_another_package_is_one_like_ours(world: World, tmp_path: Path) -> None:
    """No line of the product names it."""
    file = tmp_path / "of_its_own.sqlite"
    of_sink = {"ONCELAKE_SQLITE": str(file)}
    world.settings.streams.mkdir(parents=True, exist_ok=True)
    declared = world.settings.streams / f"{world.name}.yaml"
    text = "topic: {0}\nsink: {1}\nschema: id INT NOT NULL, name STRING, at INT\nkeys: [id]\n"
    declared.write_text(text.format(world.topic, "sqlite"))
    world.send(row(1, "a"), row(2, "b"), {"id": "?"})

    crash = PlannedCrash(
        place="committed", nth=1, way="kill_python", visits=str(tmp_path / "visits")
    ).environment()
    killed = oncelake(world, "run", world.name, **crash, **of_sink)
    again = oncelake(world, "run", world.name, **of_sink)

    assert killed.returncode == -signal.SIGKILL, killed.stdout
    assert again.returncode == 0, again.stderr
    assert rows(file, world.name) == [(1, "a"), (2, "b")]
    world.send(row(2, "c"), None, id=1)
    for command in (["run"], ["verify"], ["rebuild"], ["verify"]):
        done = oncelake(world, *command, world.name, **of_sink)
        assert done.returncode == 0, (command, done.stdout, done.stderr)
        assert rows(file, world.name) == [(2, "c")]
    erased = oncelake(
        world, "erase", world.name, "--key", '{"id": 2}', "--reason", "a test", "--yes", **of_sink
    )
    assert erased.returncode == 0, erased.stderr
    assert rows(file, world.name) == []

    schema = json.loads(oncelake(world, "schema", **of_sink).stdout)
    assert "sqlite" in json.dumps(schema["$defs"]["SinkSpec"]["properties"])
    help_ = oncelake(world, "init", world.topic, "--sink", "sqlit", **of_sink)
    assert "'sqlit' is not one of delta, iceberg, postgres, kafka, sqlite" in " ".join(
        help_.stderr.replace("│", " ").split()
    )
    unknown = oncelake(world, "status", ONCELAKE_SQLITES="x")
    assert "ONCELAKE_SQLITES: there is no such setting" in unknown.stderr


def test_a_sink_that_cannot_be_imported_is_told_of_where_it_is_declared(tmp_path: Path) -> None:
    """Every other stream goes on."""
    info = tmp_path / "broken-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[oncelake.sinks]\nbroken = no_such_module:KIND\n")
    streams = tmp_path / "streams"
    streams.mkdir()
    for name, sink in {"one": "broken", "two": "delta"}.items():
        file = streams / f"{name}.yaml"
        file.write_text(f"topic: t\nsink: {sink}\nschema: id INT NOT NULL\nkeys: [id]\n")
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path, "ONCELAKE_STREAMS": str(streams)}

    asked = [sys.executable, "-m", "ingestion", "validate"]
    found = subprocess.run(asked, env=environment, capture_output=True, text=True, check=False)

    assert found.returncode == 2
    said = " ".join((found.stdout + found.stderr).split())
    assert "sink broken of no_such_module:KIND cannot be imported: ModuleNotFoundError" in said
    assert "2 streams, 1 broken" in said
