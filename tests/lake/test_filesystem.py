"""A file system that lacks what commits and locks rest on is found out by trying."""

from __future__ import annotations

import fcntl
import os
from dataclasses import replace
from pathlib import Path

import pytest

from ingestion.errors import UnfitStorageError
from ingestion.lake.paths import StreamPaths
from ingestion.lake.storage import probe_filesystem
from ingestion.settings import Settings
from tests.support.volumes import mounted


def places(folder: Path, **more: object) -> StreamPaths:
    """Where a stream lies whose lock is in ``folder``."""
    paths = StreamPaths.of("orders", Settings(lake=folder, **more))
    return replace(paths, lock=folder / "orders")


def test_a_local_disk_is_fit(tmp_path: Path) -> None:
    """What a plain disk gives is enough, and the trial leaves nothing behind."""
    probe_filesystem(places(tmp_path))

    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_trial_left_is_no_problem(tmp_path: Path) -> None:
    """Leftovers of a run that died in the middle of it are swept away."""
    for kind in ("probe", "linked"):
        (tmp_path / f"orders.{kind}").touch()

    probe_filesystem(places(tmp_path))

    assert list(tmp_path.iterdir()) == []


def test_a_file_system_without_hard_links_is_refused(tmp_path: Path) -> None:
    """The kernel's message queues are files of a file system that really has no hard links."""
    with (
        mounted(tmp_path / "mount", kind="mqueue", options="defaults"),
        pytest.raises(UnfitStorageError, match="no hard links") as refusal,
    ):
        probe_filesystem(places(tmp_path / "mount"))

    assert refusal.value.exit_code == 3
    assert "ONCELAKE_LAKE" in str(refusal.value)


def test_a_file_system_that_pretends_to_create_exclusively_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that drops O_EXCL on the way would let a commit overwrite another."""
    honest = os.open

    def dropping(path: str, flags: int, *given: int) -> int:
        return honest(path, flags & ~os.O_EXCL, *given)

    monkeypatch.setattr(os, "open", dropping)

    with pytest.raises(UnfitStorageError, match="there already"):
        probe_filesystem(places(tmp_path))


def test_a_file_system_that_pretends_to_link_once_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One whose links replace what is there would let a commit overwrite another."""
    honest = os.link

    def replacing(source: str, target: str) -> None:
        Path(target).unlink(missing_ok=True)
        honest(source, target)

    monkeypatch.setattr(os, "link", replacing)

    with pytest.raises(UnfitStorageError, match="links over"):
        probe_filesystem(places(tmp_path))


@pytest.mark.parametrize(
    ("granted", "said"), [(True, "one lock to two holders"), (False, "No locks available")]
)
def test_a_file_system_that_does_not_lock_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, granted: bool, said: str
) -> None:
    """Neither one that grants every lock nor one that has none can keep a second run out."""

    def locking(*_: object) -> None:
        if not granted:
            raise OSError(37, "No locks available")

    monkeypatch.setattr(fcntl, "lockf", locking)

    with pytest.raises(UnfitStorageError, match=said):
        probe_filesystem(places(tmp_path))


def test_a_lease_needs_no_kernel_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a lease stands in for the lock, a file system that grants every lock will do."""
    monkeypatch.setattr(fcntl, "lockf", lambda *_: None)

    probe_filesystem(places(tmp_path, lock="lease"))

    assert list(tmp_path.iterdir()) == []
