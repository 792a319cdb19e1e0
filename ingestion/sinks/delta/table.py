"""The Delta table of a stream, in the lake: a commit's ``txn`` is its fence, its metadata the note.

Of Spark's engine, the commits with rows are Delta's own: see ``ingestion.modes.engines.spark``.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable
from deltalake.exceptions import DeltaError

from oncelake.ingestion.declaration.ddl import DeclaredColumn
from oncelake.ingestion.declaration.sinks import DeltaSink
from oncelake.ingestion.declaration.sql import quoted
from oncelake.ingestion.declaration.types import SqlType
from oncelake.ingestion.delta.commits import (
    Write,
    commit_alone,
    put_commit,
    put_metadata,
    restore_version,
    unwritable_features,
)
from oncelake.ingestion.delta.description import (
    features_of,
    first_commit,
    row_json,
    stored_type,
    with_features,
)
from oncelake.ingestion.delta.durability import seal_commits
from oncelake.ingestion.delta.files import is_delta, read_delta, scan_rows
from oncelake.ingestion.delta.integrity import (
    altered_sources,
    count_rows,
    refuse_damaged,
    settings_error,
    translate_read_errors,
)
from oncelake.ingestion.delta.log import DeltaLog, all_files
from oncelake.ingestion.delta.log_files import COMMIT, commit_file, log_files
from oncelake.ingestion.delta.vacuum import remove_unreferenced
from oncelake.ingestion.delta.vectors import FEATURE, PROPERTY
from oncelake.ingestion.errors import (
    DamagedTableError,
    RefusedError,
    RewindError,
    TableSettingsError,
    first_line,
)
from oncelake.ingestion.settings import Settings
from oncelake.ingestion.sinks.delta.compaction import copy_files, widen
from oncelake.ingestion.sinks.delta.transaction import DeltaTransaction
from oncelake.ingestion.storage.checksums import matches_checksum
from oncelake.ingestion.storage.location import Location
from oncelake.ingestion.tables.commit_log import DELETED, UPDATED, Commit
from oncelake.ingestion.tables.commit_metadata import CommitMetadata, app_id
from oncelake.ingestion.tables.table import (
    REPLACED,
    AlterableTable,
    Altered,
    ErasableTable,
    MarkableTable,
    RewindableTable,
    TableDefinition,
    Tell,
    seq_conflict,
)

# Over how many batches the copied rows are counted.
_BATCHES_MEASURED: Final = 10
# Where a table has its constraints: in its properties, and in the metadata of columns.
_CHECK: Final = "delta.constraints."
_INVARIANT: Final = "delta.invariants"
_GENERATED: Final = "delta.generationExpression"


def open_table(stream: str, sink: DeltaSink, settings: Settings, lake: Location) -> DeltaSinkTable:
    """Open a stream's table; it need not be there."""
    del sink, settings
    return DeltaSinkTable(stream, lake / stream)


class DeltaSinkTable(AlterableTable, ErasableTable, RewindableTable, MarkableTable):
    """A stream's Delta table; see ``SinkTable``."""

    def __init__(self, stream: str, path: Location) -> None:
        self.stream, self.path = stream, path
        # Of the table that a log has read last.
        self._table_id: str | None = None

    @property
    def where(self) -> str:
        """Name the table's folder."""
        return str(self.path)

    @property
    def uri(self) -> str:
        """Name the table's folder, as a URI."""
        return self.path.uri

    @property
    def way_out(self) -> str:
        """Name the command that archives the table, whoever made it."""
        return f"oncelake reset {self.stream} --yes, which moves that table into the archive"

    def log(self) -> DeltaLog:
        """Open the table's log."""
        return DeltaLog(self.path, on_read=self._remember)

    def _remember(self, table_id: str) -> None:
        self._table_id = table_id

    def create(self, wanted: TableDefinition) -> None:
        """Make the table by a first commit: delta-rs would name fewer features than Spark needs."""
        if not is_delta(self.path):
            self._table_id, first = None, first_commit(wanted)
            with suppress(FileExistsError):
                (self.path / "_delta_log" / commit_file(0)).create(first)
        self.seal()
        log_files(self.path).forget()

    def use_deletion_vectors(self, is_wanted: bool) -> None:
        """Set Delta's property, and raise the protocol where that is needed."""
        table = read_delta(self.path)
        if is_wanted == (table.metadata().configuration.get(PROPERTY) == "true"):
            return
        put_metadata(
            self.path,
            table,
            properties={PROPERTY: str(is_wanted).lower()},
            more=with_features(table, FEATURE) if is_wanted else [],
        )

    def begin(self, seq: int) -> DeltaTransaction:
        """Open the newest version, and make sure that it stands at the seq before."""
        return DeltaTransaction(self.path, self.stream, seq, table_id=self._table_id)

    def columns(self) -> tuple[DeclaredColumn, ...]:
        """Return the table's columns, as its log has them."""
        return tuple(
            DeclaredColumn(
                name=each.name,
                type=stored_type(each),
                nullable=each.nullable,
                comment=(each.metadata or {}).get("comment", ""),
            )
            for each in read_delta(self.path).schema().fields
        )

    def constraints(self) -> dict[str, str]:
        """Return its CHECK constraints, and the invariants of its columns."""
        table = read_delta(self.path)
        invariants = {
            f"invariant of {each.name}": json.loads(each.metadata[_INVARIANT])
            for each in table.schema().fields
            if _INVARIANT in (each.metadata or {})
        }
        return {
            **{
                name.removeprefix(_CHECK): sql
                # delta-rs returns them in another order each time.
                for name, sql in sorted(table.metadata().configuration.items())
                if name.startswith(_CHECK)
            },
            **{name: said["expression"]["expression"] for name, said in invariants.items()},
        }

    def dropping(self, constraint: str) -> str:
        """Write the statement of Spark SQL; an invariant stays as long as its column."""
        if f"{_CHECK}{constraint}" not in read_delta(self.path).metadata().configuration:
            return ""
        return f"ALTER TABLE delta.`{self.path}` DROP CONSTRAINT {quoted(constraint)}, or "

    def generated(self) -> dict[str, str]:
        """Return the expressions of its generated columns."""
        fields = {each.name: each.metadata or {} for each in read_delta(self.path).schema().fields}
        return {name: of[_GENERATED] for name, of in fields.items() if _GENERATED in of}

    def alteration(self, column: DeclaredColumn, *, is_new: bool) -> str:
        """Write the statement of Spark SQL."""
        name, table = quoted(column.name), f"ALTER TABLE delta.`{self.path}`"
        if not is_new:
            return f"{table} ALTER COLUMN {name} DROP NOT NULL"
        of_type = f"{column.type.without_required()}{column.comment_ddl}"
        return f"{table} ADD COLUMNS ({name} {of_type})"

    def alter(self, column: DeclaredColumn, *, is_new: bool, spark: Any) -> None:
        """Commit the columns; what only Spark writes, it alters."""
        table = read_delta(self.path)
        if unwritable_features(table):
            spark.sql(self.alteration(column, is_new=is_new))
            log_files(self.path).forget()
            return
        row = json.loads(table.schema().to_json())
        # Another may have been faster.
        if is_new and column.name not in {field["name"] for field in row["fields"]}:
            row["fields"] += row_json([replace(column, nullable=True)])["fields"]
        for field in row["fields"]:
            field["nullable"] |= field["name"] == column.name
        schema = json.dumps(row)
        put_metadata(
            self.path,
            table,
            schema=schema,
            more=with_features(table, *features_of(schema)),
            operation="ADD COLUMNS" if is_new else "CHANGE COLUMN",
        )

    def can_widen(self, found: SqlType, wider: SqlType) -> bool:
        """Tell whether files can be written anew: not where only Spark writes them."""
        return found.widens_to(wider) and self.fixed_by is None

    @property
    def fixed_by(self) -> str | None:
        """Name what only Spark writes into the files of a table."""
        features = unwritable_features(read_delta(self.path))
        features += ["generated columns"] * bool(self.generated())
        return f"only Spark writes its files ({', '.join(features)})" if features else None

    def reshape(
        self,
        columns: Sequence[DeclaredColumn],
        renamed: Mapping[str, str],
        *,
        metadata: CommitMetadata,
        tell: Tell = lambda text: None,
    ) -> Commit:
        """Write every file anew, if any column of it has another name or type, or goes."""

        def act(begun: DeltaTransaction) -> None:
            begun.tell = tell
            again = partial(begun.reshape, columns, renamed, metadata=metadata)
            copy_files(self.path, begun.files, again)

        return self._commit(metadata, act)

    def widen(self, columns: Sequence[DeclaredColumn], *, tell: Tell = lambda text: None) -> None:
        """Write every file anew."""
        widen(self.path, columns, tell)

    def scan(
        self, names: Sequence[str], version: int | None = None, *, since_seq: int | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Yield rows by delta-rs and Arrow, few at once."""
        return scan_rows(self.path, names, version, since_seq=since_seq)

    def rows_of_seq(self, seq: int, *, commit: Commit) -> int:
        """Count, in the files that statistics on ``_seq`` leave."""
        return count_rows(self.path, pc.field("_seq") == seq, version=commit.version)

    def notes(self, through: int) -> Iterator[tuple[int, int | None, str | Altered | None]]:
        """Read the log as plain JSON, apart from ``DeltaLog``, and compare checksums."""
        log = self.path / "_delta_log"
        versions = (int(found[1]) for found in map(COMMIT.fullmatch, log.files()) if found)
        for version in sorted(versions):
            if version <= through:
                yield version, *_fence_and_note(log / commit_file(version), app_id(self.stream))

    def seal(self) -> None:
        """Do so: neither delta-rs nor Spark has."""
        seal_commits(self.path)

    def refuse_damaged(self, log: DeltaLog) -> None:
        """Compare the log with its checksums, and its files with what it says of them."""
        refuse_damaged(log)

    def settings_error(self, log: DeltaLog) -> TableSettingsError | None:
        """Find properties and features that contradict the ingestion."""
        return settings_error(self.stream, log)

    def rewritten(self, log: DeltaLog) -> tuple[int, int]:
        """Take what MERGE's metrics say."""
        if not log.exists or log.snapshot.metadata().configuration.get(PROPERTY) == "true":
            return 0, 0
        batches = (each for each in log.newest_first() if each.metadata is not None)
        metrics = [each.metrics for each in islice(batches, _BATCHES_MEASURED)]
        copied = sum(of.get("numTargetRowsCopied", 0) for of in metrics)
        return copied, sum(of.get(name, 0) for of in metrics for name in (UPDATED, DELETED))

    def altered_sources(self, commit: Commit) -> Iterator[str]:
        """Compare the files that the commit has removed with their checksums."""
        return altered_sources(self.path, commit)

    def translate_read_errors(self, version: int | None = None) -> AbstractContextManager[None]:
        """Check every file after a failed read, and name the one that is damaged."""
        return translate_read_errors(self.path, version)

    def commit_note(self, metadata: CommitMetadata) -> Commit:
        """Commit by delta-rs, without a row."""
        write = self._to_the_one_read(metadata, partial(put_commit, self.path))
        return commit_alone(self.path, self.stream, metadata, write)

    def _to_the_one_read(self, metadata: CommitMetadata, write: Write) -> Write:
        """Return what writes a commit, but to no other table than the one that was read."""

        def commit(opened: DeltaTable, fenced: CommitProperties) -> None:
            if self._table_id not in (None, str(opened.metadata().id)):
                seq = metadata.seq
                raise seq_conflict(self.stream, self.where, seq, last=None, but=REPLACED)
            write(opened, fenced)

        return commit

    def restorable(self) -> Iterator[tuple[Commit, int | None, int]]:
        """Walk the log back; one version may have the rows of another, put together anew."""
        log, there, whole = self.log(), self.path.files().keys(), None
        missing = all_files(self.path, log.snapshot) - there
        for commit in _commits(log):
            whole = whole if missing else commit.version
            yield commit, whole, len(missing)
            if commit.metadata is not None or commit.changes_rows:
                whole = None
            missing = (missing - set(commit.added)) | (set(commit.removed) - there)

    def altered_since(self, version: int) -> Iterator[str]:
        """Compare the files that would come back with their checksums."""
        try:
            then = all_files(self.path, read_delta(self.path, version=version))
        except DeltaError as error:
            yield f"version {version} cannot be read ({first_line(error)})"
            return
        for name in sorted(then - all_files(self.path, read_delta(self.path))):
            if not matches_checksum(self.path / name):
                yield f"data file {name} is not as it was written"

    def restore(self, version: int, metadata: CommitMetadata) -> Commit:
        """Commit by delta-rs, which brings the files of that version back."""
        restore = partial(restore_version, self.path, version=version)
        write = self._to_the_one_read(metadata, restore)
        try:
            return commit_alone(self.path, self.stream, metadata, write)
        except DeltaError as error:
            raise RewindError(
                self.stream,
                f"delta-rs cannot set the table back: {first_line(error)}.",
                remedy=f"oncelake rebuild {self.stream} makes the table anew from the topic",
            ) from error

    def erase(self, keys: pa.Table, metadata: CommitMetadata) -> Commit:
        """Commit, and seal it; a table that this process cannot write is refused."""
        if features := unwritable_features(read_delta(self.path)):
            raise RefusedError(
                self.stream,
                f"it cannot be written without Spark, for its features {', '.join(features)}.",
                remedy=f"leave the key out by `where`, and oncelake rebuild {self.stream}",
            )
        commit = super().erase(keys, metadata)
        self.seal()
        return commit

    def written_files(self) -> frozenset[str]:
        """Return every file in the table's folder."""
        return frozenset(self.path.files())

    def remove_older_versions(self, written: Collection[str]) -> int:
        """Remove their files, and their commits, which hold lowest and highest values."""
        return remove_unreferenced(self.path, written, is_fenced=True)


def _commits(log: DeltaLog) -> Iterator[Commit]:
    """Walk the log back to its end, or to a damaged commit, which a checkpoint stands in for."""
    with suppress(DamagedTableError):
        yield from log.newest_first()


def _fence_and_note(commit: Location, application: str) -> tuple[int | None, str | Altered | None]:
    altered = Altered(f"_delta_log/{commit.name} is cut short, or not as it was written")
    content = commit.read()
    # A commit's other actions are about files, which may be many.
    lines = (n for n in content.splitlines() if n.startswith((b'{"commitInfo"', b'{"txn"')))
    fence, note = None, None
    try:
        actions = [json.loads(line) for line in lines]
    except ValueError:
        return None, altered
    if not matches_checksum(commit, content):
        return None, altered
    for action in actions:
        note = action.get("commitInfo", {}).get("userMetadata", note)
        if (mark := action.get("txn", {})).get("appId") == application:
            fence = mark["version"]
    return fence, note
