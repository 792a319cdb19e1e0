"""Whether the lake's file system gives what the guarantee rests on: tried, not looked up.

A commit must not overwrite another (exclusive creation, and the hard link by which delta-rs
commits), and one writer a stream is a kernel lock that a second one must feel. A file system that
only pretends, as some network and FUSE mounts do, is refused rather than hoped for.
"""

from __future__ import annotations

import fcntl
import os
import struct
from collections.abc import Callable
from pathlib import Path

from ingestion.errors import UnfitStorageError
from ingestion.lake import StreamPaths
from ingestion.storage import is_the_volumes_fault


def refuse_unfit(stream: str, paths: StreamPaths) -> None:
    """Try, beside a stream's lock, what its commits and its lock will need.

    It takes a millisecond, so every run does it: a lake can be moved, and a mount be changed.

    Raises:
        UnfitStorageError: the file system does not give it; says what.
    """
    lock = paths.lock
    probe, linked = (lock.with_name(f"{lock.name}.{kind}") for kind in ("probe", "linked"))
    # A lease stands in for the lock where the settings say so.
    trials = (_creates_once, _links_once, *([] if paths.lease else [_locks_once]))
    _remove(probe, linked)
    try:
        for trial in trials:
            problem = _tried(trial, probe, linked)
            if problem:
                raise UnfitStorageError(
                    stream,
                    f"the file system of {lock.parent} {problem}.",
                    remedy="put ONCELAKE_LAKE on a local disk (ext4, xfs, btrfs or the like)"
                    + ("; or set ONCELAKE_LOCK=lease" if trial is _locks_once else ""),
                )
    finally:
        _remove(probe, linked)


def _tried(trial: Callable[[Path, Path], str | None], probe: Path, linked: Path) -> str | None:
    try:
        return trial(probe, linked)
    except OSError as error:
        if is_the_volumes_fault(error):
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
        if is_the_volumes_fault(error):
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
        fcntl.fcntl(mine, fcntl.F_OFD_SETLK, _whole_file())
        try:
            fcntl.lockf(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return None
    return "gives one lock to two holders, so two runs could write at once"


def _whole_file() -> bytes:
    """Return the kernel's ``struct flock`` for a write lock on all of a file."""
    return struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)


def _remove(*files: Path) -> None:
    for file in files:
        file.unlink(missing_ok=True)
