"""The Iceberg table that keeps a stream's rows: rows and note are one snapshot of it.

A commit asks the catalog once, and requires of it the very snapshot, columns and table that it was
begun on: pyiceberg's own transactions would put a stale commit on top of whatever came between. The
note is in the snapshot's summary; the last seq is a property of the table, too, set by the same
commit, so that it outlives the snapshots.

A version is a snapshot's sequence number. What is seen of the past is the chain of parents of the
current snapshot: the table's list also has what somebody has rolled back.
"""

from __future__ import annotations

import datetime as dt
import json
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from functools import cached_property
from itertools import count
from pathlib import Path
from typing import Any, ClassVar, Final
from urllib.parse import urlsplit

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ingestion.declaration.ddl import DeclaredColumn
from ingestion.declaration.sinks import IcebergSink
from ingestion.declaration.sql import quoted
from ingestion.declaration.types import SqlType
from ingestion.errors import (
    CommitConflictError,
    DamagedTableError,
    DependencyError,
    InvalidSpecError,
    RefusedError,
    RewindError,
    SetupError,
    TableBusyError,
    TableSettingsError,
    counted,
    first_line,
)
from ingestion.lake.commit_log import (
    DELETED,
    INSERTED,
    UPDATED,
    Commit,
    CommitLog,
    UnknownOutcomeError,
    committed,
    unless_committed,
)
from ingestion.lake.commit_metadata import CommitMetadata, DamagedMetadataError, app_id
from ingestion.lake.data_table import Ability, Change, DataTable, Transaction
from ingestion.lake.location import Location
from ingestion.settings import Settings

try:
    from pyiceberg.catalog import Catalog, load_catalog
    from pyiceberg.catalog.sql import SqlCatalog
    from pyiceberg.exceptions import (
        BadRequestError,
        CommitFailedException,
        ForbiddenError,
        NoSuchNamespaceError,
        NoSuchTableError,
        NotInstalledError,
        RESTError,
        ServiceUnavailableError,
        TableAlreadyExistsError,
        TooManyRequestsError,
        UnauthorizedError,
    )
    from pyiceberg.manifest import DataFile
    from pyiceberg.schema import Schema
    from pyiceberg.table import Table
    from pyiceberg.table.metadata import TableMetadata, TableMetadataV1
    from pyiceberg.table.refs import MAIN_BRANCH
    from pyiceberg.table.snapshots import Operation, Snapshot
    from pyiceberg.table.update import (
        AssertCurrentSchemaId,
        AssertRefSnapshotId,
        AssertTableUUID,
        RemoveSnapshotsUpdate,
        SetCurrentSchemaUpdate,
        SetPropertiesUpdate,
        TableUpdate,
    )
    from pyiceberg.types import DoubleType, FloatType, NestedField
    from pyiceberg.utils.config import Config
    from sqlalchemy.exc import OperationalError, SQLAlchemyError

    from ingestion.lake.tables import iceberg_files as files
except ImportError as error:
    raise SetupError(
        "a stream has `sink: iceberg`, and its client is not installed. "
        "Next: pip install 'oncelake[iceberg]'"
    ) from error

_AGAIN: Final = "run the same command again"
_SEQ: Final = "oncelake.seq"
_STREAM: Final = "oncelake.stream"
_KEYS: Final = "oncelake.keys"
_NOTE: Final = "oncelake.note"
_OPERATION: Final = "oncelake.operation"
_COUNTS: Final = {
    INSERTED: "oncelake.inserted",
    UPDATED: "oncelake.updated",
    DELETED: "oncelake.deleted",
}
_DELETES_ITSELF: Final = "write.metadata.delete-after-commit.enabled"
# Every commit writes all metadata anew, notes included: a few of the older are enough.
_PROPERTIES: Final = {
    "format-version": "2",
    "write.parquet.compression-codec": "zstd",
    _DELETES_ITSELF: "true",
    "write.metadata.previous-versions-max": "20",
}
_FORMAT: Final = 2
# Of two processes that commit, one waits for the other for so long.
_SQLITE_SECONDS: Final = 60
# No run takes so long, so that nothing younger is an orphan.
_ORPHAN_AGE: Final = dt.timedelta(days=1)
_RESTORE: Final = "RESTORE"
_SHORTEST_SECRET: Final = 6
# What a catalog raises that has certainly not committed: one that is busy may do so later.
_REFUSALS: Final = (BadRequestError, UnauthorizedError, ForbiddenError)
_FAILURES: Final = (RESTError, SQLAlchemyError, OSError)


def open_table(stream: str, sink: IcebergSink, settings: Settings, lake: Location) -> IcebergTable:
    """Open a stream's table; it need not be there.

    Raises:
        InvalidSpecError: the catalog is not in pyiceberg's configuration, and the lake, which would
            have one of its own, is not on this machine.
    """
    del settings
    config = Config()
    name = sink.catalog or config.get_default_catalog_name()
    configuration = config.get_catalog_config(name)
    if configuration is None and sink.catalog:
        known = ", ".join(config.get_known_catalogs()) or "none"
        raise InvalidSpecError(
            f"{stream}: pyiceberg's configuration has no catalog {name} (it has {known}). Next: "
            f"add it to .pyiceberg.yaml, or set PYICEBERG_CATALOG__{name.upper()}__URI"
        )
    if configuration is None and not lake.is_local:
        raise InvalidSpecError(
            f"{stream}: a lake in a store has no Iceberg catalog of its own. Next: configure one "
            "for pyiceberg, by .pyiceberg.yaml or PYICEBERG_CATALOG__DEFAULT__URI"
        )
    return IcebergTable(
        _Place(
            stream=stream,
            identifier=tuple((sink.table or f"oncelake.{stream}").split(".")),
            catalog=name,
            configuration=configuration,
            folder=lake.path / ".iceberg" if configuration is None else None,
        )
    )


class _Place:
    """Where a table is, and how its catalog is spoken to."""

    def __init__(
        self,
        *,
        stream: str,
        identifier: tuple[str, ...],
        catalog: str,
        configuration: Mapping[str, Any] | None,
        folder: Path | None,
    ) -> None:
        self.stream, self.identifier, self.folder = stream, identifier, folder
        self._name, self._configuration = catalog, configuration

    @property
    def where(self) -> str:
        catalog = f"in {self.folder}" if self.folder else f"of catalog {self._name}"
        return f"{'.'.join(self.identifier)} (Iceberg, {catalog})"

    @cached_property
    def _catalog(self) -> Catalog:
        if self.folder is None:
            try:
                return load_catalog(self._name, **(self._configuration or {}))
            except (ValueError, NotInstalledError) as error:
                # What is wrong with an address may have a part of its password in it.
                is_told = isinstance(error, NotInstalledError)
                why = self.reason(error) if is_told else "its type or its uri cannot be read"
                raise InvalidSpecError(
                    f"{self.stream}: pyiceberg's configuration of catalog {self._name} is wrong: "
                    f"{why}. Next: correct it; an @ in a password is written %40"
                ) from error
        self.folder.mkdir(parents=True, exist_ok=True)
        uri = f"sqlite:///{self.folder}/catalog.db?timeout={_SQLITE_SECONDS}"
        properties = {"uri": uri, "warehouse": f"{self.folder}/warehouse"}
        try:
            return SqlCatalog("oncelake", **properties)
        except OperationalError:
            # Another process has just made the catalog's tables.
            return SqlCatalog("oncelake", **properties)

    @contextmanager
    def session(self) -> Iterator[Catalog]:
        """Speak to the catalog; no connection is left open.

        Raises:
            DependencyError: it does not answer, or what it leads to cannot be reached.
            DamagedTableError: a file that it leads to is missing.
        """
        with self.translated():
            catalog = self._catalog
            try:
                yield catalog
            finally:
                catalog.close()

    @contextmanager
    def translated(self) -> Iterator[None]:
        """Translate what the catalog, and the files that it leads to, raise."""
        try:
            yield
        except FileNotFoundError as error:
            raise self.damaged(f"a file is missing ({first_line(error)})") from error
        except pa.ArrowInvalid as error:
            raise self.damaged(f"a file cannot be read ({first_line(error)})") from error
        except _FAILURES as error:
            if isinstance(error, OSError) and self.folder:
                if error.errno is None:  # Of Parquet itself; one of the volume has a number.
                    raise self.damaged(f"a file cannot be read ({first_line(error)})") from error
                raise  # Whoever knows the volumes names the one that fails.
            raise DependencyError(
                f"{self.where} does not answer as it should: {self.reason(error)}. Next: check "
                "that the catalog and its store are up, and pyiceberg's configuration of them"
            ) from error

    def reason(self, error: Exception) -> str:
        """Say what went wrong; without anything of the configuration that may be secret."""
        text = first_line(error) or type(error).__name__
        values = [str(value) for value in (self._configuration or {}).values()]
        for value in values + [urlsplit(each).password or "" for each in values]:
            if len(value) >= _SHORTEST_SECRET:
                text = text.replace(value, "***")
        return text.rstrip(".")

    def damaged(self, what: str) -> DamagedTableError:
        return DamagedTableError(
            self.stream,
            f"{self.where} is damaged: {what}.",
            remedy="restore it from a backup; if there is none, oncelake reset "
            f"{self.stream} --yes, to ingest the topic again",
        )

    def load(self) -> Table | None:
        """Load the table as it is now; to look makes no catalog."""
        if self.folder and not (self.folder / "catalog.db").exists():
            return None
        with self.session() as catalog:
            try:
                return catalog.load_table(self.identifier)
            except (NoSuchTableError, NoSuchNamespaceError):
                return None

    def loaded(self) -> Table:
        """Load a table that must be there."""
        table = self.load()
        if table is None:
            raise FileNotFoundError(f"{self.where} is not there")
        return table

    def data_files(self, table: Table, snapshot: Snapshot | None) -> list[DataFile]:
        """List a snapshot's data files.

        Raises:
            RefusedError: rows in them are deleted by other files.
        """
        manifests = files.live_manifests(table.io, snapshot)
        if files.has_delete_files(manifests):
            raise RefusedError(
                self.stream,
                f"{self.where} has delete files, by which somebody else deletes rows without "
                "rewriting them (merge-on-read).",
                remedy=f"compact it, by Spark: CALL system.rewrite_data_files(table => "
                f"'{'.'.join(self.identifier)}', options => map('delete-file-threshold', '1')), "
                "and rewrite_position_delete_files",
            )
        return files.live_files(table.io, manifests)

    def new_location(self) -> str | None:
        """Return a folder that no table has had: one that was renamed keeps its own."""
        if self.folder is None:
            return None
        return "/".join([f"{self.folder}/warehouse", *self.identifier]) + f"-{uuid.uuid4().hex}"

    def shares_its_folder(self) -> bool:
        """Tell whether a table that was set aside may have its files beside this one's."""
        if self.folder is not None:
            return False
        with self.session() as catalog:
            names = catalog.list_tables(self.identifier[:-1])
        return any(name[-1].startswith(f"{self.identifier[-1]}__") for name in names)

    def commit(
        self, table: Table, updates: Sequence[TableUpdate], snapshot_id: int | None = None
    ) -> None:
        """Ask the catalog once to commit on top of exactly the table that was loaded.

        Args:
            snapshot_id: The snapshot that it brings, by which it is known whether it was made.

        Raises:
            TableBusyError: somebody else has changed the table. Nothing is visible.
            DependencyError: the catalog refuses. Nothing is visible.
            UnknownOutcomeError: no answer came.
        """
        try:
            with closing(self._catalog) as catalog:
                self._ask(catalog, table, updates, snapshot_id)
        except (TableBusyError, DependencyError):
            raise
        # Every catalog has its own errors; whatever it is, files are kept that it may lead to.
        except Exception as error:
            raise self._unknown(error) from error

    def _ask(
        self,
        catalog: Catalog,
        table: Table,
        updates: Sequence[TableUpdate],
        snapshot_id: int | None,
    ) -> None:
        try:
            answer = catalog.commit_table(table, _requirements(table), tuple(updates))
        except (CommitFailedException, *_REFUSALS) as error:
            if not self._has(snapshot_id):
                self._refuse(error)
        # pyiceberg cannot apply or read something, or the catalog is busy: it may have been made.
        except (NoSuchTableError, ValueError, TooManyRequestsError, ServiceUnavailableError):
            if not self._has(snapshot_id):
                raise
        else:
            _delete_old_metadata(table, answer.metadata)

    def _refuse(self, error: Exception) -> None:
        if isinstance(error, _REFUSALS):
            raise DependencyError(
                f"{self.where}: the catalog refused a commit: {self.reason(error)}. Nothing was "
                f"changed. Next: {_AGAIN}"
            ) from error
        raise TableBusyError(
            f"{self.where}: somebody else changed the table meanwhile ({self.reason(error)}). "
            f"Nothing was changed. Next: {_AGAIN}"
        ) from error

    def _has(self, snapshot_id: int | None) -> bool:
        """Tell whether a snapshot was committed although the answer says otherwise.

        Whoever asks again for what got no answer is told that the table has changed.
        """
        try:
            table = self.load()
        except Exception as error:
            raise self._unknown(error) from error
        ids = {each.snapshot_id for each in table.metadata.snapshots} if table else set()
        return snapshot_id in ids

    def _unknown(self, error: Exception) -> UnknownOutcomeError:
        return UnknownOutcomeError(
            f"{self.where}: no answer came to a commit ({self.reason(error)}). Next: {_AGAIN}, "
            "which looks first whether it was made"
        )


def _requirements(table: Table) -> tuple[Any, ...]:
    current = table.current_snapshot()
    return (
        AssertTableUUID(uuid=table.metadata.table_uuid),
        AssertRefSnapshotId(ref=MAIN_BRANCH, snapshot_id=current.snapshot_id if current else None),
        AssertCurrentSchemaId(current_schema_id=table.metadata.current_schema_id),
    )


def _delete_old_metadata(table: Table, now: TableMetadata) -> None:
    """Delete what has left the log of metadata files, which nothing else does."""
    if now.properties.get(_DELETES_ITSELF) == "true":
        before = {entry.metadata_file for entry in table.metadata.metadata_log}
        kept = {entry.metadata_file for entry in now.metadata_log}
        files.delete_files(table.io, before - kept)


class IcebergTable(DataTable):
    """A stream's Iceberg table; see ``DataTable``."""

    cannot: ClassVar[Mapping[Ability, str]] = {
        "rebuild": "a table of Iceberg that is made beside another cannot take its place yet; "
        "reset the stream instead, and the next run reads the topic into a new table",
        "erase": "older snapshots would keep the rows until they expire, and that is not done yet",
    }

    def __init__(self, place: _Place) -> None:
        self._place, self.stream = place, place.stream

    @property
    def where(self) -> str:
        """Name the table, and its catalog."""
        return self._place.where

    @property
    def uri(self) -> str:
        """Name the table's folder, or, where there is no table yet, what it will be called."""
        table = self._place.load()
        return table.location() if table else f"iceberg:{'.'.join(self._place.identifier)}"

    def log(self) -> IcebergLog:
        """Open the log."""
        return IcebergLog(self._place)

    def create(
        self, columns: Sequence[DeclaredColumn], *, keys: Sequence[str], description: str
    ) -> None:
        """Make the table, or take an empty one that somebody made beforehand.

        One that has rows, and is not ours, stays as it is. Two may do this at once.
        """
        place, properties = self._place, {_STREAM: self.stream, _KEYS: json.dumps([*keys])}
        with place.session() as catalog:
            try:
                catalog.create_namespace_if_not_exists(place.identifier[:-1])
            except SQLAlchemyError:
                # Of two who make it at once, SQLite refuses the second.
                if not catalog.namespace_exists(place.identifier[:-1]):
                    raise
            try:
                catalog.create_table(
                    place.identifier,
                    schema=self._schema(columns, keys),
                    location=place.new_location(),
                    properties={**_PROPERTIES, **properties, "comment": description},
                )
            except TableAlreadyExistsError:
                table, log = place.loaded(), self.log()
                if log.is_empty and table.properties.get(_KEYS) is None:
                    place.commit(table, [SetPropertiesUpdate(updates=properties)])

    def _schema(self, columns: Sequence[DeclaredColumn], keys: Sequence[str]) -> Schema:
        ids = count(len(columns) + 1)
        fields = [
            NestedField(
                number,
                column.name,
                files.iceberg_type(self.stored_type(column.type), ids),
                required=not column.nullable,
                doc=column.comment or None,
            )
            for number, column in enumerate(columns, 1)
        ]
        identifiers = [field for field in fields if field.name in keys]
        # Iceberg takes none that may be null, and no floats.
        if not all(_identifies(field) for field in identifiers):
            identifiers = []
        return Schema(*fields, identifier_field_ids=[each.field_id for each in identifiers])

    def columns(self) -> tuple[DeclaredColumn, ...]:
        """Return the columns of the table's current schema."""
        return tuple(
            DeclaredColumn(
                name=field.name,
                type=files.sql_type(field.field_type),
                nullable=field.optional,
                comment=field.doc or "",
            )
            for field in self._place.loaded().schema().fields
        )

    def stored_type(self, declared: SqlType) -> SqlType:
        """Return the type; Iceberg has no shorter integers and no text of limited length."""
        word = {"TINYINT": "INT", "SMALLINT": "INT", "VARCHAR": "STRING"}.get(declared.word)
        if word:
            return SqlType(word=word)
        return SqlType(
            word=declared.word,
            precision=declared.precision,
            scale=declared.scale,
            parts={name: self.stored_type(part) for name, part in declared.parts.items()},
        )

    def alteration(self, column: DeclaredColumn, *, is_new: bool) -> str:
        """Write the statement of Spark SQL."""
        table, name = f"ALTER TABLE {'.'.join(self._place.identifier)}", quoted(column.name)
        if not is_new:
            return f"{table} ALTER COLUMN {name} DROP NOT NULL"
        return f"{table} ADD COLUMN {name} {self.stored_type(column.type)}{column.comment_ddl}"

    def alter(self, column: DeclaredColumn, *, is_new: bool, spark: Any) -> None:
        """Commit other columns to the catalog; no file changes."""
        del spark
        table = self._place.loaded()
        with self._place.session():
            try:
                with table.update_schema() as update:
                    if not is_new:
                        update.make_column_optional(column.name)
                    elif column.name not in table.schema().column_names:
                        update.add_column(
                            column.name,
                            files.iceberg_type(self.stored_type(column.type), count(1)),
                            doc=column.comment or None,
                        )
            except CommitFailedException as error:
                raise TableBusyError(
                    f"{self.where}: somebody else changed the table meanwhile. Nothing was "
                    f"changed. Next: {_AGAIN}"
                ) from error

    def set_aside(self, entry: str) -> str | None:
        """Rename the table in its catalog; its notes are in it."""
        to = (*self._place.identifier[:-1], f"{self._place.identifier[-1]}__{entry.lower()}")
        with self._place.session() as catalog:
            if self._place.load() is None:
                return None
            catalog.rename_table(self._place.identifier, to)
        return ".".join(to)

    def begin(self, seq: int) -> IcebergTransaction:
        """Load the table, and make sure that it stands at the seq before."""
        return IcebergTransaction(self._place, seq)

    def scan(
        self, names: Sequence[str], version: int | None = None, *, since_seq: int | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Yield rows file by file; a column that was not there then is null."""
        table = self._place.loaded()
        snapshot = table.current_snapshot() if version is None else self._at(table, version)
        columns = _selected(table.schema(), names)
        for file in self._place.data_files(table, snapshot):
            for _, batch in files.read_file(table.io, file, columns):
                is_wanted = None if since_seq is None else pc.field("_seq") >= since_seq
                yield batch if is_wanted is None else batch.filter(is_wanted)

    def rows_of_seq(self, seq: int, *, commit: Commit) -> int:
        """Count, in the files that statistics on ``_seq`` leave."""
        table = self._place.loaded()
        columns = table.schema().select("_seq")
        with self._place.translated():
            all_files = self._place.data_files(table, self._at(table, commit.version))
            sought = pa.table({"_seq": pa.array([seq], pa.int64())})
            return sum(
                pc.sum(pc.equal(batch.column(0), seq)).as_py() or 0
                for file in files.may_hold(all_files, sought, columns)
                for _, batch in files.read_file(table.io, file, columns)
            )

    def _at(self, table: Table, version: int) -> Snapshot:
        for snapshot in _history(table.metadata):
            if snapshot.sequence_number == version:
                return snapshot
        raise self._place.damaged(f"version {version} has expired, or was rolled back")

    def notes(self, through: int) -> Iterator[tuple[int, int | None, str | None]]:
        """Read the summaries of the snapshots."""
        for snapshot in reversed(_history(self._place.loaded().metadata)):
            version = _version(snapshot)
            if version <= through:
                yield version, _seq(snapshot), _said(snapshot).get(_NOTE)

    def refuse_damaged(self, log: CommitLog) -> None:
        """Make sure that all metadata is there; on this machine, every data file, too."""
        del log
        table = self._place.load()
        if table is None:
            return
        with self._place.translated():
            manifests = files.live_manifests(table.io, table.current_snapshot())
            for file in files.live_files(table.io, manifests) if self._place.folder else ():
                size, expected = len(table.io.new_input(file.file_path)), file.file_size_in_bytes
                if size != expected:
                    raise self._place.damaged(
                        f"{file.file_path} has {counted(size, 'byte')}, and {expected:,} were "
                        "committed"
                    )

    def settings_error(self, log: CommitLog) -> TableSettingsError | None:
        """Look for a format or partitions that pyiceberg, or this sink, cannot write."""
        del log
        return _settings_error(self._place, self._place.loaded())

    def translate_read_errors(self, version: int | None = None) -> AbstractContextManager[None]:
        """Translate that a file is missing, or is not what it should be."""
        del version
        return self._place.translated()

    def restore(self, version: int, metadata: CommitMetadata) -> Commit:
        """Commit the files and columns of an earlier version, with a note; needs the lock.

        Raises:
            RewindError: that version, or a file of it, is gone.
        """
        with (
            unless_committed(self.log(), self.stream, metadata),
            closing(self.begin(metadata.seq)) as transaction,
        ):
            transaction.restore(version, metadata)
        return committed(self.log(), self.stream, metadata)

    def maintain(
        self, window: dt.timedelta, target_bytes: int = files.TARGET_BYTES
    ) -> dict[str, int]:
        """Put small files together, expire old snapshots, delete files that nothing leads to.

        Our newest commit stays, whatever its age, and everything since. Needs the lock: a commit
        that runs on the while may bring back a file that is deleted here.

        Args:
            window: How far back versions can be read; what is younger than a day is no orphan.
            target_bytes: The size that files are put together to.

        Returns:
            How many files were compacted, written, and deleted, and snapshots expired.
        """
        compacted, written = self._compact(target_bytes)
        moment_ms = int((time.time() - window.total_seconds()) * 1000)
        day_ms = int((time.time() - _ORPHAN_AGE.total_seconds()) * 1000)
        return {
            "compacted": compacted,
            "written": written,
            "expired": self._expire(moment_ms),
            "deleted": self._delete_orphans(min(moment_ms, day_ms)),
        }

    def _compact(self, target_bytes: int) -> tuple[int, int]:
        place, table = self._place, self._place.loaded()
        if problem := _settings_error(place, table):
            raise problem
        with place.translated():
            all_files = place.data_files(table, table.current_snapshot())
            small = [each for each in all_files if each.file_size_in_bytes < target_bytes * 3 // 4]
            total = sum(each.file_size_in_bytes for each in small)
            if len(small) <= -(-total // target_bytes):
                return 0, 0
            writer = files.FileWriter(table, target_bytes)
            with _discarding(writer):
                for file in small:
                    for _, batch in files.read_file(table.io, file, table.schema()):
                        writer.write(batch)
                writer.close()
                staged = files.stage(table, Operation.REPLACE, added=writer.files, removed=small)
                with _discarding(staged):
                    place.commit(table, staged.updates, staged.snapshot_id)
        return len(small), len(writer.files)

    def _expire(self, moment_ms: int) -> int:
        table = self._place.loaded()
        metadata, kept = table.metadata, set[int]()
        for snapshot in _history(metadata):
            kept.add(snapshot.snapshot_id)
            if _seq(snapshot) is not None:
                break
        kept |= {ref.snapshot_id for ref in metadata.refs.values()}
        expired = [
            each.snapshot_id
            for each in metadata.snapshots
            if each.timestamp_ms < moment_ms and each.snapshot_id not in kept
        ]
        if expired:
            self._place.commit(table, [RemoveSnapshotsUpdate(snapshot_ids=expired)])
        return len(expired)

    def _delete_orphans(self, moment_ms: int) -> int:
        if self._place.shares_its_folder():
            return 0
        with self._place.translated():
            # What is committed after they are listed is not among them.
            listed = list(files.files_older_than(self._place.loaded(), moment_ms))
            table = self._place.loaded()
            return files.delete_files(table.io, files.unreachable(table, listed))


def _identifies(field: NestedField) -> bool:
    return field.required and not isinstance(field.field_type, FloatType | DoubleType)


def _selected(schema: Schema, names: Sequence[str]) -> Schema:
    return Schema(*(schema.find_field(name) for name in names))


def _settings_error(place: _Place, table: Table) -> TableSettingsError | None:
    problem = None
    if table.format_version != _FORMAT:
        problem = f"is of format version {table.format_version}, and not {_FORMAT}"
    elif not table.spec().is_unpartitioned():
        problem = "is partitioned, which a stream's table cannot be"
    if problem is None:
        return None
    return TableSettingsError(
        place.stream,
        f"{place.where} {problem}.",
        remedy=f"undo that, or oncelake reset {place.stream} --yes, to ingest the topic into a new "
        "table",
    )


@contextmanager
def _discarding(what: files.FileWriter | files.Staged) -> Iterator[None]:
    """Delete what was written for a commit that was certainly not made."""
    try:
        yield
    except UnknownOutcomeError:
        raise
    except Exception:
        what.discard()
        raise


class IcebergTransaction(Transaction):
    """One snapshot to be, on top of the one that was current when it was begun."""

    def __init__(self, place: _Place, seq: int) -> None:
        """Load the table.

        Raises:
            CommitConflictError: it does not stand at the seq before.
            TableSettingsError: it cannot be written.
        """
        table = place.load()
        last = _last_seq(table.metadata, place.stream) if table else None
        if table is None or seq != (-1 if last is None else last) + 1:
            raise _conflict(place, seq, last)
        if problem := _settings_error(place, table):
            raise problem
        self._place, self._seq, self._table = place, seq, table
        self._places: files.Places | None = None

    @cached_property
    def _files(self) -> list[DataFile]:
        return self._place.data_files(self._table, self._table.current_snapshot())

    @property
    def _schema(self) -> Schema:
        return self._table.schema()

    def rows_of(self, keys: pa.Table) -> pa.Table:
        """Search the files that may have any of them, and remember where they are."""
        with self._place.translated():
            self._places = self._find(self._as_stored(keys))
            return files.rows_at(self._table.io, self._places, self._schema)

    def _find(self, keys: pa.Table) -> files.Places:
        candidates = files.may_hold(self._files, keys, self._schema)
        return files.find(self._table.io, candidates, keys, self._schema)

    def commit(self, change: Change | None, metadata: CommitMetadata) -> None:
        """Write files anew without the rows that go, and commit them once."""
        if metadata.seq != self._seq:
            raise ValueError(f"seq {self._seq} was begun, and not {metadata.seq}")
        writer = files.FileWriter(self._table)
        with self._place.translated(), _discarding(writer):
            counts = change.counts if change else dict.fromkeys(_COUNTS, 0)
            removed = self._write(writer, change) if change else []
            writer.close()
            merges = counts[UPDATED] or counts[DELETED]
            self._commit(
                metadata,
                operation="MERGE" if merges else "APPEND" if counts[INSERTED] else "WRITE",
                counts=counts,
                added=writer.files,
                removed=removed,
            )

    def _write(self, writer: files.FileWriter, change: Change) -> list[DataFile]:
        """Write the rows; return the files that they take the places of."""
        io, removed = self._table.io, list[DataFile]()
        updated = self._as_stored(change.updated)
        places = self._places_of(change) if updated.num_rows or change.deleted.num_rows else None
        if places is not None:
            searched, found = places
            for number, rows in files.split_by_file(found):
                file, gone = searched[number], rows.column("_row").to_numpy()
                removed.append(file)
                for batch in files.rows_without(io, file, self._schema, gone):
                    writer.write(batch)
                new = np.sort(rows.column("_key").to_numpy())
                writer.write(updated.take(pa.array(new[new < updated.num_rows])))
                writer.end_source(file)
        writer.write(self._as_stored(change.inserted))
        return removed

    def _places_of(self, change: Change) -> tuple[Sequence[DataFile], pa.Table]:
        """Find the rows that are updated, and then those that are deleted, each once."""
        names = self._keys()
        keys = pa.concat_tables(
            self._as_stored(rows.select(names)) for rows in (change.updated, change.deleted)
        )
        for remembered in (self._places, None):
            if remembered is None:
                remembered = self._find(keys)
            elif not set(names) <= set(remembered.rows.column_names):
                continue
            found = remembered.of(keys)
            if len(found) == len(keys) == len(np.unique(found.column("_key").to_numpy())):
                return remembered.files, found
        raise TableBusyError(
            f"{self._place.where}: somebody else has changed the same rows: of "
            f"{counted(len(keys), 'key')} to update or delete, the table has "
            f"{counted(len(found), 'row')}. Nothing was changed. Next: {_AGAIN}"
        )

    def _keys(self) -> list[str]:
        declared = self._table.properties.get(_KEYS)
        keys = json.loads(declared) if declared else sorted(self._schema.identifier_field_names())
        if not keys:
            raise RefusedError(
                self._place.stream,
                f"{self._place.where} does not say which columns identify a row.",
                remedy=f"set its property {_KEYS} to their names, as a JSON list",
            )
        return list(keys)

    def _as_stored(self, rows: pa.Table) -> pa.Table:
        """Cast rows of any of the columns to the table's types.

        Raises:
            RefusedError: one does not fit.
        """
        columns = _selected(self._schema, rows.column_names)
        try:
            # What may not be null is told by the schema of files alone.
            return rows.cast(files.file_schema(columns)).cast(files.arrow_schema(columns))
        except (ValueError, pa.ArrowException) as error:
            raise RefusedError(
                self._place.stream,
                f"a row does not fit the columns of {self._place.where}: {first_line(error)}. "
                "Nothing was changed.",
                remedy="change the declaration, or alter the table",
            ) from error

    def restore(self, version: int, metadata: CommitMetadata) -> None:
        """Commit the files of an earlier version; no row is copied."""
        place, table = self._place, self._table
        then = {_version(each): each for each in _history(table.metadata)}.get(version)
        if then is None:
            raise self._gone(f"version {version} has expired, or was rolled back")
        with place.translated():
            before = {each.file_path: each for each in place.data_files(table, then)}
            now = {each.file_path: each for each in self._files}
            added = [file for path, file in before.items() if path not in now]
            for file in added:
                if not table.io.new_input(file.file_path).exists():
                    raise self._gone(f"{file.file_path} is missing")
            self._commit(
                metadata,
                operation=_RESTORE,
                counts=dict.fromkeys(_COUNTS, 0),
                added=added,
                removed=[file for path, file in now.items() if path not in before],
                schema_id=then.schema_id,
            )

    def _gone(self, what: str) -> RewindError:
        stream = self._place.stream
        return RewindError(
            stream,
            f"{self._place.where}: {what}.",
            remedy=f"oncelake rebuild {stream} makes the table anew from the topic",
        )

    def _commit(
        self,
        metadata: CommitMetadata,
        *,
        operation: str,
        counts: Mapping[str, int],
        added: Sequence[DataFile],
        removed: Sequence[DataFile],
        schema_id: int | None = None,
    ) -> None:
        place, table = self._place, self._table
        ours = {_STREAM: place.stream, _SEQ: str(self._seq)}
        staged = files.stage(
            table,
            Operation.OVERWRITE if removed else Operation.APPEND,
            added=added,
            removed=removed,
            schema_id=schema_id,
            properties={
                **ours,
                _NOTE: metadata.to_json(),
                _OPERATION: operation,
                **{_COUNTS[name]: str(value) for name, value in counts.items()},
            },
        )
        updates = [*staged.updates, SetPropertiesUpdate(updates=ours)]
        if schema_id is not None:
            updates.insert(0, SetCurrentSchemaUpdate(schema_id=schema_id))
        with _discarding(staged):
            try:
                place.commit(table, updates, staged.snapshot_id)
            except TableBusyError as error:
                self._refuse_overtaken(error)
                raise

    def _refuse_overtaken(self, error: TableBusyError) -> None:
        """Say of a table that has changed when another run of the stream has changed it."""
        table = self._place.load()
        last = _last_seq(table.metadata, self._place.stream) if table else None
        if last is not None and last >= self._seq:
            raise _conflict(self._place, self._seq, last) from error

    def close(self) -> None:
        """Forget what was looked up."""
        self._places = None


def _conflict(place: _Place, seq: int, last: int | None) -> CommitConflictError:
    holds = "no commit of this stream" if last is None else f"seq {last} as its last"
    return CommitConflictError(
        place.stream,
        f"{place.where} holds {holds}, so that seq {seq} is another writer's, or another table's.",
        remedy=f"oncelake status {place.stream}, then run again from the table's offsets",
    )


class IcebergLog(CommitLog):
    """The log of a table: the snapshots that its current one stands on.

    Where somebody has rolled the table back, so that commits of ours are no longer in it, a commit
    of theirs, ``RESTORE``, stands in the place of those.
    """

    def __init__(self, place: _Place) -> None:
        self._place = place

    def look_again(self) -> None:
        """Forget what was read."""
        for name in ("_table", "_snapshots", "_rollbacks", "_manifests"):
            self.__dict__.pop(name, None)

    @cached_property
    def _table(self) -> Table | None:
        return self._place.load()

    @property
    def _there(self) -> Table:
        if self._table is None:
            raise FileNotFoundError(f"{self._place.where} is not there")
        return self._table

    @cached_property
    def _snapshots(self) -> dict[int, Snapshot]:
        return (
            {_version(each): each for each in _history(self._table.metadata)} if self._table else {}
        )

    @cached_property
    def _rollbacks(self) -> dict[int, int]:
        return _rollbacks(self._table.metadata, self._place.stream) if self._table else {}

    @cached_property
    def _manifests(self) -> list[Any]:
        with self._place.translated():
            return files.live_manifests(self._there.io, self._there.current_snapshot())

    @property
    def exists(self) -> bool:
        """Tell whether the catalog has the table."""
        return self._table is not None

    @property
    def is_empty(self) -> bool:
        """Tell whether the table has no data file."""
        return self._table is None or not self._manifests

    def table_id(self) -> str:
        """Return the id that Iceberg gave the table when it was made."""
        return f"iceberg:{self._there.metadata.table_uuid}"

    def versions(self) -> list[int]:
        """List the sequence numbers of the snapshots, newest first."""
        return sorted({*self._snapshots, *self._rollbacks}, reverse=True)

    def read(self, version: int) -> Commit:
        """Read what a snapshot says of itself."""
        if version in self._rollbacks:
            return Commit(
                version=version,
                timestamp_ms=self._rollbacks[version],
                operation=_RESTORE,
                metrics={},
                txns={},
                changes_rows=True,
                metadata=None,
            )
        if version not in self._snapshots:
            raise FileNotFoundError(f"{self._place.where} has no version {version}")
        return self._commit(version, self._snapshots[version])

    def _commit(self, version: int, snapshot: Snapshot) -> Commit:
        said = _said(snapshot)
        try:
            metadata = CommitMetadata.from_json(said.get(_NOTE))
        except DamagedMetadataError as error:
            raise self._place.damaged(f"version {version}: {error}") from error
        operation = snapshot.summary.operation if snapshot.summary else Operation.OVERWRITE
        metrics = {name: int(said.get(key, 0)) for name, key in _COUNTS.items()}
        seq, is_ours = _seq(snapshot), _NOTE in said
        ours = said.get(_OPERATION, "")
        return Commit(
            version=version,
            timestamp_ms=snapshot.timestamp_ms,
            operation=ours or operation.value,
            metrics=metrics if is_ours else {},
            txns={} if seq is None else {app_id(said.get(_STREAM, self._place.stream)): seq},
            changes_rows=any(metrics.values()) or ours == _RESTORE
            if is_ours
            else operation != Operation.REPLACE,
            metadata=metadata,
        )

    def last_seq(self, stream: str) -> int | None:
        """Return the table's property, which each commit of ours has set."""
        return _last_seq(self._table.metadata, stream) if self._table else None

    def row_count(self) -> int:
        """Count the rows, by what the manifests say, or, with delete files, by reading."""
        if files.has_delete_files(self._manifests):
            with self._place.translated():
                return self._there.scan().count()
        return sum(
            (each.added_rows_count or 0) + (each.existing_rows_count or 0)
            for each in self._manifests
        )

    def highest_epoch(self) -> int:
        """Read the column ``_epoch``."""
        table = self._there
        columns = table.schema().select("_epoch")
        with self._place.translated():
            return max(
                (
                    pc.max(batch.column(0)).as_py() or 0
                    for file in self._place.data_files(table, table.current_snapshot())
                    for _, batch in files.read_file(table.io, file, columns)
                ),
                default=0,
            )

    def refuse_torn(self, stream: str, commit: Commit) -> None:
        """Compare the seq of a snapshot with that of its note."""
        seq = commit.metadata.seq if commit.metadata else None
        if seq != commit.txns[app_id(stream)]:
            raise self._place.damaged(
                f"version {commit.version} is of seq {commit.txns[app_id(stream)]}, and its note "
                f"says {seq}"
            )


def _history(metadata: TableMetadata) -> list[Snapshot]:
    """Walk from the current snapshot to its parents, as far back as they are there."""
    by_id = {each.snapshot_id: each for each in metadata.snapshots}
    found, id_ = list[Snapshot](), metadata.current_snapshot_id
    while id_ is not None and (snapshot := by_id.get(id_)):
        found.append(snapshot)
        id_ = snapshot.parent_snapshot_id
    return found


def _said(snapshot: Snapshot) -> Mapping[str, str]:
    return snapshot.summary.additional_properties if snapshot.summary else {}


def _version(snapshot: Snapshot) -> int:
    return snapshot.sequence_number or 0


def _seq(snapshot: Snapshot) -> int | None:
    seq = _said(snapshot).get(_SEQ)
    return None if seq is None else int(seq)


def _last_seq(metadata: TableMetadata, stream: str) -> int | None:
    properties = metadata.properties
    seq = properties.get(_SEQ) if properties.get(_STREAM) == stream else None
    return None if seq is None else int(seq)


def _rollbacks(metadata: TableMetadata, stream: str) -> dict[int, int]:
    """Return where commits of ours are missing from the history: version, and when.

    The versions and the seqs of a history both have a gap there: the property that holds the last
    seq, and the count of versions, are not rolled back.
    """
    last = _last_seq(metadata, stream)
    if last is None or isinstance(metadata, TableMetadataV1):
        return {}
    found, gap = dict[int, int](), None
    next_seq, above, above_ms = (
        last + 1,
        metadata.last_sequence_number + 1,
        metadata.last_updated_ms,
    )
    for snapshot in _history(metadata):
        version, seq = _version(snapshot), _seq(snapshot)
        if gap is None and version < above - 1:
            gap = (above - 1, above_ms)
        if seq is not None:
            if gap is not None and seq < next_seq - 1:
                found[gap[0]] = gap[1]
            next_seq, gap = seq, None
        above, above_ms = version, snapshot.timestamp_ms
    return found
