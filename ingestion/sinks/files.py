"""Tables that are made of Parquet files: rows are found by their keys, and files written anew.

A file never changes. A commit takes those out of the table that have rows which are updated or
deleted, and brings in others: what they keep, what is updated, and what is new. Or it marks such
rows as gone, where the table keeps marks beside its files. What kind of table it is says how a file
is read, searched, and written, and what makes a commit of such files.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache, cached_property
from itertools import chain
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from oncelake.ingestion.declaration.sql import equal, identifier
from oncelake.ingestion.errors import (
    AGAIN,
    IngestionError,
    RefusedError,
    TableBusyError,
    counted,
    first_line,
)
from oncelake.ingestion.sinks.sorting import Extent, Sorting, groups_to_sort, would_be_fewer
from oncelake.ingestion.tables.arrow_types import cast_rows, cast_values
from oncelake.ingestion.tables.commit_log import ROW_COUNTS, Commit, UnknownOutcomeError
from oncelake.ingestion.tables.commit_metadata import CommitMetadata, app_id
from oncelake.ingestion.tables.table import Change, Transaction, seq_conflict

if TYPE_CHECKING:
    import duckdb

File = TypeVar("File")
Rows = TypeVar("Rows", pa.RecordBatch, pa.Table)
Mask = npt.NDArray[np.bool_]
# What the rows of one partition have in common.
Values = tuple[Any, ...]

# What a data file grows to, and from which size on it is rewritten by itself.
TARGET_BYTES: Final = 128 << 20
_SMALL_BYTES: Final = 16 << 20
# A row group is of at most so many rows, and bytes in memory.
_ROWS_IN_GROUP: Final = 1 << 20
_BYTES_IN_GROUP: Final = 96 << 20
_ROWS_READ_AT_ONCE: Final = 1 << 17
# Of the files that have rows of the keys, so much is kept until they are written anew.
_KEPT_BYTES: Final = 256 << 20
# So many partitions are written to at once.
_OPEN_FILES: Final = 32
# Beyond this share of its rows a file is written anew, and not marked; and by upkeep beyond this.
MOST_MARKED: Final = 0.5
_MOST_LEFT_MARKED: Final = 0.1
# How often a commit is tried when others commit before it.
ATTEMPTS: Final = 3
PLACES: Final = pa.schema([(name, pa.int64()) for name in ("_key", "_file", "_row")])
NO_PLACES: Final = PLACES.empty_table()


class FileWriter(ABC, Generic[File]):
    """Writes rows to new data files of about a size.

    Attributes:
        files: Those that are complete.
        paths: Those that were begun.
    """

    compression: str
    # Further ones of Arrow's writer.
    options: Mapping[str, Any] = MappingProxyType({})

    def __init__(self, schema: pa.Schema, target_bytes: int = TARGET_BYTES) -> None:
        """Take the columns, in their order, as the files have them."""
        self._schema, self._target = schema, target_bytes
        self._waiting: list[pa.RecordBatch] = []
        self._rows = self._bytes = self._source_bytes = 0
        self._writer: pq.ParquetWriter | None = None
        self.files: list[File] = []
        self.paths: list[str] = []

    @abstractmethod
    def _begin(self) -> tuple[str, Any]:
        """Return the path of a new file, and a stream that writes it."""

    def _end(self, path: str, stream: Any) -> None:
        """Close a stream to which all of a file was written."""
        del path
        stream.close()

    @abstractmethod
    def _describe(self, path: str, metadata: pq.FileMetaData, size: int) -> File:
        """Return a file that is complete, as a commit names it."""

    @abstractmethod
    def _delete(self, paths: Sequence[str]) -> None:
        """Delete files that no commit names, as far as that goes."""

    def mark(self, file: File, is_gone: Mask) -> bool:
        """Take a file of the table with other rows marked as gone among those that it will have.

        Args:
            file: The file.
            is_gone: A flag for each of its rows.

        Returns:
            Whether it was; else its other rows are to be written anew.
        """
        del file, is_gone
        return False

    def write(self, rows: pa.RecordBatch | pa.Table) -> None:
        """Write rows of the table's columns."""
        if isinstance(rows, pa.RecordBatch):
            rows = pa.Table.from_batches([rows])
        at_once = _BYTES_IN_GROUP * rows.num_rows // max(rows.nbytes, 1)
        at_once = min(max(at_once, 1), _ROWS_IN_GROUP)
        if rows.num_rows > at_once:
            rows = self._in_order(rows)
        for batch in rows.to_batches(max_chunksize=at_once):
            self._waiting.append(batch)
            self._rows += batch.num_rows
            self._bytes += batch.nbytes
            if self._rows >= _ROWS_IN_GROUP or self._bytes >= _BYTES_IN_GROUP:
                self._write_group()

    def _in_order(self, rows: pa.Table) -> pa.Table:
        """Put rows of several row groups into the order of the table, where it has one."""
        return rows

    def copy(self, rows: pa.RecordBatch, file: File) -> None:
        """Write rows that a file of the table has."""
        del file
        self.write(rows)

    def flush(self) -> None:
        """Keep no row back."""
        if self._rows:
            self._write_group()

    def end_source(self, size: int) -> None:
        """Begin another file, unless what was copied so far is small: so small ones end."""
        self._source_bytes += size
        if self._source_bytes >= min(_SMALL_BYTES, self._target):
            self._complete()

    def _write_group(self) -> None:
        rows = pa.Table.from_batches(self._waiting).cast(self._schema)
        self._waiting, self._rows, self._bytes = [], 0, 0
        if self._writer is None:
            self._path, self._stream = self._begin()
            self.paths.append(self._path)
            self._writer = pq.ParquetWriter(
                self._stream,
                self._schema,
                compression=self.compression,
                store_decimal_as_integer=True,
                # So that what a disk has altered is refused, and not copied.
                write_page_checksum=True,
                **self.options,
            )
        self._writer.write_table(rows, row_group_size=_ROWS_IN_GROUP)
        if self._stream.tell() >= self._target:
            self._complete()

    def close(self) -> None:
        """Complete what is being written."""
        self._complete()

    def _complete(self) -> None:
        self._source_bytes = 0
        self.flush()
        if self._writer is None:
            return
        self._writer.close()
        metadata, size = self._writer.writer.metadata, self._stream.tell()
        self._end(self._path, self._stream)
        self.files.append(self._describe(self._path, metadata, size))
        self._writer = None

    def discard(self) -> None:
        """Delete what was written."""
        self._abandon()
        self._delete(self.paths)

    def _abandon(self) -> None:
        """Let go of a file that is not complete."""
        if self._writer is not None:
            # Else it would write the file's end, once it is collected, to a stream that is closed.
            self._writer.is_open = False
            self._stream.close()


class PartitionedWriter(FileWriter[File]):
    """Writes the rows of each partition to files of their own.

    It keeps rows back as any writer does, and then writes those of one partition after the other:
    of the files that are open a few stay so, and of the rows no more are in memory.
    """

    # By the values of their partitions, the one that was last written behind.
    _open: dict[Values, FileWriter[File]]

    @abstractmethod
    def _values_of(self, rows: pa.Table) -> list[pa.Array]:
        """Return what rows are divided by."""

    @abstractmethod
    def _known_of(self, file: File) -> Values | None:
        """Return the values of a file's partition; ``None`` where it is divided otherwise."""

    @abstractmethod
    def _begin_partition(self, values: Values) -> FileWriter[File]:
        """Return what writes the rows of one partition."""

    def _write_group(self) -> None:
        rows = pa.Table.from_batches(self._waiting)
        self._waiting, self._rows, self._bytes = [], 0, 0
        for values, part in split(rows, self._values_of(rows)):
            writer = self._writer_of(values)
            writer.write(part)
            writer.flush()

    def copy(self, rows: pa.RecordBatch, file: File) -> None:
        """Write rows whose partition is known: it is their file's."""
        if (values := self._known_of(file)) is None:
            self.write(rows)
            return
        latest = next(reversed(self._open.values()), None)
        writer = self._writer_of(values)
        if latest not in (None, writer):
            latest.flush()
        writer.write(rows)

    def _writer_of(self, values: Values) -> FileWriter[File]:
        """Return what writes a partition's file, as the one that was used last."""
        writer = self._open.pop(values, None)
        if writer is None:
            writer = self._begin_partition(values)
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


def split(rows: pa.Table, found: Sequence[pa.Array]) -> Iterator[tuple[Values, pa.Table]]:
    """Yield the rows of each partition, in their order, and its values.

    Args:
        rows: The rows.
        found: What they are divided by, a value for each row.
    """
    if not len(rows):
        return
    numbers = np.zeros(len(rows), np.int64)
    for values in found:
        encoded = values.dictionary_encode(null_encoding="encode")
        numbers = numbers * len(encoded.dictionary) + encoded.indices.to_numpy()
        # So that the next product stays a number of 64 bits.
        numbers = np.unique(numbers, return_inverse=True)[1]
    order = np.argsort(numbers, kind="stable")
    starts = np.flatnonzero(np.diff(numbers[order], prepend=-1))
    if len(starts) > 1:
        rows = rows.take(pa.array(order))
    for start, end in zip(starts, [*starts[1:], len(rows)], strict=True):
        yield (
            tuple(each[int(order[start])].as_py() for each in found),
            rows.slice(start, end - start),
        )


@contextmanager
def discarding(discard: Callable[[], None], *errors: type[Exception]) -> Iterator[None]:
    """Delete what was written for a commit that was certainly not made.

    Args:
        discard: Deletes it.
        errors: What says that it was not made; by default any error but an unknown outcome.
    """
    errors = errors or (Exception,)
    try:
        yield
    except UnknownOutcomeError:
        raise
    except errors:
        discard()
        raise


class FilesTransaction(Transaction, Generic[File]):
    """One commit to be of a table of files, on top of those that it was begun on.

    Attributes:
        refusals: What ``commit_files`` raises where it has certainly committed nothing.
        overtaken: Which of these says that others have committed before.
        marks: Whether rows are marked as gone, where files would otherwise be written anew.
        is_erase: Whether no bytes of rows that go may stay, nor values of them in what is said of
            their files.
    """

    refusals: ClassVar[tuple[type[Exception], ...]] = (IngestionError, OSError)
    overtaken: ClassVar[type[Exception]]

    marks = False
    is_erase = False

    def __init__(self, stream: str, where: str, seq: int) -> None:
        """Take the seq, which must be the table's next."""
        self.stream, self.where, self.seq = stream, where, seq
        self._looked_up: tuple[pa.Table, pa.Table] | None = None
        # Files that were looked up, which are written anew.
        self._kept: dict[int, list[pa.RecordBatch]] = {}
        self._kept_bytes = 0

    @property
    @abstractmethod
    def files(self) -> Sequence[File]:
        """The files that the table has, in an order that stays."""

    @property
    @abstractmethod
    def schema(self) -> pa.Schema:
        """The table's columns in memory."""

    @abstractmethod
    def read(self, file: File, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield some columns of a file, in the order of its rows; what it does not have is null."""

    @abstractmethod
    def measure(self, file: File) -> tuple[int, int]:
        """Return how many rows and bytes a file has."""

    def count(self, file: File) -> int:
        """Count the rows of a file that are not marked as gone."""
        return self.measure(file)[0]

    def gone(self, file: File) -> Mask | None:
        """Flag the rows of a file that are marked as gone; ``None`` where none is."""
        del file
        return None

    def is_worn(self, file: File) -> bool:
        """Tell whether upkeep writes a file anew for the rows that are marked as gone in it."""
        rows = self.measure(file)[0]
        # Any is too many where rows are not marked any more.
        most = _MOST_LEFT_MARKED if self.marks else 0
        return rows - self.count(file) > most * rows

    @abstractmethod
    def is_due(self, file: File) -> bool:
        """Tell whether upkeep writes a file anew, whatever its size."""

    def mergeable(self, alike: Collection[File], below: int, target_bytes: int) -> list[File]:
        """Return the files of a partition that are smaller than a size, if fewer can hold them."""
        small = [file for file in alike if self.measure(file)[1] < below]
        sizes = [self.measure(file)[1] for file in small]
        return small if would_be_fewer(sizes, target_bytes) else []

    @property
    def order(self) -> Sorting | None:
        """What upkeep sorts the rows of a file by."""
        return None

    @abstractmethod
    def bounds(self, name: str) -> Callable[[File], tuple[Any, Any]] | None:
        """Return what tells the lowest and highest value of a column in a file.

        Moments and days are numbers; ``None`` for what is not known, and for a column whose bounds
        are not ordered as its values are.
        """

    def ends(self, name: str) -> Callable[[File], tuple[Any, Any]] | None:
        """Return what tells the ends of a column's range in a file, which upkeep compares.

        Unlike ``bounds`` it may leave out a value, but never makes ranges that touch overlap.
        """
        return self.bounds(name)

    @abstractmethod
    def open_writer(self, target_bytes: int = TARGET_BYTES) -> FileWriter[File]:
        """Return what writes new files, which grow to a size."""

    @abstractmethod
    def commit_files(
        self,
        metadata: CommitMetadata,
        *,
        counts: Mapping[str, int],
        added: Collection[File],
        removed: Collection[File],
    ) -> None:
        """Commit files and note as one act; see ``Transaction.commit``."""

    @abstractmethod
    def commit_moved(self, added: Collection[File], removed: Collection[File]) -> None:
        """Commit that rows are in other files, without a note; it raises as ``commit_files``."""

    @abstractmethod
    def look_again(self) -> None:
        """Take what others have left, if the rows are as they were looked up, and so are columns.

        Raises:
            CommitConflictError: another run of the stream has committed.
            TableBusyError: somebody else has changed rows, or what the table is.
        """

    def again(self, commit: Callable[[], None]) -> None:
        """Commit; where others have only put files together meanwhile, on what they have left."""
        for _ in range(ATTEMPTS - 1):
            try:
                return commit()
            except self.overtaken:
                self.look_again()
        return commit()

    @property
    def columns(self) -> Sequence[str]:
        """The columns of the schema."""
        names: list[str] = self.schema.names
        return names

    def translated(self) -> AbstractContextManager[None]:
        """Translate what reading and writing files raises."""
        return nullcontext()

    def rows_of(self, keys: pa.Table, columns: Sequence[str] | None = None) -> pa.Table:
        """Search the files that may have any of them, and remember where they are."""
        keys = self._as_stored(keys)
        with self.translated():
            if columns is not None and self.marks:
                # Nothing else is read of these files.
                found = self._living(self.find_in(keys, self.searched(keys), columns))
                self._looked_up = keys, found.select(PLACES.names)
                return found.select(columns)
            places = self.find(keys)
            self._looked_up = keys, places
            return pa.Table.from_batches(
                (
                    batch
                    for number, rows in self._by_file(places)
                    for batch in self._rows_at(number, rows)
                ),
                schema=self.schema,
            )

    def commit(self, change: Change | None, metadata: CommitMetadata) -> None:
        """Write files anew without the rows that go, and commit them once."""
        nothing = self.schema.empty_table()
        change = change or Change(inserted=nothing, updated=nothing, deleted=nothing)

        def act() -> None:
            with self.translated():
                places = self._places_of(change)
                self._rewrite(metadata, places, updated=change.updated, inserted=change.inserted)

        self.again(act)

    def erase(self, keys: pa.Table, metadata: CommitMetadata) -> None:
        """Do as ``delete``; a file that holds bytes of the rows is written anew."""
        self.is_erase = True
        self.delete(keys, metadata)

    def delete(self, keys: pa.Table, metadata: CommitMetadata) -> None:
        """Find the rows, of which 24 bytes each are in memory, and commit all others."""
        nothing, keys = self.schema.empty_table(), self._as_stored(keys)

        def act() -> None:
            with self.translated():
                places = self.find_in(keys, self.searched(keys))
                self._rewrite(metadata, places, updated=nothing, inserted=nothing)

        self.again(act)

    def rewrite(
        self,
        groups: Sequence[Sequence[File]],
        target_bytes: int = TARGET_BYTES,
        order: Sorting | None = None,
    ) -> int:
        """Commit files put together, without the rows that are marked as gone; no row changes.

        Args:
            groups: All files of one are of one partition, where there is an order.
            target_bytes: What a file grows to.
            order: By which the rows of each group are sorted.

        Returns:
            How many files they are then.
        """
        writer = self.open_writer(target_bytes)
        for files in groups:
            self.copy(files, writer, order)
        with discarding(writer.discard, *self.refusals):
            self.commit_moved(writer.files, [*chain.from_iterable(groups)])
        return len(writer.files)

    def copy(
        self, files: Sequence[File], writer: FileWriter[File], order: Sorting | None = None
    ) -> None:
        """Write the rows of some files to others, but for those that are marked as gone."""
        known, rows = len(writer.files), self.living(files)
        if order is not None:
            batches = order.sorted_apart((batch for _, batch in rows), self.schema)
            rows = ((files[0], batch) for batch in batches)
        with discarding(writer.discard):
            for file, batch in rows:
                writer.copy(batch, file)
            writer.close()
            before, after = (sum(map(self.count, some)) for some in (files, writer.files[known:]))
            if before != after:
                raise AssertionError(f"{self.where}: of {before} rows {after} were written")

    def to_cluster(
        self, alike: Iterable[File], columns: Sequence[str], target_bytes: int
    ) -> list[list[File]]:
        """Return the files of a partition that upkeep sorts together; see ``groups_to_sort``."""
        ends, extents = [*map(self.ends, columns)], list[Extent[File]]()
        for file in alike:
            bounds = [of(file) if of else (None, None) for of in ends]
            size = self.measure(file)[1]
            extents.append(Extent.of(file, bounds, size, is_due=self.is_due(file)))
        return groups_to_sort(extents, target_bytes)

    def living(self, files: Collection[File]) -> Iterator[tuple[File, pa.RecordBatch]]:
        """Yield the rows of some files that are not marked as gone, each with its file."""
        for file in files:
            batches, is_gone = self.read(file, self.schema.names), self.gone(file)
            for batch in batches if is_gone is None else wanted_of(batches, ~is_gone):
                yield file, batch

    def close(self) -> None:
        """Forget what was looked up."""
        self._looked_up, self._kept, self._kept_bytes = None, {}, 0
        if "connection" in self.__dict__:
            self.__dict__.pop("connection").close()

    @cached_property
    def connection(self) -> duckdb.DuckDBPyConnection:
        """Joins keys with rows."""
        return _database().cursor()

    def find(self, keys: pa.Table) -> pa.Table:
        """Search the files for keys, as far as their bounds say that they may have any.

        Returns:
            ``_key``, the number of a key, ``_file``, that of a file, and ``_row`` in it.
        """
        return self._living(self.find_in(keys, self.searched(keys)))

    def searched(self, keys: pa.Table) -> list[int]:
        """Return the numbers of the files that may have any of the keys."""
        ordered = []
        for name in keys.column_names:
            if bounds := self.bounds(name):
                ordered.append((bounds, _in_order(keys.column(name))))
        return [
            number
            for number, file in enumerate(self.files)
            if all(_may_have(bounds(file), values) for bounds, values in ordered)
        ]

    def find_in(
        self, keys: pa.Table, numbers: Iterable[int], columns: Sequence[str] = ()
    ) -> pa.Table:
        """Search files of those numbers, one after the other.

        Returns:
            The places, as ``find`` does, and beside them columns of the rows there.
        """
        names = list(dict.fromkeys([*keys.column_names, *columns]))
        schema = pa.schema([self.schema.field(name) for name in names])
        found = [self.schema_of_places(columns).empty_table()]
        more = "".join(f", r.{identifier(name)}" for name in columns)
        on = equal(keys.column_names, "r", "k")
        self.connection.register("keys", numbered(keys, "_key"))
        for number in numbers:
            rows = pa.Table.from_batches(self.read(self.files[number], names), schema)
            self.connection.register("rows", numbered(rows, "_row"))
            query = f"SELECT _key, {number} AS _file, _row{more} FROM rows r JOIN keys k ON {on}"
            found.append(self.connection.sql(query).to_arrow_table().cast(found[0].schema))
        return pa.concat_tables(found)

    def schema_of_places(self, columns: Sequence[str]) -> pa.Schema:
        """Return the schema of places, with columns of the rows there."""
        return pa.schema([*PLACES, *(self.schema.field(name) for name in columns)])

    def _living(self, places: pa.Table) -> pa.Table:
        """Leave out the places of rows that are marked as gone."""
        if not len(places) or all(self.count(file) == self.measure(file)[0] for file in self.files):
            return places
        found = [places.slice(0, 0)]
        for number, rows in self._by_file(places):
            is_gone = self.gone(self.files[number])
            if is_gone is not None:
                rows = rows.filter(pa.array(~is_gone[rows.column("_row").to_numpy()]))
            found.append(rows)
        return pa.concat_tables(found)

    def _by_file(self, places: pa.Table) -> Iterator[tuple[int, pa.Table]]:
        # DuckDB reads several files at a time.
        places = places.sort_by("_file")
        numbers, starts = np.unique(places.column("_file").to_numpy(), return_index=True)
        ends = [*starts, len(places)][1:]
        for number, start, end in zip(numbers.tolist(), starts, ends, strict=True):
            yield number, places.slice(start, end - start)

    def _flags(self, number: int, places: pa.Table) -> Mask:
        """Flag the rows of a file that are among places in it."""
        flags = np.zeros(self.measure(self.files[number])[0], dtype=np.bool_)
        flags[places.column("_row").to_numpy()] = True
        return flags

    def _rows_at(self, number: int, places: pa.Table) -> Iterable[pa.RecordBatch]:
        """Read the rows at places in a file, in the order of the file."""
        return wanted_of(self._whole(number), self._flags(number, places))

    def _whole(self, number: int) -> Iterator[pa.RecordBatch]:
        """Yield a file's rows, and keep them where they are few: most files are read twice."""
        if number in self._kept:
            yield from self._kept[number]
            return
        batches, size = list[pa.RecordBatch](), self._kept_bytes
        for batch in self.read(self.files[number], self.schema.names):
            size += batch.nbytes
            if size <= _KEPT_BYTES:
                batches.append(batch)
            yield batch
        if size <= _KEPT_BYTES:
            self._kept[number], self._kept_bytes = batches, size

    def _rewrite(
        self,
        metadata: CommitMetadata,
        places: pa.Table,
        *,
        updated: pa.Table,
        inserted: pa.Table,
    ) -> None:
        """Commit the table without the rows at some places, of which the first are updated."""
        if metadata.seq != self.seq:
            raise ValueError(f"seq {self.seq} was begun, and not {metadata.seq}")
        deleted = len(self._living(places)) - len(updated)
        counts = dict(zip(ROW_COUNTS, (len(inserted), len(updated), deleted), strict=True))
        writer = self.open_writer()
        with discarding(writer.discard):
            removed = self._write(writer, places, self._as_stored(updated))
            writer.write(self._as_stored(inserted))
            writer.close()
            more = sum(map(self.count, writer.files)) - sum(map(self.count, removed))
            if more != len(inserted) - deleted:
                raise AssertionError(f"{self.where}: {more} more rows were written, not {counts}")
        with discarding(writer.discard, *self.refusals):
            self.commit_files(metadata, counts=counts, added=writer.files, removed=removed)

    def _write(self, writer: FileWriter[File], places: pa.Table, updated: pa.Table) -> list[File]:
        """Write the files anew that have places, or mark them; return those as they were."""
        removed = list[File]()
        for number, rows in self._by_file(places):
            file, is_gone = self.files[number], self._flags(number, rows)
            if (before := self.gone(file)) is not None:
                is_gone |= before
            removed.append(file)
            is_marked = not self.is_erase and writer.mark(file, is_gone)
            for batch in () if is_marked else wanted_of(self._whole(number), ~is_gone):
                writer.copy(batch, file)
            new = np.sort(rows.column("_key").to_numpy())
            writer.write(updated.take(pa.array(new[new < updated.num_rows])))
            if not is_marked:
                writer.end_source(self.measure(file)[1])
        return removed

    def _places_of(self, change: Change) -> pa.Table:
        """Find the rows that are updated, and then those that are deleted, each once."""
        if not (change.updated.num_rows or change.deleted.num_rows):
            return NO_PLACES
        names = change.deleted.column_names
        keys = pa.concat_tables(
            self._as_stored(rows.select(names)) for rows in (change.updated, change.deleted)
        )
        places = None
        if self._looked_up and self._looked_up[0].column_names == names:
            places = self._match(keys, *self._looked_up)
        if places is None or not _is_one_each(places, keys):
            places = self.find(keys)
        if not _is_one_each(places, keys):
            raise TableBusyError(
                f"{self.stream}: {self.where}: somebody else has changed the same "
                f"rows: of {counted(len(keys), 'key')} to update or delete, the table has "
                f"{counted(len(places), 'row')}. Nothing was changed. Next: {AGAIN}"
            )
        return places

    def _match(self, keys: pa.Table, looked_up: pa.Table, places: pa.Table) -> pa.Table:
        """Return where keys are by the places of others, looked up by the same columns."""
        using = f"USING ({', '.join(map(identifier, keys.column_names))})"
        self.connection.register("keys", numbered(keys, "_key"))
        self.connection.register("looked_up", numbered(looked_up, "_at"))
        self.connection.register("places", places.rename_columns(["_at", "_file", "_row"]))
        query = f"""
            SELECT _key, _file, _row FROM keys JOIN looked_up {using} JOIN places USING (_at)
        """
        return self.connection.sql(query).to_arrow_table()

    def _as_stored(self, rows: pa.Table) -> pa.Table:
        """Cast rows of any of the columns to the table's types, or refuse them."""
        try:
            schema = pa.schema([self.schema.field(name) for name in rows.column_names])
            return cast_rows(rows, schema)
        except (ValueError, pa.ArrowException) as error:
            raise RefusedError(
                self.stream,
                f"a row does not fit the columns of {self.where}: {first_line(error)}. "
                "Nothing was changed.",
                remedy="change the declaration, or alter the table",
            ) from error


def refuse_other_rows(stream: str, where: str, seq: int, since: Iterable[Commit]) -> None:
    """Make sure that later commits have left the rows as they were looked up.

    Raises:
        CommitConflictError: one of the commits is of the stream.
        TableBusyError: somebody else has changed rows.
    """
    for commit in since:
        if (last := commit.txns.get(app_id(stream))) is not None:
            raise seq_conflict(stream, where, seq, last=last)
        if commit.changes_rows:
            raise TableBusyError.meanwhile(stream)


def read_columns(
    file: pq.ParquetFile,
    names: Sequence[str | None],
    schema: pa.Schema,
    known: Mapping[str, pa.Scalar] = MappingProxyType({}),
) -> Iterator[pa.RecordBatch]:
    """Yield a file's rows in their order.

    Args:
        file: The file.
        names: What it calls the columns; ``None`` of one that it does not have.
        schema: The columns.
        known: What such a column is in every row, by its name in the schema; others are null.
    """
    wanted = [name for name in names if name]
    for batch in file.iter_batches(_ROWS_READ_AT_ONCE, columns=wanted):
        arrays = list[pa.Array]()
        for name, field in zip(names, schema, strict=True):
            if name is not None:
                values = batch.column(name)
            elif field.name in known:
                values = pa.repeat(known[field.name], len(batch))
            else:
                values = pa.nulls(len(batch), field.type)
            arrays.append(cast_values(values, field.type))
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)


@cache
def _database() -> duckdb.DuckDBPyConnection:
    """Open a database of this process, once: that takes longer than to look up a batch's keys."""
    import duckdb

    database = duckdb.connect()
    database.execute("SET GLOBAL TimeZone = 'UTC'")
    return database


def numbered(rows: pa.Table, name: str) -> pa.Table:
    """Add the number of each row."""
    return rows.append_column(name, pa.arange(0, rows.num_rows))


def wanted_of(batches: Iterable[pa.RecordBatch], is_wanted: Mask) -> Iterator[pa.RecordBatch]:
    """Yield the wanted rows of batches that follow one another, by a flag for each row."""
    start = 0
    for batch in batches:
        yield batch.filter(pa.array(is_wanted[start : start + len(batch)]))
        start += len(batch)


def as_numbers(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return moments, in microseconds, and days as numbers, and other values as they are."""
    if pa.types.is_timestamp(values.type):
        return values.cast(pa.timestamp("us", values.type.tz)).cast(pa.int64())
    return values.cast(pa.int32()) if pa.types.is_date32(values.type) else values


def _in_order(values: pa.ChunkedArray) -> list[Any]:
    """Sort the values of a key; moments and days as numbers."""
    found: list[Any] = as_numbers(values.unique().drop_null()).sort().to_pylist()
    return found


def _may_have(bounds: tuple[Any, Any], values: Sequence[Any]) -> bool:
    lowest, highest = bounds
    if lowest is None or highest is None:
        return True
    at = bisect_left(values, lowest)
    return at < len(values) and bool(values[at] <= highest)


def _is_one_each(places: pa.Table, keys: pa.Table) -> bool:
    return len(places) == len(keys) == len(np.unique(places.column("_key").to_numpy()))
