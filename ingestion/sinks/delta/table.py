"""The Delta table of a stream, in the lake: a commit's ``txn`` is its fence, its metadata the note.

Of Spark's engine, the commits with rows are Delta's own: see ``ingestion.modes.engines.spark``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from deltalake.exceptions import DeltaError

from oncelake.ingestion.declaration.ddl import DeclaredColumn
from oncelake.ingestion.declaration.partitions import DeclaredPartition
from oncelake.ingestion.declaration.sinks import DeltaSink
from oncelake.ingestion.delta.commits import put_metadata
from oncelake.ingestion.delta.description import (
    columns_of,
    first_commit,
    partitions_in,
    with_features,
)
from oncelake.ingestion.delta.durability import seal_commits
from oncelake.ingestion.delta.features import (
    FEED,
    KEY_INDEX,
    clustering_columns,
    unwritable_features,
)
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
from oncelake.ingestion.delta.partitions import GENERATED, computed
from oncelake.ingestion.delta.vacuum import remove_unreferenced
from oncelake.ingestion.delta.vectors import FEATURE, PROPERTY, newest_checkpoint
from oncelake.ingestion.errors import (
    DamagedTableError,
    RewindError,
    TableSettingsError,
    first_line,
)
from oncelake.ingestion.settings import Settings
from oncelake.ingestion.sinks.delta.transaction import DeltaTransaction
from oncelake.ingestion.storage.checksums import matches_checksum
from oncelake.ingestion.storage.location import Location
from oncelake.ingestion.tables.commit_log import DELETED, UPDATED, Commit
from oncelake.ingestion.tables.commit_metadata import CommitMetadata, app_id
from oncelake.ingestion.tables.table import (
    Altered,
    ErasableTable,
    MarkableTable,
    RewindableTable,
    Rules,
    SealedTable,
    TableDefinition,
)

# Over how many batches the copied rows are counted.
_BATCHES_MEASURED: Final = 10
# Where a table has its constraints: in its properties, and in the metadata of columns.
_CHECK: Final = "delta.constraints."
_INVARIANT: Final = "delta.invariants"


def open_table(stream: str, sink: DeltaSink, settings: Settings, lake: Location) -> DeltaSinkTable:
    """Open a stream's table; it need not be there."""
    # In a store there is no page of a file that is read in less than a request.
    index = settings.state / "keys" / stream if sink.key_index and lake.is_local else None
    feed = {FEED: "true"} if sink.change_data_feed else {}
    return DeltaSinkTable(stream, lake / stream, {**sink.properties, **feed}, index=index)


class DeltaSinkTable(ErasableTable, RewindableTable, MarkableTable, SealedTable):
    """A stream's Delta table; see ``SinkTable``."""

    def __init__(
        self,
        stream: str,
        path: Location,
        properties: Mapping[str, str] = MappingProxyType({}),
        *,
        index: Path | None = None,
    ) -> None:
        """Take the stream's name, the table's folder, its declared properties, and the index's."""
        self.stream, self.path, self._index = stream, path, index
        self._wanted = {**properties, **({KEY_INDEX: "true"} if index else {})}
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

    def log(self) -> DeltaLog:
        """Open the table's log."""
        return DeltaLog(self.path, on_read=self._remember)

    def _remember(self, table_id: str) -> None:
        self._table_id = table_id

    def create(self, wanted: TableDefinition) -> None:
        """Make the table by a first commit: delta-rs would name fewer features than Spark needs."""
        if not is_delta(self.path):
            self._table_id, first = None, first_commit(wanted, self._wanted)
            with suppress(FileExistsError):
                (self.path / "_delta_log" / commit_file(0)).create(first)
        self.seal()
        log_files(self.path).forget()

    def configure(self, *, deletion_vectors: bool) -> None:
        """Set Delta's properties, and raise the protocol where that is needed."""
        table = read_delta(self.path)
        found, wanted = table.metadata().configuration, dict(self._wanted)
        if deletion_vectors != (found.get(PROPERTY) == "true"):
            wanted[PROPERTY] = str(deletion_vectors).lower()
        if self._index is None and found.get(KEY_INDEX) == "true":
            wanted[KEY_INDEX] = "false"
        if not wanted.items() <= found.items():
            named = {FEED: "changeDataFeed", PROPERTY: FEATURE}
            of = (feature for name, feature in named.items() if wanted.get(name) == "true")
            put_metadata(self.path, table, wanted, with_features(table, *of))

    def begin(self, seq: int) -> DeltaTransaction:
        """Open the newest version, and make sure that it stands at the seq before."""
        table_id, index = self._table_id, self._index
        return DeltaTransaction(self.path, self.stream, seq, table_id=table_id, index=index)

    def columns(self) -> tuple[DeclaredColumn, ...]:
        """Return the table's columns, as its log has them."""
        return columns_of(read_delta(self.path))

    def partitions(self) -> tuple[DeclaredPartition, ...]:
        """Return what its columns mean."""
        return tuple(each.of for each in partitions_in(read_delta(self.path)) if each.of)

    def sort_by(self) -> tuple[str, ...]:
        """Return what it is clustered by."""
        return (*clustering_columns(self.path, read_delta(self.path)),)

    def rules(self) -> Rules:
        """Return constraints, invariants and generated columns, and what only Spark writes."""
        table = read_delta(self.path)
        known = {each.name: each.metadata or {} for each in table.schema().fields}
        generated = {name: of[GENERATED] for name, of in known.items() if GENERATED in of}
        for name in computed(partitions_in(table)):
            del generated[name]
        features = [*unwritable_features(table), *["generated columns"] * bool(generated)]
        return Rules(
            checks={
                name.removeprefix(_CHECK): sql
                # delta-rs returns them in another order each time.
                for name, sql in sorted(table.metadata().configuration.items())
                if name.startswith(_CHECK)
            },
            invariants={
                name: json.loads(of[_INVARIANT])["expression"]["expression"]
                for name, of in known.items()
                if _INVARIANT in of
            },
            generated=generated,
            fixed_by=f"only Spark writes its files ({', '.join(features)})" if features else "",
        )

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

    def checkpoint_version(self, through: int) -> int:
        """Return the version of the newest whole checkpoint; -1 if a disk has changed it."""
        log = self.path / "_delta_log"
        version, files = newest_checkpoint(log.files(), through)
        return version if all(matches_checksum(log / name) for name in files) else -1

    def seal(self) -> None:
        """Write it, since neither delta-rs nor Spark has."""
        seal_commits(self.path)

    def check(self, log: DeltaLog) -> TableSettingsError | None:
        """Compare the log with its checksums, and its files with what it says of them.

        Returns properties and features that contradict the ingestion.
        """
        refuse_damaged(log)
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

    def translate_read_errors(self) -> AbstractContextManager[None]:
        """Check every file after a failed read, and name the one that is damaged."""
        return translate_read_errors(self.path)

    def _commit(self, metadata: CommitMetadata, act: Callable[[Any], None]) -> Commit:
        """Commit, and seal it."""
        commit = super()._commit(metadata, act)
        self.seal()
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
        """Translate what delta-rs says of files that are gone."""
        try:
            return super().restore(version, metadata)
        except DeltaError as error:
            raise RewindError(
                self.stream,
                f"delta-rs cannot set the table back: {first_line(error)}.",
                remedy=f"oncelake rebuild {self.stream} makes the table anew from the topic",
            ) from error

    @property
    def obstacle(self) -> str:
        """Name the features of a table that only Spark writes."""
        features = ", ".join(unwritable_features(read_delta(self.path)))
        return features and f"only Spark writes its table, for its features {features}"

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
