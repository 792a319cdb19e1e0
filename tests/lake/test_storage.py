"""A volume that fails is told by its name, whichever layer met it; anything else is left alone."""

from __future__ import annotations

import errno
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from deltalake.exceptions import DeltaError
from pyspark.errors import PySparkException

from ingestion.errors import RefusedError, StorageError
from ingestion.lake.storage import translate_disk_errors
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
