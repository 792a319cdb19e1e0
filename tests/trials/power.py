"""A disk whose power is cut: ext4 in a file, and the kernel's own way to drop what it still holds.

``EXT4_IOC_SHUTDOWN`` ends a mounted file system at once, as xfstests does to play a crash: what was
not written to the device is gone, the journal's newest transaction with it, and every later call
fails. Mounted again, the journal is replayed, and there is what a machine finds after a power cut.

It takes root and loop devices. A disk that loses what it has acknowledged itself is not played.
"""

from __future__ import annotations

import errno
import fcntl
import os
import random
import struct
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final
from unittest.mock import patch

import pytest

from oncelake.ingestion.storage import failpoints
from oncelake.ingestion.storage.failpoints import Failpoint
from tests.trials.failpoints import PlannedError

# _IOR('X', 125, __u32), and the flag that does not even write the journal.
_SHUTDOWN: Final = 0x8004587D
_NO_LOG_FLUSH: Final = 2
# Of the options, the least patient: the journal is written each second, and a file that is renamed
# over another is not written out for that.
_MOUNTED: Final = "loop,commit=1,noauto_da_alloc"


# Kept apart from what ``cut_while`` puts in its place.
_fsync: Final = os.fsync


def cut_power(mount: Path | str) -> None:
    """Drop what is not on the device, and let every later call fail."""
    opened = os.open(mount, os.O_RDONLY)
    try:
        fcntl.ioctl(opened, _SHUTDOWN, struct.pack("I", _NO_LOG_FLUSH))
    finally:
        os.close(opened)


@dataclass(frozen=True)
class Disk:
    """A small disk, in a file beside the folder that it is mounted on.

    Attributes:
        path: That folder.
    """

    path: Path

    @property
    def image(self) -> Path:
        """The file."""
        return self.path.with_name(f"{self.path.name}.img")

    def format(self, megabytes: int) -> None:
        """Make an empty file system."""
        with self.image.open("wb") as file:
            file.truncate(megabytes << 20)
        subprocess.run(["mkfs.ext4", "-q", "-F", self.image], check=True)

    def mount(self) -> None:
        """Mount it, which replays the journal."""
        subprocess.run(["mount", "-o", _MOUNTED, self.image, self.path], check=True)

    def unmount(self) -> None:
        """Unmount it, as soon as nobody has a file open there: some process may, for a moment."""
        subprocess.run(["umount", "--lazy", self.path], check=True)

    def lose_power(self) -> None:
        """Cut its power, unless somebody has, and switch it on again."""
        with suppress(OSError):
            cut_power(self.path)
        self.unmount()
        # Another file: who still has one of the old disk open holds nothing of this one.
        copy = self.image.with_suffix(".copy")
        subprocess.run(["cp", "--sparse=always", self.image, copy], check=True)
        copy.replace(self.image)
        self.mount()

    def write_journal(self) -> None:
        """Write out the names of all files, as any process does that syncs one; no content."""
        file = self.path / ".another"
        with file.open("a") as other:
            other.write(".")
            other.flush()
            _fsync(other.fileno())

    @contextmanager
    def busy(self) -> Iterator[None]:
        """Let another process sync its files all the time: names reach the disk before contents."""
        over = threading.Event()

        def sync() -> None:
            while not over.wait(0.003):
                try:
                    self.write_journal()
                except OSError:
                    return

        other = threading.Thread(target=sync)
        other.start()
        try:
            yield
        finally:
            over.set()
            other.join()


@contextmanager
def mounted_disk(path: Path, *, megabytes: int = 64) -> Iterator[Disk]:
    """Make a disk, mounted while the block runs; where nobody may, the test is skipped."""
    if not _may_make():
        pytest.skip("needs root, loop devices and mkfs.ext4")
    disk = Disk(path)
    path.mkdir(parents=True)
    disk.format(megabytes)
    disk.mount()
    try:
        yield disk
    finally:
        disk.unmount()
        disk.image.unlink()


@dataclass(frozen=True, kw_only=True)
class PlannedCut:
    """When the power goes: at one of these, or else when the work is done.

    Attributes:
        place: A named place.
        nth: At which of the times that the work gets there.
        sync: At which sync, counted from 1.
        seconds: So long after the work has begun.
        watch: Is called at each place that the work passes before the cut.
    """

    place: str = ""
    nth: int = 1
    sync: int | None = None
    seconds: float | None = None
    watch: Callable[[Failpoint], object] = lambda _: None


def cut_while(
    disk: Disk, cut: PlannedCut, dice: random.Random, work: Callable[[threading.Event], object]
) -> tuple[str, bool]:
    """Cut the power of a disk while this process works on it, and switch it on again.

    From the cut on every call to the disk fails, so that it makes no difference that the process
    lives on: what it knew is not asked for.

    Args:
        disk: Where the work is done.
        cut: When the power goes.
        dice: Chooses whether others sync files of theirs meanwhile.
        work: Is given what tells whether the power was cut.

    Returns:
        How the work ended, and whether the power went before that.
    """
    others = disk.busy() if dice.random() < 0.5 else nullcontext()
    with others, _cutting(disk, cut) as over:
        try:
            work(over)
            ended = "done"
        except Exception as error:
            if not over.is_set():
                raise
            ended = f"cut ({type(error).__name__})"
        has_cut = over.is_set()
    disk.lose_power()
    return ended, has_cut


@contextmanager
def _cutting(disk: Disk, planned: PlannedCut) -> Iterator[threading.Event]:
    over, visits, syncs = threading.Event(), 0, 0

    def cut() -> None:
        over.set()
        cut_power(disk.path)

    def arrive(at: Failpoint) -> None:
        nonlocal visits
        if over.is_set():
            return
        planned.watch(at)
        visits += at == planned.place
        if at == planned.place and visits == planned.nth:
            cut()
            raise PlannedError(at)

    def sync(opened: int) -> None:
        nonlocal syncs
        syncs += 1
        if planned.sync is not None and syncs >= planned.sync:
            if not over.is_set():
                cut()
            raise OSError(errno.EIO, "the power was cut")
        _fsync(opened)

    timer = threading.Timer(planned.seconds or 0, cut)
    with patch.object(failpoints, "_hook", lambda: arrive), patch.object(os, "fsync", sync):
        if planned.seconds is not None:
            timer.start()
        try:
            yield over
        finally:
            timer.cancel()


@cache
def _may_make() -> bool:
    with tempfile.TemporaryDirectory() as folder:
        disk = Disk(Path(folder) / "disk")
        disk.path.mkdir()
        try:
            disk.format(8)
            disk.mount()
            disk.lose_power()
            disk.unmount()
        except (OSError, subprocess.SubprocessError):
            return False
    return True
