"""What each command needs of the folders of this machine, and how it names one that it may not use.

Root passes by the modes of folders, so that it gives up this capability for the commands.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from tests.support.long import only_long, twins
from tests.support.world import World, row

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

_LOOKING: Final = ("status", "verify", "ledger", *twins("plan", "history", "quarantine"))
_WRITING: Final = ("run", "maintain", *twins("redrive", "rebuild"))
_MAY_READ: Final = 0o555
_MAY_NOTHING: Final = 0o000
_PROGRAM: Final = """
import json, sys
from tests.cli.shell import oncelake
results = [oncelake(*words) for words in json.loads(sys.argv[1])]
print(json.dumps([(result.exit_code, result.output) for result in results]))
"""


@pytest.fixture
def world(module_world: World, tmp_path: Path) -> World:
    """A copy of a stream of one batch."""
    if not module_world.declared:
        module_world.declare(name="orders")
        module_world.write_declaration()
        module_world.send(row(1, "a"), row(2, "b"), {"name": "of nobody"})
        module_world.run()
        module_world.send(row(3, "c"))
    (tmp_path / "dagster.yaml").touch()
    for name in ("streams", "state"):
        shutil.copytree(getattr(module_world.settings, name), tmp_path / name)
    places = {name: tmp_path / name for name in ("streams", "state")}
    return module_world.copied_to(tmp_path / "lake", **places)


@contextmanager
def with_mode(mode: int, folder: Path) -> Iterator[None]:
    """Give a folder, and what is in it, a mode while the block runs; files keep theirs."""
    folders = [Path(at) for at, _, _ in os.walk(folder)]
    for each in reversed(folders):
        each.chmod(mode)
    try:
        yield
    finally:
        for each in folders:
            each.chmod(0o755)


def typed(world: World, *commands: tuple[str, ...]) -> list[tuple[int, str]]:
    """Type commands as a user whom modes stop; return the exit code and the output of each."""
    limited: list[str] = []
    if os.getuid() == 0:
        if shutil.which("setpriv") is None:
            pytest.skip("modes do not stop root, and setpriv is not installed")
        limited = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"]
    done = subprocess.run(
        [*limited, sys.executable, "-c", _PROGRAM, json.dumps(commands)],
        cwd=world.settings.lake.parent,
        env=world.environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=180,
    )
    assert done.returncode == 0, done.stderr
    return [(code, " ".join(output.split())) for code, output in json.loads(done.stdout)]


def test_a_lake_that_is_only_read_suffices_to_look(world: World) -> None:
    """Whatever changes a table is refused, and the folder is named."""
    looking = [(name, "orders") for name in _LOOKING]
    writing = [(name, "orders") for name in _WRITING]
    with with_mode(_MAY_READ, world.settings.lake):
        ended = typed(world, *looking, *writing)

    assert [code for code, _ in ended] == [0] * len(looking) + [2] * len(writing), ended
    for _, said in ended[len(looking) :]:
        assert f"the lake cannot be written in ({world.settings.lake}/" in said
        assert f"Next: ls -ld {world.settings.lake}" in said


def test_a_lake_that_is_not_read_is_named(world: World) -> None:
    """It is neither an empty one, nor an unexpected error."""
    commands = [(name, "orders") for name in (*_LOOKING, "run")]
    with with_mode(_MAY_NOTHING, world.settings.lake):
        ended = typed(world, *commands)

    for code, said in ended:
        assert code == 2, said
        assert f"ls -ld {world.settings.lake}" in said
        assert "unexpected" not in said


@only_long
def test_the_state_folder_is_written_by_runs_and_proofs(world: World) -> None:
    """Other commands that look need nothing of it."""
    commands = [(name, "orders") for name in (*_LOOKING, "run")]
    with with_mode(_MAY_READ, world.settings.state):
        ended = dict(zip(commands, typed(world, *commands), strict=True))

    for (name, _), (code, said) in ended.items():
        assert code == (2 if name in ("verify", "run") else 0), said
        assert code == 0 or f"ls -ld {world.settings.state}" in said
        assert "unexpected" not in said


@only_long
def test_declarations_are_read_and_init_writes_one(world: World) -> None:
    """Each names the folder of the streams that it may not use."""
    with with_mode(_MAY_NOTHING, world.settings.streams):
        ended = typed(world, ("status",), ("run", "orders"))
    with with_mode(_MAY_READ, world.settings.streams):
        ended += typed(world, ("init", world.topic))

    for code, said in ended:
        assert code == 2, said
        assert "streams" in said
        assert "ermi" in said
        assert "unexpected" not in said


@only_long
@pytest.mark.parametrize("command", ["maintain", "run"])
def test_one_folder_of_the_lake_that_is_only_read_is_named(world: World, command: str) -> None:
    """Which table it is of is said, also where delta-rs meets it."""
    with with_mode(_MAY_READ, world.paths.data.path):
        [(code, said)] = typed(world, (command, "orders"))

    assert code == 2, said
    assert f"ls -ld {world.paths.data}, and let this user in" in said
