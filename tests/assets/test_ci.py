"""The CI example of the docs: its commands are run, and they find what is wrong."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.support.long import twins
from tests.support.world import ROOT

WORKFLOW = ROOT / "docs" / "examples" / "github-actions.yml"
GOOD = "topic: orders\nschema: id INT NOT NULL\nkeys: [id]\n"


def commands() -> list[str]:
    """Return the commands of the workflow but for the set-up, which brought us here."""
    steps = yaml.safe_load(WORKFLOW.read_text())["jobs"]["check"]["steps"]
    lines = [line for step in steps for line in step.get("run", "").splitlines()]
    return [line for line in lines if line != "make setup"]


def run(command: str, folder: Path, **files: str) -> subprocess.CompletedProcess[str]:
    """Run a command of the workflow on streams of the test's own."""
    (folder / "streams").mkdir(exist_ok=True)
    (folder / "home").mkdir(exist_ok=True)
    for name, text in files.items():
        (folder / "streams" / f"{name}.yaml").write_text(text)
    given = {
        "ONCELAKE_STREAMS": str(folder / "streams"),
        "DAGSTER_HOME": str(folder / "home"),
        "PYTHONPATH": str(ROOT),
        "COLUMNS": "200",
    }
    binaries = f"{Path(sys.executable).parent}/"
    return subprocess.run(
        command.replace(".venv/bin/", binaries),
        shell=True,
        cwd=ROOT,
        env={**os.environ, **given},
        capture_output=True,
        text=True,
        check=False,
        timeout=180,
    )


def test_the_workflow_gives_each_of_both_command_lines_a_word() -> None:
    """The new one and the old one check the same, and Oncelake's own comes first."""
    words = [command.split()[0].rpartition("/")[2] for command in commands()]

    assert words == ["oncelake", "dg", "dagster", "dg", "dagster"]


@pytest.mark.slow
@pytest.mark.parametrize("command", [*commands()[:2], *twins(*commands()[2:])])
def test_a_command_of_the_workflow_passes_on_a_good_file(command: str, tmp_path: Path) -> None:
    """What a reader copies works as it stands."""
    ended = run(command, tmp_path, orders=GOOD)

    assert ended.returncode == 0, ended.stdout + ended.stderr
    if "list" in command:
        assert "orders" in ended.stdout


def test_the_workflow_finds_a_broken_file(tmp_path: Path) -> None:
    """The first command names file, line and what to write instead."""
    ended = run(commands()[0], tmp_path, orders=GOOD, broken="topik: orders\n")

    assert ended.returncode == 2
    assert "broken.yaml" in ended.stdout + ended.stderr
