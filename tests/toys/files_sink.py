"""A sink as somebody would add it: a folder of Arrow files, each published by one link.

    prepare: rows and note into a file that nobody reads → publish: link it as the next version

Of two who publish the same version one finds it there. What was prepared and never published is
removed by whoever begins next.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import psutil
import pyarrow as pa
import pyarrow.compute as pc

from ingestion.declaration.ddl import DeclaredColumn
from ingestion.errors import CommitConflictError
from ingestion.pipeline.schema import type_of_columns
from ingestion.sinks.commit_log import ROW_COUNTS, Commit, CommitLog
from ingestion.sinks.commit_metadata import CommitMetadata, app_id
from ingestion.sinks.table import Ability, Change, SinkTable, TableDefinition, Transaction

_NOTE, _COUNTS = b"oncelake.note", b"oncelake.counts"


class FilesTable(SinkTable):
    """A folder of one stream's versions, each whole."""

    cannot: ClassVar[Mapping[Ability, str]] = {
        "rewind": "a toy goes only forward",
        "erase": "a toy keeps every version",
    }

    def __init__(self, stream: str, folder: Path) -> None:
        """Take the folder."""
        self.stream, self.folder = stream, folder
        self.known_id: str | None = None

    @property
    def where(self) -> str:
        """Name the folder."""
        return str(self.folder)

    @property
    def uri(self) -> str:
        """Name the folder."""
        return self.folder.as_uri()

    def versions(self) -> list[int]:
        """List the versions, newest first; 0 is the empty table, without a note."""
        return sorted((int(file.stem) for file in self.folder.glob("*.arrow")), reverse=True)

    def read(self, version: int) -> pa.Table:
        """Read one version whole."""
        with pa.memory_map(str(self.folder / f"{version:08d}.arrow")) as file:
            return pa.ipc.open_file(file).read_all()

    def log(self) -> FilesLog:
        """Open the folder, and remember of what table it is."""
        self.known_id = self.id_() if self.versions() else None
        return FilesLog(self)

    def id_(self) -> str:
        """Return the id that the first version was given."""
        return (self.read(0).schema.metadata or {})[b"id"].decode()

    def create(self, wanted: TableDefinition) -> None:
        """Publish the empty table."""
        from pyspark.sql.pandas.types import to_arrow_schema

        self.folder.mkdir(parents=True, exist_ok=True)
        schema = to_arrow_schema(type_of_columns(wanted.columns), timezone="UTC")
        schema = schema.with_metadata({"id": uuid.uuid4().hex, "keys": ",".join(wanted.keys)})
        if not self.versions():
            self.publish(schema.empty_table(), 0)

    def publish(self, rows: pa.Table, version: int) -> None:
        """Write a file, and link it, once."""
        prepared = self.prepare(rows)
        try:
            os.link(prepared, self.folder / f"{version:08d}.arrow")
        except (FileExistsError, FileNotFoundError):
            raise CommitConflictError(
                self.stream, f"version {version} is another writer's.", remedy="run again"
            ) from None
        finally:
            prepared.unlink(missing_ok=True)

    def prepare(self, rows: pa.Table) -> Path:
        """Write a file that nobody reads."""
        prepared = self.folder / f"{os.getpid()}-{uuid.uuid4().hex}.prepared"
        with pa.OSFile(str(prepared), "wb") as file, pa.ipc.new_file(file, rows.schema) as writer:
            writer.write_table(rows)
        return prepared

    def columns(self) -> tuple[DeclaredColumn, ...]:
        """Refuse: the toy has no schema changes."""
        raise NotImplementedError

    def alteration(self, column: DeclaredColumn, *, is_new: bool) -> str:
        """Refuse: the toy has no schema changes."""
        raise NotImplementedError

    def alter(self, column: DeclaredColumn, *, is_new: bool, spark: Any) -> None:
        """Refuse: the toy has no schema changes."""
        raise NotImplementedError

    def begin(self, seq: int) -> FilesTransaction:
        """Look at the newest version."""
        return FilesTransaction(self, seq)

    def scan(
        self, names: Sequence[str], version: int | None = None, *, since_seq: int | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Read a version."""
        rows = self.read(self.versions()[0] if version is None else version)
        if since_seq is not None:
            rows = rows.filter(pc.field("_seq") >= since_seq)
        yield from rows.select(list(names)).to_batches()

    def rows_of_seq(self, seq: int, *, commit: Commit) -> int:
        """Count the rows of a version."""
        rows = self.read(commit.version)
        return pc.sum(pc.equal(rows["_seq"], seq)).as_py() or 0

    def notes(self, through: int) -> Iterator[tuple[int, int | None, str | None]]:
        """Read the notes, oldest first."""
        for version in reversed(self.versions()):
            note = (self.read(version).schema.metadata or {}).get(_NOTE)
            if note and version <= through:
                yield version, version - 1, note.decode()


class FilesTransaction(Transaction):
    """One version to be."""

    def __init__(self, table: FilesTable, seq: int) -> None:
        """Look at the newest version, and compare it with the seq before."""
        self.table, self.seq = table, seq
        for left in table.folder.glob("*.prepared"):
            # What a dead writer has prepared, and never published; a living one still may.
            if not psutil.pid_exists(int(left.name.partition("-")[0])):
                left.unlink(missing_ok=True)
        self.version = table.versions()[0]
        if self.version != seq or table.known_id not in (None, table.id_()):
            raise CommitConflictError(
                table.stream,
                f"the table holds seq {self.version - 1}, or is another.",
                remedy="run again",
            )
        self.before = table.read(self.version)
        self.keys = (self.before.schema.metadata or {})[b"keys"].decode().split(",")

    def rows_of(self, keys: pa.Table, columns: Sequence[str] | None = None) -> pa.Table:
        """Find rows by their keys."""
        del columns
        return self._among(self.before, keys)

    def _among(self, rows: pa.Table, keys: pa.Table, *, invert: bool = False) -> pa.Table:
        # The toy takes one key column.
        (name,) = self.keys
        is_among = pc.is_in(rows[name], keys[name].combine_chunks())
        return rows.filter(pc.invert(is_among) if invert else is_among)

    def after(self, change: Change) -> pa.Table:
        """Return the rows as they will be."""
        gone = pa.concat_tables([change.deleted, change.updated.select(self.keys)])
        new = [rows.cast(self.before.schema) for rows in (change.updated, change.inserted)]
        return pa.concat_tables([self._among(self.before, gone, invert=True), *new])

    def commit(self, change: Change | None, metadata: CommitMetadata) -> None:
        """Publish the next version."""
        rows = self.before if change is None else self.after(change)
        counts = ",".join(map(str, change.counts.values())) if change else "0,0,0"
        said = {_NOTE: self.written(metadata), _COUNTS: counts}
        kept = self.before.schema.metadata or {}
        self.table.publish(rows.replace_schema_metadata({**kept, **said}), self.version + 1)

    def written(self, metadata: CommitMetadata) -> str:
        """Return the note as it is kept."""
        return metadata.to_json()

    def close(self) -> None:
        """Do nothing: what is not published is nowhere."""


class FilesLog(CommitLog):
    """The versions of the folder."""

    def __init__(self, table: FilesTable) -> None:
        """Take the table."""
        self.table = table

    @property
    def exists(self) -> bool:
        """Tell whether there is a version."""
        return bool(self.table.versions())

    @property
    def is_empty(self) -> bool:
        """Tell whether the newest has no row."""
        return not self.row_count()

    def table_id(self) -> str:
        """Return the id that the first version was given."""
        return f"files:{self.table.id_()}"

    def versions(self) -> list[int]:
        """List the versions, newest first, without the empty table."""
        return self.table.versions()[:-1]

    def look_again(self) -> None:
        """Do nothing: each question looks."""

    def read(self, version: int) -> Commit:
        """Read one commit."""
        said = self.table.read(version).schema.metadata or {}
        metadata = CommitMetadata.from_json(said[_NOTE].decode())
        assert metadata is not None
        counts = map(int, said[_COUNTS].decode().split(","))
        return Commit(
            version=version,
            timestamp_ms=0,
            operation="WRITE",
            metrics=dict(zip(ROW_COUNTS, counts, strict=True)),
            txns={app_id(self.table.stream): metadata.seq},
            changes_rows=True,
            metadata=metadata,
        )

    def last_seq(self, stream: str) -> int | None:
        """Return the newest version's seq."""
        newest = self.versions()[:1]
        return self.read(newest[0]).txns[app_id(stream)] if newest else None

    def row_count(self) -> int:
        """Count the newest version's rows."""
        return int(self.table.read(self.table.versions()[0]).num_rows)

    def highest_epoch(self) -> int:
        """Return the newest epoch."""
        return pc.max(self.table.read(self.table.versions()[0])["_epoch"]).as_py() or 0

    def refuse_torn(self, stream: str, commit: Commit) -> None:
        """Do nothing: fence and note are one."""
