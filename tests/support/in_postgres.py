"""Runs a command beside a server of PostgreSQL: ``python -m tests.support.in_postgres COMMAND``."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.support.postgres import postgres


def main(command: list[str]) -> int:
    """Start the server, run the command to its end, and return its exit code."""
    folder = Path(tempfile.mkdtemp(prefix="oncelake-postgres-"))
    try:
        with postgres(folder) as address:
            environment = {**os.environ, "ONCELAKE_POSTGRES": address}
            return subprocess.run(command, env=environment, check=False).returncode
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
