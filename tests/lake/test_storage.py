"""Storage that is unfit is refused before a run, and a volume that fails in one is named."""

from __future__ import annotations

import errno
import fcntl
import os
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from deltalake.exceptions import DeltaError
from pyspark.errors import PySparkException

from oncelake.ingestion.errors import RefusedError, SetupError, StorageError, UnfitStorageError
from oncelake.ingestion.lake.lock import Holder, held, held_by_python
from oncelake.ingestion.lake.paths import StreamPaths
from oncelake.ingestion.lake.probe import probe_storage
from oncelake.ingestion.settings import Settings
from oncelake.ingestion.storage.location import Location
from oncelake.ingestion.storage.volumes import translate_disk_errors
from tests.support.volumes import mounted

ROWS = pa.table({"id": list(range(100_000))})


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), "make space there"),
        (OSError(errno.EDQUOT, "Disk quota exceeded"), "raise the quota"),
        (OSError(errno.EROFS, "Read-only file system"), "mount it for writing again"),
        (OSError(errno.EIO, "Input/output error"), "repair or replace the disk"),
        (DeltaError("Generic LocalFileSystem error: (os error 28)"), "make space there"),
        (PySparkException("java.io.IOException: No space left on device"), "make space there"),
    ],
    ids=["full", "quota", "read-only", "failing", "delta-rs", "JVM"],
)
def test_disk_errors_of_every_layer_are_translated(
    tmp_path: Path, error: Exception, said: str
) -> None:
    """The kernel's number, or its words in another layer's text, become one error with advice."""
    with pytest.raises(StorageError, match=said) as told, translate_disk_errors("orders", tmp_path):
        raise error

    assert told.value.exit_code == 5
    assert str(told.value).startswith("orders: ")
    assert "bytes are free" in str(told.value)


@pytest.mark.parametrize(
    "error",
    [
        FileNotFoundError(errno.ENOENT, "No such file"),
        PySparkException("a bug in plan #28"),
        RefusedError("s", "No space left on device, said somebody.", remedy="none"),
    ],
    ids=["another number", "another failure", "our own"],
)
def test_other_failures_pass_as_they_are(tmp_path: Path, error: Exception) -> None:
    """What is no failing volume keeps its own class and words."""
    with pytest.raises(type(error)) as raised, translate_disk_errors("orders", tmp_path):
        raise error

    assert raised.value is error


@pytest.mark.parametrize("how", ["full", "read-only"])
def test_the_volume_that_failed_is_named(tmp_path: Path, how: str) -> None:
    """Of several folders that a stream writes to, the one on the failing volume is named."""
    fine, failing = tmp_path / "fine", tmp_path / "failing"
    fine.mkdir()
    with mounted(failing, options="size=1m") as volume:
        (volume.fill if how == "full" else volume.read_only)()

        with pytest.raises(StorageError) as told, translate_disk_errors("orders", fine, failing):
            write_deltalake(failing / "table", ROWS)
        with pytest.raises(StorageError) as also, translate_disk_errors("orders", fine, failing):
            (failing / "file").write_bytes(b"x")

    assert f": {failing} (holds {failing}" in str(told.value)
    assert f": {failing} (holds {failing}" in str(also.value)


def test_a_path_that_is_only_mentioned_is_not_blamed(tmp_path: Path) -> None:
    """Spark's text names whatever the plan read; the volume that is really full is the one."""
    lake, table = tmp_path, tmp_path / "orders"
    with mounted(table, options="size=1m") as volume:
        volume.fill()

        with pytest.raises(StorageError) as told, translate_disk_errors("orders", lake, table):
            raise PySparkException(f"reading {lake}/other/x.parquet: No space left on device")

    assert f": {table} (holds {table}; 0 of 1,048,576 bytes are free)" in str(told.value)


def places(folder: Path, **more: object) -> StreamPaths:
    """Where a stream lies whose lock is in ``folder``."""
    paths = StreamPaths.of("orders", Settings(lake=folder, **more))
    return replace(paths, lock=Location.of(folder / "orders"))


def test_a_local_disk_is_fit(tmp_path: Path) -> None:
    """What a plain disk gives is enough, and the trial leaves nothing behind."""
    probe_storage(places(tmp_path))

    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_trial_left_is_no_problem(tmp_path: Path) -> None:
    """Leftovers of a run that died in the middle of it are swept away."""
    for kind in ("probe", "linked"):
        (tmp_path / f"orders.{kind}").touch()

    probe_storage(places(tmp_path))

    assert list(tmp_path.iterdir()) == []


def test_a_file_system_without_hard_links_is_refused(tmp_path: Path) -> None:
    """The kernel's message queues are files of a file system that really has no hard links."""
    with (
        mounted(tmp_path / "mount", kind="mqueue", options="defaults"),
        pytest.raises(UnfitStorageError, match="no hard links") as refusal,
    ):
        probe_storage(places(tmp_path / "mount"))

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
        probe_storage(places(tmp_path))


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
        probe_storage(places(tmp_path))


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
        probe_storage(places(tmp_path))


def test_a_lease_needs_no_kernel_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a lease stands in for the lock, a file system that grants every lock will do."""
    monkeypatch.setattr(fcntl, "lockf", lambda *_: None)

    probe_storage(places(tmp_path, lock="lease"))

    assert list(tmp_path.iterdir()) == []


def test_a_lake_that_cannot_be_made_is_named_before_a_run(tmp_path: Path) -> None:
    """A file that stands in its way is named, and where to look."""
    (tmp_path / "file").touch()
    paths = places(tmp_path / "file")

    with (
        pytest.raises(
            SetupError, match=rf"in: {tmp_path}/file is a file. Next: ls -ld {tmp_path}/file"
        ),
        held_by_python(paths, Holder.me("r")),
    ):
        pass


def test_a_read_only_lake_is_a_volume_that_fails(tmp_path: Path) -> None:
    """It is said so, with its remedy, rather than that rights are missing."""
    with mounted(tmp_path, options="size=1m") as volume:
        volume.read_only()

        with (
            pytest.raises(StorageError, match=r"Read-only file system.*mount it for writing"),
            held(places(tmp_path), "r"),
        ):
            pass
