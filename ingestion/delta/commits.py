"""The commits to a Delta table without Spark, beside the rows of a batch."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from types import MappingProxyType
from typing import Any, Final

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError

from oncelake.ingestion.delta.durability import seal_commits
from oncelake.ingestion.delta.features import (
    clustering_as_of,
    is_beyond_delta_rs,
    is_on,
    kept_rows,
    settings_as_of,
    tracks_rows,
    with_row_ids,
)
from oncelake.ingestion.delta.files import open_delta, read_delta, recorded_txn
from oncelake.ingestion.delta.log_files import commit_file, log_files
from oncelake.ingestion.delta.vectors import ROW_IDS, Vector, has_vectors, living_files
from oncelake.ingestion.errors import AGAIN, CommitConflictError, TableBusyError, first_line
from oncelake.ingestion.storage.location import Location
from oncelake.ingestion.tables.commit_log import (
    UnknownOutcomeError,
)
from oncelake.ingestion.tables.commit_metadata import CommitMetadata, app_id

# How often a commit is tried when others commit before it.
_ATTEMPTS: Final = 3


def put_commit(
    table: Location,
    opened: DeltaTable | None,
    fenced: CommitProperties,
    files: Iterable[Mapping[str, Any]] = (),
    **operation: Any,
) -> None:
    """Put a commit of a note and its fence into the log, on exactly the version that is open.

    delta-rs writes neither every table that Spark does, nor MERGE's name over files that it has not
    merged. Of all features that ``features`` lets pass, in-commit timestamps and row tracking alone
    ask something of such a commit: ids and properties are those of the table that is open.

    Args:
        table: The table.
        opened: The version that it follows; ``None`` where there is no table yet.
        fenced: Note and fence.
        files: What comes and goes, as actions.
        operation: What else ``commitInfo`` says; by default that nothing was appended.

    Raises:
        CommitFailedError: somebody else has committed that version.
        UnknownOutcomeError: the store did not answer.
    """
    version, now = opened.version() if opened else -1, time.time_ns() // 1_000_000
    made = {"timestamp": now, "operation": "WRITE", "operationParameters": {"mode": "Append"}}
    made |= {**operation, **(fenced.custom_metadata or {})}
    if opened and is_on(opened, "delta.enableInCommitTimestamps"):
        before = json.loads(log_files(table).read(commit_file(version)).splitlines()[0])
        past = before.get("commitInfo", {}).get("inCommitTimestamp", 0)
        made["inCommitTimestamp"] = max(now, past + 1)
    fences = fenced.app_transactions or ()
    txns = [{"appId": txn.app_id, "version": txn.version, "lastUpdated": now} for txn in fences]
    actions = [*files]
    if opened and tracks_rows(opened):
        made["tags"] = kept_rows(actions)
        actions = [*with_row_ids(table, opened, actions)]
    actions = [{"commitInfo": made}, *({"txn": txn} for txn in txns), *actions]
    commit = table / "_delta_log" / commit_file(version + 1)
    try:
        commit.create("\n".join(map(json.dumps, actions)).encode())
    except FileExistsError as error:
        raise CommitFailedError(f"{commit} is there already") from error
    except Exception as error:
        if table.is_local and not commit.exists():
            raise
        place = f"version {version + 1} of {table}"
        raise UnknownOutcomeError.of(place, first_line(error)) from error
    log_files(table).forget()


def restore_version(
    table: Location, opened: DeltaTable, fenced: CommitProperties, version: int
) -> None:
    """Commit the rows and columns of an earlier version, with note and fence.

    One commit, fenced like every other; Spark's RESTORE would write no txn.

    Raises:
        DeltaError: a file of that version is gone.
    """
    if not (has_vectors(opened) or is_beyond_delta_rs(opened)):
        opened.restore(version, commit_properties=fenced)
        return
    # Files come back with the vectors that they had then, which delta-rs does not compare.
    then = read_delta(table, version)
    # By the protocol a file is known by its path and its vector.
    past, now = (
        {(path, Vector.of(add)): add for path, add in living_files(table, each).items()}
        for each in (then, opened)
    )
    moment, metadata = time.time_ns() // 1_000_000, metadata_of(then)
    put_commit(
        table,
        opened,
        fenced,
        [
            {"metaData": {**metadata["metaData"], "configuration": settings_as_of(then, opened)}},
            *clustering_as_of(table, then, opened),
            *(removing(add, moment) for file, add in now.items() if file not in past),
            *({"add": {**a, "dataChange": True}} for file, a in past.items() if file not in now),
        ],
        operation="RESTORE",
        operationParameters={"version": version},
    )


def metadata_of(
    table: DeltaTable,
    properties: Mapping[str, str] = MappingProxyType({}),
    *,
    schema: str = "",
    partition_by: Sequence[str] | None = None,
) -> dict[str, Any]:
    """Return the action that gives a table what it has, and other properties or columns."""
    metadata = table.metadata()
    return {
        "metaData": {
            "id": metadata.id,
            "name": metadata.name,
            "description": metadata.description,
            "format": {"provider": "parquet", "options": {}},
            "schemaString": schema or table.schema().to_json(),
            "partitionColumns": metadata.partition_columns
            if partition_by is None
            else partition_by,
            "configuration": {**metadata.configuration, **properties},
            "createdTime": metadata.created_time,
        }
    }


def put_metadata(
    path: Location,
    table: DeltaTable,
    properties: Mapping[str, str],
    more: Iterable[Mapping[str, Any]] = (),
) -> None:
    """Commit properties of a table, and other actions beside them.

    delta-rs would name features that it can write, and the table does not have.
    """
    put_commit(
        path,
        table,
        CommitProperties(),
        [*more, metadata_of(table, properties)],
        operation="SET TBLPROPERTIES",
        operationParameters={"properties": json.dumps(dict(properties))},
    )
    seal_commits(path)


def removing(
    add: Mapping[str, Any], now: int, *, is_change: bool = True, is_silent: bool = False
) -> dict[str, Any]:
    """Return the action that takes a file out of a table, with the vector that it has.

    Args:
        add: The action that has brought it in.
        now: When it goes, in milliseconds.
        is_change: Whether rows go with it.
        is_silent: Whether the values of its partition are left out.
    """
    vector, values = add.get("deletionVector"), add.get("partitionValues", {})
    return {
        "remove": {
            "path": add["path"],
            "deletionTimestamp": now,
            "dataChange": is_change,
            **({} if is_silent else {"extendedFileMetadata": True, "partitionValues": values}),
            "size": add["size"],
            **{name: add[name] for name in ROW_IDS if name in add},
            **({"deletionVector": vector} if vector else {}),
        }
    }


def commit_again(attempt: Callable[[], None], name: str) -> None:
    """Commit; where somebody else got in before, look and try again.

    Raises:
        TableBusyError: that happened each time; names the stream, or the table.
    """
    for _ in range(_ATTEMPTS - 1):
        with suppress(CommitFailedError):
            return attempt()
    with translate_conflicts(name):
        attempt()


@contextmanager
def translate_conflicts(name: str) -> Iterator[None]:
    """Translate that somebody else committed to a table meanwhile.

    Raises:
        TableBusyError: names the stream, or the table.
        DeltaError: nobody did; delta-rs cannot write a feature of the table.
    """
    try:
        yield
    except CommitFailedError as error:
        if is_unwritable(error):
            raise
        raise TableBusyError.meanwhile(name) from error


def is_unwritable(error: DeltaError) -> bool:
    """Tell whether delta-rs says that it cannot write a table with such features."""
    return "Unsupported table features" in str(error)


def fenced_commit(table: DeltaTable, stream: str, metadata: CommitMetadata) -> CommitProperties:
    """Return what a commit of delta-rs carries: its metadata, and its seq as a txn.

    delta-rs commits a txn again that is there already (delta-io/delta-rs#2580), so it is looked
    for.

    Args:
        table: The table, at the version that was looked at.
        stream: Its stream.
        metadata: What the commit is to carry.

    Raises:
        CommitConflictError: the table does not stand at the seq before.
    """
    recorded = recorded_txn(table, app_id(stream))
    if recorded is not None and recorded != metadata.seq - 1:
        # A table at an earlier seq has taken the place of the one that was read.
        already = "already" if recorded >= metadata.seq else "as its last"
        raise CommitConflictError(
            stream,
            f"the table holds seq {recorded} {already}, so that seq {metadata.seq} is another "
            "writer's, or another table's.",
            remedy=AGAIN,
        )
    return CommitProperties(
        custom_metadata={"userMetadata": metadata.to_json()},
        app_transactions=[Transaction(app_id(stream), metadata.seq)],
        # delta-rs would try again on a later version, which has not been read.
        max_commit_retries=0,
    )


# The commit follows the version that was read, or is not made: on a later one, its files may have
# been removed by the run that has taken the stream over.
EXACTLY: Final = CommitProperties(max_commit_retries=0)


def append_nothing(table: DeltaTable, properties: CommitProperties) -> None:
    """Commit without a row."""
    nothing = pa.schema(table.schema().to_arrow()).empty_table()
    write_deltalake(table, nothing, mode="append", commit_properties=properties)


def delete_rows(path: Location, keys: pa.Table, *, before: int) -> None:
    """Delete the rows of earlier batches that have the values of any row of ``keys``.

    Args:
        path: A table beside that of a stream's rows.
        keys: Some of its columns, a row for each key.
        before: The batch that deletes them.

    Raises:
        TableBusyError: somebody else changed the table meanwhile.
        DeltaError: delta-rs cannot write the table.
    """
    same = " AND ".join(f't."{name}" = s."{name}"' for name in keys.column_names)
    merger = open_delta(path).merge(
        keys,
        f'{same} AND t."_seq" < {before}',
        source_alias="s",
        target_alias="t",
        # Otherwise delta-rs may write the keys into the commit, as its predicate.
        streamed_exec=True,
    )
    with translate_conflicts(path.name):
        merger.when_matched_delete().execute()
    seal_commits(path)
