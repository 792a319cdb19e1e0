"""A commit of ours that changes no row and needs no Spark, made under the stream's lock.

It opens a table, and records a person's decision. A batch commits from the JVM that holds the lock,
so that the lock cannot outlive, or be outlived by, the hand that writes.
"""

from __future__ import annotations

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from ingestion.errors import CommitConflictError
from ingestion.lake.commit_metadata import CommitMetadata, app_id
from ingestion.lake.paths import StreamPaths
from ingestion.lake.table_log import Commit, TableLog


def write_empty_commit(paths: StreamPaths, metadata: CommitMetadata) -> Commit:
    """Commit metadata to the data table, and read it back.

    Raises:
        CommitConflictError: the table's log does not hold what was meant.
    """
    table, stream = DeltaTable(paths.data), paths.stream
    recorded = table.transaction_version(app_id(stream))
    if recorded is not None and recorded >= metadata.seq:
        raise CommitConflictError(
            stream,
            f"the table holds seq {recorded} already, so that seq {metadata.seq} is another "
            "writer's.",
            remedy="run the same command again",
        )
    nothing = pa.schema(table.schema().to_arrow()).empty_table()
    write_deltalake(
        table,
        nothing,
        mode="append",
        commit_properties=CommitProperties(
            custom_metadata={"userMetadata": metadata.to_json()},
            app_transactions=[Transaction(app_id(stream), metadata.seq)],
        ),
    )
    commit = TableLog(paths.data).find(stream, metadata.seq)
    if commit is None or commit.metadata != metadata:
        raise CommitConflictError(
            stream,
            f"a commit without rows (seq {metadata.seq}) is not in the table's log as it was "
            "meant.",
            remedy="run the same command again",
        )
    return commit
