"""Dagster's command line as a user would type it: the engine itself knows nothing of Dagster."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from ingestion.errors import IngestionError
from ingestion.settings import project_root

_TIMEOUT_SECONDS = 600


class MaterializeError(IngestionError):
    """The Dagster run failed, or did not end."""


def materialize(stream: str, *, log: Path) -> None:
    """Run ``dagster asset materialize`` for a stream, its output appended to ``log``.

    Raises:
        MaterializeError: it did not succeed; quotes the end of its output.
    """
    root = project_root()
    command = [sys.executable, "-m", "dagster", "asset", "materialize"]
    command += ["--select", stream, "-m", "assets.definitions"]
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output:
        began = output.tell()
        try:
            code = subprocess.run(
                command,
                cwd=root,
                env={**os.environ, "DAGSTER_HOME": str(root)},
                stdout=output,
                stderr=subprocess.STDOUT,
                timeout=_TIMEOUT_SECONDS,
                check=False,
            ).returncode
        except subprocess.TimeoutExpired:
            raise MaterializeError(f"no end after {_TIMEOUT_SECONDS} s; see {log}") from None
    if code != 0:
        tail = "\n".join(log.read_bytes()[began:].decode(errors="replace").splitlines()[-40:])
        shown = " ".join(["dagster", *command[3:]])
        raise MaterializeError(f"`{shown}` exited with {code}; the end of {log}:\n{tail}")
