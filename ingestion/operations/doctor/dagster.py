"""Dagster's part, asked of a process of its own: the engine runs without Dagster."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from ingestion.operations.doctor.finding import Finding
from ingestion.settings import project_root

_MODULE = "assets.doctor"
_PATIENCE_SECONDS = 120


def dagster_home() -> Path | None:
    """Return the folder of Dagster's instance: as the environment says, else the project's."""
    given = os.environ.get("DAGSTER_HOME")
    if given:
        return Path(given)
    return project_root() if (project_root() / ".dagster").is_dir() else None


def ask_dagster(streams: Sequence[str]) -> tuple[Finding, ...]:
    """Let Dagster's side examine itself, as far as it concerns these streams; none means all."""
    home = dagster_home()
    if home is None:
        return (_absent(),)
    try:
        answer = subprocess.run(
            [sys.executable, "-m", _MODULE, *streams],
            # Relative folders in dagster.yaml mean the working directory, as they do in `make ui`.
            cwd=project_root(),
            env={**os.environ, "DAGSTER_HOME": str(home)},
            capture_output=True,
            text=True,
            check=False,
            timeout=_PATIENCE_SECONDS,
        )
    except subprocess.TimeoutExpired:
        return (_silent(home, f"no answer within {_PATIENCE_SECONDS} s"),)
    if answer.returncode != 0:
        lines = answer.stderr.strip().splitlines() or ["no reason given"]
        return (_silent(home, lines[-1]),)
    return tuple(Finding(**each) for each in json.loads(answer.stdout)["findings"])


def _absent() -> Finding:
    return Finding(
        about="dagster",
        what="no Dagster instance here",
        evidence=f"DAGSTER_HOME is not set, and {project_root()} holds no .dagster",
        command="set DAGSTER_HOME, if Dagster runs the streams",
        exit_code=0,
    )


def _silent(home: Path, why: str) -> Finding:
    return Finding(
        about="dagster",
        what=f"Dagster's instance at {home} cannot be read, so nothing is known of its runs",
        evidence=why,
        command=f"DAGSTER_HOME={home} {sys.executable} -m {_MODULE}",
    )
