"""The files of an Iceberg table: how they are read, searched, written, and put into a snapshot.

Columns are known by their field ids, so that a file which is older than the table's columns reads
as they are now. Files are read here, and not by pyiceberg's scan, which takes a file into memory
whole, and checks no page. Rows that are marked as gone are in position delete files of format 2;
each of ours is of one data file, and has all its marks, so that the next takes its place. pyiceberg
keeps to itself what makes a snapshot: ``StagedSnapshot`` alone reaches for that, and the version is
pinned for it.
"""

from __future__ import annotations

import math
import os
import uuid
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from io import BufferedWriter
from io import FileIO as RawFile
from itertools import takewhile
from pathlib import Path
from typing import Any, Final, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
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
from pyiceberg.manifest import (
    DATA_FILE_TYPE,
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    ManifestWriter,
    ManifestWriterV2,
)
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionKey, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table, TableProperties, Transaction
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.name_mapping import NameMapping
from pyiceberg.table.snapshots import (
    Operation,
    Snapshot,
    Summary,
    UpdateMetrics,
    update_snapshot_summaries,
)
from pyiceberg.table.update import AddSnapshotUpdate, SetCurrentSchemaUpdate, TableUpdate
from pyiceberg.table.update.snapshot import _MergeAppendFiles
from pyiceberg.typedef import EMPTY_DICT

from oncelake.ingestion.sinks.files import (
    MOST_MARKED,
    TARGET_BYTES,
    FileWriter,
    Mask,
    PartitionedWriter,
    Values,
    read_columns,
    wanted_of,
)
from oncelake.ingestion.sinks.iceberg.partitions import (
    Partitioning,
    identities,
    naming,
    values_of,
)
from oncelake.ingestion.sinks.iceberg.sorting import sorting_of
from oncelake.ingestion.storage.location import Location

_FIELD_ID: Final = b"PARQUET:field_id"
_LAST_BEFORE_PAIRS: Final = "\ud7ff"
# Where a data file has its partition's values, and what its rows are sorted by.
_PARTITION, _SORT_ORDER = (
    [field.name for field in DATA_FILE_TYPE[2].fields].index(name)
    for name in ("partition", "sort_order_id")
)
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
# The columns of a position delete file, which the specification gives these ids.
_PATH_ID: Final = 2147483546
_POSITIONS: Final = pa.schema(
    [
        pa.field("file_path", pa.string(), False, {_FIELD_ID: str(_PATH_ID)}),
        pa.field("pos", pa.int64(), False, {_FIELD_ID: "2147483545"}),
    ]
)
# Manifests are of one partition spec, and of data or of deletes.
_Kind = tuple[int, ManifestContent]


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


@dataclass(frozen=True, slots=True)
class LiveFile:
    """A data file of a snapshot, and the delete files that mark rows of it as gone."""

    data: DataFile
    deletes: frozenset[DataFile] = frozenset()

    @property
    def all(self) -> frozenset[DataFile]:
        """The files that it is made of."""
        return self.deletes | {self.data}


def gone_in(io: FileIO, file: LiveFile) -> Mask | None:
    """Flag the rows of a file that are marked as gone; ``None`` where none is."""
    if not file.deletes:
        return None
    path, flags = file.data.file_path, np.zeros(file.data.record_count, dtype=np.bool_)
    for each in file.deletes:
        with io.new_input(each.file_path).open() as source:
            marks = pq.read_table(source, columns=_POSITIONS.names, page_checksum_verification=True)
        rows = marks.filter(pc.field("file_path") == path).column("pos").to_numpy()
        if len(rows) and not 0 <= rows.min() <= rows.max() < len(flags):
            raise pa.ArrowInvalid(f"{each.file_path} marks rows that {path} does not have")
        flags[rows] = True
    return flags


def count_in(io: FileIO, file: LiveFile) -> int:
    """Count the rows of a file that are not marked as gone; reads nothing of what is ours."""
    match [*file.deletes]:
        case [each] if is_ours(each.file_path):
            return file.data.record_count - each.record_count
    is_gone = gone_in(io, file)
    return file.data.record_count - (0 if is_gone is None else int(is_gone.sum()))


def read_living(table: Table, file: LiveFile, columns: Schema) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a file that are not marked as gone."""
    is_gone, batches = gone_in(table.io, file), read_file(table, file.data, columns)
    yield from batches if is_gone is None else wanted_of(batches, ~is_gone)


def read_file(table: Table, file: DataFile, columns: Schema) -> Iterator[pa.RecordBatch]:
    """Yield a file's rows in their order.

    A column that the file does not have is its partition's value, as in files that others have
    moved here from folders of Hive, or null.
    """
    schema, of_partition = arrow_schema(columns), identities(table.specs()[file.spec_id], file)
    with (
        table.io.new_input(file.file_path).open() as source,
        pq.ParquetFile(source, page_checksum_verification=True) as parquet,
    ):
        there = _names_in(parquet.schema_arrow, table.name_mapping())
        known = {
            field.name: pa.scalar(of_partition[field.field_id], schema.field(field.name).type)
            for field in columns.fields
            if field.field_id in of_partition
        }
        names = [there.get(field.field_id) for field in columns.fields]
        yield from read_columns(parquet, names, schema, known)


def _names_in(file: pa.Schema, mapping: NameMapping | None) -> dict[int, str]:
    """Return what a file calls the columns, by their ids; one without ids, by the table's names."""
    ids = [(field.metadata or {}).get(_FIELD_ID) for field in file]
    if any(ids):
        return {int(id_): name for id_, name in zip(ids, file.names, strict=True) if id_}
    if mapping is None:
        raise pa.ArrowInvalid(
            "it has no field ids, and the table has no schema.name-mapping.default"
        )
    named = {name: each.field_id for each in mapping.root for name in each.names}
    return {id_: name for name in file.names if (id_ := named.get(name)) is not None}


class IcebergFileWriter(FileWriter[LiveFile]):
    """Writes rows to new data files of a table: those of one partition, where it has any."""

    compression = "zstd"

    def __init__(
        self,
        table: Table,
        target_bytes: int = TARGET_BYTES,
        partition: PartitionKey | None = None,
        *,
        marks: bool = False,
    ) -> None:
        """Take the table whose columns and folder they have.

        Args:
            table: The table.
            target_bytes: What a file grows to.
            partition: Of all rows that are written.
            marks: Whether rows of other files may be marked as gone.
        """
        super().__init__(schema_to_pyarrow(table.schema()), target_bytes)
        self._table, self._partition, self._marks = table, partition, marks
        self._deletes: list[str] = []
        self._sorting = sorting_of(table)
        # What the last row of the file was compared by, as long as all of them are sorted.
        self._compared: pa.Table | None = None

    def _in_order(self, rows: pa.Table) -> pa.Table:
        return self._sorting.sorted(rows)[0] if self._sorting else rows

    def _write_group(self) -> None:
        if self._sorting:
            rows, keys = self._sorting.sorted(pa.Table.from_batches(self._waiting))
            self._waiting, before = rows.to_batches(), self._compared
            is_sorted = before is not None and self._sorting.follows(keys, before)
            is_sorted |= self._writer is None
            self._compared = keys.slice(len(keys) - 1) if is_sorted else None
        super()._write_group()

    def _begin(self, ending: str = "") -> tuple[str, Any]:
        name = f"{_OURS}{uuid.uuid4()}{ending}.parquet"
        path = self._table.location_provider().new_data_location(name, self._partition)
        return path, self._table.io.new_output(path).create()

    def mark(self, file: LiveFile, is_gone: Mask) -> bool:
        """Mark rows, unless most of the file's are gone then."""
        if not self._marks or is_gone.mean() > MOST_MARKED:
            return False
        self.files.append(self.marked(file, is_gone))
        return True

    def marked(self, file: LiveFile, is_gone: Mask) -> LiveFile:
        """Write all marks of a file into one delete file."""
        rows, of = np.flatnonzero(is_gone), file.data
        marks = pa.table([pa.repeat(of.file_path, len(rows)), rows], schema=_POSITIONS)
        path, stream = self._begin("-deletes")
        self._deletes.append(path)
        with stream:
            pq.write_table(marks, stream, compression=self.compression, write_page_checksum=True)
            size = stream.tell()
        # By bounds that are one path, in full, readers know that it is of that file alone.
        bounds = {_PATH_ID: of.file_path.encode()}
        deletes = DataFile.from_args(
            content=DataFileContent.POSITION_DELETES,
            file_path=path,
            file_format=FileFormat.PARQUET,
            partition=of.partition,
            record_count=len(rows),
            file_size_in_bytes=size,
            lower_bounds=bounds,
            upper_bounds=bounds,
        )
        deletes.spec_id = of.spec_id
        return LiveFile(of, frozenset({deletes}))

    def discard(self) -> None:
        """Delete what was written."""
        super().discard()
        self._delete(self._deletes)

    def _describe(self, path: str, metadata: pq.FileMetaData, size: int) -> LiveFile:
        del size
        table, prefix = self._table, TableProperties.METRICS_MODE_COLUMN_CONF_PREFIX
        unbounded = _without_bounds(metadata, table.schema())
        by = map(table.schema().find_column_name, (e.source_id for e in table.sort_order().fields))
        # Of texts that begin alike, ranges would overlap.
        modes = {f"{prefix}.{name}": "full" for name in by}
        modes |= {f"{prefix}.{name}": "counts" for name in unbounded}
        # It would take a partition's values for those of the columns, which they seldom are.
        undivided = {"partition_specs": [UNPARTITIONED_PARTITION_SPEC], "default_spec_id": 0}
        changed = {"properties": {**table.properties, **modes}, **undivided}
        file = parquet_file_to_data_file(table.io, table.metadata.model_copy(update=changed), path)
        if self._partition is not None:
            file[_PARTITION] = self._partition.partition
        file.spec_id = table.spec().spec_id
        if self._sorting and self._compared is not None:
            file[_SORT_ORDER] = table.sort_order().order_id
        return LiveFile(file)

    def _delete(self, paths: Sequence[str]) -> None:
        delete_files(self._table.io, paths)


class PartitionedFileWriter(PartitionedWriter[LiveFile], IcebergFileWriter):
    """Writes the rows of each partition to files of their own, by the current specification."""

    def __init__(self, table: Table, target_bytes: int = TARGET_BYTES, *, marks: bool) -> None:
        """Take the table whose columns, partitions and folder they have."""
        super().__init__(table, target_bytes, marks=marks)
        self._partitioning = Partitioning(table.schema(), table.spec())
        self._open = {}

    def _values_of(self, rows: pa.Table) -> list[pa.Array]:
        return self._partitioning.values(rows)

    def _known_of(self, file: LiveFile) -> Values | None:
        return values_of(file.data) if file.data.spec_id == self._partitioning.spec_id else None

    def _begin_partition(self, values: Values) -> IcebergFileWriter:
        return IcebergFileWriter(self._table, self._target, self._partitioning.key(values))


def bounds_of(file: LiveFile, field: iceberg.NestedField) -> tuple[Any, Any]:
    """Return the lowest and highest value of a column, as far as they are known."""
    assert isinstance(field.field_type, iceberg.PrimitiveType)
    of = file.data
    lower, upper = (
        (bounds or {}).get(field.field_id) for bounds in (of.lower_bounds, of.upper_bounds)
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


def remove_empty_folders(table: Table) -> None:
    """Remove folders of partitions that have no file any more: their names are values."""
    for folder, _, _ in os.walk(plain(table.location()), topdown=False):
        with suppress(OSError):
            os.rmdir(folder)


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


class _DeletesWriter(ManifestWriterV2):
    def content(self) -> ManifestContent:
        """Return that it is of delete files, of which pyiceberg writes none."""
        return ManifestContent.DELETES

    @property
    def _meta(self) -> dict[str, str]:
        return {**super()._meta, "content": "deletes"}


@contextmanager
def _writing(writer: ManifestWriter) -> Iterator[ManifestWriter]:
    """Write a manifest; left to itself, pyiceberg calls one that fails early an empty one."""
    writer.__enter__()
    try:
        yield writer
    except BaseException:
        with suppress(OSError, ValueError):
            writer._writer.__exit__(None, None, None)
        raise
    writer.__exit__(None, None, None)


def _kind_of(file: DataFile) -> _Kind:
    is_data = file.content == DataFileContent.DATA
    return file.spec_id, ManifestContent.DATA if is_data else ManifestContent.DELETES


class StagedSnapshot(_MergeAppendFiles):
    """A snapshot on top of a table's current one, of files that come and go; no catalog knows it.

    Manifests of data are put together as the table's properties ``commit.manifest…`` say; what is
    marked as gone is in one, since each batch brings marks that take the place of others.
    """

    def __init__(
        self,
        table: Table,
        *,
        added: Iterable[DataFile] = (),
        removed: Iterable[DataFile] = (),
        properties: Mapping[str, str] = EMPTY_DICT,
        is_silent: bool = False,
    ) -> None:
        """Take the files, of data and of deletes, and what the summary says beside the usual.

        Args:
            is_silent: Whether manifests do not name what goes.
        """
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
        self._is_silent = is_silent

    def _manifests(self) -> list[ManifestFile]:
        added, removed = self._added_data_files, self._deleted_data_files
        of_added, going = {*map(_kind_of, added)}, {*map(_kind_of, removed)}
        with_deletes = {kind for kind in of_added | going if kind[1] == ManifestContent.DELETES}
        left = defaultdict[_Kind, list[ManifestEntry]](list)
        gone = defaultdict[_Kind, list[ManifestEntry]](list)
        staying = list[ManifestFile]()
        for manifest in filter(is_live, self._current_manifests()):
            kind = manifest.partition_spec_id, manifest.content
            # What earlier snapshots say of files that were gone with them is left out.
            if kind not in going | with_deletes and not manifest.deleted_files_count:
                staying.append(manifest)
                continue
            entries = manifest.fetch_manifest_entry(self._io)
            there = [each for each in entries if each.data_file not in removed]
            gone[kind] += [each for each in entries if each.data_file in removed]
            if kind in with_deletes:
                left[kind] += there
            elif len(there) == len(entries) and not manifest.deleted_files_count:
                staying.append(manifest)
            elif there:
                staying.append(self._written(kind, existing=there))
        if len(removed) != sum(map(len, gone.values())):
            raise AssertionError("a file that a commit takes out of the table is not in it")
        coming = defaultdict[_Kind, list[DataFile]](list)
        for file in added:
            coming[_kind_of(file)].append(file)
        new = [
            self._written(kind, added=coming[kind], existing=left[kind])
            for kind in dict.fromkeys((*coming, *left))
            if coming[kind] or left[kind]
        ]
        named = {} if self._is_silent else gone
        over = [self._written(kind, deleted=files) for kind, files in named.items() if files]
        return self._process_manifests([*new, *over, *staying])

    def _current_manifests(self) -> list[ManifestFile]:
        current = self._transaction.table_metadata.snapshot_by_id(self._parent_snapshot_id or -1)
        return current.manifests(self._io) if current else []

    def _written(
        self,
        kind: _Kind,
        *,
        added: Iterable[DataFile] = (),
        existing: Iterable[ManifestEntry] = (),
        deleted: Iterable[ManifestEntry] = (),
    ) -> ManifestFile:
        """Write a manifest."""
        spec_id, content = kind
        with _writing(self._writer_of(self.spec(spec_id), content)) as writer:
            for file in added:
                new = {"status": ManifestEntryStatus.ADDED, "snapshot_id": self.snapshot_id}
                writer.add(ManifestEntry.from_args(**cast("Any", new), data_file=file))
            for entry in existing:
                writer.existing(entry)
            for entry in deleted:
                # Bounds are values of rows that go.
                for bounds in (entry.data_file.lower_bounds, entry.data_file.upper_bounds):
                    (bounds or {}).clear()
                writer.delete(entry)
        return writer.to_manifest_file()

    def _writer_of(self, spec: PartitionSpec, content: ManifestContent) -> ManifestWriter:
        if content == ManifestContent.DATA:
            return self.new_manifest_writer(spec)
        output = self.new_manifest_output()
        return _DeletesWriter(spec, self.schema(), output, self.snapshot_id, self._compression)

    def _summary(self, snapshot_properties: dict[str, str] = EMPTY_DICT) -> Summary:
        """Sum up, whichever partition specs the files are of."""
        metrics, metadata = UpdateMetrics(), self._transaction.table_metadata
        for file in self._added_data_files:
            metrics.add_file(file)
        for file in self._deleted_data_files:
            metrics.remove_file(file)
        before = metadata.snapshot_by_id(self._parent_snapshot_id or -1)
        return update_snapshot_summaries(
            Summary(self._operation, **metrics.to_dict(), **snapshot_properties),
            before.summary if before else None,
        )

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
