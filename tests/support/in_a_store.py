"""Runs a command with a lake in a store: ``python -m tests.support.in_a_store COMMAND``."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.support.store import environment_of_store, make_bucket, moto


def main(command: list[str]) -> int:
    """Start the store, run the command to its end, and return its exit code."""
    with moto(Path(tempfile.mkdtemp(prefix="oncelake-store-"))) as address:
        lake = f"s3://{make_bucket(address)}/lake"
        print(f"  the lake is {lake}, in moto at {address}, and goes with this command", flush=True)
        environment = {**os.environ, **environment_of_store(address), "ONCELAKE_LAKE": lake}
        return subprocess.run(command, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
