"""The examples of docs/embedding.md are run as they stand there."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import dagster as dg
import pytest
import yaml

from tests.support.long import twins
from tests.support.world import ROOT, World, row

PAGE = (ROOT / "docs" / "embedding.md").read_text()
VARIABLES, OWN, MERGED, PLAIN = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
(COMPONENT,) = re.findall(r"^```yaml\n(type.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
ORDERS = "topic: orders\nschema: id INT NOT NULL\nkeys: [id]\n"


def test_streams_are_a_part_of_other_definitions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is merged loads, and an asset of one's own stands behind a stream's."""
    monkeypatch.setenv("ONCELAKE_STREAMS", str(tmp_path))
    (tmp_path / "orders.yaml").write_text(ORDERS)
    space: dict[str, object] = {}

    exec(compile(MERGED, "embedding.md", "exec"), space)

    defs = space["defs"]
    assert isinstance(defs, dg.Definitions)
    dg.Definitions.validate_loadable(defs)
    graph = defs.resolve_asset_graph()
    assert graph.get(dg.AssetKey("daily_totals")).parent_keys == {dg.AssetKey("orders")}
    assert graph.get(dg.AssetKey("orders")).parent_keys == {dg.AssetKey(["kafka", "orders"])}


@pytest.mark.slow
def test_streams_are_a_code_location_of_another_dagster(tmp_path: Path) -> None:
    """The workspace's file of the page loads from a folder that is no clone."""
    text = re.findall(r"^```yaml\n(load_from.*?)^```", PAGE, re.MULTILINE | re.DOTALL)[0]
    workspace = yaml.safe_load(text)
    workspace["load_from"][0]["python_module"]["executable_path"] = sys.executable
    (tmp_path / "workspace.yaml").write_text(yaml.safe_dump(workspace))
    (tmp_path / "streams").mkdir()
    (tmp_path / "streams" / "orders.yaml").write_text(ORDERS)

    done = subprocess.run(
        [sys.executable, "-m", "dagster", "definitions", "validate", "-w", "workspace.yaml"],
        cwd=tmp_path,
        env={
            "PATH": "/usr/bin:/bin",
            "PYTHONPATH": str(ROOT),
            "ONCELAKE_STREAMS": str(tmp_path / "streams"),
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=180,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert "Validation successful for code location oncelake" in done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("place", ["home", *twins("elsewhere")])
def test_the_doctor_names_no_workspace_that_is_not_there(tmp_path: Path, place: str) -> None:
    """Beside another Dagster its command names that one's file, and switches the sensor on."""
    for folder in ("home", "elsewhere", "streams"):
        (tmp_path / folder).mkdir()
    (tmp_path / "streams" / "orders.yaml").write_text(ORDERS)
    (tmp_path / "home" / "dagster.yaml").write_text("telemetry: {enabled: false}\n")
    file = tmp_path / place / "workspace.yaml"
    text = re.findall(r"^```yaml\n(load_from.*?)^```", PAGE, re.MULTILINE | re.DOTALL)[0]
    file.write_text(text.replace("/opt/oncelake/bin/python", sys.executable))
    environment = {
        "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
        "PYTHONPATH": str(ROOT),
        "DAGSTER_HOME": str(tmp_path / "home"),
        "ONCELAKE_STREAMS": str(tmp_path / "streams"),
        "ONCELAKE_LAKE": str(tmp_path / "lake"),
    }
    shell = {"cwd": tmp_path, "env": environment, "capture_output": True, "text": True}

    def notes() -> dict[str, str]:
        doctor = [sys.executable, "-m", "oncelake.assets.doctor", "orders"]
        told = subprocess.run(doctor, check=True, timeout=180, **shell)  # type: ignore[call-overload]
        return {each["about"]: each["command"] for each in json.loads(told.stdout)["findings"]}

    before = notes()["orders"]
    command = before.partition(", where FILE")[0].replace("FILE", str(file))
    done = subprocess.run(command, shell=True, check=False, timeout=180, **shell)  # type: ignore[call-overload]

    assert ("FILE" in before) == (place == "elsewhere")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "orders" not in notes()


@pytest.mark.kafka
@pytest.mark.spark
def test_a_stream_is_run_from_python(
    world: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A program without Dagster runs a stream, and sees its steps and what came out."""
    world.write_declaration()
    world.send(row(1, "a"), row(2, "b"))
    world.set_environment(monkeypatch)

    exec(compile(PLAIN.replace('"orders"', repr(world.topic)), "embedding.md", "exec"), {})

    said = capsys.readouterr().out
    assert "reading 2 offsets" in said
    assert "2 rows at Delta version" in said
