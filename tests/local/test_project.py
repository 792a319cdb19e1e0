"""``oncelake new`` writes what a person starts from, and overwrites nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from oncelake.ingestion.declaration.spec import json_schema
from oncelake.ingestion.tables.format import engine_version
from tests.cli.shell import ORDERS, oncelake
from tests.support.long import only_long
from tests.support.world import ROOT


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to type in."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_project_has_what_dagster_git_and_ci_need(here: Path) -> None:
    """The names are filled in, and the files are those that this repository uses itself."""
    result = oncelake("new", "shop")

    shop = here / "shop"
    assert result.exit_code == 0
    assert "Next: cd shop; oncelake kafka up --sample; oncelake init orders" in result.stdout
    assert (shop / "dagster.yaml").read_text() == (ROOT / "dagster.yaml").read_text()
    assert f"./oncelake-{engine_version()}-py3" in (shop / "requirements.txt").read_text()
    assert json.loads((shop / "assets" / "stream.schema.json").read_text()) == json_schema()
    (location,) = yaml.safe_load((shop / "workspace.yaml").read_text())["load_from"]
    assert location["python_module"]["location_name"] == "shop"
    assert "$name" not in (shop / "README.md").read_text()
    assert "${" not in (shop / ".github" / "workflows" / "streams.yml").read_text()
    assert list((shop / "assets" / "streams").glob("*.yaml")) == []


@pytest.mark.parametrize("name", ["yes", "no", "on", "null", "true"])
def test_a_name_that_yaml_reads_as_something_else_stays_a_name(here: Path, name: str) -> None:
    """It is quoted where it stands alone."""
    oncelake("new", name)

    (location,) = yaml.safe_load((here / name / "workspace.yaml").read_text())["load_from"]
    assert location["python_module"]["location_name"] == name


@only_long
def test_a_new_project_loads_in_dagster_and_passes_its_own_ci(here: Path) -> None:
    """Each command of its workflow but the one that installs ends well with a first stream."""
    oncelake("new", "shop")
    (here / "shop" / "assets" / "streams" / "orders.yaml").write_text(ORDERS)
    workflow = here / "shop" / ".github" / "workflows" / "streams.yml"
    (job,) = yaml.safe_load(workflow.read_text())["jobs"].values()
    commands = [step["run"] for step in job["steps"] if "run" in step]
    assert commands[0] == "pip install -r requirements.txt"

    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    for command in commands[1:]:
        done = subprocess.run(
            command,
            shell=True,
            cwd=here / "shop",
            env={**os.environ, "PATH": path, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr


def test_what_is_there_is_left_as_it_is(here: Path) -> None:
    """A second time it is refused."""
    oncelake("new", "shop")
    (here / "shop" / "README.md").write_text("mine")

    refused = oncelake("new", "shop")

    assert refused.exit_code == 2
    assert "shop is there already, and is left as it is. Next: " in refused.stderr
    assert (here / "shop" / "README.md").read_text() == "mine"


def test_what_cannot_be_written_whole_is_not_there(here: Path) -> None:
    """Where the disk is full, nothing is left behind that a second try would refuse."""
    command = f"ulimit -f 16; exec {sys.executable} -m oncelake.ingestion new shop"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        ["bash", "-c", command], env=environment, capture_output=True, text=True, check=False
    )

    assert done.returncode == 2
    assert "shop cannot be written: File too large. Next: " in done.stderr
    assert list(here.iterdir()) == []


@pytest.mark.parametrize("name", ["", "a/b", "..", "1st", "-x", "a b"])
def test_a_name_is_a_plain_word(here: Path, name: str) -> None:
    """A folder, a module and a code location can all have it."""
    assert oncelake("new", "--", name).exit_code == 2
    assert list(here.iterdir()) == []


@pytest.mark.parametrize("source", ["src", "."])
def test_in_a_project_of_dg_it_is_a_component(here: Path, source: str) -> None:
    """It stands below the project's definitions, unless a folder is asked for."""
    (here / "pyproject.toml").write_text('[tool.dg.project]\nroot_module = "store"\n')
    defs = here / source / "store" / "defs"
    defs.mkdir(parents=True)

    result = oncelake("new", "ingest")

    assert result.exit_code == 0
    written = yaml.safe_load((defs / "ingest" / "defs.yaml").read_text())
    assert written["attributes"]["jobs"] == {"prefix": "ingest_"}
    assert (defs / "ingest" / "streams").is_dir()
    assert "export ONCELAKE_STREAMS=" in result.stdout
    oncelake("new", "shop", "--no-dg")
    assert (here / "shop" / "dagster.yaml").exists()


@pytest.mark.parametrize(
    ("file", "text"),
    [
        pytest.param("dg.toml", '[project]\nroot_module = "store"\n', id="dg.toml"),
        pytest.param("pyproject.toml", "x = [", id="broken"),
        pytest.param("pyproject.toml", "tool = 3\n", id="something else"),
        pytest.param("pyproject.toml", '[project]\nname = "store"\n', id="without dg"),
    ],
)
def test_only_what_dg_reads_makes_a_project_of_dg(here: Path, file: str, text: str) -> None:
    """The settings of dg may be in a file of their own; other files of that name are no matter."""
    (here / file).write_text(text)
    defs = here / "store" / "defs"
    defs.mkdir(parents=True)

    result = oncelake("new", "ingest")

    assert result.exit_code == 0
    assert (defs / "ingest" / "defs.yaml").exists() == (file == "dg.toml")
    assert (here / "ingest" / "dagster.yaml").exists() != (file == "dg.toml")


def test_no_component_is_written_outside_of_a_project_of_dg(here: Path) -> None:
    """Nobody would load it."""
    result = oncelake("new", "ingest", "--dg")

    assert result.exit_code == 2
    assert list(here.iterdir()) == []
