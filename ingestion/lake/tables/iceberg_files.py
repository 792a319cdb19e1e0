"""The files of an Iceberg table: how they are read, searched, written, and put into a snapshot.

Columns are known by their field ids, so that a file which is older than the table's columns reads
as they are now. pyiceberg keeps to itself what makes a snapshot: ``stage`` alone reaches for that,
and the version is pinned for it.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import Any, Final

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow.fs import FileSelector, FileType
from pyiceberg.conversions import from_bytes
from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import (
    PyArrowFileIO,
    compute_statistics_plan,
    data_file_statistics_from_parquet_metadata,
    parquet_path_to_id_mapping,
    schema_to_pyarrow,
)
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestFile,
)
from pyiceberg.schema import Schema
from pyiceberg.table import Table, Transaction
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation, Snapshot, Summary
from pyiceberg.table.update import AddSnapshotUpdate, SetSnapshotRefUpdate, TableUpdate
from pyiceberg.table.update.snapshot import _ManifestMergeManager, _OverwriteFiles
from pyiceberg.typedef import EMPTY_DICT, Record
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    PrimitiveType,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
)

from ingestion.declaration.types import SqlType

Rows = npt.NDArray[np.int64]

# What a data file grows to, and from which size on it is rewritten by itself.
TARGET_BYTES: Final = 128 << 20
_SMALL_BYTES: Final = 16 << 20
# A row group is of at most so many rows, and bytes in memory.
_ROWS_IN_GROUP: Final = 1 << 20
_BYTES_IN_GROUP: Final = 96 << 20
_ROWS_READ_AT_ONCE: Final = 1 << 17
_ROWS_SEARCHED_AT_ONCE: Final = 1 << 20
_JOBS: Final = 8
# Manifests are put together when there are so many, up to that size.
_MOST_MANIFESTS: Final = 100
_MANIFEST_BYTES: Final = 8 << 20
_FIELD_ID: Final = b"PARQUET:field_id"

_TYPES: Final[dict[str, tuple[PrimitiveType, pa.DataType]]] = {
    "BOOLEAN": (BooleanType(), pa.bool_()),
    "INT": (IntegerType(), pa.int32()),
    "BIGINT": (LongType(), pa.int64()),
    "FLOAT": (FloatType(), pa.float32()),
    "DOUBLE": (DoubleType(), pa.float64()),
    "STRING": (StringType(), pa.string()),
    "BINARY": (BinaryType(), pa.binary()),
    "DATE": (DateType(), pa.date32()),
    "TIMESTAMP": (TimestamptzType(), pa.timestamp("us", "UTC")),
    "TIMESTAMP_NTZ": (TimestampType(), pa.timestamp("us")),
}
_WORDS: Final = {type_: word for word, (type_, _) in _TYPES.items()}
_ARROW: Final[dict[IcebergType, pa.DataType]] = dict(_TYPES.values())
# How Iceberg writes the bounds of a column whose values can be compared with keys.
_BOUNDS: Final[dict[IcebergType, pa.DataType]] = {
    IntegerType(): pa.int32(),
    LongType(): pa.int64(),
    StringType(): pa.string(),
    DateType(): pa.int32(),
    TimestampType(): pa.int64(),
    TimestamptzType(): pa.int64(),
}


def iceberg_type(type_: SqlType, ids: Iterator[int]) -> IcebergType:
    """Return Iceberg's type of a stored one; ``ids`` are those of the fields in it."""
    parts = {name: (next(ids), iceberg_type(part, ids)) for name, part in type_.parts.items()}
    if type_.word == "DECIMAL":
        return DecimalType(type_.precision, type_.scale)
    if type_.word == "STRUCT":
        fields = (NestedField(id_, name, part) for name, (id_, part) in parts.items())
        return StructType(*fields)
    if type_.word == "ARRAY":
        [(id_, part)] = parts.values()
        return ListType(id_, part, element_required=False)
    if type_.word == "MAP":
        (key_id, key), (value_id, value) = parts.values()
        return MapType(key_id, key, value_id, value, value_required=False)
    return _TYPES[type_.word][0]


def sql_type(type_: IcebergType) -> SqlType:
    """Read Iceberg's type; one that no declaration has is a word of its own."""
    if isinstance(type_, DecimalType):
        return SqlType(word="DECIMAL", precision=type_.precision, scale=type_.scale)
    if isinstance(type_, StructType):
        parts = {field.name: sql_type(field.field_type) for field in type_.fields}
        return SqlType(word="STRUCT", parts=parts)
    if isinstance(type_, ListType):
        return SqlType(word="ARRAY", parts={"element": sql_type(type_.element_type)})
    if isinstance(type_, MapType):
        parts = {"key": sql_type(type_.key_type), "value": sql_type(type_.value_type)}
        return SqlType(word="MAP", parts=parts)
    assert isinstance(type_, PrimitiveType)
    return SqlType(word=_WORDS.get(type_, str(type_).upper()))


def arrow_schema(schema: Schema) -> pa.Schema:
    """Return the schema of rows as others see them."""
    return pa.schema([(field.name, _arrow_type(field.field_type)) for field in schema.fields])


def file_schema(schema: Schema) -> pa.Schema:
    """Return the schema of Parquet files: with field ids, and what may not be null."""
    return pa.schema([_arrow_field(field, in_file=True) for field in schema.fields])


def _arrow_field(field: NestedField, *, in_file: bool) -> pa.Field:
    type_ = _arrow_type(field.field_type, in_file=in_file)
    if not in_file:
        return pa.field(field.name, type_)
    metadata = {_FIELD_ID: str(field.field_id).encode()}
    return pa.field(field.name, type_, field.optional, metadata=metadata)


def _arrow_type(type_: IcebergType, *, in_file: bool = False) -> pa.DataType:
    def arrow(field: NestedField) -> pa.Field:
        return _arrow_field(field, in_file=in_file)

    if isinstance(type_, DecimalType):
        return pa.decimal128(type_.precision, type_.scale)
    if isinstance(type_, StructType):
        return pa.struct(map(arrow, type_.fields))
    if isinstance(type_, ListType):
        return pa.list_(arrow(type_.element_field))
    if isinstance(type_, MapType):
        return pa.map_(arrow(type_.key_field).with_nullable(False), arrow(type_.value_field))
    return _ARROW[type_] if type_ in _ARROW else schema_to_pyarrow(type_)


def is_live(manifest: ManifestFile) -> bool:
    """Tell whether a manifest names a file that is there, as against such as are gone."""
    return manifest.has_added_files() or manifest.has_existing_files()


def live_manifests(io: FileIO, snapshot: Snapshot | None) -> list[ManifestFile]:
    """Return the manifests that make up a snapshot."""
    return list(filter(is_live, snapshot.manifests(io))) if snapshot else []


def has_delete_files(manifests: Iterable[ManifestFile]) -> bool:
    """Tell whether rows are deleted by files that name them."""
    return any(manifest.content == ManifestContent.DELETES for manifest in manifests)


def live_files(io: FileIO, manifests: Sequence[ManifestFile]) -> list[DataFile]:
    """Return the data files that manifests name."""
    with ThreadPoolExecutor(_JOBS) as pool:
        entries = pool.map(lambda manifest: manifest.fetch_manifest_entry(io), manifests)
        return [entry.data_file for of_manifest in entries for entry in of_manifest]


def read_file(
    io: FileIO, file: DataFile, columns: Schema, *, rows: Rows | None = None
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield a file's rows, each batch with the number of its first row.

    Args:
        columns: What is read; a column that the file does not have is null.
        rows: Sorted numbers of rows; what has none of them is left out, by large pieces.
    """
    if file.file_format != FileFormat.PARQUET:
        raise pa.ArrowInvalid(f"{file.file_path} is {file.file_format}, not Parquet")
    schema = arrow_schema(columns)
    with (
        io.new_input(file.file_path).open() as source,
        pq.ParquetFile(source, page_checksum_verification=True) as parquet,
    ):
        names = _names_in(parquet.schema_arrow, columns)
        start = 0
        for group in range(parquet.num_row_groups):
            end = start + parquet.metadata.row_group(group).num_rows
            if rows is None or np.diff(np.searchsorted(rows, (start, end)))[0]:
                batches = parquet.iter_batches(
                    _ROWS_READ_AT_ONCE,
                    row_groups=[group],
                    columns=[name for name in names if name is not None],
                )
                for batch in batches:
                    yield start, _projected(batch, names, schema)
                    start += batch.num_rows
            start = end


def _names_in(file: pa.Schema, wanted: Schema) -> list[str | None]:
    """Return what a file calls the columns; one without ids calls them as the table does."""
    ids = [(field.metadata or {}).get(_FIELD_ID) for field in file]
    if not any(ids):
        return [field.name if field.name in file.names else None for field in wanted.fields]
    names = dict(zip(ids, file.names, strict=True))
    return [names.get(str(field.field_id).encode()) for field in wanted.fields]


def _projected(batch: pa.RecordBatch, names: list[str | None], schema: pa.Schema) -> pa.RecordBatch:
    arrays = [
        pa.nulls(batch.num_rows, field.type)
        if name is None
        else batch.column(name).cast(field.type)
        for name, field in zip(names, schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def may_hold(files: Sequence[DataFile], keys: pa.Table, schema: Schema) -> list[DataFile]:
    """Leave out the files of which the bounds say that none of the keys is in them."""
    for name in keys.column_names:
        field = schema.find_field(name)
        if field.field_type in _BOUNDS or isinstance(field.field_type, DecimalType):
            files = _within_bounds(files, keys.column(name), field)
    return list(files)


def _within_bounds(
    files: Sequence[DataFile], keys: pa.ChunkedArray, field: NestedField
) -> list[DataFile]:
    lower = [_bound(file.lower_bounds, field) for file in files]
    upper = [_bound(file.upper_bounds, field) for file in files]
    type_ = _BOUNDS.get(field.field_type, keys.type)
    bounds = pa.table(
        {
            "file": pa.arange(0, len(files)),
            "lower": pa.array(lower, type_).cast(keys.type),
            "upper": pa.array(upper, type_).cast(keys.type),
        }
    )
    with closing(duckdb.connect()) as engine:
        engine.register("bounds", bounds)
        engine.register("keys", pa.table({"key": keys}))
        within = engine.sql(_WITHIN_BOUNDS).to_arrow_table()
    return [files[number] for number in within.column(0).to_pylist()]


# The smallest key from the lower bound up is in the file, or none is.
_WITHIN_BOUNDS: Final = """
    SELECT file FROM bounds WHERE lower IS NULL OR upper IS NULL
    UNION ALL
    SELECT file FROM bounds ASOF JOIN keys ON bounds.lower <= keys.key WHERE keys.key <= upper
    ORDER BY file
"""


def _bound(bounds: Mapping[int, bytes] | None, field: NestedField) -> Any:
    found = (bounds or {}).get(field.field_id)
    assert isinstance(field.field_type, PrimitiveType)
    return None if found is None else from_bytes(field.field_type, found)


@dataclass(frozen=True, kw_only=True, slots=True)
class Places:
    """Where keys are.

    Attributes:
        files: The files that were searched.
        rows: A row a place: the key, ``_file``, the number of a file among them, and ``_row``.
    """

    files: Sequence[DataFile]
    rows: pa.Table

    def of(self, keys: pa.Table) -> pa.Table:
        """Return ``_key``, the number of a key, ``_file`` and ``_row`` of each that is here."""
        using = _using(keys.column_names)
        with closing(duckdb.connect()) as engine:
            engine.register("places", self.rows)
            engine.register("keys", _numbered(keys, "_key"))
            return engine.sql(
                f"SELECT _key, _file, _row FROM keys JOIN places {using} ORDER BY _file, _row"
            ).to_arrow_table()

    def by_file(self) -> Iterator[tuple[DataFile, Rows]]:
        """Yield each file that has any of them, with its rows' numbers, sorted."""
        for number, rows in split_by_file(self.rows):
            yield self.files[number], np.sort(rows.column("_row").to_numpy())


def split_by_file(places: pa.Table) -> Iterator[tuple[int, pa.Table]]:
    """Yield the number of each file with its part of the places, which is sorted by file."""
    numbers = places.column("_file").to_numpy()
    for number in np.unique(numbers):
        start, end = np.searchsorted(numbers, (number, number + 1))
        yield int(number), places.slice(start, end - start)


def find(io: FileIO, files: Sequence[DataFile], keys: pa.Table, schema: Schema) -> Places:
    """Search the key columns of files."""
    columns = schema.select(*keys.column_names)
    places = arrow_schema(columns).append(pa.field("_file", pa.int32()))
    places = places.append(pa.field("_row", pa.int64()))
    found, waiting, count = [places.empty_table()], list[pa.RecordBatch](), 0
    with closing(duckdb.connect()) as engine:
        engine.register("keys", keys)
        for number, file in enumerate(files):
            for start, batch in read_file(io, file, columns):
                here = pa.repeat(pa.scalar(number, pa.int32()), batch.num_rows)
                rows = pa.arange(start, start + batch.num_rows)
                arrays = [*batch.columns, here, rows]
                waiting.append(pa.RecordBatch.from_arrays(arrays, schema=places))
                count += batch.num_rows
            if count >= _ROWS_SEARCHED_AT_ONCE or number == len(files) - 1:
                searched = pa.Table.from_batches(waiting, schema=places)
                found.append(_among(engine, searched, keys.column_names))
                waiting, count = [], 0
    return Places(files=files, rows=pa.concat_tables(found))


def _among(engine: duckdb.DuckDBPyConnection, rows: pa.Table, names: Sequence[str]) -> pa.Table:
    engine.register("places", _numbered(rows.select(names), "_at"))
    found = engine.sql(f"SELECT _at FROM places SEMI JOIN keys {_using(names)} ORDER BY _at")
    return rows.take(found.to_arrow_table().column(0))


def _using(names: Sequence[str]) -> str:
    quoted = ('"{}"'.format(name.replace('"', '""')) for name in names)
    return f"USING ({', '.join(quoted)})"


def _numbered(rows: pa.Table, name: str) -> pa.Table:
    return rows.append_column(name, pa.arange(0, rows.num_rows))


def rows_at(io: FileIO, places: Places, schema: Schema) -> pa.Table:
    """Return whole rows."""
    parts = []
    for file, rows in places.by_file():
        for start, batch in read_file(io, file, schema, rows=rows):
            first, last = np.searchsorted(rows, (start, start + batch.num_rows))
            if first < last:
                parts.append(batch.take(pa.array(rows[first:last] - start)))
    return pa.Table.from_batches(parts, schema=arrow_schema(schema))


def rows_without(
    io: FileIO, file: DataFile, schema: Schema, gone: Rows
) -> Iterator[pa.RecordBatch]:
    """Yield a file's rows, but for those of some sorted numbers."""
    for start, batch in read_file(io, file, schema):
        first, last = np.searchsorted(gone, (start, start + batch.num_rows))
        if first == last:
            yield batch
            continue
        is_kept = np.ones(batch.num_rows, dtype=np.bool_)
        is_kept[gone[first:last] - start] = False
        yield batch.filter(pa.array(is_kept))


class FileWriter:
    """Writes rows to new data files of about a size.

    Attributes:
        files: Those that are complete.
        paths: Those that were begun.
    """

    def __init__(self, table: Table, target_bytes: int = TARGET_BYTES) -> None:
        self._table, self._target = table, target_bytes
        self._schema = file_schema(table.schema())
        self._waiting: list[pa.RecordBatch] = []
        self._bytes = self._source_bytes = 0
        self._writer: pq.ParquetWriter | None = None
        self.files: list[DataFile] = []
        self.paths: list[str] = []

    def write(self, rows: pa.RecordBatch | pa.Table) -> None:
        """Write rows of the table's columns."""
        if not rows.num_rows:
            return
        per_group = _BYTES_IN_GROUP * rows.num_rows // max(rows.nbytes, 1)
        per_group = min(max(per_group, 1), _ROWS_IN_GROUP)
        for start in range(0, rows.num_rows, per_group):
            part = rows.slice(start, per_group)
            self._waiting += part.to_batches() if isinstance(part, pa.Table) else [part]
            self._bytes += part.nbytes
            count = sum(batch.num_rows for batch in self._waiting)
            if count >= _ROWS_IN_GROUP or self._bytes >= _BYTES_IN_GROUP:
                self._write_group()

    def end_source(self, file: DataFile) -> None:
        """Begin another file, unless what was copied so far is small: so small ones end."""
        self._source_bytes += file.file_size_in_bytes
        if self._source_bytes >= min(_SMALL_BYTES, self._target):
            self.close()

    def _write_group(self) -> None:
        rows = pa.Table.from_batches(self._waiting).cast(self._schema)
        self._waiting, self._bytes = [], 0
        if self._writer is None:
            name = f"oncelake-{uuid.uuid4()}.parquet"
            self.paths.append(self._table.location_provider().new_data_location(name))
            self._stream = self._table.io.new_output(self.paths[-1]).create()
            self._writer = pq.ParquetWriter(
                self._stream,
                self._schema,
                compression="zstd",
                store_decimal_as_integer=True,
                # So that what a disk has altered is refused, and not copied.
                write_page_checksum=True,
            )
        self._writer.write_table(rows, row_group_size=_ROWS_IN_GROUP)
        if self._stream.tell() >= self._target:
            self.close()

    def close(self) -> None:
        """Complete the file that is being written."""
        self._source_bytes = 0
        if self._waiting:
            self._write_group()
        if self._writer is None:
            return
        self._writer.close()
        size = self._stream.tell()
        self._stream.close()
        self.files.append(self._data_file(self._writer.writer.metadata, size))
        self._writer = None

    def _data_file(self, metadata: pq.FileMetaData, size: int) -> DataFile:
        schema = self._table.schema()
        statistics = data_file_statistics_from_parquet_metadata(
            parquet_metadata=metadata,
            stats_columns=compute_statistics_plan(schema, self._table.metadata.properties),
            parquet_column_mapping=parquet_path_to_id_mapping(schema),
        )
        for id_ in _without_bounds(metadata, schema):
            statistics.column_aggregates.pop(id_, None)
        return DataFile.from_args(
            content=DataFileContent.DATA,
            file_path=self.paths[-1],
            file_format=FileFormat.PARQUET,
            partition=Record(),
            file_size_in_bytes=size,
            sort_order_id=None,
            spec_id=self._table.metadata.default_spec_id,
            equality_ids=None,
            key_metadata=None,
            **statistics.to_serialized_dict(),
        )

    def discard(self) -> None:
        """Delete what was written."""
        if self._writer is not None:
            self._stream.close()
        delete_files(self._table.io, self.paths)


def delete_files(io: FileIO, paths: Iterable[str]) -> int:
    """Delete files as far as that goes: what is left is an orphan. Return how many went."""
    deleted = 0
    for path in paths:
        with suppress(OSError):
            io.delete(path)
            deleted += 1
    return deleted


class _Loaded(Transaction):
    """A transaction that changes nothing; pyiceberg's copies all metadata when it is asked."""

    @property
    def table_metadata(self) -> TableMetadata:
        return self._table.metadata


class _Producer(_OverwriteFiles):
    """Makes a snapshot of files added and removed; never commits it."""

    def _deleted_entries(self) -> list[ManifestEntry]:
        return super()._deleted_entries() if self._deleted_data_files else []

    def _existing_manifests(self) -> list[ManifestFile]:
        if self._deleted_data_files:
            return super()._existing_manifests()
        return live_manifests(self._io, self._transaction.table_metadata.current_snapshot())

    def _process_manifests(self, manifests: list[ManifestFile]) -> list[ManifestFile]:
        """Leave out those of which nothing is left, and put many old ones together."""
        old = [
            each
            for each in manifests
            if each.added_snapshot_id != self.snapshot_id
            and each.content == ManifestContent.DATA
            and is_live(each)
        ]
        others = [
            each
            for each in manifests
            if each.added_snapshot_id == self.snapshot_id or each.content != ManifestContent.DATA
        ]
        merger = _ManifestMergeManager(
            target_size_bytes=_MANIFEST_BYTES,
            min_count_to_merge=_MOST_MANIFESTS,
            merge_enabled=True,
            snapshot_producer=self,
        )
        return others + merger.merge_manifests(old)

    def stage(self, operation: Operation, schema_id: int) -> tuple[TableUpdate, ...]:
        """Write the manifests; return what makes the snapshot the newest."""
        (add, set_ref), _ = self._commit()
        assert isinstance(add, AddSnapshotUpdate)
        assert isinstance(set_ref, SetSnapshotRefUpdate)
        snapshot, metadata = add.snapshot, self._transaction.table_metadata
        assert snapshot.summary is not None
        changed = {
            "schema_id": schema_id,
            "summary": Summary(operation, **snapshot.summary.additional_properties),
            # A clock that is behind another host's would make the table refuse the snapshot.
            "timestamp_ms": max(snapshot.timestamp_ms, metadata.last_updated_ms),
        }
        return AddSnapshotUpdate(snapshot=snapshot.model_copy(update=changed)), set_ref

    def discard(self) -> None:
        """Delete the manifests."""
        self._clean_all_uncommitted()


@dataclass(frozen=True, kw_only=True, slots=True)
class Staged:
    """A snapshot that is written, and that no catalog knows.

    Attributes:
        snapshot_id: Its id.
        updates: What makes it the table's newest.
        producer: What has written it.
    """

    snapshot_id: int
    updates: tuple[TableUpdate, ...]
    producer: _Producer

    def discard(self) -> None:
        """Delete its manifests."""
        self.producer.discard()


def stage(
    table: Table,
    operation: Operation,
    *,
    added: Iterable[DataFile] = (),
    removed: Iterable[DataFile] = (),
    schema_id: int | None = None,
    properties: Mapping[str, str] = EMPTY_DICT,
) -> Staged:
    """Write a snapshot on top of the table's current one, as it was loaded.

    Args:
        schema_id: The columns that it is of; by default the table's.
        properties: What its summary says beside the usual.
    """
    # pyiceberg sums up no other operation than these.
    is_first = table.current_snapshot() is None
    producer = _Producer(
        Operation.APPEND if is_first else Operation.OVERWRITE,
        _Loaded(table),
        table.io,
        snapshot_properties=dict(properties),
    )
    for file in added:
        producer.append_data_file(file)
    for file in removed:
        producer.delete_data_file(file)
    try:
        current = table.metadata.current_schema_id
        updates = producer.stage(operation, current if schema_id is None else schema_id)
    except BaseException:
        producer.discard()
        raise
    return Staged(snapshot_id=producer.snapshot_id, updates=updates, producer=producer)


def _without_bounds(metadata: pq.FileMetaData, schema: Schema) -> set[int]:
    """Return the columns of which Arrow has left out the bounds of a part, for a long value.

    pyiceberg would take those of the other parts for the bounds of the whole file.
    """
    ids = parquet_path_to_id_mapping(schema)
    groups = map(metadata.row_group, range(metadata.num_row_groups))
    columns = (group.column(at) for group in groups for at in range(metadata.num_columns))
    return {
        ids[column.path_in_schema]
        for column in columns
        if (found := column.statistics) is None or (not found.has_min_max and found.num_values)
    }


def files_older_than(table: Table, timestamp_ms: int) -> Iterator[str]:
    """List the files in the table's places that were written before a moment."""
    reader = PyArrowFileIO(table.io.properties)
    provider = table.location_provider()
    own = _plain(table.location())
    places = {
        path: place
        for place in (table.location(), provider.data_path, provider.metadata_path)
        # What lies elsewhere may be of other tables, too.
        if (path := _plain(place)) == own or path.startswith(f"{own}/")
    }
    for path, place in places.items():
        if any(path.startswith(f"{other}/") for other in places):
            continue
        scheme, host, _ = reader.parse_location(place)
        selector = FileSelector(path, recursive=True, allow_not_found=True)
        for found in reader.fs_by_scheme(scheme, host).get_file_info(selector):
            written_ns = found.mtime_ns
            if found.type == FileType.File and written_ns and written_ns < timestamp_ms * 1_000_000:
                yield found.path if scheme == "file" else f"{scheme}://{found.path}"


def _plain(path: str) -> str:
    """Return a path without the ways in which the same can be written."""
    return PyArrowFileIO.parse_location(path)[2].rstrip("/")


def unreachable(table: Table, paths: Iterable[str]) -> list[str]:
    """Return those of the paths that nothing in the table's metadata leads to."""
    metadata, io = table.metadata, table.io
    lists = {snapshot.manifest_list: snapshot for snapshot in metadata.snapshots}
    manifests = {
        manifest.manifest_path: manifest
        for snapshot in lists.values()
        for manifest in snapshot.manifests(io)
    }
    reached = {
        table.metadata_location,
        *(entry.metadata_file for entry in metadata.metadata_log),
        *(file.statistics_path for file in metadata.statistics),
        *(file.statistics_path for file in metadata.partition_statistics),
        *lists,
        *manifests,
        *(file.file_path for file in live_files(io, list(manifests.values()))),
    }
    plain = set(map(_plain, reached))
    return [path for path in paths if _plain(path) not in plain]
