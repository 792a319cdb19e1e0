"""How a Delta table is opened without Spark: by delta-rs, on this machine or in a store."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from pyarrow.dataset import Dataset, FileSystemDataset, ParquetReadOptions
from pyarrow.fs import FileSystem, LocalFileSystem, S3FileSystem, SubTreeFileSystem

from ingestion.sinks.delta.log_files import COMMIT, log_files
from ingestion.storage.location import Location

# Of two commits of one version the second is refused, as on a disk.
_OPTIONS: Final[Mapping[str, str]] = {
    "aws_conditional_put": "etag",
    # Otherwise a request that is never answered takes three minutes.
    "timeout": "20s",
    "connect_timeout": "5s",
    "max_retries": "5",
    "retry_timeout": "30s",
}
# Moments of 96 bits, of which files may be older than this version, reach beyond nanoseconds.
_MICROS: Final = ParquetReadOptions(coerce_int96_timestamp_unit="us")
_ROWS_AT_ONCE: Final = 8_192
# So many a DOUBLE holds, as which delta-rs keeps the lowest and highest DECIMAL of a file.
EXACT_DIGITS: Final = 15


def storage_options(table: Location) -> dict[str, str] | None:
    """Return what delta-rs must know of a store beside its variables of the environment."""
    return None if table.is_local else dict(_OPTIONS)


def open_delta(table: Location) -> DeltaTable:
    """Open a table at its newest version, to write to it."""
    options = storage_options(table)
    return log_files(table).open_writer(lambda: DeltaTable(str(table), storage_options=options))


def recorded_txn(table: DeltaTable, application: str) -> int | None:
    """Return the version that an application has recorded in an open table."""
    if "://" in table.table_uri and not table.table_uri.startswith("file:"):
        # delta-rs itself would read each commit of the log once more.
        table = read_delta(Location.of(table.table_uri), table.version())
    version: int | None = table.transaction_version(application)
    return version


def read_delta(table: Location, version: int | None = None) -> DeltaTable:
    """Open a table at a version, or at its newest, to ask what is in its log."""
    folder, version = log_files(table).table_here(version)
    return DeltaTable(folder, version=version)


def is_delta(table: Location) -> bool:
    """Tell whether there is a Delta table here, as against nothing or stray files."""
    if table.is_local:
        # delta-rs finds no table in a folder that this user may not search.
        return table.exists() and DeltaTable.is_deltatable(str(table))
    return any(map(COMMIT.fullmatch, log_files(table).names()))


def open_rows(
    table: Location, version: int | None = None, *, snapshot: DeltaTable | None = None
) -> Dataset:
    """Open a table's rows for a scan, with Arrow's own file system under it.

    By default delta-rs hands Arrow a file system written in Python. What Arrow reads through it
    are Python objects, which its threads release behind a scan's back, after the last row was
    handed out. Taking the GIL for that while the interpreter ends kills the thread inside a C++
    destructor, and that aborts the process: exit code 134, after all work is done
    (apache/arrow#34314, #36389, #36980). A scan that was not read to its end leaves it waiting for
    such a thread for ever. Arrow's own file system has no Python object in it.
    """
    snapshot = snapshot or read_delta(table, version)
    files, folder = arrows_files(table)
    found = snapshot.to_pyarrow_dataset(
        filesystem=SubTreeFileSystem(folder, files), parquet_read_options=_MICROS
    )
    return found if table.is_local else _with_sizes(found, snapshot)


def scan_rows(
    table: Location,
    names: Sequence[str],
    version: int | None = None,
    *,
    since_seq: int | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield the columns of those names, as of a version or the newest, few rows at once.

    A column that was not there then is null. With ``since_seq``, those rows alone that this batch
    or a later one has written.
    """
    rows = open_rows(table, version)
    if not set(names) <= set(rows.schema.names):
        rows = rows.replace_schema(open_rows(table).schema)
    yield from rows.to_batches(
        columns=list(names),
        filter=None if since_seq is None else pc.field("_seq") >= since_seq,
        batch_size=_ROWS_AT_ONCE,
        batch_readahead=2,
        fragment_readahead=1,
    )


def open_whole(table: Location, snapshot: DeltaTable | None = None) -> Dataset:
    """Open a small table that is read whole each time: of one in a store, its files are kept."""
    snapshot = snapshot or read_delta(table)
    folder = log_files(table).rows_here(_sizes_of(snapshot))
    return snapshot.to_pyarrow_dataset(filesystem=SubTreeFileSystem(str(folder), LocalFileSystem()))


def _sizes_of(snapshot: DeltaTable) -> dict[str, int]:
    """Return the data files of a version, with their length in bytes."""
    files = snapshot.get_add_actions(flatten=True)
    names = map(unquote, files.column("path").to_pylist())
    return dict(zip(names, files.column("size_bytes").to_pylist(), strict=True))


def _with_sizes(rows: Dataset, snapshot: DeltaTable) -> Dataset:
    """Tell Arrow how long the files are, for which it would ask the store once more each."""
    sizes = _sizes_of(snapshot)
    fragments = [
        rows.format.make_fragment(
            each.path, rows.filesystem, each.partition_expression, file_size=sizes[each.path]
        )
        for each in rows.get_fragments()
    ]
    return FileSystemDataset(fragments, rows.schema, rows.format, rows.filesystem)


def arrows_files(table: Location) -> tuple[FileSystem, str]:
    """Return Arrow's own file system for a table, and the table's folder in it."""
    if not str(table).startswith("s3://"):
        files, folder = FileSystem.from_uri(table.uri)
        return files, folder
    return S3FileSystem(**_s3_options(os.environ)), str(table).removeprefix("s3://")


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
