"""Small volumes that a test can fill, or make read-only: real ones, by the kernel's own mount."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest


@cache
def _may_mount() -> bool:
    with tempfile.TemporaryDirectory() as folder:
        tried = subprocess.run(["mount", "-t", "tmpfs", "none", folder], capture_output=True)
        if tried.returncode == 0:
            subprocess.run(["umount", folder], check=True)
        return tried.returncode == 0


def needs_mount() -> None:
    """Skip the test where nobody may mount a file system."""
    if not _may_mount():
        pytest.skip("needs the right to mount a file system (root)")


@dataclass(frozen=True)
class Volume:
    """A volume of a few megabytes."""

    path: Path

    @property
    def _filler(self) -> Path:
        return self.path / ".filler"

    def fill(self) -> None:
        """Leave not one byte free."""
        with self._filler.open("wb", buffering=0) as file:
            for size in (1 << 16, 1 << 12, 1):
                _write_until_full(file.write, b"\0" * size)

    def make_space(self) -> None:
        """Undo ``fill``."""
        self._filler.unlink()

    def read_only(self) -> None:
        """Refuse every write, as a volume does after an error."""
        self._remount("ro")

    def writable(self) -> None:
        """Undo ``read_only``."""
        self._remount("rw")

    def _remount(self, how: str) -> None:
        subprocess.run(["mount", "-o", f"remount,{how}", self.path], check=True)


@contextmanager
def mounted(path: Path, *, kind: str = "tmpfs", options: str = "size=4m") -> Iterator[Volume]:
    """Mount a volume on a folder while the block runs."""
    needs_mount()
    path.mkdir(parents=True, exist_ok=True)
    subprocess.run(["mount", "-t", kind, "-o", options, "none", path], check=True)
    try:
        yield Volume(path)
    finally:
        # Lazily: a failed Spark task may hold a file open for a moment more.
        subprocess.run(["umount", "--lazy", path], check=True)


def _write_until_full(write: object, block: bytes) -> None:
    assert callable(write)
    try:
        while write(block):
            pass
    except OSError:
        return
