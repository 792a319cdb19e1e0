"""Whether a table is fit to be written: its files are whole, and its settings supported.

A reader that meets an empty commit file, or none, sees an older table and says nothing; a MERGE
that prunes a lost file does not miss it. So each run first checks the log and the size of every
data file (one listing, one ``stat`` a file). A bit flipped inside a file is found when a batch
copies the file's rows.

A table is called damaged for what its bytes prove, and never for an error alone: whoever is told so
may give up records that are there.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import chain
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from oncelake.ingestion.delta.description import partitions_in
from oncelake.ingestion.delta.durability import find_half_written
from oncelake.ingestion.delta.files import data_files, open_rows, read_delta
from oncelake.ingestion.delta.log import DeltaLog, versions_in
from oncelake.ingestion.delta.log_files import CHECKPOINT, commit_file, log_files
from oncelake.ingestion.delta.vectors import vector_files, vectors_of
from oncelake.ingestion.errors import (
    DamagedTableError,
    TableSettingsError,
    counted,
    first_line,
    reset,
)
from oncelake.ingestion.storage.checksums import matches_checksum
from oncelake.ingestion.storage.damage import damaged_table
from oncelake.ingestion.storage.location import Location
from oncelake.ingestion.storage.volumes import is_storage_error
from oncelake.ingestion.tables.commit_log import Commit

# What is written only when the commit of that number is there: no draft of a commit that died.
_AFTER_COMMIT: Final = re.compile(r"(\d{20})\.crc|\.(\d{20})\.json\.crc")
_MOST_NAMED = 3
# What the readers of a table's files raise when these are not what they should be, among others.
_READ_ERRORS: Final = (DeltaError, pa.ArrowException, OSError, ValueError, KeyError)


def refuse_damaged(log: DeltaLog) -> None:
    """Make sure that the log is whole and that every data file is there, in its full length.

    Raises:
        DamagedTableError: something is missing, cut short or not as it was written; names it.
    """
    if half_written := find_half_written(log.path):
        stream = log.path.name.partition("__")[0]
        raise DamagedTableError(
            stream,
            f"{log.path}: {half_written.problem}, as a power cut leaves it. "
            "Nobody was told of that commit.",
            remedy=f"oncelake run {stream}, which undoes it and reads its records again",
        )
    with _translate_log_errors(log.path):
        for problem in _log_problems(log):
            raise damaged_table(log.path, problem)
        lost = list(_lost_files(log.path, log.snapshot))
    if lost:
        more = f" and {len(lost) - _MOST_NAMED} more" if len(lost) > _MOST_NAMED else ""
        raise damaged_table(log.path, f"{', '.join(lost[:_MOST_NAMED])}{more}")


@contextmanager
def translate_read_errors(table: Location, version: int | None = None) -> Iterator[None]:
    """Translate what reading rows raises where the bytes of the table, as of a version, are wrong.

    They are looked at only then. What is raised over files that can all be read is an error of the
    query, and passes as it is; so does a volume that fails.

    Raises:
        DamagedTableError: names the file.
    """
    try:
        yield
    except _READ_ERRORS as error:
        if not is_storage_error(error):
            refuse_unreadable(table, version)
        raise


def refuse_unreadable(table: Location, version: int | None = None) -> None:
    """Read a table's log and every data file of a version from beginning to end.

    Raises:
        DamagedTableError: something is missing, cut short or not as it was written; names it.
    """
    if not table.exists():
        return
    refuse_damaged(DeltaLog(table))
    with _translate_log_errors(table):
        snapshot = read_delta(table, version=version)
        for problem in chain(_lost_files(table, snapshot), _unreadable_files(table, snapshot)):
            raise damaged_table(table, problem)


@contextmanager
def _translate_log_errors(table: Location) -> Iterator[None]:
    """Translate what opening a table raises; nothing is asked of it but what every table has."""
    try:
        yield
    except _READ_ERRORS as error:
        if is_storage_error(error) or isinstance(error, PermissionError):
            raise
        words = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
        raise damaged_table(table, f"it cannot be read ({words[:300]})") from error


def _log_problems(log: DeltaLog) -> Iterator[str]:
    """Yield what is wrong with the log, from the checkpoint that readers begin at to its end."""
    names = sorted(log.names())
    versions = set(versions_in(names))
    checkpoints = {int(found[1]): name for name in names if (found := CHECKPOINT.fullmatch(name))}
    newest = max([*versions, *checkpoints], default=-1)
    for name in names:
        found = _AFTER_COMMIT.fullmatch(name)
        if found and int(found[1] or found[2]) > newest:
            yield f"_delta_log/{name} says that a commit is gone: the newest left is {newest}"
    if newest >= 0 and newest not in versions:
        # A reader takes the checkpoint in its place; nothing can be committed behind it.
        yield f"_delta_log/{commit_file(newest)} is missing, which is the newest commit"
    begin = max(checkpoints, default=-1)
    for version in range(begin + 1, newest + 1):
        if version not in versions:
            yield f"_delta_log/{commit_file(version)} is missing, and {newest} is the newest commit"
        log.read(version)
    for name in names:
        at = CHECKPOINT.fullmatch(name)
        if at and int(at[1]) == begin and not matches_checksum(log.path / "_delta_log" / name):
            yield f"_delta_log/{name} is not as it was written"


def _lost_files(table: Location, snapshot: DeltaTable) -> Iterator[str]:
    """Yield each file of the snapshot that is missing or of another size."""
    there = log_files(table).sizes()
    for name, size in data_files(snapshot).items():
        found = there.get(name)
        if found is None:
            yield f"data file {name} is missing"
        elif found != size:
            yield f"data file {name} has {counted(found, 'byte')}, and {size:,} were committed"
    for vector in vectors_of(table, snapshot).values():
        if vector.file and there.get(vector.file, 0) < vector.end:
            yield f"deletion vector {vector.file} is missing or cut short"


def _unreadable_files(table: Location, snapshot: DeltaTable) -> Iterator[str]:
    """Yield each file of the snapshot that is not as it was written, or is no Parquet."""
    for vector in vectors_of(table, snapshot).values():
        vector.rows_of(table)
    for name in sorted(data_files(snapshot)):
        if not matches_checksum(table / name):
            yield f"data file {name} is not as it was written"
            continue
        try:
            for _ in pq.ParquetFile(io.BytesIO((table / name).read())).iter_batches():
                pass
        except (pa.ArrowException, OSError) as error:
            if is_storage_error(error):
                raise
            yield f"data file {name} cannot be read ({first_line(error)[:300]})"


def altered_sources(table: Location, commit: Commit) -> Iterator[str]:
    """Yield each file whose rows a commit has copied or dropped, and that a disk had altered.

    Spark refuses to read such a file; delta-rs copies what it finds in it.
    """
    for name in commit.removed:
        with suppress(FileNotFoundError):
            if matches_checksum(table / name):
                continue
            yield (
                f"data file {name}, whose rows this batch has copied, was not as it was written: "
                "rows that are not of this batch may have become wrong"
            )


def damages_of(log: DeltaLog) -> Iterator[DamagedTableError]:
    """Yield each file of the newest version that is lost or altered.

    Even where no reader would fail on it.
    """
    if log.exists:
        there = log.path.files()
        vectors = vector_files(vectors_of(log.path, log.snapshot).values())
        for name in sorted(vectors | data_files(log.snapshot).keys()):
            if name not in there or not matches_checksum(log.path / name):
                yield damaged_table(log.path, f"data file {name} is not as it was written")


_PROPERTIES: Final = {
    "delta.setTransactionRetentionDuration": "lets the batch numbers in the log expire",
    "delta.appendOnly": "forbids the updates and deletes that an upsert makes",
}
# What an engine writes, delta-rs reads, and a note suits: see ``table_log``.
_KEPT_FEATURES: Final = {
    *("appendOnly", "invariants", "checkConstraints", "changeDataFeed", "generatedColumns"),
    *("identityColumns", "rowTracking", "timestampNtz", "domainMetadata", "clustering"),
    *("allowColumnDefaults", "inCommitTimestamp", "checkpointProtection", "vacuumProtocolCheck"),
    *("variantType", "variantType-preview", "deletionVectors"),
}
_DROPPED_BY_SPARK: Final = {
    *("columnMapping", "typeWidening", "v2Checkpoint"),
}
_COLUMN_MAPPING_READER: Final = 2
_IDENTITY: Final = "delta.identity.start"


def settings_error(stream: str, log: DeltaLog) -> TableSettingsError | None:
    """Return what on the table contradicts the ingestion, with what undoes it."""
    again = reset(stream)
    for problem, statement in _contradictions(log):
        remedy = f"{statement}, or {again}" if statement else again
        return TableSettingsError(stream, problem, remedy=remedy)
    return None


def _contradictions(log: DeltaLog) -> Iterator[tuple[str, str]]:
    """Yield each, and the statement of Spark that undoes it, if there is one."""
    table, protocol, path = log.snapshot.metadata(), log.snapshot.protocol(), log.path
    alter = f"ALTER TABLE delta.`{path}`"
    if by := ", ".join(each.name for each in partitions_in(log.snapshot) if each.of is None):
        yield f"{path} is partitioned by {by}, of which no values are computed here.", ""
    for field in log.snapshot.schema().fields:
        if _IDENTITY in (field.metadata or {}):
            yield (
                f"column {field.name} of {path} is an identity column: Delta gives its values.",
                "",
            )
    for name, why in _PROPERTIES.items():
        if (value := table.configuration.get(name, "false")).lower() != "false":
            problem = f"somebody set {name} = {value} on {path}, which {why}."
            yield problem, f"{alter} UNSET TBLPROPERTIES ('{name}')"
    features = {*(protocol.reader_features or ()), *(protocol.writer_features or ())}
    if protocol.min_reader_version == _COLUMN_MAPPING_READER:
        features.add("columnMapping")
    for name in sorted(features - _KEPT_FEATURES):
        problem = (
            f"somebody enabled {name} on {path}: delta-rs, which audits the books, cannot read "
        )
        drop = f"{alter} DROP FEATURE {name}" if name in _DROPPED_BY_SPARK else ""
        yield f"{problem}such a table.", drop


def count_rows(path: Location, condition: pc.Expression, *, version: int | None = None) -> int:
    """Count the rows for which ``condition`` holds, at a Delta version or at the newest.

    Raises:
        DamagedTableError: a file that has to be read is missing, cut short or garbage.
    """
    with translate_read_errors(path, version):
        return int(open_rows(path, version).count_rows(filter=condition))
