"""A lease: one holder, left behind by a kill, and taken away only from the dead.

And the lock that it stands in for, as the process has it that commits.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import IO

import pytest

from ingestion.errors import SetupError, StreamLockedError
from ingestion.lake.lock import Holder, Lease, held_by_python, holder_of, read_lease
from ingestion.lake.paths import StreamPaths
from ingestion.lake.processes import ProcessId
from ingestion.operations.decisions import unlock
from ingestion.settings import Settings
from tests.cli.shell import home, oncelake

__all__ = ["home"]


@pytest.fixture
def leasing(tmp_path: Path) -> Settings:
    """A lake that is locked by leases."""
    return Settings(lake=tmp_path / "lake", state=tmp_path / "state", lock="lease")


@pytest.fixture
def locking(tmp_path: Path) -> StreamPaths:
    """A stream that the kernel locks."""
    return StreamPaths.of("orders", Settings(lake=tmp_path / "lake", state=tmp_path / "state"))


def test_whoever_may_only_read_can_ask_for_the_holder(
    locking: StreamPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Monitoring by a user of its own opens the lock's file for reading alone."""
    with held_by_python(locking, Holder.me("mine")):
        pass
    as_it_is = Path.open

    def read_only(path: Path, mode: str = "r") -> IO[str]:
        if mode != "r":
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return as_it_is(path)

    monkeypatch.setattr(Path, "open", read_only)

    assert holder_of(locking) is None


def test_a_lease_has_one_holder(leasing: Settings) -> None:
    """While one holds the stream the next is refused, by name; then it is free."""
    paths = StreamPaths.of("orders", leasing)
    with held_by_python(paths, Holder.me("first")):
        with (
            pytest.raises(StreamLockedError, match=rf"run first \(pid {os.getpid()} .* unlock"),
            held_by_python(paths, Holder.me("second")),
        ):
            pass
        held = holder_of(paths)

    assert held is not None
    assert held.run_id == "first"
    assert holder_of(paths) is None


def test_a_living_holder_keeps_its_lease(leasing: Settings) -> None:
    """Unlock refuses while any process of the holder lives, be it only its JVM."""
    paths = StreamPaths.of("orders", leasing)
    with _process() as driver, _process() as jvm:
        _left_behind(paths, driver, jvm)
        driver.kill()
        driver.wait()

        with pytest.raises(StreamLockedError, match=f"is alive \\(pid {jvm.pid}\\)"):
            unlock("orders", leasing)

    assert holder_of(paths) is not None


def test_a_dead_holder_loses_its_lease(leasing: Settings) -> None:
    """When none of its processes is left the lease is taken away, and the stream is free."""
    paths = StreamPaths.of("orders", leasing)
    with _process() as driver:
        _left_behind(paths, driver)

    taken = unlock("orders", leasing)

    assert taken is not None
    assert taken.run_id == "dead"
    assert holder_of(paths) is None
    assert unlock("orders", leasing) is None


def test_a_pid_that_was_given_away_again_is_not_the_holder() -> None:
    """Another process under the holder's pid does not keep the lease alive."""
    mine = ProcessId.of(os.getpid())

    assert mine.is_alive()
    assert not replace(mine, started=mine.started - 3600).is_alive()


def test_a_holder_on_another_host_needs_a_persons_decision(leasing: Settings) -> None:
    """What cannot be seen from here is not guessed."""
    paths = StreamPaths.of("orders", leasing)
    with _process() as driver:
        _left_behind(paths, driver, host="elsewhere")

    with pytest.raises(StreamLockedError, match="cannot be seen from here"):
        unlock("orders", leasing)
    taken = unlock("orders", leasing, force=True)

    assert taken is not None
    assert read_lease(paths.lease or Path()) is None


def test_a_persons_decision_does_not_outweigh_a_living_process(leasing: Settings) -> None:
    """On this host a living holder stays, whatever anybody swears."""
    paths = StreamPaths.of("orders", leasing)
    with _process() as driver:
        _left_behind(paths, driver)

        with pytest.raises(StreamLockedError, match="is alive"):
            unlock("orders", leasing, force=True)


def test_the_command_exits_as_its_help_says(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exit 4 while the holder lives, 0 when the lease is gone, and 0 where there was none."""
    monkeypatch.setenv("ONCELAKE_LOCK", "lease")
    paths = StreamPaths.of("orders", Settings(lake=home / "lake", lock="lease"))
    with _process() as driver:
        _left_behind(paths, driver)
        refused = oncelake("unlock", "orders")
    freed, free = oncelake("unlock", "orders"), oncelake("unlock", "orders")

    assert (refused.exit_code, freed.exit_code, free.exit_code) == (4, 0, 0)
    assert "removed the lease of run dead" in freed.stdout
    assert "is free" in free.stdout


def test_a_file_system_without_locks_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That locks cannot be had is not taken for somebody holding one."""

    def no_locks(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "lockf", no_locks)
    paths = StreamPaths.of("orders", Settings(lake=tmp_path))

    with (
        pytest.raises(SetupError, match="ONCELAKE_LOCK=lease"),
        held_by_python(paths, Holder.me("first")),
    ):
        pass


def test_a_process_does_not_take_its_own_lock_again(locking: StreamPaths) -> None:
    """The kernel would give it a second time, and would drop it with the first file closed."""
    with held_by_python(locking, Holder.me("first")):
        with (
            pytest.raises(StreamLockedError, match=rf"run first \(pid {os.getpid()} "),
            held_by_python(locking, Holder.me("second")),
        ):
            pass
        was_taken = _is_taken(locking.lock)

    assert (was_taken, _is_taken(locking.lock)) == (True, False)


def test_asking_for_the_holder_leaves_the_lock_in_place(locking: StreamPaths) -> None:
    """In the holder's own process, too, where closing another descriptor would drop it."""
    with held_by_python(locking, Holder.me("first")):
        held = holder_of(locking)
        was_taken = _is_taken(locking.lock)

    assert was_taken
    assert held is not None
    assert held.run_id == "first"
    assert holder_of(locking) is None


@contextmanager
def _process() -> Iterator[subprocess.Popen[bytes]]:
    """A process that waits for as long as the block runs."""
    process = subprocess.Popen(
        [sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def _is_taken(lock: Path) -> bool:
    """Ask as another process: the kernel gives one that holds the lock whatever it asks for."""
    attempt = (
        "import fcntl, sys\n"
        "try:\n"
        "    fcntl.lockf(open(sys.argv[1], 'a'), fcntl.LOCK_EX | fcntl.LOCK_NB)\n"
        "except BlockingIOError:\n"
        "    sys.exit(7)"
    )
    code = subprocess.run([sys.executable, "-c", attempt, lock], check=False).returncode
    assert code in {0, 7}
    return code == 7


def _left_behind(
    paths: StreamPaths, *processes: subprocess.Popen[bytes], host: str | None = None
) -> None:
    """Leave a lease of these processes, as a kill would."""
    assert paths.lease is not None
    paths.lease.path.parent.mkdir(parents=True, exist_ok=True)
    lease = Lease(
        run_id="dead",
        host=host or socket.gethostname(),
        since="2026-01-01T00:00:00+00:00",
        workers=tuple(ProcessId.of(each.pid) for each in processes),
    )
    paths.lease.path.write_text(json.dumps(asdict(lease)))
