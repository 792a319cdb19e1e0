"""Reading a table's rows, by Arrow, so that the process can end at any moment afterwards."""

from __future__ import annotations

from deltalake import DeltaTable
from pyarrow.dataset import Dataset, ParquetReadOptions
from pyarrow.fs import FileSystem, SubTreeFileSystem


def open_dataset(table: DeltaTable, read_options: ParquetReadOptions | None = None) -> Dataset:
    """Open a table's rows for a scan, with Arrow's own file system under it.

    By default delta-rs hands Arrow a file system written in Python. What Arrow reads through it
    are Python objects, which its threads release behind a scan's back, after the last row was
    handed out. Taking the GIL for that while the interpreter ends kills the thread inside a C++
    destructor, and that aborts the process: exit code 134, after all work is done
    (apache/arrow#34314, #36389, #36980). A scan that was not read to its end leaves it waiting for
    such a thread for ever. Arrow's own file system has no Python object in it.

    Args:
        table: At the version to read.
        read_options: How Parquet's types are to be read.
    """
    files, folder = FileSystem.from_uri(table.table_uri)
    return table.to_pyarrow_dataset(
        filesystem=SubTreeFileSystem(folder, files), parquet_read_options=read_options
    )
