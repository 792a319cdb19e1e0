"""One writer a stream: a kernel lock that the JVM holds, since the JVM is what commits.

A Python driver that is killed leaves a JVM that may commit for seconds more, so a lock held by
Python would be free too early. POSIX has two traps: closing *any* descriptor of the file drops the
process's lock, so the file is opened once and by nothing else; and a lock that is only reachable
from Python is dropped when py4j's reference is collected, so it is kept in a static place.
"""

from __future__ import annotations

import datetime as dt
import fcntl
import json
import os
import socket
import struct
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from ingestion.errors import StreamLockedError
from ingestion.lake import StreamPaths

_ATTEMPTS = 3
_PAUSE_SECONDS = 0.1


@dataclass(frozen=True, kw_only=True, slots=True)
class Holder:
    """Who holds a stream, for the message that the other one gets.

    Attributes:
        run_id: The run.
        pid: Process id of its Python driver.
        host: Machine it runs on.
        since: When it began, UTC, ISO 8601.
    """

    run_id: str
    pid: int
    host: str
    since: str

    @classmethod
    def me(cls, run_id: str) -> Holder:
        """Describe this process."""
        now = dt.datetime.now(dt.UTC).isoformat(timespec="seconds")
        return cls(run_id=run_id, pid=os.getpid(), host=socket.gethostname(), since=now)


@contextmanager
def held_by_jvm(
    spark: SparkSession, stream: str, paths: StreamPaths, holder: Holder
) -> Iterator[None]:
    """Hold a stream's lock in the JVM while the block runs.

    Raises:
        StreamLockedError: another run holds it; names the run.
    """
    jvm: Any = spark.sparkContext._jvm
    shelf, name = jvm.System.getProperties(), f"oncelake.lock.{paths.lock}"
    paths.lock.parent.mkdir(parents=True, exist_ok=True)
    if shelf.putIfAbsent(name, "being taken") is not None:
        raise _locked(stream, paths)
    try:
        channel = jvm.java.io.RandomAccessFile(str(paths.lock), "rw").getChannel()
        lock = _tried(channel.tryLock)
        if lock is None:
            channel.close()
            raise _locked(stream, paths)
        shelf.put(name, lock)
        _write_holder(paths.holder, holder)
        try:
            yield
        finally:
            # A JVM that was killed has let go of the lock already, and cannot answer.
            with suppress(Py4JError, OSError):
                channel.close()
    finally:
        with suppress(Py4JError, OSError):
            shelf.remove(name)


@contextmanager
def held_by_python(stream: str, paths: StreamPaths, holder: Holder) -> Iterator[None]:
    """Hold a stream's lock in this process, for commands that commit without Spark.

    Raises:
        StreamLockedError: a run holds it; names the run.
    """
    paths.lock.parent.mkdir(parents=True, exist_ok=True)
    with paths.lock.open("a") as file:
        if not _tried(lambda: _lock_now(file)):
            raise _locked(stream, paths)
        _write_holder(paths.holder, holder)
        yield


def holder_of(paths: StreamPaths) -> Holder | None:
    """Return who holds a stream now, or ``None`` when it is free.

    Not for the process that holds it by ``held_by_python``: asking would drop its lock.
    """
    if not paths.lock.exists():
        return None
    with paths.lock.open("a") as file:
        return None if _lock_now(file) else _read_holder(paths.holder)


def process_holding(paths: StreamPaths) -> int | None:
    """Return the id of the process that holds a stream's lock, as the kernel knows it.

    That is the JVM of a run, whose driver may be dead already. ``None`` where nobody does, and
    where this system tells it in another form. Takes nothing; like ``holder_of``, not for the
    process that holds the lock by ``held_by_python``.
    """
    if not paths.lock.exists() or sys.platform != "linux":
        return None
    # struct flock of 64-bit Linux: type, whence, start, length, pid.
    form = "hhqqi"
    with paths.lock.open("a") as file:
        asked = struct.pack(form, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        kind, *_, pid = struct.unpack(form, fcntl.fcntl(file, fcntl.F_GETLK, asked))
    return None if kind == fcntl.F_UNLCK else pid


def _lock_now(file: IO[str]) -> bool:
    """Take the kernel lock if it is free; it goes when the file is closed."""
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _tried(attempt: Callable[[], Any]) -> Any:
    """Try a few times: who asks for the holder takes the lock himself, for less than a moment."""
    for _ in range(_ATTEMPTS - 1):
        got = attempt()
        if got:
            return got
        time.sleep(_PAUSE_SECONDS)
    return attempt()


def _locked(stream: str, paths: StreamPaths) -> StreamLockedError:
    by = _read_holder(paths.holder)
    return StreamLockedError(
        f"{stream}: run {by.run_id} (pid {by.pid} on {by.host}, since {by.since}) holds this "
        "stream. Next: wait for it to end; the lock goes with its process and needs no cleaning"
    )


def _write_holder(path: Path, holder: Holder) -> None:
    draft = path.with_suffix(".new")
    draft.write_text(json.dumps(asdict(holder)))
    draft.replace(path)


def _read_holder(path: Path) -> Holder:
    try:
        return Holder(**json.loads(path.read_text()))
    except (OSError, ValueError, TypeError):
        return Holder(run_id="unknown", pid=0, host="unknown", since="unknown")
