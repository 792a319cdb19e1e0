"""Whether a file system, or a store, gives what commits and locks need; runs try it first."""

from __future__ import annotations

import fcntl
import os
import struct
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from oncelake.ingestion.errors import UnfitStorageError
from oncelake.ingestion.lake.paths import StreamPaths
from oncelake.ingestion.storage.location import ObjectChangedError, Tag
from oncelake.ingestion.storage.volumes import is_storage_error


def probe_storage(paths: StreamPaths) -> None:
    """Try, beside a stream's lock, what its commits and its lock will need.

    It takes a millisecond, so every run does it: a lake can be moved, and a mount be changed.

    Raises:
        UnfitStorageError: the file system does not give it; says what.
    """
    if not paths.lake.is_local:
        # Who takes the lease tries the store.
        return
    lock = paths.lock.path
    probe, linked = (lock.with_name(f"{lock.name}.{kind}") for kind in ("probe", "linked"))
    # A lease stands in for the lock where the settings say so.
    trials = (_creates_once, _links_once, *([] if paths.lease else [_locks_once]))
    _remove(probe, linked)
    try:
        for trial in trials:
            problem = _tried(trial, probe, linked)
            if problem:
                raise UnfitStorageError(
                    paths.stream,
                    f"the file system of {lock.parent} {problem}.",
                    remedy="put ONCELAKE_LAKE on a local disk (ext4, xfs, btrfs or the like)"
                    + ("; or set ONCELAKE_LOCK=lease" if trial is _locks_once else ""),
                )
    finally:
        _remove(probe, linked)


def try_store(paths: StreamPaths) -> None:
    """Put the lease, which is there, as if it were absent, or another: both must be refused.

    Raises:
        UnfitStorageError: the store does what it is asked for; says what.
    """
    lease = paths.lease
    assert lease is not None, "what lies in a store is locked by a lease"
    with suppress(FileExistsError):
        lease.create(b"")
        lease.delete()
        raise _unfit_store(paths, "puts an object over one that is there already")
    with suppress(ObjectChangedError):
        lease.replace(b"", Tag('"another"', "1"))
        lease.delete()
        raise _unfit_store(paths, "puts an object over one that was changed meanwhile")


def _unfit_store(paths: StreamPaths, problem: str) -> UnfitStorageError:
    return UnfitStorageError(
        paths.stream,
        f"the store of {paths.lake} {problem}, so one commit could overwrite another.",
        remedy="put ONCELAKE_LAKE into a store that heeds If-None-Match and If-Match, such as "
        "docs/storage.md names, or let what stands before it pass these headers on",
    )


def _tried(trial: Callable[[Path, Path], str | None], probe: Path, linked: Path) -> str | None:
    try:
        return trial(probe, linked)
    except OSError as error:
        if is_storage_error(error):
            raise
        return f"refuses what a commit or a lock needs ({error.strerror})"


def _creates_once(probe: Path, _: Path) -> str | None:
    probe.touch(exist_ok=False)
    try:
        probe.touch(exist_ok=False)
    except FileExistsError:
        return None
    return "creates a file that is there already, so one commit could overwrite another"


def _links_once(probe: Path, linked: Path) -> str | None:
    try:
        linked.hardlink_to(probe)
    except OSError as error:
        if is_storage_error(error):
            raise
        return f"has no hard links ({error.strerror}), by which a commit without Spark is made"
    try:
        linked.hardlink_to(probe)
    except FileExistsError:
        return None
    return "links over a file that is there already, so one commit could overwrite another"


def _locks_once(probe: Path, _: Path) -> str | None:
    """Lock a file twice, as two processes would: once by open file, once by process.

    Only Linux has the former; elsewhere the lock is believed.
    """
    if not hasattr(fcntl, "F_OFD_SETLK"):
        return None
    with probe.open("r+b") as mine, probe.open("r+b") as other:
        # The kernel's `struct flock`, for a write lock on all of a file.
        whole_file = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        fcntl.fcntl(mine, fcntl.F_OFD_SETLK, whole_file)
        try:
            fcntl.lockf(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return None
    return "gives one lock to two holders, so two runs could write at once"


def _remove(*files: Path) -> None:
    for file in files:
        file.unlink(missing_ok=True)
