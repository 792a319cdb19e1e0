"""The Iceberg table that keeps a stream's rows: rows and note are one snapshot of it.

iceberg_catalog: load the table → iceberg_log: where does it stand? → iceberg_files: look up,
write anew the files that change, stage a snapshot → iceberg_catalog: commit on just that table
"""

from __future__ import annotations

import datetime as dt
import math
import random
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from functools import cached_property, partial
from itertools import accumulate, chain, count, groupby, islice, pairwise
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from oncelake.ingestion.errors import (
    DamagedTableError,
    MissingRightError,
    RefusedError,
    RewindError,
    SinkUnavailableError,
    TableBusyError,
    TableSettingsError,
    counted,
    first_line,
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
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import MAIN_BRANCH, SnapshotRef
from pyiceberg.table.snapshots import ADDED_RECORDS, Operation, Snapshot
from pyiceberg.table.update import (
    AddSchemaUpdate,
    RemoveSnapshotRefUpdate,
    RemoveSnapshotsUpdate,
    SetCurrentSchemaUpdate,
    SetPropertiesUpdate,
    TableUpdate,
)
from pyiceberg.table.update.schema import UpdateSchema
from pyiceberg.typedef import EMPTY_DICT

from oncelake.ingestion.declaration.ddl import DeclaredColumn
from oncelake.ingestion.declaration.partitions import DeclaredPartition
from oncelake.ingestion.declaration.sinks import REBUILD, SINKS, IcebergSink
from oncelake.ingestion.declaration.types import SqlType
from oncelake.ingestion.settings import Settings
from oncelake.ingestion.sinks.files import (
    TARGET_BYTES,
    FilesTransaction,
    Mask,
    discarding,
    refuse_other_rows,
)
from oncelake.ingestion.sinks.iceberg import branches, files, names, partitions, sorting
from oncelake.ingestion.sinks.iceberg import log as snapshots
from oncelake.ingestion.sinks.iceberg.branches import id_of
from oncelake.ingestion.sinks.iceberg.catalog import CatalogEntry, OvertakenError, ShownTable
from oncelake.ingestion.sinks.iceberg.files import (
    IcebergFileWriter,
    LiveFile,
    PartitionedFileWriter,
    StagedSnapshot,
)
from oncelake.ingestion.sinks.iceberg.partitions import Partitioning, Values, values_of
from oncelake.ingestion.sinks.iceberg.sorting import sorting_of
from oncelake.ingestion.sinks.sorting import Sorting
from oncelake.ingestion.storage.failpoints import Failpoint, hit
from oncelake.ingestion.storage.location import Location
from oncelake.ingestion.tables.commit_log import (
    DELETED,
    INSERTED,
    UPDATED,
    Commit,
    CommitLog,
    operation_of,
)
from oncelake.ingestion.tables.commit_metadata import CommitMetadata
from oncelake.ingestion.tables.table import (
    REPLACED,
    BranchingTable,
    Change,
    ErasableTable,
    Layout,
    MarkableTable,
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
    "write.parquet.compression-codec": "zstd",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
}
# By these readers and other writers know how rows go.
_MODES: Final = [f"write.{act}.mode" for act in ("delete", "update", "merge")]
_MARKING: Final = "merge-on-read"
_REWRITING: Final = "copy-on-write"
# How often a commit is made again where only the other branch has gone on meanwhile.
_TRIES: Final = 20
# Seconds, before a commit is tried again.
_WAITED: Final = (0.05, 0.5)
# Of how many of the newest batches it is counted what they have copied.
_BATCHES_MEASURED: Final = 10
# Bytes of files whose rows upkeep sorts together.
_MOST_SORTED: Final = 1 << 30
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


class IcebergTable(NamedTable, ErasableTable, RewindableTable, BranchingTable, MarkableTable):
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

        One that has rows, and is not ours, stays as it is, unless they are adopted. Two may do this
        at once.
        """
        entry, ours = self._entry, {snapshots.STREAM: self.stream}
        schema = _schema(wanted.columns, wanted.keys)
        properties = {
            **_PROPERTIES,
            **_modes(is_marking=wanted.deletion_vectors),
            "comment": wanted.description,
        }
        with entry.session() as catalog:
            entry.make_namespace(catalog)
            table = catalog.create_table_if_not_exists(
                entry.identifier,
                schema=names.for_spark(schema) if entry.is_for_spark else schema,
                location=entry.new_location(),
                partition_spec=partitions.specification(schema, wanted.partitions),
                sort_order=sorting.specified(schema, wanted.sort_by),
                # The table of a branch is in one that may be nobody's.
                properties={
                    **properties,
                    "format-version": str(_FORMAT),
                    **({} if entry.part else ours),
                },
            )
        if entry.part:
            self._create_in_branch(wanted, {**properties, **ours})
            return
        is_taken = bool(wanted.keeps_rows) or self.log().is_empty
        if snapshots.STREAM not in table.properties and is_taken:
            entry.commit(entry.loaded(), [SetPropertiesUpdate(updates=ours)])
        entry.table_id = id_of(table.metadata)

    def _create_in_branch(self, wanted: TableDefinition, properties: Mapping[str, str]) -> None:
        """Make the table of a branch: columns that the whole has as well keep their ids."""
        entry, whole = self._entry, self._entry.at("")
        table = whole.loaded()
        if not table.metadata.snapshots:
            # Without one, a catalog of pyiceberg's has no branches.
            staged = StagedSnapshot(table)
            whole.commit(table, staged.write(Operation.REPLACE), staged.snapshot_id)
            table = whole.loaded()
        past = table.metadata
        if branches.shown(past, entry.ref) is None:
            _branch_of(table, entry.ref, entry)
            schema = _schema(wanted.columns, wanted.keys, past)
            known = [each.schema_id for each in past.schemas if each == schema]
            spec = partitions.specification(schema, wanted.partitions, past)
            own = {**properties, branches.TABLE_ID: str(uuid.uuid4())}
            updates = (
                *branches.removed(past, entry.ref),
                *(() if known else (AddSchemaUpdate(schema_=schema),)),
                SetCurrentSchemaUpdate(schema_id=known[-1] if known else schema.schema_id),
                *partitions.divided_by(spec, past),
                *sorting.sorted_by(sorting.specified(schema, wanted.sort_by), past),
                SetPropertiesUpdate(updates=own),
            )
            entry.commit(table, updates)
        entry.table_id = id_of(entry.loaded().metadata)

    def configure(self, *, deletion_vectors: bool) -> None:
        """Set Iceberg's own properties, by which rows are marked; name columns as is declared."""
        table = self._entry.loaded(as_stored=True)
        updates = [*names.renaming(table.metadata, is_for_spark=self._entry.is_for_spark)]
        if deletion_vectors != _is_marking(table):
            updates.append(SetPropertiesUpdate(updates=_modes(is_marking=deletion_vectors)))
        if updates:
            self._entry.commit(table, updates)

    def rewritten(self, log: CommitLog) -> tuple[int, int]:
        """Take what the summaries say."""
        table = self._entry.load()
        if table is None or _is_marking(table):
            return 0, 0
        past = snapshots.by_version(table.metadata)
        ours = (e for e in log.newest_first() if e.metadata is not None and e.version in past)
        batches = [*islice(ours, _BATCHES_MEASURED)]
        counts = [each.metrics for each in batches]
        added = (
            snapshots.summary_of(past[each.version]).get(ADDED_RECORDS, "0") for each in batches
        )
        new = sum(of.get(name, 0) for of in counts for name in (INSERTED, UPDATED))
        changed = sum(of.get(name, 0) for of in counts for name in (UPDATED, DELETED))
        return max(0, sum(map(int, added)) - new), changed

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

    def sort_by(self) -> tuple[str, ...]:
        """Return the table's current sort order."""
        table = self._entry.loaded()
        return sorting.declared(table.schema(), table.sort_order())

    def _is_ours(self, table: Table | None) -> bool:
        return table is not None and table.properties.get(snapshots.STREAM) == self.stream

    def set_aside(self, entry: str, *, is_replaced: bool = False) -> str | None:
        """Rename the table in its catalog; where a branch replaces it, a tag keeps it."""
        own = self._entry
        if is_replaced:
            return self._swap(own.at(f"tag_{branches.TAG}{entry.lower()}"))
        table, aside = own.load(), own.with_ending(f"__{entry.lower()}")
        if self._is_ours(table) and not aside.load():
            own.rename(aside)
        return aside.name if aside.load() else None

    def _swap(self, aside: CatalogEntry) -> str | None:
        """Let the branch of a rebuild take the table's place, unless it has.

        Raises:
            RefusedError: the catalog does not let it. Nothing was changed.
            SinkUnavailableError: it cannot be seen whether it has.
        """
        own = self._entry
        try:
            table = own.load()
            is_there = bool(table and branches.shown(table.stored, REBUILD))
            if table and is_there:
                tag = aside.ref if self._is_ours(table) or not self.log().is_empty else None
                self._commit_swap(table, tag)
            return aside.name if aside.load() else None
        except (MissingRightError, DamagedTableError) as error:
            # A swap is given up where it is refused, and it may have been made.
            raise SinkUnavailableError(str(error)) from error

    def _commit_swap(self, table: ShownTable, tag: str | None) -> None:
        try:
            self._entry.commit(table, (*branches.swapped(table.stored, tag),))
        except SinkUnavailableError as error:
            raise RefusedError(
                self.stream,
                f"{self.where}: the catalog does not let the new table take the place of the old "
                f"({first_line(error)}). Nothing was changed.",
                remedy="let it set branches, tags and properties; then run the same command again",
            ) from error

    def drop_archived(self, entry: str) -> None:
        """Remove the tag that a rebuild has given it, if it has."""
        IcebergTable(self._entry.at(f"tag_{branches.TAG}{entry.lower()}")).drop()

    def drop(self) -> None:
        """Remove the table from its catalog, and its files."""
        entry, table = self._entry, self._entry.load()
        if not self._is_ours(table):
            return
        if entry.part:
            self._drop_ref()
            return
        with entry.session() as catalog:
            catalog.purge_table(entry.identifier)

    def _drop_ref(self) -> None:
        """Remove a branch or tag, and what only it leads to.

        It goes first: as long as it is there, a swap may make it the table.
        """
        entry, whole = self._entry, self._entry.at("")
        table = whole.loaded()
        own = {each.snapshot_id for each in snapshots.history(table.metadata, entry.ref)}
        entry.commit(table, (*branches.removed(table.metadata, entry.ref),))
        table = whole.loaded()
        metadata = table.metadata
        past = (snapshots.history(metadata, name) for name in metadata.refs)
        own &= {each.snapshot_id for each in metadata.snapshots}
        own -= {each.snapshot_id for each in chain.from_iterable(past)}
        with entry.translated():
            kept = self._reachable(
                table, [s for s in metadata.snapshots if s.snapshot_id not in own]
            )
            led = files.reachable(table, [s for s in metadata.snapshots if s.snapshot_id in own])
            gone = [path for plain, path in reversed(led.items()) if plain not in kept]
            files.delete_files(table.io, gone)
        if own:
            whole.commit(table, [RemoveSnapshotsUpdate(snapshot_ids=sorted(own))])

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
            for batch in files.read_living(table, file, columns):
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

    def maintain(
        self,
        window: dt.timedelta,
        target_bytes: int = TARGET_BYTES,
        *,
        is_clustered: bool = False,
    ) -> dict[str, int]:
        """Put small files together, expire old snapshots, delete files that nothing leads to.

        Our newest commit stays, whatever its age, and everything since; what is younger than a day
        is no orphan. Needs the lock: a commit that runs on the while may bring back a file that is
        deleted here.
        """
        compacted, written = self._compact(target_bytes, is_clustered=is_clustered)
        now = time.time()
        expired = self._expire(now - window.total_seconds())
        deleted = self._delete_orphans(now - max(window, _ORPHAN_AGE).total_seconds())
        return {"compacted": compacted, "written": written, "expired": expired, "deleted": deleted}

    def drop_branch(self, branch: str) -> None:
        """Remove the reference; what only it leads to expires with older snapshots."""
        table = self._entry.load()
        if table is not None and _branch_of(table, branch, self._entry):
            self._entry.commit(table, [RemoveSnapshotRefUpdate(ref_name=branch)])

    def _compact(self, target_bytes: int, *, is_clustered: bool) -> tuple[int, int]:
        last = self.log().last_seq(self.stream)
        begun = self.begin(0 if last is None else last + 1)
        with begun.translated():
            by_partition = defaultdict[tuple[int, Values], list[LiveFile]](list)
            for file in begun.files:
                by_partition[_place_of(file)].append(file)
            # One partition after the other: few files are open at a time.
            groups = [
                group
                for alike in by_partition.values()
                for group in begun.groups(alike, target_bytes, is_clustered=is_clustered)
            ]
            chosen = sum(map(len, groups))
            return chosen, begun.rewrite(groups, target_bytes, begun.order) if chosen else 0

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
            # A rebuild may have begun behind the erase.
            new = snapshots.history(table.metadata, REBUILD)
            kept = self._reachable(table, [*snapshots.needed(table.metadata), *new])
            older = reversed(files.reachable(table).values())
            removed = dict.fromkeys(p for p in chain(older, written) if files.plain(p) not in kept)
            for path in removed:
                with suppress(FileNotFoundError):
                    table.io.delete(path)
            if entry.folder is not None:
                files.remove_empty_folders(table)
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


def _place_of(file: LiveFile) -> tuple[int, Values]:
    """Return the partition of a file, and by which specification it is one."""
    return file.data.spec_id, values_of(file.data)


def _modes(*, is_marking: bool) -> dict[str, str]:
    return dict.fromkeys(_MODES, _MARKING if is_marking else _REWRITING)


def _is_marking(table: Table) -> bool:
    return table.properties.get(_MODES[-1]) == _MARKING


def _shape_of(table: Table) -> tuple[Any, ...]:
    """Return all that a commit must fit, but for the files."""
    metadata = table.metadata
    ids = (id_of(metadata), metadata.current_schema_id, metadata.default_spec_id)
    return *ids, metadata.format_version, _is_marking(table)


def _numbers_of(table: ShownTable) -> tuple[int, ...]:
    """Return which numbers columns, schemas, partitions and orders have in the whole table."""
    stored = table.stored
    of_layout = len(stored.partition_specs), len(stored.sort_orders)
    return stored.last_column_id, len(stored.schemas), *of_layout


def _of_today(table: ShownTable) -> ShownTable:
    """Return a table without its earlier partitions: pyiceberg compares new columns with them."""
    specs = {"partition_specs": [table.spec()]}
    return ShownTable(table, table.metadata.model_copy(update=specs))


def _schema(
    columns: Sequence[DeclaredColumn], keys: Sequence[str], past: TableMetadata | None = None
) -> Schema:
    """Return columns by Iceberg's types.

    Args:
        past: Of a table that is there, whose columns of the same names and types are the same ones;
            any other gets a number that no file has.
    """
    old = {field.name: field for field in past.schema().fields} if past else {}
    stored = {column.name: _KIND.stored_type(column.type) for column in columns}
    same = {
        name: old[name]
        for name, type_ in stored.items()
        if name in old and _sql_type(old[name].field_type) == type_
    }
    ids = count(past.last_column_id + 1 if past else 1)
    numbers = {name: same[name].field_id if name in same else next(ids) for name in stored}
    fields = [
        iceberg.NestedField(
            numbers[name := column.name],
            name,
            same[name].field_type if name in same else _iceberg_type(stored[name], ids),
            required=not column.nullable,
            doc=column.comment or None,
        )
        for column in columns
    ]
    past_id = max((each.schema_id for each in past.schemas), default=-1) if past else -1
    identifiers = [field for field in fields if field.name in keys]
    # Iceberg takes none that may be null, and no floats.
    floats = iceberg.FloatType | iceberg.DoubleType
    if any(field.optional or isinstance(field.field_type, floats) for field in identifiers):
        identifiers = []
    return Schema(
        *fields,
        schema_id=past_id + 1,
        identifier_field_ids=[field.field_id for field in identifiers],
    )


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
    if names := sorted(table.metadata.refs.keys() - {MAIN_BRANCH, REBUILD}):
        ways = f"drop them, by Spark: ALTER TABLE {entry.name} DROP BRANCH {names[0]}, or DROP TAG"
        if archived := [*filter(None, map(branches.entry_of, names))]:
            ways = f"oncelake archive prune {entry.stream} {' '.join(archived)} --yes"
        raise RefusedError(
            entry.stream,
            f"{entry.where} has other branches or tags, which keep older rows: {', '.join(names)}.",
            remedy=f"{ways}; then run the same command again",
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


class IcebergTransaction(FilesTransaction[LiveFile]):
    """One snapshot to be, on top of the one that was current when it was begun."""

    overtaken = OvertakenError

    def __init__(self, entry: CatalogEntry, seq: int) -> None:
        """Load the table that was read, which must stand at the seq before, and be writable."""
        super().__init__(entry.stream, entry.where, seq)
        table = entry.load()
        last = snapshots.last_seq(table, entry.stream)
        is_another = table and entry.table_id not in (None, id_of(table.metadata))
        if table is None or is_another or seq != (-1 if last is None else last) + 1:
            but = REPLACED if is_another else ""
            raise seq_conflict(entry.stream, entry.where, seq, last=last, but=but)
        if problem := _settings_error(entry, table):
            raise problem
        self._entry, self._table = entry, table
        # The marks of files that were looked up, a bit for each row.
        self._marked = dict[LiveFile, npt.NDArray[np.uint8]]()
        # What gives the table other columns, or lets them go, and what lays it out by those.
        self._schema: tuple[TableUpdate, ...] = ()
        self._layout: tuple[TableUpdate, ...] = ()
        # What is committed beside the table.
        self._branch: str | None = None

    @cached_property
    def files(self) -> list[LiveFile]:
        """The files of the snapshot."""
        return self._entry.data_files(self._table)

    def look_again(self) -> None:
        """Load the newest snapshot, which such as only move rows have led to."""
        # Who puts files together all the time is given some.
        time.sleep(random.uniform(*_WAITED))
        before, log = self._table, snapshots.IcebergLog(self._entry)
        if not log.exists:
            # A swap, or an erase, has taken the branch away.
            raise seq_conflict(self.stream, self.where, self.seq, last=None)
        table, since = log.since(before.metadata.current_snapshot_id)
        refuse_other_rows(self.stream, self.where, self.seq, since or ())
        last = snapshots.last_seq(table, self.stream)
        if self.seq != (-1 if last is None else last) + 1:
            # A commit of the stream may have expired, or was rolled back.
            raise seq_conflict(self.stream, self.where, self.seq, last=last)
        if since is None or _shape_of(table) != _shape_of(before):
            raise TableBusyError.meanwhile(self.stream)
        self._table = table
        self.close()
        for name in ("files", "order"):
            self.__dict__.pop(name, None)

    @property
    def marks(self) -> bool:  # type: ignore[override]
        """Tell whether rows may be marked as gone."""
        return _is_marking(self._table)

    @cached_property
    def order(self) -> Sorting | None:
        """What the rows of a file are sorted by."""
        return sorting_of(self._table)

    @cached_property
    def schema(self) -> pa.Schema:
        """The columns, without their field ids."""
        return files.arrow_schema(self._table.schema())

    def read(self, file: LiveFile, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Read by field ids."""
        return files.read_file(self._table, file.data, _selected(self._table.schema(), names))

    def measure(self, file: LiveFile) -> tuple[int, int]:
        """Ask the manifest."""
        return file.data.record_count, file.data.file_size_in_bytes

    def count(self, file: LiveFile) -> int:
        """Leave out what its delete files mark."""
        return files.count_in(self._table.io, file)

    def gone(self, file: LiveFile) -> Mask | None:
        """Read its delete files, once."""
        if file not in self._marked:
            is_gone = files.gone_in(self._table.io, file)
            if is_gone is None:
                return None
            self._marked[file] = np.packbits(is_gone)
        return np.unpackbits(self._marked[file], count=self.measure(file)[0]).astype(np.bool_)

    def close(self) -> None:
        """Forget what marks rows, too."""
        super().close()
        self._marked.clear()

    def bounds(self, name: str) -> Callable[[LiveFile], tuple[Any, Any]] | None:
        """Ask the manifest."""
        field = self._table.schema().find_field(name)
        if not isinstance(field.field_type, files.ORDERED):
            return None
        return partial(files.bounds_of, field=field)

    def is_due(self, file: LiveFile) -> bool:
        """Tell whether a file is not in the table's order, or has too many rows that are gone."""
        order_id = self._table.sort_order().order_id if self.order else None
        is_sorted = order_id in (None, file.data.sort_order_id)
        return not is_sorted or bool(file.deletes and self.is_worn(file))

    def groups(
        self, alike: Sequence[LiveFile], target_bytes: int, *, is_clustered: bool
    ) -> list[list[LiveFile]]:
        """Return the files of a partition that upkeep writes anew, by what it sorts together.

        These are small, unsorted, have too many marked rows, or overlap others.
        """
        if is_clustered:
            columns = sorting.declared(self._table.schema(), self._table.sort_order())
            return self.to_cluster(alike, columns, target_bytes)
        small = {*self.mergeable(alike, target_bytes * 3 // 4, target_bytes)}
        chosen = [file for file in alike if file in small or self.is_due(file)]
        if self.order is None:
            return [chosen]
        read = accumulate(self.measure(file)[1] for file in chosen)
        together = zip(chosen, (size // _MOST_SORTED for size in read), strict=True)
        return [[file for file, _ in some] for _, some in groupby(together, lambda each: each[1])]

    def open_writer(self, target_bytes: int = TARGET_BYTES) -> IcebergFileWriter:
        """Write into the table's folder, or into those of its partitions."""
        is_divided = not self._table.spec().is_unpartitioned()
        kind = PartitionedFileWriter if is_divided else IcebergFileWriter
        return kind(self._table, target_bytes, marks=self.marks)

    def searched(self, keys: pa.Table) -> list[int]:
        """Leave out the files of partitions in which no row of the keys can be."""
        table, numbers = self._table, super().searched(keys)
        schema, specs = table.schema(), table.specs()
        of = {id_: Partitioning(schema, specs[id_]).wanted(keys) for id_ in specs}
        return [
            number
            for number in numbers
            if (is_wanted := of[self.files[number].data.spec_id]) is None
            or is_wanted(self.files[number].data.partition)
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
        update = _of_today(self._table).update_schema()
        _reshape(update, self._table.schema(), layout)
        schema = update._apply()
        # Two may differ in what Spark calls a column, and be equal here: the current one is wanted.
        newest = (self._table.schema(), *reversed(self._table.metadata.schemas))
        known = (each.schema_id for each in newest if each == schema)
        schema_id = next(known, None)
        if schema_id is None:
            self._schema, schema_id = (AddSchemaUpdate(schema_=schema),), schema.schema_id
        if layout.partitions is not None:
            past = self._table.metadata
            spec = partitions.specification(schema, layout.partitions, past)
            self._layout = partitions.divided_by(spec, past)
        if layout.sort_by is not None:
            order = sorting.specified(schema, layout.sort_by)
            self._layout += sorting.sorted_by(order, self._table.metadata)
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
        by = {field.source_id for field in self._table.sort_order().fields}
        if lost := [f.name for f in schema.fields if f.field_id in by and f.name not in kept]:
            raise NotImplementedError(f"its rows are sorted by {lost[0]}")

    def stage(self, change: Change, metadata: CommitMetadata, branch: str) -> None:
        """Commit a change to a branch, without a note."""
        if self._entry.part:
            return  # Of a table that nobody reads yet, nobody judges a batch.
        self._branch = branch
        self.commit(change, metadata)

    def commit_moved(self, added: Collection[LiveFile], removed: Collection[LiveFile]) -> None:
        """Commit a snapshot without a note, and without delete files that mark nothing any more."""
        entry, table = self._entry, self._table
        marking = {delete for file in self.files for delete in file.deletes}
        current = table.current_snapshot()
        manifests = current.manifests(table.io) if current else []
        idle = {*entry.delete_files(table, manifests)} - marking
        stage = partial(self._staged, added, removed, also_removed=idle)
        self._commit_staged(stage, lambda staged: staged.write(Operation.REPLACE))

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
                self._schema += sorting.sorted_as_of(schema, table.metadata)
            for file in then - now:
                for path in (each.file_path for each in file.all):
                    if not table.io.new_input(path).exists():
                        raise self._gone(f"{path} is missing")
            writer = self.open_writer()
            with discarding(writer.discard, *self.refusals):
                self.commit_files(
                    metadata,
                    counts=counts_of(None),
                    added=[self._marked_again(file, writer) for file in then - now],
                    removed=now - then,
                    operation=snapshots.RESTORE,
                    schema_id=schema_id,
                )

    def _marked_again(self, file: LiveFile, writer: IcebergFileWriter) -> LiveFile:
        """Return a file that comes back with marks that do so, too.

        Those of others may be of several files, some of which never went; what comes back is newer.
        """
        is_gone = self.gone(file)
        if is_gone is None or all(files.is_ours(each.file_path) for each in file.deletes):
            return file
        return writer.marked(file, is_gone)

    def _gone(self, what: str) -> RewindError:
        stream = self._entry.stream
        return RewindError(stream, f"{self._entry.where}: {what}.", remedy=reset(stream))

    def commit_files(
        self,
        metadata: CommitMetadata,
        *,
        counts: Mapping[str, int],
        added: Collection[LiveFile],
        removed: Collection[LiveFile],
        operation: str | None = None,
        schema_id: int | None = None,
    ) -> None:
        """Commit a snapshot.

        Args:
            operation: What to call it; by default what its counts say.
            schema_id: The columns that the table has from then on; by default its own.
        """
        entry = self._entry
        if self._branch is not None:
            self._commit_aside(self._branch, added, removed)
            return
        ours = {snapshots.STREAM: entry.stream, snapshots.SEQ: str(self.seq)}
        summary = {
            **ours,
            branches.TABLE_ID: id_of(self._table.metadata),
            snapshots.NOTE: metadata.to_json(),
            snapshots.OPERATION: operation or operation_of(counts),
            **{snapshots.COUNTS[name]: str(value) for name, value in counts.items()},
        }
        properties = SetPropertiesUpdate(updates={**ours, snapshots.EPOCH: str(metadata.epoch)})
        kind = Operation.OVERWRITE if removed else Operation.APPEND

        def updates(staged: StagedSnapshot) -> Sequence[TableUpdate]:
            # What a rebuild has made has the rows that are erased.
            gone = branches.removed(self._table.stored, REBUILD) if self.is_erase else ()
            return (*self._schema, *staged.write(kind, schema_id), *self._layout, properties, *gone)

        try:
            self._commit_staged(partial(self._staged, added, removed, summary), updates)
        except TableBusyError as error:
            # Another run of the stream may have changed it.
            last = snapshots.last_seq(entry.load(), entry.stream)
            if last is not None and last >= self.seq:
                raise seq_conflict(entry.stream, entry.where, self.seq, last=last) from error
            raise

    def _commit_staged(
        self,
        stage: Callable[[], StagedSnapshot],
        updates: Callable[[StagedSnapshot], Sequence[TableUpdate]],
    ) -> None:
        """Commit a snapshot, whose number is the next of all branches; again, if that was taken.

        Data files stay as they are then.
        """
        for tries_left in reversed(range(_TRIES)):
            staged = stage()
            try:
                with discarding(staged.discard, *self.refusals):
                    self._entry.commit(self._table, updates(staged), staged.snapshot_id)
                    return
            except OvertakenError:
                table, before = self._entry.load(), self._table
                heads = {each.metadata.current_snapshot_id for each in (table, before) if each}
                if not (tries_left and table and len(heads) == 1):
                    raise
                is_numbered = bool(self._schema or self._layout)
                is_taken = is_numbered and _numbers_of(table) != _numbers_of(before)
                if is_taken or _shape_of(table) != _shape_of(before):
                    raise
                self._table = table
                time.sleep(random.uniform(0, _WAITED[0]))

    def _staged(
        self,
        added: Collection[LiveFile],
        removed: Collection[LiveFile],
        properties: Mapping[str, str] = EMPTY_DICT,
        *,
        also_removed: Collection[DataFile] = (),
    ) -> StagedSnapshot:
        """Stage what is in one and not in the other: a file that is marked stays as it is.

        Marks of others may be of several files, and stay as long as one of these does.
        """
        going, coming = set(removed), {each for file in added for each in file.all}
        kept = set[DataFile]()
        if any(file.deletes for file in going):
            kept = {each for file in self.files if file not in going for each in file.deletes}
        before = {each for file in removed for each in file.all} - kept
        return StagedSnapshot(
            self._table,
            added=coming - before,
            removed=(before - coming) | {*also_removed},
            properties=properties,
            # A partition is a value, and in the names of files that go.
            is_silent=self.is_erase,
        )

    def _commit_aside(
        self, branch: str, added: Collection[LiveFile], removed: Collection[LiveFile]
    ) -> None:
        """Commit a snapshot to a branch; the table's own, and what it says of itself, stay."""
        said = {snapshots.WITHHELD: self._entry.stream}
        kind = Operation.OVERWRITE if removed else Operation.APPEND

        def updates(staged: StagedSnapshot) -> Sequence[TableUpdate]:
            _branch_of(self._table, branch, self._entry)
            *others, to_main = staged.write(kind)
            return *others, to_main.model_copy(update={"ref_name": branch})

        self._commit_staged(partial(self._staged, added, removed, said), updates)
