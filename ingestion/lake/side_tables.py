"""Quarantine and tombstones, the tables beside that of a stream's rows: projections of its commits.

What a batch writes there is a file at first, which no log names. The note of its commit does, by
name, length and checksum; behind the commit the file is put into the side table's log, under a
``txn`` of the batch's seq, so that this may be done again. Of a batch that was not committed nobody
reads anything: its file is one that a VACUUM removes.

So the side tables hold what every batch in the ledger has written, and lack the newest commit at
most: whoever commits the next has projected that one before.
"""

from __future__ import annotations

import io
import json
import time
import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, Schema, Transaction, write_deltalake
from deltalake.exceptions import DeltaError

from oncelake.ingestion.declaration.modes import COORDINATES
from oncelake.ingestion.declaration.sql import equal
from oncelake.ingestion.delta.commits import EXACTLY, commit_again, put_commit
from oncelake.ingestion.delta.data_files import describe_file
from oncelake.ingestion.delta.description import making, with_columns
from oncelake.ingestion.delta.durability import seal_commits
from oncelake.ingestion.delta.files import is_delta, open_delta, open_rows, recorded_txn
from oncelake.ingestion.delta.integrity import translate_read_errors
from oncelake.ingestion.delta.vacuum import checkpoint
from oncelake.ingestion.errors import AGAIN, TableBusyError
from oncelake.ingestion.lake.lock import refuse_lost_lease
from oncelake.ingestion.lake.paths import StreamPaths
from oncelake.ingestion.storage.location import Location
from oncelake.ingestion.tables.commit_metadata import (
    REWOUND_TO,
    CommitMetadata,
    SideFile,
    SideFileName,
    app_id,
)

# Of which columns statistics are kept, where a table has them.
_STATISTICS: Final = ("_seq", "_offset", "redriven_seq")
_SKIPS_BY: Final = "delta.dataSkippingStatsColumns"
# Where Spark keeps the types of a file's columns, of which Parquet and Arrow have fewer.
_OF_SPARK: Final = b"org.apache.spark.sql.parquet.row.metadata"
# As delta-rs does, which commits the marks.
_COMMITS_TO_CHECKPOINT: Final = 100
_NULLABLE: Final = ("nullable", "containsNull", "valueContainsNull")


def read_back(file: Location) -> SideFile:
    """Describe a file as it lies there, for the note of a commit; it outlives a power cut then.

    Raises:
        TableBusyError: an erase of another run has taken the batch's number, and removed the file.
    """
    try:
        for written in (file, file.parent, file.parent.parent):
            written.sync()
        content = file.read()
    except FileNotFoundError as error:
        raise TableBusyError(
            f"{file.parent.name}: another run has removed {file.name} meanwhile. Nothing was "
            f"committed. Next: {AGAIN}"
        ) from error
    rows = pq.read_table(io.BytesIO(content), columns=["_seq"]).num_rows
    return _described(file.name, content, rows)


def _described(name: str, content: bytes, rows: int) -> SideFile:
    return SideFile(path=name, rows=rows, size=len(content), checksum=zlib.crc32(content))


def read_named(folder: Location, file: SideFile | None) -> bytes | None:
    """Return what a file holds that a commit names, if it is there as the note says."""
    if file is None or (content := (folder / file.path).read_if_there()) is None:
        return None
    return content if _described(file.path, content, file.rows) == file else None


def application(stream: str, table_id: str) -> str:
    """Return the id under which the projections of a table's commits are fenced."""
    return f"{app_id(stream)}:{table_id}"


def is_projected(side: DeltaTable, stream: str, table_id: str, seq: int) -> bool:
    """Tell whether a side table has what a batch of a table has written to it."""
    recorded = recorded_txn(side, application(stream, table_id))
    return recorded is not None and recorded >= seq


def count_rows(path: Location, seq: int, column: str = "_seq") -> int:
    """Count the rows of a side table that a batch has written, or marked.

    delta-rs and Arrow count what Spark wrote: a second reader. Statistics leave only the files of
    the batch to read.
    """
    with translate_read_errors(path):
        return int(open_rows(path).count_rows(filter=pc.field(column) == seq))


def project(paths: StreamPaths, note: CommitMetadata, table_id: str) -> None:
    """Bring the side tables up to date with a commit of a table; doing it again changes nothing.

    Those before it must have been projected. A file that is gone, or is not as the note says, is
    left out: what the tables must hold, the books say.

    Raises:
        DamagedTableError: a side table cannot be read.
        TableBusyError: somebody else changed one meanwhile.
    """
    projection = _Projection(paths, note, table_id)
    for name, path in paths.sides.items():
        with translate_read_errors(path):
            if note.kind == "rewind" and is_delta(path):
                projection.undo(path)
            projection.commit(path, name, projection.add)
    with translate_read_errors(paths.quarantine):
        projection.commit(paths.quarantine, "redriven", projection.mark)


@dataclass(frozen=True, slots=True)
class _Projection:
    """The commits to side tables that one of the stream's table asks for."""

    paths: StreamPaths
    note: CommitMetadata
    table_id: str

    def commit(
        self,
        path: Location,
        name: SideFileName,
        write: Callable[[Location, SideFile, bytes, DeltaTable | None], None],
    ) -> None:
        """Commit what a file says, once, on exactly the version that was looked at."""
        if (file := self.note.side.get(name)) is None:
            return

        def attempt() -> None:
            # By now another run may have put another table in place.
            refuse_lost_lease(self.paths)
            opened = open_delta(path) if is_delta(path) else None
            if opened and is_projected(opened, self.paths.stream, self.table_id, self.note.seq):
                return
            if content := read_named(path, file):
                write(path, file, content, opened)

        commit_again(attempt, path.name)
        seal_commits(path)

    def add(
        self, path: Location, file: SideFile, content: bytes, opened: DeltaTable | None
    ) -> None:
        """Put a file into a table's log, which is made with it where it is the first."""
        parquet = pq.ParquetFile(io.BytesIO(content))
        columns = _columns_of(parquet)
        there = [each for each in parquet.schema_arrow if each.name in _STATISTICS]
        if opened is None:
            settings = {_SKIPS_BY: ",".join(each.name for each in there)}
            actions: Sequence[Any] = making(json.dumps(columns), settings)
        else:
            wider, has_changed = _wider(opened, columns)
            if has_changed:
                self._write_anew(path, opened, parquet.read())
                return
            actions = with_columns(opened, wider)
        added = describe_file(file.path, parquet.metadata, file.size, there)
        add = {**added.as_add(time.time_ns() // 1_000_000), "dataChange": True}
        put_commit(path, opened, self._fence, [*actions, {"add": add}])
        if opened and (opened.version() + 1) % _COMMITS_TO_CHECKPOINT == 0:
            # What is committed is so without it: the log is only longer to read.
            with suppress(DeltaError, OSError):
                checkpoint(path)

    def _write_anew(self, path: Location, opened: DeltaTable, rows: pa.Table) -> None:
        """Write all rows of a table with those that come, where a column has another type now."""
        both = [open_rows(path, snapshot=opened).to_table(), rows]
        write_deltalake(
            opened,
            pa.concat_tables(both, promote_options="permissive"),
            mode="overwrite",
            schema_mode="overwrite",
            commit_properties=self._fence,
        )

    def mark(self, _: Location, __: SideFile, content: bytes, opened: DeltaTable | None) -> None:
        """Mark the records that a redrive has sent in."""
        if opened is None:
            return
        same = equal([*COORDINATES, "_seq"], "t", "s")
        merger = opened.merge(
            pq.read_table(io.BytesIO(content)),
            f'{same} AND t."redriven_seq" IS NULL',
            source_alias="s",
            target_alias="t",
            commit_properties=self._fence,
        )
        mark = {"redriven_seq": f"CAST({self.note.seq} AS BIGINT)"}
        merger.when_matched_update(mark).execute()

    @property
    def _fence(self) -> CommitProperties:
        known_as = application(self.paths.stream, self.table_id)
        return CommitProperties(
            app_transactions=[Transaction(known_as, self.note.seq)],
            # It would try again on a later version, which may have it.
            max_commit_retries=0,
        )

    def undo(self, path: Location) -> None:
        """Remove the rows and the marks of the batches that a rewind has undone."""
        undone = f"> {self.note.counts[REWOUND_TO]} AND {{0}} < {self.note.seq}"

        def attempt() -> None:
            refuse_lost_lease(self.paths)
            opened = open_delta(path)
            opened.delete(f"_seq {undone.format('_seq')}", commit_properties=EXACTLY)
            if path == self.paths.quarantine:
                opened.update(
                    updates={"redriven_seq": "CAST(NULL AS BIGINT)"},
                    predicate=f"redriven_seq {undone.format('redriven_seq')}",
                    commit_properties=EXACTLY,
                )

        commit_again(attempt, path.name)
        seal_commits(path)


def _columns_of(parquet: pq.ParquetFile) -> dict[str, Any]:
    """Return the columns of a file as Delta's log keeps them, each of which may be null."""
    of_spark = (parquet.metadata.metadata or {}).get(_OF_SPARK)
    text = of_spark.decode() if of_spark else Schema.from_arrow(parquet.schema_arrow).to_json()
    columns: dict[str, Any] = json.loads(
        text, object_hook=lambda part: {**part, **{n: True for n in _NULLABLE if n in part}}
    )
    return columns


def _wider(opened: DeltaTable, columns: dict[str, Any]) -> tuple[dict[str, Any], bool]:
    """Add columns to those of a table; tell whether a known one has another type."""
    known: dict[str, Any] = json.loads(opened.schema().to_json())
    types = {field["name"]: field["type"] for field in known["fields"]}
    new = [field for field in columns["fields"] if field["name"] not in types]
    both = [(types[f["name"]], f["type"]) for f in columns["fields"] if f["name"] in types]
    has_changed = any(is_ != due for is_, due in both if isinstance(due, str))
    return {**known, "fields": [*known["fields"], *new]}, has_changed
