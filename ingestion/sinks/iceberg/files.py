"""The files of an Iceberg table: how they are read, searched, written, and put into a snapshot.

Columns are known by their field ids, so that a file which is older than the table's columns reads
as they are now. Files are read here, and not by pyiceberg's scan, which takes a file into memory
whole, and checks no page. pyiceberg keeps to itself what makes a snapshot: ``StagedSnapshot`` alone
reaches for that, and the version is pinned for it.
"""

from __future__ import annotations

import math
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from io import BufferedWriter
from io import FileIO as RawFile
from itertools import takewhile
from pathlib import Path
from typing import Any, Final, cast

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow.fs import FileSelector, FileType
from pyiceberg import types as iceberg
from pyiceberg.conversions import from_bytes
from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import (
    PyArrowFile,
    PyArrowFileIO,
    parquet_file_to_data_file,
    parquet_path_to_id_mapping,
    schema_to_pyarrow,
)
from pyiceberg.manifest import DATA_FILE_TYPE, DataFile, ManifestEntry, ManifestFile
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionKey
from pyiceberg.schema import Schema
from pyiceberg.table import Table, TableProperties, Transaction
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation, Snapshot, Summary
from pyiceberg.table.update import AddSnapshotUpdate, SetCurrentSchemaUpdate, TableUpdate
from pyiceberg.table.update.snapshot import _MergeAppendFiles, _OverwriteFiles
from pyiceberg.typedef import EMPTY_DICT

from oncelake.ingestion.sinks.files import TARGET_BYTES, FileWriter, read_columns
from oncelake.ingestion.sinks.iceberg.partitions import Partitioning, Values, naming, values_of
from oncelake.ingestion.storage.location import Location

_FIELD_ID: Final = b"PARQUET:field_id"
_LAST_BEFORE_PAIRS: Final = "\ud7ff"
# Where a data file has its partition's values.
_PARTITION: Final = [field.name for field in DATA_FILE_TYPE[2].fields].index("partition")
# So many files of a commit are open at a time, each of another partition.
_OPEN_FILES: Final = 32
# In the name of every file that is written here, so that it is known as ours without a commit.
_OURS: Final = "oncelake-"
# The columns whose bounds are ordered as their values are; moments and days have theirs as numbers.
ORDERED: Final = (
    iceberg.IntegerType,
    iceberg.LongType,
    iceberg.StringType,
    iceberg.DecimalType,
    iceberg.DateType,
    iceberg.TimestampType,
    iceberg.TimestamptzType,
)


class DurableFileIO(PyArrowFileIO):
    """The files of a catalog on this machine: what the catalog is told of is on the disk."""

    def new_output(self, location: str) -> PyArrowFile:
        """Return a file that is on the disk once it is closed."""
        made = super().new_output(location)
        return _DurableFile(location=location, path=made._path, fs=made._filesystem)


class _DurableFile(PyArrowFile):
    def create(self, overwrite: bool = False) -> pa.PythonFile:
        """Make the file, and its folders, which are synced; it is itself when it is closed."""
        made = [*takewhile(lambda folder: not folder.exists(), Path(self._path).parents)]
        super().create(overwrite).close()
        for folder in made:
            Location.of(folder).parent.sync()
        return pa.PythonFile(BufferedWriter(_SyncedFile(self._path, "wb")), mode="w")


class _SyncedFile(RawFile):
    def close(self) -> None:
        """Write the file, and its name, to the disk."""
        if not self.closed:
            Location.of(str(self.name)).sync()
            Location.of(str(self.name)).parent.sync()
        super().close()


def arrow_schema(schema: Schema) -> pa.Schema:
    """Return the schema of rows in memory."""
    return schema_to_pyarrow(schema, include_field_ids=False)


def read_file(io: FileIO, file: DataFile, columns: Schema) -> Iterator[pa.RecordBatch]:
    """Yield a file's rows in their order; a column that the file does not have is null."""
    schema = arrow_schema(columns)
    with (
        io.new_input(file.file_path).open() as source,
        pq.ParquetFile(source, page_checksum_verification=True) as parquet,
    ):
        yield from read_columns(parquet, _names_in(parquet.schema_arrow, columns), schema)


def _names_in(file: pa.Schema, wanted: Schema) -> list[str | None]:
    """Return what a file calls the columns; one without ids calls them as the table does."""
    ids = [(field.metadata or {}).get(_FIELD_ID) for field in file]
    if not any(ids):
        return [field.name if field.name in file.names else None for field in wanted.fields]
    names = dict(zip(ids, file.names, strict=True))
    return [names.get(str(field.field_id).encode()) for field in wanted.fields]


class IcebergFileWriter(FileWriter[DataFile]):
    """Writes rows to new data files of a table: those of one partition, where it has any."""

    compression = "zstd"

    def __init__(
        self, table: Table, target_bytes: int = TARGET_BYTES, partition: PartitionKey | None = None
    ) -> None:
        """Take the table whose columns and folder they have."""
        super().__init__(schema_to_pyarrow(table.schema()), target_bytes)
        self._table, self._partition = table, partition

    def _begin(self) -> tuple[str, Any]:
        name = f"{_OURS}{uuid.uuid4()}.parquet"
        path = self._table.location_provider().new_data_location(name, self._partition)
        return path, self._table.io.new_output(path).create()

    def _describe(self, path: str, metadata: pq.FileMetaData, size: int) -> DataFile:
        del size
        table, prefix = self._table, TableProperties.METRICS_MODE_COLUMN_CONF_PREFIX
        unbounded = _without_bounds(metadata, table.schema())
        counted = {f"{prefix}.{name}": "counts" for name in unbounded}
        # It would take a partition's values for those of the columns, which they seldom are.
        undivided = {"partition_specs": [UNPARTITIONED_PARTITION_SPEC], "default_spec_id": 0}
        changed = {"properties": {**table.properties, **counted}, **undivided}
        file = parquet_file_to_data_file(table.io, table.metadata.model_copy(update=changed), path)
        if self._partition is not None:
            file[_PARTITION] = self._partition.partition
        file.spec_id = table.spec().spec_id
        return file

    def _delete(self, paths: Sequence[str]) -> None:
        delete_files(self._table.io, paths)


class PartitionedFileWriter(IcebergFileWriter):
    """Writes the rows of each partition to files of their own.

    It keeps rows back as any writer does, and then writes those of one partition after the other:
    of the files that are open a few stay so, and of the rows no more are in memory.
    """

    def __init__(self, table: Table, target_bytes: int = TARGET_BYTES) -> None:
        """Take the table whose columns, partitions and folder they have."""
        super().__init__(table, target_bytes)
        self._partitioning = Partitioning(table.schema(), table.spec())
        # By the values of their partitions, the one that was last written behind.
        self._open: dict[Values, IcebergFileWriter] = {}

    def _write_group(self) -> None:
        rows = pa.Table.from_batches(self._waiting)
        self._waiting, self._rows, self._bytes = [], 0, 0
        for values, part in self._partitioning.split(rows):
            writer = self._writer_of(values)
            writer.write(part)
            writer.flush()

    def copy(self, rows: pa.RecordBatch, file: DataFile) -> None:
        """Write rows whose partition is known: it is their file's."""
        if file.spec_id != self._partitioning.spec_id:
            self.write(rows)
            return
        latest = next(reversed(self._open.values()), None)
        writer = self._writer_of(values_of(file))
        if latest not in (None, writer):
            latest.flush()
        writer.write(rows)

    def _writer_of(self, values: Values) -> IcebergFileWriter:
        """Return what writes a partition's file, as the one that was used last."""
        writer = self._open.pop(values, None)
        if writer is None:
            key = self._partitioning.key(values)
            writer = IcebergFileWriter(self._table, self._target, key)
            writer.files, writer.paths = self.files, self.paths
        self._open[values] = writer
        if len(self._open) > _OPEN_FILES:
            self._open.pop(next(iter(self._open))).close()
        return writer

    def _complete(self) -> None:
        super()._complete()
        while self._open:
            self._open.pop(next(iter(self._open))).close()

    def _abandon(self) -> None:
        for writer in self._open.values():
            writer._abandon()


def bounds_of(file: DataFile, field: iceberg.NestedField) -> tuple[Any, Any]:
    """Return the lowest and highest value of a column, as far as they are known."""
    assert isinstance(field.field_type, iceberg.PrimitiveType)
    lower, upper = (
        (bounds or {}).get(field.field_id) for bounds in (file.lower_bounds, file.upper_bounds)
    )
    if lower is None or upper is None:
        return None, None
    return from_bytes(field.field_type, lower), from_bytes(field.field_type, upper)


def _without_bounds(metadata: pq.FileMetaData, schema: Schema) -> set[str]:
    """Return the columns that have no bounds in a row group, or such as pyiceberg cannot make."""
    ids = parquet_path_to_id_mapping(schema)
    groups = map(metadata.row_group, range(metadata.num_row_groups))
    columns = (group.column(at) for group in groups for at in range(metadata.num_columns))
    paths = {column.path_in_schema for column in columns if not _has_bounds(column.statistics)}
    return {schema.find_column_name(ids[path]) or path for path in paths}


def _has_bounds(bounds: pq.Statistics | None) -> bool:
    """Tell whether pyiceberg can take them; without a value none are needed.

    Where Arrow has left them out, for a long value, it would take those of the other row groups for
    the whole file's.
    """
    if bounds is None or not bounds.has_min_max:
        return bounds is not None and not bounds.num_values
    try:
        _, highest = bounds.min, bounds.max
    except OverflowError:
        return False  # A day or a moment that Python does not have.
    # Cut short behind it, the bound would end on the next code point, which is half of a pair.
    return not (isinstance(highest, str) and _LAST_BEFORE_PAIRS in highest)


def delete_files(io: FileIO, paths: Iterable[str]) -> int:
    """Delete files as far as that goes: what is left is an orphan. Return how many went."""
    deleted = 0
    for path in paths:
        with suppress(OSError):
            io.delete(path)
            deleted += 1
    return deleted


def is_live(manifest: ManifestFile) -> bool:
    """Tell whether a manifest names a file that is there, as against such as are gone."""
    return manifest.has_added_files() or manifest.has_existing_files()


class _LoadedTable(Transaction):
    """A transaction that changes nothing; pyiceberg's checks all metadata when it is asked."""

    def __init__(self, table: Table) -> None:
        super().__init__(table)
        specs = {"partition_specs": naming(table.metadata.partition_specs)}
        self._metadata = table.metadata.model_copy(update=specs)

    @property
    def table_metadata(self) -> TableMetadata:
        return self._metadata


class StagedSnapshot(_OverwriteFiles, _MergeAppendFiles):
    """A snapshot on top of a table's current one, of files that come and go; no catalog knows it.

    Its manifests are put together as the table's properties ``commit.manifest…`` say.
    """

    def __init__(
        self,
        table: Table,
        *,
        added: Iterable[DataFile] = (),
        removed: Iterable[DataFile] = (),
        properties: Mapping[str, str] = EMPTY_DICT,
    ) -> None:
        """Take the files, and what the summary says beside the usual."""
        # pyiceberg sums up few operations: ``write`` puts in what it is.
        super().__init__(
            Operation.OVERWRITE,
            _LoadedTable(table),
            table.io,
            snapshot_properties=dict(properties),
        )
        # The names of its manifests have it in them, and it is nothing else.
        self.commit_uuid = cast("uuid.UUID", f"{_OURS}{self.commit_uuid}")
        self._merge_enabled = True
        self._added_data_files += added
        self._deleted_data_files.update(removed)

    def _deleted_entries(self) -> list[ManifestEntry]:
        """Leave bounds out of what is said of files that go: they are values of rows that do."""
        entries = super()._deleted_entries()
        for file in (entry.data_file for entry in entries):
            for bounds in (file.lower_bounds, file.upper_bounds):
                (bounds or {}).clear()
        return entries

    def _process_manifests(self, manifests: list[ManifestFile]) -> list[ManifestFile]:
        """Leave out what earlier snapshots say of files that were gone with them."""
        return super()._process_manifests(
            [
                self._without_deleted(manifest)
                for manifest in manifests
                if manifest.added_snapshot_id == self.snapshot_id or is_live(manifest)
            ]
        )

    def _without_deleted(self, manifest: ManifestFile) -> ManifestFile:
        if manifest.added_snapshot_id == self.snapshot_id or manifest.deleted_files_count == 0:
            return manifest
        with self.new_manifest_writer(self.spec(manifest.partition_spec_id)) as writer:
            for entry in manifest.fetch_manifest_entry(self._io):
                writer.existing(entry)
        return writer.to_manifest_file()

    def write(self, operation: Operation, schema_id: int | None = None) -> tuple[TableUpdate, ...]:
        """Write the manifests; return what makes it the table's newest.

        Args:
            schema_id: The columns that the table has from then on; by default its own.
        """
        (add, set_ref), _ = self._commit()
        assert isinstance(add, AddSnapshotUpdate)
        snapshot, metadata = add.snapshot, self._transaction.table_metadata
        assert snapshot.summary is not None
        set_schema = () if schema_id is None else (SetCurrentSchemaUpdate(schema_id=schema_id),)
        changed = {
            "schema_id": metadata.current_schema_id if schema_id is None else schema_id,
            "summary": Summary(operation, **snapshot.summary.additional_properties),
            # A clock that is behind another host's would make the table refuse the snapshot.
            "timestamp_ms": max(snapshot.timestamp_ms, metadata.last_updated_ms),
        }
        added = AddSnapshotUpdate(snapshot=snapshot.model_copy(update=changed))
        return *set_schema, added, set_ref

    def discard(self) -> None:
        """Delete the manifests."""
        self._clean_all_uncommitted()


def files_in_folder(table: Table) -> Iterator[tuple[str, float]]:
    """List the files in the table's folder, and when each was written, where the store says it."""
    scheme, host, path = PyArrowFileIO.parse_location(table.location())
    store = PyArrowFileIO(table.io.properties).fs_by_scheme(scheme, host)
    for file in store.get_file_info(FileSelector(path, recursive=True, allow_not_found=True)):
        if file.type == FileType.File:
            location = file.path if scheme == "file" else f"{scheme}://{file.path}"
            yield location, file.mtime_ns / 1e9 if file.mtime_ns else math.inf


def is_ours(path: str) -> bool:
    """Tell whether a data file, a manifest, or a list of those, was written here."""
    return _OURS in path.rpartition("/")[2]


def plain(path: str) -> str:
    """Return a path without the ways in which the same can be written."""
    return PyArrowFileIO.parse_location(path)[2].rstrip("/")


def reachable(table: Table, snapshots: Iterable[Snapshot] | None = None) -> dict[str, str]:
    """Return the files that the table's metadata leads to: by some snapshots, or by all.

    Returns:
        Their paths by their plain ones; what leads to others comes before those.
    """
    chosen = table.metadata.snapshots if snapshots is None else snapshots
    current = table.metadata.current_snapshot_id
    first = sorted(chosen, key=lambda snapshot: snapshot.snapshot_id != current)
    return {plain(path): path for path in _led_to(table, first)}


def _led_to(table: Table, snapshots: Sequence[Snapshot]) -> Iterator[str]:
    """Yield paths; of the older snapshots, files may be gone: an erase deletes them first."""
    metadata, io, read = table.metadata, table.io, set[ManifestFile]()
    yield table.metadata_location
    yield from (entry.metadata_file for entry in metadata.metadata_log)
    ids = {snapshot.snapshot_id for snapshot in snapshots}
    for statistics in (*metadata.statistics, *metadata.partition_statistics):
        if statistics.snapshot_id in ids:
            yield statistics.statistics_path
    for snapshot in snapshots:
        is_current = snapshot.snapshot_id == metadata.current_snapshot_id
        missing = () if is_current else (FileNotFoundError,)
        yield snapshot.manifest_list
        with suppress(*missing):
            for manifest in set(snapshot.manifests(io)) - read:
                read.add(manifest)
                yield manifest.manifest_path
                with suppress(*missing):
                    entries = manifest.fetch_manifest_entry(io)
                    yield from (entry.data_file.file_path for entry in entries)
