"""Go through the workflow of a release on this machine: each command is run, in its order.

    python -m tests.release

What only the forge can do (check out, compare with main, attest, publish) is listed. Jobs
of a matrix are run once, with the Python and the Java that are here.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any, Final

import yaml

from bench.dist import project_version
from tests.support.world import ROOT

WORKFLOW: Final = ROOT / ".github" / "workflows" / "release.yml"


def jobs_in_order(workflow: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each job behind those that it needs."""
    waiting, done = dict(workflow["jobs"]), set[str]()
    while waiting:
        ready = [name for name, job in waiting.items() if {*_needs(job)} <= done]
        if not ready:
            sys.exit(f"release-dry: {', '.join(waiting)} need what no job is")
        for name in ready:
            done.add(name)
            yield name, waiting.pop(name)


def _needs(job: dict[str, Any]) -> list[str]:
    needed = job.get("needs", [])
    return [needed] if isinstance(needed, str) else needed


def main() -> None:
    """Run every command, and end at the first that fails."""
    environment = {**os.environ, "TAG": f"v{project_version()}"}
    for name, job in jobs_in_order(yaml.safe_load(WORKFLOW.read_text())):
        matrix = job.get("strategy", {}).get("matrix", {})
        print(f"\n{name}" + (f", here once of {matrix}" if matrix else ""), flush=True)
        for step in job["steps"]:
            if "uses" in step:
                print(f"  -    {step['uses'].partition('@')[0]} {step.get('with', '')}", flush=True)
                continue
            if step["run"].startswith("git "):
                print(f"  -    {step['run']}", flush=True)
                continue
            began = time.monotonic()
            done = subprocess.run(
                ["bash", "-e", "-o", "pipefail", "-c", step["run"]], cwd=ROOT, env=environment
            )
            seconds = time.monotonic() - began
            print(f"  {done.returncode}    {seconds:.0f} s  {step['run']}", flush=True)
            if done.returncode:
                sys.exit(f"release-dry: {step['name']} failed")


if __name__ == "__main__":
    main()
