"""A run with a crash planned: in a process of its own, or in this one."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil

from oncelake.ingestion.errors import DependencyError, StreamLockedError
from oncelake.ingestion.pipeline.report import RunReport
from oncelake.ingestion.storage.failpoints import Failpoint
from tests.support.world import World, wait_until
from tests.trials.failpoints import EVENT_WRITTEN, PlannedCrash, crashing_at

# The way to die that no code of ours has a place for: at the N-th rename of any thread.
NTH_RENAME = "nth_rename"
# The way to die that starts no process: an exception where the others are killed.
IN_PROCESS = "in_process"
_SECONDS = 300.0


@contextmanager
def process_group(
    command: Sequence[str], environment: Mapping[str, str], log: Path
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a command in a process group of its own, which the end of the block kills."""
    with log.open("wb") as out:
        process = subprocess.Popen(
            command, env=environment, start_new_session=True, stdout=out, stderr=out
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(30)


def run_to_its_end(
    world: World, crash: PlannedCrash, *, here: Callable[[], object] | None = None
) -> tuple[str, tuple[str, ...]]:
    """Run the stream in a process group of its own until its planned crash.

    Args:
        world: The stream; its ``command`` is what runs.
        crash: Where and how it ends.
        here: What runs instead when it is to crash in this process; a run, unless given.

    Returns:
        How it ended, in words, and what is wrong with that.
    """
    if crash.way == IN_PROCESS:
        return _crash_here(crash, here or world.run)
    home = world.settings.state / "dagster"
    home.mkdir(exist_ok=True)
    environment = {**world.environment(), **crash.environment(), "DAGSTER_HOME": str(home)}
    with process_group(_command(world, crash), environment, _log(world)) as process:
        if crash.way == "freeze":
            return _while_frozen(world, process)
        code = process.wait(_SECONDS)
    if crash.volume:
        (Path(crash.volume) / "ballast").unlink(missing_ok=True)
    killed = code == -signal.SIGKILL
    expected = {
        "kill_group": killed,
        "kill_python": killed,
        "kill_jvm": killed or code in {0, 5},
        "exception": code in {0, 1},
        "disk_full": code in {0, 1, 5},
        NTH_RENAME: killed or code in {0, 5},
    }[crash.way]
    said = "killed" if killed else f"exit {code}"
    if crash.way == NTH_RENAME:
        said = f"{said}{_renaming(world)}" if code else "not reached"
    return said, () if expected else (f"the run ended with {code}: {_last_words(world)}",)


def _crash_here(crash: PlannedCrash, run: Callable[[], object]) -> tuple[str, tuple[str, ...]]:
    with crashing_at(crash.place, crash.nth):
        try:
            run()
        except Exception as error:
            # Spark wraps what its callback raised; anything else is no planned crash.
            if f"PlannedError: {crash.place}" not in f"{type(error).__name__}: {error}":
                raise
            return "crashed", ()
    return "not reached", ()


def _while_frozen(world: World, process: subprocess.Popen[bytes]) -> tuple[str, tuple[str, ...]]:
    """Try a second run while the first stands still, and let the first go on.

    A kernel's lock is held as long as its process; a lease ends, and the second run commits.
    """
    evidence: list[str] = []
    if _stands_still(process):
        said = "stood still, without the lock"
        try:
            world.run()
        except StreamLockedError as refused:
            said = "stood still, held the lock"
            if "pid" not in str(refused):
                evidence.append(f"the refusal names no holder: {refused}")
            if world.paths.lease is not None:
                said = "stood still past its lease"
                run_when_free(world, 10 * world.settings.lease_seconds)
        os.killpg(process.pid, signal.SIGCONT)
    else:
        said = "went on"
    code = process.wait(_SECONDS)
    if code not in {0, 4}:
        evidence.append(f"the thawed run ended with {code}: {_last_words(world)}")
    return said, tuple(evidence)


def run_when_free(world: World, seconds: float) -> RunReport:
    """Run as soon as nobody holds the stream: a lease ends, and a JVM outlives its Python."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            return world.run()
        except (StreamLockedError, DependencyError):
            assert time.monotonic() < deadline, "the stream stays locked"
            time.sleep(0.2)


def _stands_still(process: subprocess.Popen[bytes]) -> bool:
    """Wait until the process is stopped, or has ended."""
    running = psutil.Process(process.pid)
    wait_until(
        lambda: process.poll() is not None or running.status() == psutil.STATUS_STOPPED,
        "the run neither stood still nor ended",
        seconds=_SECONDS,
    )
    return process.poll() is None


def _command(world: World, crash: PlannedCrash) -> list[str]:
    """Return what runs: Dagster where the crash is in a step of its own, strace at a rename."""
    if crash.place in {Failpoint.EVIDENCE_GATHERED, EVENT_WRITTEN}:
        materialize = ["dagster", "asset", "materialize", "--select", world.topic]
        return [sys.executable, "-m", *materialize, "-m", "assets.definitions"]
    if crash.way == NTH_RENAME:
        # Without --seccomp-bpf, with which nothing is injected.
        inject = f"inject=rename:signal=SIGKILL:when={crash.nth}"
        traced = ["strace", "-f", "-qq", "-o", str(_trace(world))]
        return [*traced, "-e", "trace=rename", "-e", inject, *world.command]
    return world.command


def _log(world: World) -> Path:
    return world.settings.state / "run.log"


def _trace(world: World) -> Path:
    return world.settings.state / "strace.log"


def _renaming(world: World) -> str:
    """Say which file was about to get its name when the kill came."""
    unfinished = re.findall(r'rename\("[^"]+", "([^"]+)"\)? +(?:=|<unf)', _trace(world).read_text())
    roots = (world.settings.state, world.settings.lake)
    last = unfinished[-1] if unfinished else "?"
    return " at " + next(
        (last.removeprefix(f"{r}/") for r in roots if last.startswith(str(r))), last
    )


def _last_words(world: World) -> str:
    return _log(world).read_text(errors="replace")[-600:]
