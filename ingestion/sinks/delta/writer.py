"""How the data files of a Delta table are written, and marked."""

from __future__ import annotations

import json
import tempfile
import uuid
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from oncelake.ingestion.delta.data_files import AddedFile, describe_file
from oncelake.ingestion.delta.excerpts import SMALL_PAGES
from oncelake.ingestion.delta.partitions import StoredPartition, texts_of
from oncelake.ingestion.delta.vectors import Action, VectorWriter
from oncelake.ingestion.sinks.files import (
    MOST_MARKED,
    TARGET_BYTES,
    FileWriter,
    Mask,
    PartitionedWriter,
    Values,
)
from oncelake.ingestion.storage.checksums import has_seal, matches_checksum
from oncelake.ingestion.storage.location import Location

# A file on its way into a store is on this machine from here on.
_IN_MEMORY: Final = 32 << 20


class DeltaFileWriter(FileWriter[AddedFile]):
    """Writes rows to new data files of a table.

    Attributes:
        file_id: Names a file; by default, each has another.
        more: What else the log says of a file.
    """

    compression = "snappy"
    file_id: uuid.UUID | None = None
    more: Action = MappingProxyType({})

    def __init__(
        self,
        table: Location,
        schema: pa.Schema,
        statistics: Collection[str],
        *,
        marks: bool = False,
        has_small_pages: bool = False,
        target_bytes: int = TARGET_BYTES,
        partition: Mapping[str, str | None] | None = None,
    ) -> None:
        """Take the folder, the columns, and of which of them statistics are kept.

        Args:
            table: The table's folder.
            schema: The columns.
            statistics: Names of columns.
            marks: Whether rows may be marked as gone.
            has_small_pages: Whether a few rows are to be read by themselves.
            target_bytes: What a file grows to.
            partition: Of all rows that are written.
        """
        super().__init__(schema, target_bytes)
        self._table, self._statistics, self._partition = table, statistics, partition or {}
        self._vectors = VectorWriter(table) if marks else None
        if has_small_pages:
            self.options = SMALL_PAGES

    def resume(self) -> bool:
        """Take the file of that id for written, if it is there whole.

        On this machine its seal says so; a store has no parts of files.
        """
        file = self._table / self._name()
        if (content := file.read_if_there()) is None:
            return False
        if file.is_local and not (has_seal(file) and matches_checksum(file, content)):
            return False
        metadata = pq.read_metadata(pa.BufferReader(content))
        self.files.append(self._describe(file.name, metadata, len(content)))
        return True

    def mark(self, file: AddedFile, is_gone: Mask) -> bool:
        """Give a file another vector, unless most of its rows are gone then."""
        stats = json.loads(file.stats or "{}")
        is_fit = "numRecords" in stats and np.count_nonzero(is_gone) <= MOST_MARKED * len(is_gone)
        if self._vectors is None or not is_fit:
            return False
        vector = self._vectors.add(np.flatnonzero(is_gone))
        # The row with the lowest value may be gone.
        loose = json.dumps({**stats, "tightBounds": False})
        self.files.append(replace(file, number=-1, stats=loose, vector=vector))
        return True

    def close(self) -> None:
        """Complete what is being written."""
        super().close()
        if self._vectors is not None:
            self._vectors.close()

    def discard(self) -> None:
        """Delete what was written."""
        super().discard()
        if self._vectors is not None:
            with suppress(OSError):
                self._vectors.discard()

    def _name(self) -> str:
        return f"part-00000-{self.file_id or uuid.uuid4()}-c000.{self.compression}.parquet"

    def _begin(self) -> tuple[str, Any]:
        name = self._name()
        if self._table.is_local:
            return name, (self._table / name).path.open("wb")
        # Arrow would put each file in parts, by four requests.
        return name, tempfile.SpooledTemporaryFile(_IN_MEMORY)

    def _end(self, path: str, stream: Any) -> None:
        if not self._table.is_local:
            (self._table / path).upload(stream)
        stream.close()

    def _describe(self, path: str, metadata: pq.FileMetaData, size: int) -> AddedFile:
        there = {*self._schema.names} & {*self._statistics}
        fields = [self._schema.field(name) for name in there]
        described = describe_file(path, metadata, size, fields)
        return replace(described, partition=self._partition, more=self.more)

    def _delete(self, paths: Sequence[str]) -> None:
        for path in paths:
            with suppress(OSError):
                (self._table / path).delete()


class PartitionedDeltaWriter(PartitionedWriter[AddedFile], DeltaFileWriter):
    """Writes the rows of each partition to files of their own, all in the table's folder.

    What a value is, a file's name does not say: so no character of it can be misread.
    """

    def __init__(self, *given: Any, partitions: Sequence[StoredPartition], **options: Any) -> None:
        """Take the partitions, and what any writer of Delta's takes."""
        super().__init__(*given, **options)
        self._partitions, self._open = partitions, {}
        self._names = [each.name for each in partitions]

    def resume(self) -> bool:
        """Write all again: into how many files the rows of one go, is not known."""
        return False

    def _values_of(self, rows: pa.Table) -> list[pa.Array]:
        return texts_of(self._partitions, rows)

    def _known_of(self, file: AddedFile) -> Values | None:
        values = file.partition
        return tuple(values.values()) if [*values] == self._names else None

    def _begin_partition(self, values: Values) -> DeltaFileWriter:
        # Of any name: one partition may have several files of what was one. Plain columns stand in
        # the files as well: Polars looks for them there, and then in the names of folders.
        return DeltaFileWriter(
            *(self._table, self._schema, {*self._statistics} - {*self._names}),
            has_small_pages=bool(self.options),
            target_bytes=self._target,
            partition=dict(zip(self._names, values, strict=True)),
        )
