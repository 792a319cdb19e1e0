"""How a Delta table is opened without Spark: by delta-rs, on this machine or in a store."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Final

from deltalake import DeltaTable
from pyarrow.dataset import Dataset, ParquetReadOptions
from pyarrow.fs import FileSystem, S3FileSystem, SubTreeFileSystem

from ingestion.lake.location import Location

# Of two commits of one version the second is refused, as on a disk.
_PUT_IF_ABSENT: Final[Mapping[str, str]] = {"aws_conditional_put": "etag"}


def storage_options(table: Location) -> dict[str, str] | None:
    """Return what delta-rs must know of a store beside its variables of the environment."""
    return None if table.is_local else dict(_PUT_IF_ABSENT)


def open_delta(table: Location, version: int | None = None) -> DeltaTable:
    """Open a table at a version, or at its newest."""
    return DeltaTable(str(table), version=version, storage_options=storage_options(table))


def is_delta(table: Location) -> bool:
    """Tell whether there is a Delta table here, as against nothing or stray files."""
    return DeltaTable.is_deltatable(str(table), storage_options(table))


def open_dataset(table: DeltaTable, read_options: ParquetReadOptions | None = None) -> Dataset:
    """Open a table's rows for a scan, with Arrow's own file system under it.

    By default delta-rs hands Arrow a file system written in Python. What Arrow reads through it
    are Python objects, which its threads release behind a scan's back, after the last row was
    handed out. Taking the GIL for that while the interpreter ends kills the thread inside a C++
    destructor, and that aborts the process: exit code 134, after all work is done
    (apache/arrow#34314, #36389, #36980). A scan that was not read to its end leaves it waiting for
    such a thread for ever. Arrow's own file system has no Python object in it.
    """
    files, folder = _arrows_files(table.table_uri)
    return table.to_pyarrow_dataset(
        filesystem=SubTreeFileSystem(folder, files), parquet_read_options=read_options
    )


def _arrows_files(uri: str) -> tuple[FileSystem, str]:
    """Return Arrow's own file system for a table, and the table's folder in it."""
    scheme, _, place = uri.partition("://")
    if scheme != "s3":
        files, folder = FileSystem.from_uri(uri)
        return files, folder
    return S3FileSystem(**_s3_options(os.environ)), place.rstrip("/")


def endpoint_of_s3(environment: Mapping[str, str]) -> tuple[str | None, str | None]:
    """Return the endpoint and the region of S3, for what does not take them from there itself."""
    endpoint = environment.get("AWS_ENDPOINT_URL_S3") or environment.get("AWS_ENDPOINT_URL")
    region = environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION")
    return endpoint or None, region or None


def _s3_options(environment: Mapping[str, str]) -> dict[str, Any]:
    """Return what Arrow must know of S3, which it does not take from the environment itself."""
    endpoint, region = endpoint_of_s3(environment)
    scheme, _, host = (endpoint or "").rpartition("://")
    return {
        "region": region,
        "endpoint_override": host or None,
        "scheme": scheme or "https",
        "connect_timeout": 5,
        "request_timeout": 30,
    }
