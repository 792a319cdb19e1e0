"""Dagster's part, asked of a process of its own: the engine runs without Dagster."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from pydantic import TypeAdapter

from ingestion.operations.doctor.findings import NO_DAGSTER, UNREADABLE_DAGSTER, Finding
from ingestion.settings import project_root

_MODULE = "assets.doctor"
_PATIENCE_SECONDS = 120
_ABOUT = "dagster"
_FINDINGS = TypeAdapter(dict[str, tuple[Finding, ...]])


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
        where = f"DAGSTER_HOME is not set, and {project_root()} holds no .dagster"
        return (NO_DAGSTER.of(_ABOUT, where),)
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
        return (_unreadable(home, f"no answer within {_PATIENCE_SECONDS} s"),)
    if answer.returncode != 0:
        lines = answer.stderr.strip().splitlines() or ["no reason given"]
        return (_unreadable(home, lines[-1]),)
    return _FINDINGS.validate_json(answer.stdout)["findings"]


def _unreadable(home: Path, why: str) -> Finding:
    command = f"{sys.executable} -m {_MODULE}"
    return UNREADABLE_DAGSTER.of(_ABOUT, why, home=home, command=command)
