"""The Iceberg table that keeps a stream's rows: rows and note are one snapshot of it.

iceberg_catalog: load the table → iceberg_log: where does it stand? → iceberg_files: look up,
write anew the files that change, stage a snapshot → iceberg_catalog: commit on just that table
"""

from __future__ import annotations

import datetime as dt
import math
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from functools import cached_property, partial
from itertools import chain, count, pairwise
from typing import Any, Final

import pyarrow as pa

from oncelake.ingestion.errors import (
    RefusedError,
    RewindError,
    TableBusyError,
    TableSettingsError,
    counted,
    not_installed,
    reset,
)

try:
    import pyiceberg.catalog.sql  # noqa: F401
except ImportError as error:
    raise not_installed("iceberg") from error

from pyiceberg import types as iceberg
from pyiceberg.manifest import DataFile
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.refs import MAIN_BRANCH, SnapshotRef
from pyiceberg.table.snapshots import Operation, Snapshot
from pyiceberg.table.update import (
    AddSchemaUpdate,
    RemoveSnapshotRefUpdate,
    RemoveSnapshotsUpdate,
    SetPropertiesUpdate,
    TableUpdate,
)
from pyiceberg.table.update.schema import UpdateSchema
from sqlalchemy.exc import SQLAlchemyError

from oncelake.ingestion.declaration.ddl import DeclaredColumn
from oncelake.ingestion.declaration.partitions import DeclaredPartition
from oncelake.ingestion.declaration.sinks import BESIDE, SINKS, IcebergSink
from oncelake.ingestion.declaration.types import SqlType
from oncelake.ingestion.settings import Settings
from oncelake.ingestion.sinks.files import TARGET_BYTES, FilesTransaction, discarding
from oncelake.ingestion.sinks.iceberg import files, partitions
from oncelake.ingestion.sinks.iceberg import log as snapshots
from oncelake.ingestion.sinks.iceberg.catalog import CatalogEntry
from oncelake.ingestion.sinks.iceberg.files import IcebergFileWriter, PartitionedFileWriter
from oncelake.ingestion.sinks.iceberg.partitions import Partitioning, Values, values_of
from oncelake.ingestion.storage.failpoints import Failpoint, hit
from oncelake.ingestion.storage.location import Location
from oncelake.ingestion.tables.commit_log import Commit, CommitLog, operation_of
from oncelake.ingestion.tables.commit_metadata import CommitMetadata
from oncelake.ingestion.tables.table import (
    REPLACED,
    BranchingTable,
    Change,
    ErasableTable,
    Layout,
    NamedTable,
    RewindableTable,
    TableDefinition,
    counts_of,
    seq_conflict,
    since,
)

_KIND: Final = SINKS["iceberg"]
_FORMAT: Final = 2
# Every commit writes all metadata anew, notes included: a few of the older are enough.
_PROPERTIES: Final = {
    "format-version": str(_FORMAT),
    "write.parquet.compression-codec": "zstd",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
}
# No run takes so long, so that nothing younger is an orphan.
_ORPHAN_AGE: Final = dt.timedelta(days=1)
_TYPES: Final[dict[str, iceberg.PrimitiveType]] = {
    "BOOLEAN": iceberg.BooleanType(),
    "INT": iceberg.IntegerType(),
    "BIGINT": iceberg.LongType(),
    "FLOAT": iceberg.FloatType(),
    "DOUBLE": iceberg.DoubleType(),
    "STRING": iceberg.StringType(),
    "BINARY": iceberg.BinaryType(),
    "DATE": iceberg.DateType(),
    "TIMESTAMP": iceberg.TimestamptzType(),
    "TIMESTAMP_NTZ": iceberg.TimestampType(),
}
_WORDS: Final = {type_: word for word, type_ in _TYPES.items()}


def open_table(stream: str, sink: IcebergSink, settings: Settings, lake: Location) -> IcebergTable:
    """Open a stream's table; it need not be there."""
    del settings
    return IcebergTable(CatalogEntry.of(stream, sink, lake))


class IcebergTable(NamedTable, ErasableTable, RewindableTable, BranchingTable):
    """A stream's Iceberg table; see ``SinkTable``."""

    def __init__(self, entry: CatalogEntry) -> None:
        self._entry, self.stream = entry, entry.stream

    @property
    def where(self) -> str:
        """Name the table, and its catalog."""
        return self._entry.where

    @property
    def uri(self) -> str:
        """Name the table's folder, or, where there is no table yet, what it will be called."""
        table = self._entry.load()
        return table.location() if table else f"iceberg:{self._entry.name}"

    def log(self) -> snapshots.IcebergLog:
        """Open the log."""
        return snapshots.IcebergLog(self._entry)

    def create(self, wanted: TableDefinition) -> None:
        """Make the table, or take an empty one that somebody made beforehand.

        One that has rows, and is not ours, stays as it is. Two may do this at once.
        """
        entry, ours = self._entry, {snapshots.STREAM: self.stream}
        schema = _schema(wanted.columns, wanted.keys)
        with entry.session() as catalog:
            try:
                catalog.create_namespace_if_not_exists(entry.identifier[:-1])
            except SQLAlchemyError:
                # Of two who make it at once, SQLite refuses the second.
                catalog.create_namespace_if_not_exists(entry.identifier[:-1])
            table = catalog.create_table_if_not_exists(
                entry.identifier,
                schema=schema,
                location=entry.new_location(),
                partition_spec=partitions.specification(schema, wanted.partitions),
                properties={**_PROPERTIES, **ours, "comment": wanted.description},
            )
        if snapshots.STREAM not in table.properties and self.log().is_empty:
            entry.commit(table, [SetPropertiesUpdate(updates=ours)])
        entry.table_id = table.metadata.table_uuid

    def columns(self) -> tuple[DeclaredColumn, ...]:
        """Return the columns of the table's current schema."""
        return tuple(
            DeclaredColumn(
                name=field.name,
                type=_sql_type(field.field_type),
                nullable=field.optional,
                comment=field.doc or "",
            )
            for field in self._entry.loaded().schema().fields
        )

    def partitions(self) -> tuple[DeclaredPartition, ...]:
        """Return the table's current specification, but for fields that are always null."""
        table = self._entry.loaded()
        return partitions.declared(table.schema(), table.spec())

    def _is_ours(self, table: Table | None) -> bool:
        return table is not None and table.properties.get(snapshots.STREAM) == self.stream

    def set_aside(self, entry: str, *, is_replaced: bool = False) -> str | None:
        """Rename the tables in their catalog, one after the other; notes are in them."""
        own, table = self._entry, self._entry.load()
        aside, beside = own.with_ending(f"__{entry.lower()}"), own.with_ending(BESIDE)
        is_done = is_replaced and beside.load() is None
        is_taken = self._is_ours(table) or is_replaced
        if table and is_taken and not aside.load() and not is_done:
            own.rename(aside)
        if is_replaced and not is_done:
            beside.rename(own)
        return aside.name if aside.load() else None

    def drop(self) -> None:
        """Remove the table from its catalog, and its files."""
        if self._is_ours(self._entry.load()):
            with self._entry.session() as catalog:
                catalog.purge_table(self._entry.identifier)

    def begin(self, seq: int) -> IcebergTransaction:
        """Load the table, and make sure that it stands at the seq before."""
        return IcebergTransaction(self._entry, seq)

    def scan(
        self, names: Sequence[str], version: int | None = None, *, since_seq: int | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Yield rows file by file; a column that was not there then is null."""
        table = self._entry.loaded()
        snapshot = None if version is None else self._at(table, version)
        columns = _selected(table.schema(), names)
        for file in self._entry.data_files(table, snapshot):
            for batch in files.read_file(table.io, file, columns):
                yield since(batch, since_seq)

    def rows_of_seq(self, seq: int, *, commit: Commit) -> int:
        """Count, in the files that statistics on ``_seq`` leave."""
        table = self._entry.loaded()
        with self._entry.translated():
            return table.scan(
                row_filter=f"_seq = {seq}",
                selected_fields=("_seq",),
                snapshot_id=self._at(table, commit.version).snapshot_id,
            ).count()

    def _at(self, table: Table, version: int) -> Snapshot:
        if snapshot := snapshots.by_version(table.metadata).get(version):
            return snapshot
        raise self._entry.damaged(f"version {version} has expired, or was rolled back")

    def notes(self, through: int) -> Iterator[tuple[int, int | None, str | None]]:
        """Read the summaries of the snapshots."""
        past = snapshots.by_version(self._entry.loaded().metadata)
        for version, snapshot in reversed(past.items()):
            if version <= through:
                note = snapshots.summary_of(snapshot).get(snapshots.NOTE)
                yield version, snapshots.seq_of(snapshot), note

    def check(self, log: CommitLog) -> TableSettingsError | None:
        """Make sure that all metadata is there; on this machine, every data file, too.

        Returns a format or partitions that pyiceberg, or this sink, cannot write.
        """
        del log
        table = self._entry.loaded()
        current = table.current_snapshot()
        with self._entry.translated():
            manifests = current.manifests(table.io) if current else []
            entries = (each.fetch_manifest_entry(table.io) for each in manifests)
            for entry in chain.from_iterable(entries) if self._entry.folder else ():
                path, expected = entry.data_file.file_path, entry.data_file.file_size_in_bytes
                if (size := len(table.io.new_input(path))) != expected:
                    raise self._entry.damaged(
                        f"{path} has {counted(size, 'byte')}, and {expected:,} were committed"
                    )
        return _settings_error(self._entry, table)

    def translate_read_errors(self) -> AbstractContextManager[None]:
        """Translate that a file is missing, or is not what it should be."""
        return self._entry.translated()

    def maintain(self, window: dt.timedelta, target_bytes: int = TARGET_BYTES) -> dict[str, int]:
        """Put small files together, expire old snapshots, delete files that nothing leads to.

        Our newest commit stays, whatever its age, and everything since; what is younger than a day
        is no orphan. Needs the lock: a commit that runs on the while may bring back a file that is
        deleted here.
        """
        compacted, written = self._compact(target_bytes)
        now = time.time()
        expired = self._expire(now - window.total_seconds())
        deleted = self._delete_orphans(now - max(window, _ORPHAN_AGE).total_seconds())
        return {"compacted": compacted, "written": written, "expired": expired, "deleted": deleted}

    def drop_branch(self, branch: str) -> None:
        """Remove the reference; what only it leads to expires with older snapshots."""
        table = self._entry.load()
        if table is not None and _branch_of(table, branch, self._entry):
            self._entry.commit(table, [RemoveSnapshotRefUpdate(ref_name=branch)])

    def _compact(self, target_bytes: int) -> tuple[int, int]:
        last = self.log().last_seq(self.stream)
        begun = self.begin(0 if last is None else last + 1)
        with begun.translated():
            by_partition = defaultdict[tuple[int, Values], list[DataFile]](list)
            for file in begun.files:
                if file.file_size_in_bytes < target_bytes * 3 // 4:
                    by_partition[file.spec_id, values_of(file)].append(file)
            small = [
                file
                for alike in by_partition.values()
                if len(alike) > -(-sum(f.file_size_in_bytes for f in alike) // target_bytes)
                for file in alike
            ]
            return len(small), begun.rewrite(small, target_bytes=target_bytes) if small else 0

    def written_files(self) -> frozenset[str]:
        """Return the files in the table's folder that this program has written."""
        table = self._entry.loaded()
        with self._entry.translated():
            return frozenset(filter(files.is_ours, dict(files.files_in_folder(table))))

    def remove_older_versions(self, written: Collection[str]) -> int:
        """Delete what only older snapshots lead to, or dead commits of ours left; expire those.

        The files go first: whoever dies in between finds the rest of them by the snapshots. What
        others have written, and may be about to commit, is left to ``maintain``.
        """
        entry, table = self._entry, self._entry.loaded()
        _refuse_named(entry, table)
        with entry.translated():
            kept = self._reachable(table, snapshots.needed(table.metadata))
            older = reversed(files.reachable(table).values())
            removed = dict.fromkeys(p for p in chain(older, written) if files.plain(p) not in kept)
            for path in removed:
                with suppress(FileNotFoundError):
                    table.io.delete(path)
        hit(Failpoint.VACUUMED)
        self._expire(math.inf)
        return sum(path.endswith(".parquet") for path in removed)

    def _expire(self, before: float) -> int:
        table = self._entry.loaded()
        metadata = table.metadata
        kept = {snapshot.snapshot_id for snapshot in snapshots.needed(metadata)}
        kept |= {ref.snapshot_id for ref in metadata.refs.values()}
        expired = [
            snapshot.snapshot_id
            for snapshot in metadata.snapshots
            if snapshot.timestamp_ms < before * 1000 and snapshot.snapshot_id not in kept
        ]
        if expired:
            self._entry.commit(table, [RemoveSnapshotsUpdate(snapshot_ids=expired)])
        return len(expired)

    def _delete_orphans(self, before: float) -> int:
        table = self._entry.loaded()
        with self._entry.translated():
            # What is committed after they are listed is not among them.
            listed = [path for path, at in files.files_in_folder(table) if at < before]
            reached = self._reachable(self._entry.loaded())
            orphans = [path for path in listed if files.plain(path) not in reached]
            return files.delete_files(table.io, orphans)

    def _reachable(self, table: Table, chosen: Iterable[Snapshot] | None = None) -> set[str]:
        """Return the plain paths that some snapshots, or all, of a table lead to.

        Those of tables that were set aside, which may lie in the same folder, are among them.
        """
        others = chain.from_iterable(map(files.reachable, self._entry.set_aside()))
        return {*files.reachable(table, chosen), *others}


def _branch_of(table: Table, branch: str, entry: CatalogEntry) -> SnapshotRef | None:
    """Return a branch of the table that shows a batch, if it is there.

    Raises:
        RefusedError: it is somebody else's.
    """
    if (found := table.metadata.refs.get(branch)) is None:
        return None
    snapshot = table.snapshot_by_id(found.snapshot_id)
    if snapshot and snapshots.summary_of(snapshot).get(snapshots.WITHHELD) == entry.stream:
        return found
    raise RefusedError(
        entry.stream,
        f"{entry.where} has the branch {branch}, which somebody else has made.",
        remedy="name another one in `publish`, or drop that",
    )


def _schema(columns: Sequence[DeclaredColumn], keys: Sequence[str]) -> Schema:
    ids = count(len(columns) + 1)
    fields = [
        iceberg.NestedField(
            number,
            column.name,
            _iceberg_type(_KIND.stored_type(column.type), ids),
            required=not column.nullable,
            doc=column.comment or None,
        )
        for number, column in enumerate(columns, 1)
    ]
    identifiers = [field for field in fields if field.name in keys]
    # Iceberg takes none that may be null, and no floats.
    floats = iceberg.FloatType | iceberg.DoubleType
    if any(field.optional or isinstance(field.field_type, floats) for field in identifiers):
        identifiers = []
    return Schema(*fields, identifier_field_ids=[field.field_id for field in identifiers])


def _iceberg_type(type_: SqlType, ids: Iterator[int]) -> iceberg.IcebergType:
    """Return Iceberg's name of a type; ``ids`` are those of the fields in it."""
    parts = {name: (next(ids), _iceberg_type(part, ids)) for name, part in type_.parts.items()}
    if type_.word == "DECIMAL":
        return iceberg.DecimalType(type_.precision, type_.scale)
    if type_.word == "STRUCT":
        fields = (iceberg.NestedField(id_, name, part) for name, (id_, part) in parts.items())
        return iceberg.StructType(*fields)
    if type_.word == "ARRAY":
        [(id_, part)] = parts.values()
        return iceberg.ListType(id_, part, element_required=False)
    if type_.word == "MAP":
        (key_id, key), (value_id, value) = parts.values()
        return iceberg.MapType(key_id, key, value_id, value, value_required=False)
    return _TYPES[type_.word]


def _sql_type(type_: iceberg.IcebergType) -> SqlType:
    """Read Iceberg's type; one that no declaration has is a word of its own."""
    if isinstance(type_, iceberg.DecimalType):
        return SqlType(word="DECIMAL", precision=type_.precision, scale=type_.scale)
    if isinstance(type_, iceberg.StructType):
        parts = {field.name: _sql_type(field.field_type) for field in type_.fields}
        required = frozenset(field.name for field in type_.fields if field.required)
        return SqlType(word="STRUCT", parts=parts, required=required)
    if isinstance(type_, iceberg.ListType):
        parts = {"element": _sql_type(type_.element_type)}
        required = frozenset({"element"} if type_.element_required else ())
        return SqlType(word="ARRAY", parts=parts, required=required)
    if isinstance(type_, iceberg.MapType):
        parts = {"key": _sql_type(type_.key_type), "value": _sql_type(type_.value_type)}
        required = frozenset({"value"} if type_.value_required else ())
        return SqlType(word="MAP", parts=parts, required=required)
    assert isinstance(type_, iceberg.PrimitiveType)
    return SqlType(word=_WORDS.get(type_, str(type_).upper()))


def _selected(schema: Schema, names: Iterable[str]) -> Schema:
    """Select columns in the order of their names, which pyiceberg's ``select`` ignores."""
    return Schema(*map(schema.find_field, names))


def _refuse_named(entry: CatalogEntry, table: Table) -> None:
    """Make sure that nobody has given older snapshots a name, by which they shall stay."""
    if names := sorted(table.metadata.refs.keys() - {MAIN_BRANCH}):
        raise RefusedError(
            entry.stream,
            f"{entry.where} has other branches or tags, which keep older rows: {', '.join(names)}.",
            remedy=f"drop them, by Spark: ALTER TABLE {entry.name} DROP BRANCH {names[0]}, or DROP "
            "TAG; then run the same command again",
        )


def _settings_error(entry: CatalogEntry, table: Table) -> TableSettingsError | None:
    if table.format_version != _FORMAT:
        problem = f"is of format version {table.format_version}, and not {_FORMAT}"
    elif by := partitions.uncomputed(table.schema(), table.spec()):
        problem = f"is partitioned by {by}, of which no values are computed here"
    else:
        return None
    is_ours = table.properties.get(snapshots.STREAM) == entry.stream
    remedy = f"undo that, or {reset(entry.stream) if is_ours else _KIND.way_out}"
    return TableSettingsError(entry.stream, f"{entry.where} {problem}.", remedy=remedy)


def _widen(update: UpdateSchema, path: tuple[str, ...], found: SqlType, wider: SqlType) -> None:
    """Stage another type of what is at a path: wider types in it, and more fields, in order."""
    if not found.parts and found != wider:
        update.update_column(path, field_type=_iceberg_type(wider, count(1)))
    for name, part in found.parts.items():
        _widen(update, (*path, name), part, wider.parts[name])
    for before, name in pairwise(("", *wider.parts)):
        if name not in found.parts:
            at = (*path, name)
            update.add_column(at, _iceberg_type(wider.parts[name], count(1)))
            _ = update.move_after(at, (*path, before)) if before else update.move_first(at)


def _reshape(update: UpdateSchema, schema: Schema, layout: Layout) -> None:
    """Stage the columns that a table is to have; it knows each by its earlier name until then."""
    found = {field.name: field for field in schema.fields}
    earlier = {layout.renamed.get(each.name, each.name): each for each in layout.columns}
    for name in found.keys() - earlier.keys():
        update.delete_column(name)
    for name, column in earlier.items():
        if name not in found:
            added = _iceberg_type(column.type, count(1))
            update.add_column((name,), added, doc=column.comment or None)
            continue
        _widen(update, (name,), _sql_type(found[name].field_type), column.type)
        if column.nullable and found[name].required:
            update.make_column_optional((name,))
        if column.comment != (found[name].doc or ""):
            update.update_column((name,), doc=column.comment)
        if column.name != name:
            update.rename_column((name,), column.name)
    first, *_ = earlier
    update.move_first((first,))
    for before, name in pairwise(earlier):
        update.move_after((name,), (before,))


class IcebergTransaction(FilesTransaction[DataFile]):
    """One snapshot to be, on top of the one that was current when it was begun."""

    def __init__(self, entry: CatalogEntry, seq: int) -> None:
        """Load the table that was read, which must stand at the seq before, and be writable."""
        super().__init__(entry.stream, entry.where, seq)
        table = entry.load()
        last = snapshots.last_seq(table, entry.stream)
        is_another = table and entry.table_id not in (None, table.metadata.table_uuid)
        if table is None or is_another or seq != (-1 if last is None else last) + 1:
            but = REPLACED if is_another else ""
            raise seq_conflict(entry.stream, entry.where, seq, last=last, but=but)
        if problem := _settings_error(entry, table):
            raise problem
        self._entry, self._table = entry, table
        # What gives the table other columns, or lets them go, and what divides it anew by those.
        self._schema: tuple[TableUpdate, ...] = ()
        self._partitions: tuple[TableUpdate, ...] = ()
        # What is committed beside the table.
        self._branch: str | None = None

    @cached_property
    def files(self) -> list[DataFile]:
        """The files of the snapshot."""
        return self._entry.data_files(self._table)

    @cached_property
    def schema(self) -> pa.Schema:
        """The columns, without their field ids."""
        return files.arrow_schema(self._table.schema())

    def read(self, file: DataFile, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Read by field ids."""
        return files.read_file(self._table.io, file, _selected(self._table.schema(), names))

    def measure(self, file: DataFile) -> tuple[int, int]:
        """Ask the manifest."""
        return file.record_count, file.file_size_in_bytes

    def bounds(self, name: str) -> Callable[[DataFile], tuple[Any, Any]] | None:
        """Ask the manifest."""
        field = self._table.schema().find_field(name)
        if not isinstance(field.field_type, files.ORDERED):
            return None
        return partial(files.bounds_of, field=field)

    def open_writer(self, target_bytes: int = TARGET_BYTES) -> IcebergFileWriter:
        """Write into the table's folder, or into those of its partitions."""
        is_divided = not self._table.spec().is_unpartitioned()
        return (PartitionedFileWriter if is_divided else IcebergFileWriter)(
            self._table, target_bytes
        )

    def searched(self, keys: pa.Table) -> list[int]:
        """Leave out the files of partitions in which no row of the keys can be."""
        table, numbers = self._table, super().searched(keys)
        schema, specs = table.schema(), table.specs()
        of = {id_: Partitioning(schema, specs[id_]).wanted(keys) for id_ in specs}
        return [
            number
            for number in numbers
            if (is_wanted := of[self.files[number].spec_id]) is None
            or is_wanted(self.files[number].partition)
        ]

    def translated(self) -> AbstractContextManager[None]:
        """Translate what catalog and files raise."""
        return self._entry.translated()

    def erase(self, keys: pa.Table, metadata: CommitMetadata) -> None:
        """Do so, unless a branch or tag would keep the rows."""
        _refuse_named(self._entry, self._table)
        super().erase(keys, metadata)

    def reshape(self, layout: Layout, metadata: CommitMetadata) -> None:
        """Commit another schema or partitions with the snapshot of the note; no file changes."""
        self._refuse_drop(layout)
        update = self._table.update_schema()
        _reshape(update, self._table.schema(), layout)
        schema = update._apply()
        known = (each.schema_id for each in self._table.metadata.schemas if each == schema)
        schema_id = next(known, None)
        if schema_id is None:
            self._schema, schema_id = (AddSchemaUpdate(schema_=schema),), schema.schema_id
        if layout.partitions is not None:
            past = self._table.metadata
            spec = partitions.specification(schema, layout.partitions, past)
            self._partitions = partitions.divided_by(spec, past)
        with self.translated():
            self.commit_files(
                metadata, counts=counts_of(None), added=(), removed=(), schema_id=schema_id
            )

    def _refuse_drop(self, layout: Layout) -> None:
        """Make sure that the columns by which any file is partitioned stay."""
        schema, kept = self._table.schema(), {*layout.renamed.values()}
        kept |= {column.name for column in layout.columns}
        for spec in self._table.specs().values():
            for each in partitions.declared(schema, spec):
                if each.column in schema.column_names and each.column not in kept:
                    raise NotImplementedError(f"files of it are partitioned by {each.column}")

    def stage(self, change: Change, metadata: CommitMetadata, branch: str) -> None:
        """Commit a change to a branch, without a note."""
        _branch_of(self._table, branch, self._entry)
        self._branch = branch
        self.commit(change, metadata)

    def commit_moved(self, added: Collection[DataFile], removed: Collection[DataFile]) -> None:
        """Commit a snapshot without a note."""
        staged = files.StagedSnapshot(self._table, added=added, removed=removed)
        with discarding(staged.discard, *self.refusals):
            updates = staged.write(Operation.REPLACE)
            self._entry.commit(self._table, updates, staged.snapshot_id)

    def restore(self, version: int, metadata: CommitMetadata) -> None:
        """Commit the files of an earlier version; no row is copied."""
        entry, table = self._entry, self._table
        past = snapshots.by_version(table.metadata)
        if version not in past:
            raise self._gone(f"version {version} has expired, or was rolled back")
        with entry.translated():
            then, now = set(entry.data_files(table, past[version])), set(self.files)
            if (schema_id := past[version].schema_id) is not None:
                schema = table.schemas()[schema_id]
                self._schema = partitions.divided_as_of(schema, table.metadata)
            for file in then - now:
                if not table.io.new_input(file.file_path).exists():
                    raise self._gone(f"{file.file_path} is missing")
            self.commit_files(
                metadata,
                counts=counts_of(None),
                added=then - now,
                removed=now - then,
                operation=snapshots.RESTORE,
                schema_id=schema_id,
            )

    def _gone(self, what: str) -> RewindError:
        stream = self._entry.stream
        return RewindError(stream, f"{self._entry.where}: {what}.", remedy=reset(stream))

    def commit_files(
        self,
        metadata: CommitMetadata,
        *,
        counts: Mapping[str, int],
        added: Collection[DataFile],
        removed: Collection[DataFile],
        operation: str | None = None,
        schema_id: int | None = None,
    ) -> None:
        """Commit a snapshot.

        Args:
            operation: What to call it; by default what its counts say.
            schema_id: The columns that the table has from then on; by default its own.
        """
        entry, table = self._entry, self._table
        if self._branch is not None:
            self._commit_aside(self._branch, added, removed)
            return
        ours = {snapshots.STREAM: entry.stream, snapshots.SEQ: str(self.seq)}
        summary = {
            **ours,
            snapshots.NOTE: metadata.to_json(),
            snapshots.OPERATION: operation or operation_of(counts),
            **{snapshots.COUNTS[name]: str(value) for name, value in counts.items()},
        }
        staged = files.StagedSnapshot(table, added=added, removed=removed, properties=summary)
        properties = SetPropertiesUpdate(updates={**ours, snapshots.EPOCH: str(metadata.epoch)})
        with discarding(staged.discard, *self.refusals):
            kind = Operation.OVERWRITE if removed else Operation.APPEND
            try:
                updates = (*self._schema, *staged.write(kind, schema_id), *self._partitions)
                entry.commit(table, (*updates, properties), staged.snapshot_id)
            except TableBusyError as error:
                # Another run of the stream may have changed it.
                last = snapshots.last_seq(entry.load(), entry.stream)
                if last is not None and last >= self.seq:
                    raise seq_conflict(entry.stream, entry.where, self.seq, last=last) from error
                raise

    def _commit_aside(
        self, branch: str, added: Collection[DataFile], removed: Collection[DataFile]
    ) -> None:
        """Commit a snapshot to a branch; the table's own, and what it says of itself, stay."""
        said = {snapshots.WITHHELD: self._entry.stream}
        staged = files.StagedSnapshot(self._table, added=added, removed=removed, properties=said)
        with discarding(staged.discard, *self.refusals):
            *others, to_main = staged.write(Operation.OVERWRITE if removed else Operation.APPEND)
            to_branch = to_main.model_copy(update={"ref_name": branch})
            self._entry.commit(self._table, (*others, to_branch), staged.snapshot_id)
