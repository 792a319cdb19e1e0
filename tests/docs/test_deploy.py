"""What docs/deploy.md gives systemd and Helm is accepted by them."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import dagster as dg
import jsonschema
import pytest
import yaml
from dagster._core.storage.defs_state.blob_storage_state_storage import UPathDefsStateStorage

from oncelake.ingestion.settings import Settings
from tests.support.world import ROOT

PAGE = (ROOT / "docs" / "deploy.md").read_text()
(UNIT,) = re.findall(r"^```ini\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
VALUES: dict[str, Any] = yaml.safe_load((ROOT / "docs/examples/helm-values.yaml").read_text())
# values.schema.json of Dagster's chart, which is no part of this repository.
SCHEMA = os.environ.get("HELM_SCHEMA")


def verify(unit: str, folder: Path) -> str:
    """Return what systemd finds wrong with a unit whose command is there."""
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("systemd-analyze is not installed (Debian, Ubuntu: apt install systemd)")
    command = folder / ".venv" / "bin" / "oncelake"
    command.parent.mkdir(parents=True, exist_ok=True)
    command.write_text("#!/bin/sh\n")
    command.chmod(0o755)
    file = folder / "oncelake.service"
    file.write_text(unit.replace("/opt/oncelake", str(folder)))
    done = subprocess.run(
        [analyze, "verify", "--man=no", str(file)], capture_output=True, text=True, check=False
    )
    return done.stderr + ("" if done.returncode == 0 else f"exit code {done.returncode}")


def test_systemd_takes_the_unit_as_it_stands(tmp_path: Path) -> None:
    """It knows every key and value, and finds a mistake."""
    assert verify(UNIT, tmp_path) == ""
    assert "KillMod" in verify(UNIT.replace("KillMode", "KillMod"), tmp_path)


def test_what_the_unit_waits_for_is_started() -> None:
    """An order alone starts nothing: each unit behind `After` is wanted, too."""
    keys = dict(re.findall(r"^(\w+)=(.*)$", UNIT, re.MULTILINE))

    assert keys["After"] == keys["Wants"]


def test_the_chart_gets_what_runs_need(tmp_path: Path) -> None:
    """Variables are settings, and what becomes of dagster.yaml is an instance with pools."""
    (server,) = VALUES["dagster-user-deployments"]["deployments"]
    named = {each["name"].removeprefix("ONCELAKE_").lower() for each in server["env"]}
    coordinator = VALUES["dagsterDaemon"]["runCoordinator"]
    instance = {
        "telemetry": VALUES["telemetry"],
        "run_coordinator": {"module": "dagster.core.run_coordinator", "class": coordinator["type"]},
        **VALUES["additionalInstanceConfig"],
    }
    (tmp_path / "dagster.yaml").write_text(yaml.safe_dump(instance))

    with dg.DagsterInstance.from_config(str(tmp_path)) as made:
        config = made.get_concurrency_config()

    assert named <= {*Settings.model_fields}
    storage = made.defs_state_storage
    assert isinstance(storage, UPathDefsStateStorage)
    assert str(storage.base_path).startswith("s3://")
    assert config.pool_config.default_pool_limit == 1
    assert config.run_queue_config is not None
    assert config.run_queue_config.max_concurrent_runs == 10
    assert coordinator["config"] == {"queuedRunCoordinator": {}}


@pytest.mark.skipif(SCHEMA is None, reason="HELM_SCHEMA names no values.schema.json of the chart")
def test_the_charts_schema_takes_the_values() -> None:
    """Each value is one that the chart knows, of its type; its defaults give the others."""
    schema = _as_for_a_part(json.loads(Path(SCHEMA or "").read_text()))

    jsonschema.validate(VALUES, schema)

    assert {*VALUES} <= {*schema["properties"]}


def _as_for_a_part(schema: Any) -> Any:
    """Leave out what must be there, and what Kubernetes' own schema, elsewhere, says."""
    if isinstance(schema, dict):
        elsewhere = str(schema.get("$ref", "")).startswith("http")
        return {
            name: _as_for_a_part(each)
            for name, each in schema.items()
            if not (name == "required" and isinstance(each, list))
            and not (name == "$ref" and elsewhere)
        }
    return [_as_for_a_part(each) for each in schema] if isinstance(schema, list) else schema
