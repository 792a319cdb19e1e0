"""Several workers share the tests, and each module's fixture is made by one of them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.support.world import ROOT

HOOKS = """
from tests.support.schedule import (
    pytest_collection_modifyitems,
    pytest_configure_node,
    pytest_xdist_make_scheduler,
)
"""
TESTS = """
import os
from pathlib import Path

import pytest

MADE = Path(__file__).with_suffix(".made")


def record(kind):
    with MADE.open("a") as file:
        file.write(f"{kind} {os.environ['PYTEST_XDIST_WORKER']}\\n")


@pytest.fixture(scope="module")
def dear():
    record("fixture")


@pytest.fixture(scope="session")
def registry_address():
    record("registry")


@pytest.mark.parametrize("number", range(6))
def test_of_the_module(dear, number):
    pass


def test_of_the_registry(registry_address):
    pass
"""


def test_a_worker_has_modules_and_servers_to_itself(tmp_path: Path) -> None:
    """What a module or a server costs is paid once, and there is work for both workers."""
    (tmp_path / "conftest.py").write_text(HOOKS)
    for name in ("test_one.py", "test_two.py"):
        (tmp_path / name).write_text(TESTS)
    options = ("-q", "-p", "no:cacheprovider", "-n", "2", "--dist", "loadscope")

    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, "--rootdir", tmp_path, tmp_path],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    made = [line.split() for at in tmp_path.glob("*.made") for line in at.read_text().splitlines()]
    assert sorted(worker for what, worker in made if what == "fixture") == ["gw0", "gw1"]
    assert len({worker for what, worker in made if what == "registry"}) == 1
