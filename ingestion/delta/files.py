"""How a Delta table is opened without Spark: by delta-rs, on this machine or in a store."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Final
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from pyarrow.dataset import Dataset, FileSystemDataset, ParquetFileFormat, ParquetReadOptions
from pyarrow.fs import FileSystem, LocalFileSystem, S3FileSystem, SubTreeFileSystem

from oncelake.ingestion.delta.log_files import COMMIT, log_files
from oncelake.ingestion.delta.vectors import Vector, has_vectors, mask_of, vectors_of
from oncelake.ingestion.errors import TableSettingsError
from oncelake.ingestion.storage.location import Location

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
# What the log says of a column in a file.
_STATISTICS: Final = ("min", "max", "null_count")
# Features of which readers need know nothing but the name, which delta-rs does not.
_REFUSED: Final = {"vacuumProtocolCheck"}
# A column of a scan, by a name that no column has.
_IS_WANTED: Final = "\0is wanted"
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
    """Open a table at a version, or at its newest, to ask what is in its log.

    Raises:
        TableSettingsError: a catalog says which version is the newest, and not the log.
    """
    folder, version = log_files(table).table_here(version)
    try:
        return DeltaTable(folder, version=version)
    except DeltaError as error:
        if "catalog-managed" not in str(error):
            raise
        raise TableSettingsError(
            table.name.partition("__")[0],
            f"{table} has the feature catalogManaged: its catalog decides which commits it has, "
            "and not its log, in which alone rows and offsets are committed here as one.",
            remedy="declare another name, whose table the first run makes, and name that one to "
            "the catalog by `sink: {delta: {catalog: …}}`",
        ) from error


def is_delta(table: Location) -> bool:
    """Tell whether there is a Delta table here, as against nothing or stray files."""
    if table.is_local:
        # delta-rs finds no table in a folder that this user may not search.
        return table.exists() and DeltaTable.is_deltatable(str(table))
    return any(map(COMMIT.fullmatch, log_files(table).names()))


def as_arrow(rows: Dataset | MarkedRows) -> Dataset | pa.Table:
    """Return rows as what DuckDB takes: in memory, if some are marked as gone."""
    return rows.to_table() if isinstance(rows, MarkedRows) else rows


class MarkedRows:
    """The rows of a table with deletion vectors, as ``pyarrow.dataset.Dataset`` gives those of any.

    Rows that a vector marks are left out, whatever is asked.
    """

    def __init__(
        self, table: Location, plain: Dataset, marked: Dataset, vectors: Mapping[str, Vector]
    ) -> None:
        """Take the files without a vector, and those with one, by the names of their files."""
        self._table, self._plain, self._marked = table, plain, marked
        self._vectors = vectors

    @property
    def schema(self) -> pa.Schema:
        """The columns."""
        return self._plain.schema

    def replace_schema(self, schema: pa.Schema) -> MarkedRows:
        """Take other columns: those that a file does not have are null."""
        plain, marked = (each.replace_schema(schema) for each in (self._plain, self._marked))
        return MarkedRows(self._table, plain, marked, self._vectors)

    def to_batches(
        self,
        *,
        columns: Sequence[str] | None = None,
        filter: pc.Expression | None = None,
        **how: Any,
    ) -> Iterator[pa.RecordBatch]:
        """Yield rows, in any order."""
        names = list(self.schema.names if columns is None else columns)
        yield from self._plain.to_batches(columns=names, filter=filter, **how)
        for fragment in self._marked.get_fragments(filter):
            yield from self._living(fragment, names, filter)

    def to_table(
        self, columns: Sequence[str] | None = None, filter: pc.Expression | None = None
    ) -> pa.Table:
        """Return rows."""
        names = list(self.schema.names if columns is None else columns)
        schema = pa.schema([self.schema.field(name) for name in names])
        return pa.Table.from_batches(self.to_batches(columns=names, filter=filter), schema)

    def count_rows(self, filter: pc.Expression | None = None) -> int:
        """Count rows."""
        return sum(each.num_rows for each in self.to_batches(columns=[], filter=filter))

    def _living(
        self, fragment: Any, names: Sequence[str], condition: pc.Expression | None
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one file, which come in their order."""
        vector, start = self._vectors[fragment.path], 0
        is_gone = mask_of(self._table, vector, fragment.metadata.num_rows)
        # As a column, so that every row comes, and its number can be told.
        condition = pc.scalar(True) if condition is None else condition
        columns = {**{name: pc.field(name) for name in names}, _IS_WANTED: condition}
        for batch in fragment.to_batches(self.schema, columns=columns, use_threads=False):
            living = pa.array(~is_gone[start : start + batch.num_rows])
            start += batch.num_rows
            is_wanted = pc.and_(living, pc.fill_null(batch.column(_IS_WANTED), False))
            yield batch.filter(is_wanted).select(names)


def open_rows(
    table: Location,
    version: int | None = None,
    *,
    snapshot: DeltaTable | None = None,
    only: Collection[str] | None = None,
) -> Dataset | MarkedRows:
    """Open a table's rows for a scan, with Arrow's own file system under it.

    By default delta-rs hands Arrow a file system written in Python. What Arrow reads through it
    are Python objects, which its threads release behind a scan's back, after the last row was
    handed out. Taking the GIL for that while the interpreter ends kills the thread inside a C++
    destructor, and that aborts the process: exit code 134, after all work is done
    (apache/arrow#34314, #36389, #36980). A scan that was not read to its end leaves it waiting for
    such a thread for ever. Arrow's own file system has no Python object in it.

    Args:
        table: The table.
        version: Which; the newest without one.
        snapshot: That version, where it is open already.
        only: Names of the files that are wanted; all without any.
    """
    snapshot = snapshot or read_delta(table, version)
    files, folder = arrows_files(table)
    there = SubTreeFileSystem(folder, files)
    is_marked, by = has_vectors(snapshot), snapshot.metadata().partition_columns
    if is_marked or by or _REFUSED & {*(snapshot.protocol().reader_features or ())}:
        vectors = vectors_of(table, snapshot) if is_marked else {}
        return _living_rows(table, snapshot, there, vectors, only)
    found = snapshot.to_pyarrow_dataset(filesystem=there, parquet_read_options=_MICROS)
    return found if table.is_local and only is None else _with_sizes(found, snapshot, only)


def _living_rows(
    table: Location,
    snapshot: DeltaTable,
    there: FileSystem,
    vectors: Mapping[str, Vector],
    only: Collection[str] | None,
) -> Dataset | MarkedRows:
    """Open rows of a table that has what delta-rs refuses, such as vectors, or is partitioned.

    Of values in partitions, delta-rs misreads some.
    """
    schema, format_ = pa.schema(snapshot.schema().to_arrow()), ParquetFileFormat(_MICROS)
    added = pa.table(snapshot.get_add_actions(flatten=True))
    ends = {
        name: [added[f"{what}.{name}"].to_pylist() for what in _STATISTICS]
        for name in schema.names
        if {f"{what}.{name}" for what in _STATISTICS} <= {*added.column_names}
        and pa.types.is_integer(schema.field(name).type)
    }
    plain, marked = list[Any](), list[Any]()
    parted = snapshot.metadata().partition_columns
    for number, (path, size) in enumerate(
        zip(added["path"].to_pylist(), added["size_bytes"].to_pylist(), strict=True)
    ):
        name = unquote(path)
        if only is None or name in only:
            within = _within(ends, number, schema)
            for column in parted:
                value = added[f"partition.{column}"][number].cast(schema.field(column).type)
                is_it = pc.field(column) == value if value.is_valid else pc.field(column).is_null()
                within = within & is_it
            fragment = format_.make_fragment(name, there, within, file_size=size)
            (marked if name in vectors else plain).append(fragment)
    rows = FileSystemDataset(plain, schema, format_, there)
    if not vectors:
        return rows
    return MarkedRows(table, rows, FileSystemDataset(marked, schema, format_, there), vectors)


def _within(
    ends: Mapping[str, Sequence[Sequence[Any]]], number: int, schema: pa.Schema
) -> pc.Expression:
    """Say what statistics promise of a file, by which a scan leaves it out."""
    said = pc.scalar(True)
    for name, (lowest, highest, nulls) in ends.items():
        low, high = (
            pa.scalar(values[number], schema.field(name).type) for values in (lowest, highest)
        )
        if low.is_valid and high.is_valid:
            is_within = (pc.field(name) >= low) & (pc.field(name) <= high)
            # Arrow leaves no file out that may have nulls.
            said = said & (
                is_within if nulls[number] == 0 else is_within | pc.field(name).is_null()
            )
    return said


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


def open_whole(table: Location, snapshot: DeltaTable | None = None) -> Dataset | MarkedRows:
    """Open a small table that is read whole each time: of one in a store, its files are kept."""
    snapshot = snapshot or read_delta(table)
    if has_vectors(snapshot):
        return open_rows(table, snapshot=snapshot)
    folder = log_files(table).rows_here(data_files(snapshot))
    return snapshot.to_pyarrow_dataset(filesystem=SubTreeFileSystem(str(folder), LocalFileSystem()))


def data_files(snapshot: DeltaTable) -> dict[str, int]:
    """Return the data files of a version, relative to its folder, with their length in bytes."""
    files = snapshot.get_add_actions(flatten=True)
    names = map(unquote, files.column("path").to_pylist())
    return dict(zip(names, files.column("size_bytes").to_pylist(), strict=True))


def _with_sizes(rows: Dataset, snapshot: DeltaTable, only: Collection[str] | None) -> Dataset:
    """Tell Arrow how long some files are, for which it would ask the store once more each."""
    sizes = data_files(snapshot)
    fragments = [
        rows.format.make_fragment(
            each.path, rows.filesystem, each.partition_expression, file_size=sizes[each.path]
        )
        for each in rows.get_fragments()
        if only is None or each.path in only
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
