"""One writer a stream: a kernel lock, held by the process that commits.

Where Spark commits, that is the JVM: a Python driver that is killed leaves a JVM that may commit
for seconds more, so a lock held by Python would be free too early. POSIX has two traps: closing
*any* descriptor of the file drops the process's lock, so the file is opened once and by nothing
else; and a lock that is only reachable from Python is dropped when py4j's reference is collected,
so it is kept in a static place.

In a store, and where a file system has no kernel locks and the settings say so, a lease stands in:
see ``ingestion.storage.lease``.
"""

from __future__ import annotations

import datetime as dt
import errno
import fcntl
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any

from pydantic import TypeAdapter

from oncelake.ingestion.delta.log_files import log_files
from oncelake.ingestion.errors import SetupError, StreamLockedError
from oncelake.ingestion.lake.paths import StreamPaths
from oncelake.ingestion.lake.probe import try_store
from oncelake.ingestion.storage.lease import Lease, is_lost, last_lease, leased, read_lease
from oncelake.ingestion.storage.location import Location
from oncelake.ingestion.storage.processes import ProcessId, this_machine
from oncelake.ingestion.storage.volumes import is_store_error, make_folder, translate_disk_errors

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_ATTEMPTS = 3
# Locks that threads of this process hold: the kernel would give it each of them a second time.
_HELD_HERE: set[Location] = set()
_TAKING = threading.Lock()
_PAUSE_SECONDS = 0.1


@dataclass(frozen=True, kw_only=True, slots=True)
class Holder:
    """Who holds a stream, for the message that the other one gets.

    Attributes:
        since: When it began, UTC, ISO 8601.
    """

    run_id: str
    pid: int
    host: str
    since: str

    def __str__(self) -> str:
        return f"run {self.run_id} (pid {self.pid} on {self.host}, since {self.since})"

    @classmethod
    def me(cls, run_id: str) -> Holder:
        """Describe this process."""
        now = dt.datetime.now(dt.UTC).isoformat(timespec="seconds")
        return cls(run_id=run_id, pid=os.getpid(), host=socket.gethostname(), since=now)


_HOLDER = TypeAdapter(Holder)


@contextmanager
def held_by_jvm(spark: SparkSession, paths: StreamPaths, holder: Holder) -> Iterator[None]:
    """Hold a stream's lock in the JVM while the block runs.

    Raises:
        StreamLockedError: another run holds it; names the run.
    """
    from py4j.protocol import Py4JError

    jvm: Any = spark.sparkContext._jvm
    if paths.lease is not None:
        with _leased(paths, holder, jvm.java.lang.ProcessHandle.current().pid()):
            yield
        return
    shelf, name = jvm.System.getProperties(), f"oncelake.lock.{paths.lock}"
    make_folder(paths.lock.parent.path, "the lake")
    if shelf.putIfAbsent(name, "being taken") is not None:
        raise _locked(paths)
    try:
        channel = jvm.java.io.RandomAccessFile(str(paths.lock), "rw").getChannel()
        lock = _tried(channel.tryLock)
        if lock is None:
            channel.close()
            raise _locked(paths)
        try:
            shelf.put(name, lock)
            _write_holder(paths.holder, holder)
            yield
        finally:
            # A JVM that was killed has let go of the lock already, and cannot answer.
            with suppress(Py4JError, OSError):
                channel.close()
    finally:
        with suppress(Py4JError, OSError):
            shelf.remove(name)


@contextmanager
def held(paths: StreamPaths, run_id: str) -> Iterator[None]:
    """Hold a stream's lock for what a person decides, or maintenance does; names failing disks.

    Raises:
        StreamLockedError: a run holds it; names the run.
        StorageError: a volume is full, read-only or failing.
    """
    with (
        translate_disk_errors(paths.stream, *paths.written),
        held_by_python(paths, Holder.me(run_id)),
    ):
        yield


@contextmanager
def held_by_python(paths: StreamPaths, holder: Holder) -> Iterator[None]:
    """Hold a stream's lock in this process, where it is what commits.

    Raises:
        StreamLockedError: a run holds it; names the run.
    """
    if paths.lease is not None:
        with _leased(paths, holder):
            yield
        return
    make_folder(paths.lock.parent.path, "the lake")
    with _TAKING:
        if paths.lock in _HELD_HERE:
            raise _locked(paths)
        _HELD_HERE.add(paths.lock)
    try:
        with paths.lock.path.open("a") as file:
            if not _tried(lambda: _lock_now(file)):
                raise _locked(paths)
            _write_holder(paths.holder, holder)
            yield
    finally:
        _HELD_HERE.discard(paths.lock)


class CommitterLock:
    """A stream's lock in the hands of this process, which may pass it on to the JVM."""

    def __init__(self, stack: ExitStack, paths: StreamPaths, holder: Holder) -> None:
        self._stack, self._paths, self._holder = stack, paths, holder

    def pass_to_jvm(self, start: Callable[[], SparkSession]) -> SparkSession:
        """Let the JVM of a session that is started now hold it; nobody does while that starts.

        Raises:
            StreamLockedError: somebody took it meanwhile; names the run.
        """
        self._stack.close()
        spark = start()
        self._stack.enter_context(held_by_jvm(spark, self._paths, self._holder))
        return spark


@contextmanager
def held_by_committer(paths: StreamPaths, holder: Holder) -> Iterator[CommitterLock]:
    """Hold a stream's lock while the block runs, in this process or where it is passed on to.

    Raises:
        StreamLockedError: a run holds it; names the run.
    """
    with ExitStack() as stack:
        stack.enter_context(held_by_python(paths, holder))
        yield CommitterLock(stack, paths, holder)


def refuse_lost_lease(paths: StreamPaths) -> None:
    """Make sure that this process, where it holds a stream by a lease, has not slept past its end.

    Raises:
        StreamLockedError: it has: another run may hold the stream by now.
    """
    if paths.lease is not None and is_lost(paths.lease):
        raise StreamLockedError(
            f"{paths.stream}: this run's lease was not renewed for "
            f"{paths.settings.lease_seconds:g} s, so that another one may have taken it over. What "
            f"was not committed is as if never begun. Next: oncelake run {paths.stream}"
        )


def holder_of(paths: StreamPaths) -> Holder | None:
    """Return who holds a stream now, or ``None`` when it is free."""
    if paths.lease is not None:
        return _holder_by(read_lease(paths.lease))
    # Opening the file and closing it would drop this process's lock, also one that another thread
    # takes meanwhile.
    with _TAKING:
        if paths.lock in _HELD_HERE:
            return _read_holder(paths.holder)
        if not paths.lock.exists():
            return None
        # A shared lock needs no permission to write, and shows an exclusive one all the same.
        with paths.lock.path.open() as file:
            return None if _lock_now(file, fcntl.LOCK_SH) else _read_holder(paths.holder)


def _lock_now(file: IO[str], kind: int = fcntl.LOCK_EX) -> bool:
    """Take the kernel lock if it is free; it goes when the file is closed."""
    try:
        fcntl.lockf(file, kind | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in {errno.EACCES, errno.EAGAIN}:
            return False
        raise SetupError(
            f"the file system of {file.name} has no kernel locks ({error.strerror}), so nothing "
            "keeps two runs from writing at once. Next: put the lake on a local disk, or set "
            "ONCELAKE_LOCK=lease if only this host writes it"
        ) from error
    return True


def _tried(attempt: Callable[[], Any]) -> Any:
    """Try a few times: who asks for the holder takes the lock himself, for less than a moment."""
    for _ in range(_ATTEMPTS - 1):
        if got := attempt():
            return got
        time.sleep(_PAUSE_SECONDS)
    return attempt()


@contextmanager
def _leased(paths: StreamPaths, holder: Holder, *more_pids: int) -> Iterator[None]:
    assert paths.lease is not None
    if paths.lease.is_local:
        make_folder(paths.lease.parent.path, "the lake")
    lease = Lease(
        token=1,
        run_id=holder.run_id,
        host=holder.host,
        since=holder.since,
        seconds=paths.settings.lease_seconds,
        machine=this_machine(),
        workers=tuple(map(ProcessId.of, (holder.pid, *more_pids))),
    )
    with ExitStack() as stack:
        try:
            stack.enter_context(leased(paths.lease, lease))
        except StreamLockedError:
            raise _locked(paths) from None
        if not paths.lease.is_local:
            try_store(paths)
        for table in paths.tables:
            # What others have committed before is seen from now on.
            log_files(table).forget()
        try:
            yield
        except Exception as error:
            # Who has slept past its lease meets what another run has done meanwhile.
            if not is_store_error(error):
                refuse_lost_lease(paths)
            raise


def _holder_by(lease: Lease | None) -> Holder | None:
    if lease is None:
        return None
    pid = lease.workers[0].pid
    return Holder(run_id=lease.run_id, pid=pid, host=lease.host, since=lease.since)


def _locked(paths: StreamPaths) -> StreamLockedError:
    by, remedy = _read_holder(paths.holder), "the lock goes with its process and needs no cleaning"
    if paths.lease is not None:
        # It may have let go meanwhile.
        by = _holder_by(last_lease(paths.lease)) or by
        remedy = (
            f"if it was killed, its lease ends within {paths.settings.lease_seconds:g} s; or "
            f"oncelake unlock {paths.stream}"
        )
    return StreamLockedError(
        f"{paths.stream}: {by} holds this stream. Next: wait for it to end; {remedy}"
    )


def _write_holder(path: Location, holder: Holder) -> None:
    path.put(_HOLDER.dump_json(holder))


def _read_holder(path: Location) -> Holder:
    try:
        return _HOLDER.validate_json(path.read())
    except (OSError, ValueError):
        return Holder(run_id="unknown", pid=0, host="unknown", since="unknown")
