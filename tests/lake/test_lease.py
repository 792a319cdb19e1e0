"""A lease: one holder, left behind by a kill, and taken away only from the dead.

And the lock that it stands in for, as the process has it that commits.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import IO, Any

import pytest

from oncelake.ingestion.errors import SetupError, StreamLockedError
from oncelake.ingestion.lake.lock import Holder, held_by_python, holder_of, refuse_lost_lease
from oncelake.ingestion.lake.paths import StreamPaths
from oncelake.ingestion.operations.decisions import unlock
from oncelake.ingestion.settings import Settings
from oncelake.ingestion.storage.lease import Lease, read_lease
from oncelake.ingestion.storage.location import Location
from oncelake.ingestion.storage.processes import ProcessId, this_machine
from tests.cli.shell import oncelake


@pytest.fixture(params=["folder", "store"])
def leasing(tmp_path: Path, request: pytest.FixtureRequest) -> Settings:
    """A lake that is locked by leases."""
    is_stored = request.param == "store"
    lake = request.getfixturevalue("bucket") if is_stored else tmp_path / "lake"
    return Settings(lake=lake, state=tmp_path / "state", lock="lease")


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

        for force in (False, True):
            with pytest.raises(StreamLockedError, match=f"is alive \\(pid {jvm.pid}\\)"):
                unlock("orders", leasing, force=force)

        assert holder_of(paths) is not None


def test_a_dead_holder_of_this_machine_is_succeeded_at_once(leasing: Settings) -> None:
    """When none of its processes is left the stream is free, and the next holder comes after it."""
    paths = StreamPaths.of("orders", leasing)
    with _process() as driver:
        _left_behind(paths, driver)

    assert holder_of(paths) is None
    assert unlock("orders", leasing) is None
    with held_by_python(paths, Holder.me("next")):
        assert _lease(paths).token == DEAD.token + 1


def test_a_pid_that_was_given_away_again_is_not_the_holder() -> None:
    """Another process under the holder's pid does not keep the lease alive."""
    mine = ProcessId.of(os.getpid())

    assert mine.is_alive()
    assert not replace(mine, started=mine.started - 3600).is_alive()


def test_a_holder_on_another_machine_is_waited_for_until_its_lease_ends(
    leasing: Settings,
) -> None:
    """What cannot be seen from here is not guessed: the clock decides, or a person."""
    paths = StreamPaths.of("orders", leasing)
    with _process() as driver:
        _left_behind(paths, driver, machine="elsewhere", seconds=3600)
        with pytest.raises(StreamLockedError, match="cannot be seen from here"):
            unlock("orders", leasing)
        taken = unlock("orders", leasing, force=True)
        was_freed = holder_of(paths) is None
        _left_behind(paths, driver, machine="elsewhere", seconds=-1)

        with held_by_python(paths, Holder.me("next")):
            assert _lease(paths).run_id == "next"

    assert taken is not None
    assert was_freed


def test_a_holder_that_slept_past_its_lease_learns_of_its_successor(
    leasing: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its next renewal finds another's lease, and leaves that alone; an error is laid to that."""
    leasing = leasing.model_copy(update={"lease_seconds": 1.0})
    paths = StreamPaths.of("orders", leasing)
    with (
        _process() as other,
        pytest.raises(StreamLockedError, match="was not renewed for 1 s"),
        held_by_python(paths, Holder.me("sleeper")),
    ):
        _meet_the_successor(paths, other)
    with pytest.raises(StreamLockedError, match="run dead"), held_by_python(paths, Holder.me("x")):
        pass


def _meet_the_successor(paths: StreamPaths, other: subprocess.Popen[bytes]) -> None:
    _left_behind(paths, other, machine="elsewhere", seconds=3600)
    deadline = time.monotonic() + 20
    while not _is_refused(paths):
        assert time.monotonic() < deadline, "the loss was never noticed"
    raise FileNotFoundError("what the successor has removed")


def test_a_lease_is_renewed_while_its_holder_lives(leasing: Settings) -> None:
    """It never grows as old as it may, so that nobody elsewhere takes it for dead."""
    leasing = leasing.model_copy(update={"lease_seconds": 1.0})
    paths = StreamPaths.of("orders", leasing)
    assert paths.lease is not None
    tags = set()
    with held_by_python(paths, Holder.me("mine")):
        deadline = time.monotonic() + 20
        while len(tags) < 4 and time.monotonic() < deadline:
            tags.add(paths.lease.read_tagged()[1])

        assert len(tags) == 4
        assert not _is_refused(paths)
        assert _lease(paths).token == 1


def test_the_command_exits_as_its_help_says(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exit 4 while the holder lives or may live, 0 when it is taken away, and where it was free."""
    monkeypatch.setenv("ONCELAKE_LOCK", "lease")
    paths = StreamPaths.of("orders", Settings(lake=home / "lake", lock="lease"))
    with _process() as driver:
        _left_behind(paths, driver)
        refused = oncelake("unlock", "orders")
        _left_behind(paths, driver, machine="elsewhere", seconds=3600)
    waits, freed = oncelake("unlock", "orders"), oncelake("unlock", "orders", "--force")
    free = oncelake("unlock", "orders")

    assert [each.exit_code for each in (refused, waits, freed, free)] == [4, 4, 0, 0]
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
        was_taken = _is_taken(locking.lock.path)

    assert (was_taken, _is_taken(locking.lock.path)) == (True, False)


def test_asking_for_the_holder_leaves_the_lock_in_place(locking: StreamPaths) -> None:
    """In the holder's own process, too, where closing another descriptor would drop it."""
    with held_by_python(locking, Holder.me("first")):
        held = holder_of(locking)
        was_taken = _is_taken(locking.lock.path)

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


def _is_taken(lock: Location) -> bool:
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


DEAD = Lease(
    token=7,
    run_id="dead",
    host="host",
    since="2026-01-01T00:00:00+00:00",
    seconds=3600,
    machine=this_machine(),
    workers=(),
)


def _left_behind(paths: StreamPaths, *processes: subprocess.Popen[bytes], **said: Any) -> None:
    """Leave a lease of these processes, as a kill would."""
    assert paths.lease is not None
    workers = tuple(ProcessId.of(each.pid) for each in processes)
    lease = replace(DEAD, workers=workers, **said)
    paths.lease.put(json.dumps(asdict(lease)).encode())


def _is_refused(paths: StreamPaths) -> bool:
    try:
        refuse_lost_lease(paths)
    except StreamLockedError:
        return True
    return False


def _lease(paths: StreamPaths) -> Lease:
    assert paths.lease is not None
    lease = read_lease(paths.lease)
    assert lease is not None
    return lease
