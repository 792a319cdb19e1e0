"""One commit of rows to a Delta table: files that come and go, the fence and the note, as one file.

Rows are found by statistics and keys, and the files that have them written anew; see
``ingestion.sinks.files``. The commit is put where there is none: so it follows exactly the version
whose rows were looked up. Where others have only put files together meanwhile, it is made again on
what they have left.
"""

from __future__ import annotations

import json
import re
import sys
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from itertools import takewhile
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, Schema
from deltalake.exceptions import CommitFailedError, DeltaError
from pyarrow import types

from oncelake.ingestion.declaration.sql import equal, identifier, quoted
from oncelake.ingestion.delta.commits import (
    fenced_commit,
    put_commit,
    removing,
    restore_version,
    translate_conflicts,
)
from oncelake.ingestion.delta.data_files import AddedFile, is_ordered
from oncelake.ingestion.delta.description import indexed_columns, partitions_in, reshaped
from oncelake.ingestion.delta.durability import FEED_FOLDER, seal_commits
from oncelake.ingestion.delta.excerpts import NoPagesError, read_rows
from oncelake.ingestion.delta.features import (
    KEY_INDEX,
    clustering_columns,
    has_feed,
    is_on,
    tracks_rows,
    unwritable_features,
)
from oncelake.ingestion.delta.files import arrows_files, open_delta, read_delta
from oncelake.ingestion.delta.key_index import (
    DamagedIndexError,
    Hashes,
    KeyIndex,
    Rows,
    hash_keys,
)
from oncelake.ingestion.delta.log import DeltaLog
from oncelake.ingestion.delta.log_files import log_files
from oncelake.ingestion.delta.partitions import (
    NoPartitionError,
    PartitionValues,
    StoredPartition,
    computed,
    stored,
    unnamed_partition,
)
from oncelake.ingestion.delta.vectors import (
    PROPERTY,
    PROVIDER,
    Vector,
    has_vectors,
    living_files,
    mask_of,
    vector_files,
)
from oncelake.ingestion.errors import RefusedError, TableBusyError, counted
from oncelake.ingestion.sinks.delta.writer import DeltaFileWriter, PartitionedDeltaWriter
from oncelake.ingestion.sinks.files import (
    TARGET_BYTES,
    FilesTransaction,
    FileWriter,
    Mask,
    as_numbers,
    discarding,
    numbered,
    read_columns,
    refuse_other_rows,
)
from oncelake.ingestion.sinks.sorting import SortedColumn, Sorting
from oncelake.ingestion.storage.checksums import matches_checksum, seal
from oncelake.ingestion.storage.damage import damaged_table
from oncelake.ingestion.storage.failpoints import Failpoint, hit
from oncelake.ingestion.storage.location import Location
from oncelake.ingestion.tables.commit_log import INSERTED, UPDATED, unless_committed
from oncelake.ingestion.tables.commit_metadata import CommitMetadata, app_id
from oncelake.ingestion.tables.table import REPLACED, Change, Layout, Tell, seq_conflict

_INTERVAL: Final = "delta.checkpointInterval"
# Delta's own defaults.
_COMMITS_TO_CHECKPOINT: Final = "10"
_OURS: Final = "oncelake"
# Bounds of moments have no microseconds.
_MILLISECOND: Final = 1_000
# What a feed calls what has become of a row.
_CHANGE_TYPE: Final = "_change_type"
# To read a key's row by its pages takes as long as to search so many rows,
ROWS_PER_KEY: Final = 2_000
# and to open a file for that, as to read so many keys' rows.
_KEYS_PER_FILE: Final = 50
# What DuckDB takes for a pattern in the name of a file.
_PATTERN: Final = re.compile(r"[*?\[\]{}]")


class DeltaTransaction(FilesTransaction[AddedFile]):
    """One version to be, on top of the one that was newest when it was begun."""

    refusals = (*FilesTransaction.refusals, CommitFailedError)
    overtaken = CommitFailedError

    def __init__(
        self, path: Location, stream: str, seq: int, *, table_id: str | None, index: Path | None
    ) -> None:
        """Open the table that was read, if any was, which must stand at the seq before.

        Args:
            path: Where it is.
            stream: The stream's name.
            seq: Of the commit to be.
            table_id: The table's.
            index: The folder of the index of its keys.
        """
        super().__init__(stream, str(path), seq)
        self._index_folder = index
        self._index: KeyIndex | None = None
        self._path, self._snapshot = path, read_delta(path)
        # The actions that give the table other columns, and what its files call those.
        self._columns: list[dict[str, Any]] = []
        self._renamed: Mapping[str, str] = {}
        self._fenced = CommitProperties()
        self._feed: list[AddedFile] = []
        recorded = self._snapshot.transaction_version(app_id(stream))
        is_another = table_id not in (None, str(self._snapshot.metadata().id))
        if is_another or seq != (-1 if recorded is None else recorded) + 1:
            but = REPLACED if is_another else ""
            raise seq_conflict(stream, self.where, seq, last=recorded, but=but)

    @classmethod
    def upkeep(cls, path: Location) -> DeltaTransaction:
        """Open a table to put its files together; needs the stream's lock."""
        name = path.name
        last = read_delta(path).transaction_version(app_id(name))
        return cls(path, name, 0 if last is None else last + 1, table_id=None, index=None)

    @cached_property
    def marks(self) -> bool:  # type: ignore[override]
        """Tell whether rows may be marked as gone."""
        return has_vectors(self._snapshot) and self._configuration.get(PROPERTY) == "true"

    @cached_property
    def added(self) -> pa.Table:
        """The table's files, as the log lists them."""
        return pa.table(self._snapshot.get_add_actions(flatten=True))

    @cached_property
    def files(self) -> list[AddedFile]:
        """The files of that version."""
        names = ("path", "num_records", "size_bytes")
        columns = [*(self.added[name].to_pylist() for name in names), self._known.texts]
        is_known = has_vectors(self._snapshot) or tracks_rows(self._snapshot)
        known = living_files(self._path, self._snapshot) if is_known else {}
        return [
            AddedFile(
                number=number,
                path=path,
                rows=self._counted(path) if rows is None else rows,
                size_bytes=size,
                stats=known[path].get("stats", "") if known else "",
                vector=Vector.of(known[path]) if known else None,
                partition=partition,
                more=known.get(path, {}),
            )
            for number, (path, rows, size, partition) in enumerate(zip(*columns, strict=True))
        ]

    @cached_property
    def schema(self) -> pa.Schema:
        """The columns, as delta-rs gives them to Arrow, but for those that only partition it."""
        return self._without_computed(self._snapshot.schema())

    @cached_property
    def _partitions(self) -> list[StoredPartition]:
        """What new files are partitioned by."""
        return partitions_in(self._snapshot)

    @cached_property
    def _known(self) -> PartitionValues:
        """What the files are partitioned by."""
        return PartitionValues(partitions_in(self._snapshot), self.added)

    def _without_computed(self, schema: Schema) -> pa.Schema:
        fields, without = pa.schema(schema.to_arrow()), computed(self._partitions)
        return pa.schema([field for field in fields if field.name not in without])

    @cached_property
    def _configuration(self) -> Mapping[str, str]:
        return self._snapshot.metadata().configuration

    def _open(self, path: str) -> pq.ParquetFile:
        files, folder = arrows_files(self._path)
        source = files.open_input_file(f"{folder}/{unquote(path)}")
        return pq.ParquetFile(source, coerce_int96_timestamp_unit="us")

    def _counted(self, path: str) -> int:
        """Count the rows of a file of which the log does not tell."""
        with self._open(path) as parquet:
            return int(parquet.metadata.num_rows)

    def read(self, file: AddedFile, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Read by names."""
        schema = pa.schema([self.schema.field(name) for name in names])
        with self._open(file.path) as parquet:
            there = {*parquet.schema_arrow.names}
            stored = [self._renamed.get(name, name) for name in names]
            known = self._known.of_file(file.number)
            # Files of others may have what the log says; that is what holds.
            found = [name if name in there and name not in known else None for name in stored]
            yield from read_columns(parquet, found, schema, known)

    def measure(self, file: AddedFile) -> tuple[int, int]:
        """Ask the log."""
        return file.rows, file.size_bytes

    def count(self, file: AddedFile) -> int:
        """Leave out what its vector marks."""
        return file.living

    def is_due(self, file: AddedFile) -> bool:
        """Ask its vector."""
        return bool(file.vector) and self.is_worn(file)

    def worn(self, alike: Collection[AddedFile], target_bytes: int) -> list[AddedFile]:
        """Return which files of a partition are small, or have too many rows that are gone."""
        small = {file.number for file in self.mergeable(alike, target_bytes, target_bytes)}
        return [file for file in alike if file.number in small or self.is_due(file)]

    def to_cluster(
        self, alike: Iterable[AddedFile], columns: Sequence[str], target_bytes: int
    ) -> list[list[AddedFile]]:
        """Leave out the files that somebody else has clustered, as the protocol demands."""
        known = living_files(self._path, self._snapshot)
        of_others = {path for path, add in known.items() if add.get(PROVIDER) not in (None, _OURS)}
        ours = (file for file in alike if file.path not in of_others or self.is_due(file))
        return super().to_cluster(ours, columns, target_bytes)

    def copy(
        self,
        files: Sequence[AddedFile],
        writer: FileWriter[AddedFile],
        order: Sorting | None = None,
    ) -> None:
        """Say of files that are sorted who has done it."""
        assert isinstance(writer, DeltaFileWriter)
        writer.more = {PROVIDER: _OURS} if order else {}
        super().copy(files, writer, order)

    def gone(self, file: AddedFile) -> Mask | None:
        """Read its vector."""
        return mask_of(self._path, file.vector, file.rows) if file.vector else None

    def bounds(self, name: str) -> Callable[[AddedFile], tuple[Any, Any]] | None:
        """Ask the log's statistics."""
        more = _MILLISECOND if types.is_timestamp(self.schema.field(name).type) else 0
        return self._ends(name, more)

    def ends(self, name: str) -> Callable[[AddedFile], tuple[Any, Any]] | None:
        """Ask the log's statistics, where both ends of a moment have no microseconds."""
        return self._ends(name, 0) if name in self.schema.names else None

    def _ends(self, name: str, more: int) -> Callable[[AddedFile], tuple[Any, Any]] | None:
        type_, ends = self.schema.field(name).type, (f"min.{name}", f"max.{name}")
        if name in self._known.names:
            ends = (f"partition.{name}",) * 2
        if not (is_ordered(type_) and {*ends} <= {*self.added.column_names}):
            return None
        lowest, highest = (as_numbers(self.added[end]).to_pylist() for end in ends)
        if more:
            highest = [None if each is None else each + more for each in highest]
        return lambda file: (lowest[file.number], highest[file.number])

    def rows_of(self, keys: pa.Table, columns: Sequence[str] | None = None) -> pa.Table:
        """Look the keys up by the index, where there is one, and they are few beside the rows."""
        if self._index_folder is not None:
            of = [(name, str(self.schema.field(name).type)) for name in sorted(keys.column_names)]
            self._index = KeyIndex(self._index_folder, str(self._snapshot.metadata().id), of)
        return super().rows_of(keys, columns)

    def find_in(
        self, keys: pa.Table, numbers: Iterable[int], columns: Sequence[str] = ()
    ) -> pa.Table:
        """Search the files that may have any of the keys, or read the rows that may.

        Where the index is damaged, it is made anew; where it cannot be kept, all is searched.
        """
        numbers, index = list(numbers), self._index
        read = len(keys) + _KEYS_PER_FILE * min(len(keys), len(numbers))
        is_dearer = read * ROWS_PER_KEY >= sum(self.files[number].rows for number in numbers)
        if index is None or is_dearer or not {*index.keys} <= {*keys.column_names}:
            return self._search(keys, numbers, columns)
        for _ in range(2):
            try:
                return self._find_by_index(index, keys, {*numbers}, columns)
            except DamagedIndexError:
                index.forget()
            except OSError:
                break
        return self._search(keys, numbers, columns)

    def _find_by_index(
        self, index: KeyIndex, keys: pa.Table, numbers: Collection[int], columns: Sequence[str]
    ) -> pa.Table:
        """Read the rows that may have any of the keys; search files whose rows are not read so.

        Raises:
            DamagedIndexError: the index is not as it was written, or names rows of other keys.
        """
        names = dict.fromkeys([*keys.column_names, *columns])
        schema = pa.schema([self.schema.field(name) for name in names])
        known = {(file.path, file.size_bytes, file.rows): file.number for file in self.files}
        index.update(known, lambda file: self._hashes_of(index, known[file]))
        rows = [numbered(numbered(schema.empty_table(), "_file"), "_row")]
        searched, hashes = list[int](), hash_keys(self.connection, keys.select(index.keys))
        for file, at in index.find(hashes):
            if (number := known.get(file, -1)) in numbers:
                try:
                    read = self._excerpt(number, schema, at)
                except NoPagesError:
                    searched.append(number)
                    continue
                of_file = pa.repeat(pa.scalar(number, pa.int64()), len(at))
                read = read.append_column("_file", of_file)
                rows.append(read.append_column("_row", pa.array(at)))
        read = pa.concat_tables(rows)
        if not np.isin(hash_keys(self.connection, read.select(index.keys)), hashes).all():
            raise DamagedIndexError("it names rows of other keys")
        places = self._joined(read, keys, columns)
        return pa.concat_tables([places, self._search(keys, searched, columns)])

    def _joined(self, rows: pa.Table, keys: pa.Table, columns: Sequence[str]) -> pa.Table:
        """Return the places of those of some rows that have any of the keys."""
        on, of_key = equal(keys.column_names, "r", "k"), numbered(keys, "_key")
        by = self.connection.from_arrow(of_key).set_alias("k")
        names = ["_key", "_file", "_row", *(f"r.{identifier(name)}" for name in columns)]
        joined = self.connection.from_arrow(rows).set_alias("r").join(by, on)
        places = joined.project(", ".join(names)).to_arrow_table()
        return places.cast(self.schema_of_places(columns))

    def _hashes_of(self, index: KeyIndex, number: int) -> Hashes:
        schema = pa.schema([self.schema.field(name) for name in index.keys])
        read = self.read(self.files[number], index.keys)
        return hash_keys(self.connection, pa.Table.from_batches(read, schema))

    def _rows_at(self, number: int, places: pa.Table) -> Iterable[pa.RecordBatch]:
        """Read few rows by their pages."""
        is_dearer = len(places) * ROWS_PER_KEY >= self.files[number].rows
        if self._index is not None and not is_dearer:
            with suppress(NoPagesError):
                rows = np.unique(places.column("_row").to_numpy())
                read: list[pa.RecordBatch] = self._excerpt(number, self.schema, rows).to_batches()
                return read
        return super()._rows_at(number, places)

    def _excerpt(self, number: int, schema: pa.Schema, rows: Rows) -> pa.Table:
        path = self._path.path / unquote(self.files[number].path)
        return read_rows(path, schema, rows, self._known.of_file(number))

    def _search(self, keys: pa.Table, numbers: Sequence[int], columns: Sequence[str]) -> pa.Table:
        """Let DuckDB search the files of this machine all at once."""
        import duckdb

        schema = self.schema_of_places(columns)
        is_nested = any(map(types.is_nested, schema.types))
        if is_nested or not self._is_searched_by_duckdb or not numbers:
            return super().find_in(keys, numbers, columns)
        paths = [str(self._path.path / unquote(self.files[n].path)) for n in numbers]
        # What stands in the log, and not in the files, comes with the files' names.
        known = {name: values.take(numbers) for name, values in self._known.values.items()}
        more = "".join(f", {'rf'[name in known]}.{identifier(name)}" for name in columns)
        on = [equal([name], "rf"[name in known], "k") for name in keys.column_names]
        # Files of rows that were adopted have none of our columns.
        may_lack = bool(columns) or "_epoch" in keys.column_names
        self.connection.register("keys", numbered(keys, "_key"))
        searched = {"searched_file": paths, "_file": numbers, **known}
        self.connection.register("searched", pa.table(searched))
        query = f"""
            SELECT k._key, f._file, r.file_row_number AS _row{more}
            FROM read_parquet(
                ?,
                filename = 'searched_file',
                file_row_number = true,
                hive_partitioning = false,
                union_by_name = {may_lack}
            ) r
            JOIN searched f ON f.searched_file = r.searched_file
            JOIN keys k ON {" AND ".join(on)}
        """
        try:
            places: pa.Table = self.connection.sql(query, params=[paths]).to_arrow_table()
        except duckdb.BinderException:
            # None of these files has a column that the table got later.
            return super().find_in(keys, numbers, columns)
        return places.cast(schema)

    @property
    def _is_searched_by_duckdb(self) -> bool:
        """Tell whether it reaches the files, and no name means something else to it."""
        is_plain = self._path.is_local and not _PATTERN.search(str(self._path))
        names = {name.lower() for name in self.schema.names}
        return is_plain and not {"searched_file", "file_row_number"} & names

    def open_writer(self, target_bytes: int = TARGET_BYTES) -> DeltaFileWriter:
        """Write into the table's folder."""
        given = (self._path, self.schema, self._with_statistics)
        options: dict[str, Any] = {"marks": self.marks, "target_bytes": target_bytes}
        options["has_small_pages"] = is_on(self._snapshot, KEY_INDEX)
        return _writer_of(self._partitions, *given, **options)

    @property
    def _with_statistics(self) -> list[str]:
        """The columns of which the table keeps the lowest and highest values."""
        return [*indexed_columns(self._configuration, self.schema.names), *self.clustered]

    @cached_property
    def clustered(self) -> list[str]:
        """The columns that the table is clustered by; of others' tables, fields of them as well."""
        return clustering_columns(self._path, self._snapshot)

    @property
    def order(self) -> Sorting | None:
        """What upkeep sorts the rows of a clustered table by."""
        names = [*takewhile(self.schema.names.__contains__, self.clustered)]
        return Sorting([SortedColumn(name=name) for name in names]) if names else None

    @contextmanager
    def translated(self) -> Iterator[None]:
        """Translate that a row is of no partition which Delta can name."""
        try:
            yield
        except NoPartitionError as error:
            raise unnamed_partition(self.stream, error) from error

    def commit(self, change: Change | None, metadata: CommitMetadata) -> None:
        """Commit, and write a checkpoint."""
        super().commit(change, metadata)
        self._write_checkpoint()

    def restore(self, version: int, metadata: CommitMetadata) -> None:
        """Bring the files of that version back; delta-rs does it where it can."""
        opened, log = open_delta(self._path), DeltaLog(self._path)
        read = self._snapshot
        if (opened.version(), opened.metadata().id) != (read.version(), read.metadata().id):
            raise TableBusyError.meanwhile(self.stream)
        fenced = fenced_commit(opened, self.stream, metadata)
        with (
            unless_committed(log, self.stream, metadata, DeltaError),
            translate_conflicts(self.stream),
        ):
            restore_version(self._path, opened, fenced, version)

    def again(self, commit: Callable[[], None]) -> None:
        """Say that others were always first as all sinks do."""
        try:
            super().again(commit)
        except CommitFailedError as error:
            raise TableBusyError.meanwhile(self.stream) from error

    def look_again(self) -> None:
        """Open the newest version, if all is there as it was looked up."""
        before = self._snapshot
        log_files(self._path).forget()
        log, self._snapshot = DeltaLog(self._path), read_delta(self._path)
        since = range(before.version() + 1, self._snapshot.version() + 1)
        refuse_other_rows(self.stream, self.where, self.seq, map(log.read, since))
        if _settings_of(before) != _settings_of(self._snapshot):
            raise TableBusyError.meanwhile(self.stream)
        self.close()
        for name in ("added", "files", "_known", "clustered"):
            self.__dict__.pop(name, None)

    def _rewrite(
        self,
        metadata: CommitMetadata,
        places: pa.Table,
        *,
        updated: pa.Table,
        inserted: pa.Table,
    ) -> None:
        """Write what readers of the feed get of a commit, too; of new rows alone they read those.

        What an erase takes out is in no feed.
        """
        schema = self.schema.append(pa.field(_CHANGE_TYPE, pa.string()))
        folder = self._path / FEED_FOLDER
        writer = _writer_of(self._partitions, folder, schema, ())
        with discarding(writer.discard, *self.refusals):
            if has_feed(self._snapshot) and len(places) and not self.is_erase:
                if folder.is_local:
                    folder.path.mkdir(exist_ok=True)
                for kind, rows in self._changes(places, updated, inserted):
                    writer.write(rows.append_column(_CHANGE_TYPE, kind))
                writer.close()
            self._feed = writer.files
            super()._rewrite(metadata, places, updated=updated, inserted=inserted)

    def _changes(
        self, places: pa.Table, updated: pa.Table, inserted: pa.Table
    ) -> Iterator[tuple[pa.Array, pa.Table]]:
        """Yield the rows that a commit changes, before and after, and what becomes of each."""
        for kind, rows in (("insert", inserted), ("update_postimage", updated)):
            yield pa.repeat(kind, len(rows)), self._as_stored(rows)
        for number, of_file in self._by_file(self._living(places)):
            keys, done = of_file.sort_by("_row").column("_key").to_numpy(), 0
            for batch in self._rows_at(number, of_file):
                is_updated = keys[done : done + len(batch)] < len(updated)
                done += len(batch)
                kinds = np.where(is_updated, "update_preimage", "delete")
                yield pa.array(kinds, pa.string()), pa.Table.from_batches([batch])

    def commit_files(
        self,
        metadata: CommitMetadata,
        *,
        counts: Mapping[str, int],
        added: Collection[AddedFile],
        removed: Collection[AddedFile],
    ) -> None:
        """Put a commit into the log: to who reads its history, a MERGE by the stream's keys."""
        now = time.time_ns() // 1_000_000
        actions = _actions(added, removed, now, is_silent=self.is_erase)
        actions += [{"cdc": _of_feed(each)} for each in self._feed]
        new, keys = [each for each in added if not each.vector], metadata.identity.keys
        rows, marked = sum(each.rows for each in new), len(added) - len(new)
        metrics = {
            **counts,
            "numTargetRowsCopied": rows - counts[INSERTED] - counts[UPDATED],
            "numTargetFilesAdded": len(new),
            "numTargetFilesRemoved": len(removed) - marked,
            "numTargetDeletionVectorsUpdated": marked,
            "numOutputRows": rows,
        }
        made: dict[str, Any] = {}
        if keys and (added or removed):
            on = " AND ".join(f"t.{quoted(name)} = s.{quoted(name)}" for name in keys)
            made = {"operation": "MERGE", "operationParameters": {"predicate": json.dumps([on])}}
        made["operationMetrics"] = {name: str(value) for name, value in metrics.items()}
        fenced = fenced_commit(self._snapshot, self.stream, metadata)
        put_commit(self._path, self._snapshot, fenced, actions, **made)

    def reshape(self, layout: Layout, metadata: CommitMetadata | None) -> None:
        """Commit other columns, and a note if any; all files anew where they have any otherwise.

        Delta can note wider types beside the old files; delta-rs reads no such table. Done again
        after a crash, it goes on where it was, unless all rows are sorted.
        """
        if layout.sort_by is None:
            self._refuse_clustered(layout)
        elif self._partitions or layout.partitions:
            raise NotImplementedError("Delta clusters no table that is partitioned")
        else:
            self.clustered = [*layout.sort_by]
        before, (schema, self._columns) = self.schema, reshaped(self._snapshot, layout)
        if metadata is not None:
            self._fenced = fenced_commit(self._snapshot, self.stream, metadata)
        self._renamed = layout.renamed
        is_sorted = layout.sort_by is not None
        is_rewritten = is_sorted or layout.partitions is not None
        if layout.partitions is not None:
            self._partitions = [*map(stored, layout.partitions)]
        self.schema = self._without_computed(Schema.from_json(schema))
        now = {field.name: field.type for field in self.schema}
        is_rewritten |= any(now.get(field.name) != field.type for field in before)
        files = self.files if is_rewritten else []
        if files and unwritable_features(self._snapshot):
            raise TableBusyError.meanwhile(self.stream)

        def act() -> None:
            if is_sorted:
                layout.tell(f"{counted(len(files), 'file')} to sort…")
                self.rewrite([files], order=self.order)
            else:
                self.commit_moved([*self._rewritten(files, schema, layout.tell)], files)

        with self.translated():
            copy_files(self._path, files, act)

    def _refuse_clustered(self, layout: Layout) -> None:
        """Make sure that the columns by which rows are clustered stay, and nothing else divides."""
        by = self.clustered
        kept = {column.name for column in layout.columns} - {*layout.renamed}
        lost = [name for name in by if name.partition(".")[0] not in kept]
        if lost or (by and layout.partitions):
            raise RefusedError(
                self.stream,
                f"{self.where} is clustered by {', '.join(by)}, so that none of these can be "
                "renamed or dropped, and the table cannot be partitioned.",
                remedy=f"ALTER TABLE delta.`{self._path}` CLUSTER BY NONE; then run the same "
                "command again",
            )

    def _rewritten(
        self, files: Sequence[AddedFile], schema: str, tell: Tell
    ) -> Iterator[AddedFile]:
        """Write each file anew, unless an attempt that did not come to its commit has.

        So none is deleted where this one does not: another may have committed it.
        """
        for done, file in enumerate(files):
            tell(f"{done:,} of {counted(len(files), 'file')} written anew…")
            writer = self.open_writer(sys.maxsize)
            # Whoever has the same bytes to write, and no one else, gives them this name.
            of = (file.path, file.vector, schema, sorted(self._renamed.items()), pa.__version__)
            writer.file_id = uuid.uuid5(uuid.NAMESPACE_OID, repr((of, sorted(writer.options))))
            if not writer.resume():
                self.copy([file], writer)
                for copy in writer.files:
                    seal(self._path / copy.path)
                hit(Failpoint.FILE_REWRITTEN)
            yield from writer.files

    def commit_moved(self, added: Collection[AddedFile], removed: Collection[AddedFile]) -> None:
        """Put a commit without a change of rows into the log, by Delta's word for it."""
        now = time.time_ns() // 1_000_000
        counts = {"numAddedFiles": str(len(added)), "numRemovedFiles": str(len(removed))}
        put_commit(
            self._path,
            self._snapshot,
            self._fenced,
            [*self._columns, *_actions(added, removed, now, is_change=False)],
            operation="CHANGE COLUMN" if self._columns else "OPTIMIZE",
            operationParameters={"predicate": "[]"},
            operationMetrics=counts,
        )

    def _write_checkpoint(self) -> None:
        version = self._snapshot.version() + 1
        interval = int(self._configuration.get(_INTERVAL, _COMMITS_TO_CHECKPOINT))
        # Of what only Spark writes delta-rs might leave something out.
        if version % interval or unwritable_features(self._snapshot):
            return
        # The rows are committed; without a checkpoint the log is only longer to read.
        with suppress(DeltaError):
            table = open_delta(self._path)
            table.create_checkpoint()
            table.cleanup_metadata()
            log_files(self._path).forget()


def _writer_of(
    partitions: Sequence[StoredPartition], *given: Any, **options: Any
) -> DeltaFileWriter:
    if not partitions:
        return DeltaFileWriter(*given, **options)
    return PartitionedDeltaWriter(*given, **options, partitions=partitions)


def _of_feed(file: AddedFile) -> dict[str, Any]:
    """Return the action of a file of the change data feed."""
    return {
        "path": f"{FEED_FOLDER}/{file.path}",
        "partitionValues": file.partition,
        "size": file.size_bytes,
        "dataChange": False,
    }


def _actions(
    added: Iterable[AddedFile],
    removed: Iterable[AddedFile],
    now: int,
    *,
    is_change: bool = True,
    is_silent: bool = False,
) -> list[dict[str, Any]]:
    how = {"is_change": is_change, "is_silent": is_silent}
    return [
        *(removing(each.as_add(now), now, **how) for each in removed),
        *({"add": {**each.as_add(now), "dataChange": is_change}} for each in added),
    ]


def copy_files(path: Location, files: Sequence[AddedFile], commit: Callable[[], object]) -> None:
    """Commit the rows of some files in others, if they, and their vectors, are as written."""
    names = [unquote(file.path) for file in files]
    refuse_altered(path, (*names, *vector_files(file.vector for file in files)))
    with translate_conflicts(path.name):
        commit()
    seal_commits(path)
    hit(Failpoint.COMPACTED)


def refuse_altered(path: Location, names: Iterable[str]) -> None:
    """Make sure that files which are to be copied are as they were written."""
    for name in names:
        if not matches_checksum(path / name):
            raise damaged_table(path, f"data file {name} is not as it was written")


def _settings_of(table: DeltaTable) -> tuple[Any, ...]:
    """Return all that a commit must fit, but for the files."""
    metadata, protocol = table.metadata(), table.protocol()
    features = (protocol.reader_features, protocol.writer_features)
    return (
        *(metadata.id, metadata.configuration, metadata.partition_columns),
        table.schema().to_json(),
        *(sorted(each or ()) for each in features),
    )
