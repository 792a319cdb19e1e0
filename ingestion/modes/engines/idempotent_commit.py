"""How a Spark statement becomes a commit of ours: fenced by ``txn``, explained by its metadata.

An append takes both as options of its own. MERGE, UPDATE and DELETE take them from the session's
configuration only, which later statements of the same session would inherit, and be skipped in
silence; so it is set around one statement.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from delta.exceptions import (
    ConcurrentAppendException,
    ConcurrentDeleteDeleteException,
    ConcurrentDeleteReadException,
    ConcurrentTransactionException,
)
from pyspark.sql import DataFrame, SparkSession

from oncelake.ingestion.errors import CommitConflictError, TableBusyError
from oncelake.ingestion.storage.location import Location
from oncelake.ingestion.tables.commit_metadata import CommitMetadata, app_id

_APP_ID = "spark.databricks.delta.write.txnAppId"
_VERSION = "spark.databricks.delta.write.txnVersion"
_ATTEMPTS = 3
_HINDERED = (
    ConcurrentAppendException,
    ConcurrentDeleteDeleteException,
    ConcurrentDeleteReadException,
)
_MATERIALIZE = "spark.databricks.delta.merge.materializeSource"
_USER_METADATA = "spark.databricks.delta.commitInfo.userMetadata"


@contextmanager
def idempotent(spark: SparkSession, stream: str, metadata: CommitMetadata) -> Iterator[None]:
    """Make the one Delta statement of the block a commit with our seq and metadata."""
    spark.conf.set(_APP_ID, app_id(stream))
    spark.conf.set(_VERSION, str(metadata.seq))
    spark.conf.set(_USER_METADATA, metadata.to_json())
    try:
        yield
    finally:
        # The version first: an application id alone fails loudly, both together skip silently.
        for key in (_VERSION, _APP_ID, _USER_METADATA):
            spark.conf.unset(key)


def retry_on_conflict(statement: Callable[[], None], *, stream: str) -> None:
    """Run a statement again when somebody's OPTIMIZE, UPDATE or DELETE got in before it.

    Delta rebases what it can and throws the rest; nothing of the statement is in the table then.
    Another commit under our own name is another matter: that is a second writer, and not retried.

    Raises:
        TableBusyError: it lost three times.
        CommitConflictError: another writer of ours has committed meanwhile.
    """
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            with refuse_second_writer(stream):
                return statement()
        except _HINDERED as error:
            if attempt == _ATTEMPTS:
                raise TableBusyError(
                    f"{stream}: somebody else changed the table {_ATTEMPTS} times while a batch "
                    f"was being merged ({type(error).__name__}). Nothing is lost. Next: oncelake "
                    f"run {stream}, when that is over"
                ) from error


@contextmanager
def refuse_second_writer(stream: str) -> Iterator[None]:
    """Translate that Delta found a commit of our own name behind the version that was read.

    Raises:
        CommitConflictError: names the stream.
    """
    try:
        yield
    except ConcurrentTransactionException as error:
        raise CommitConflictError(
            stream,
            "another run has committed a batch of this stream in between; nothing was written.",
        ) from error


@contextmanager
def from_materialized(spark: SparkSession) -> Iterator[None]:
    """Let the MERGE of the block read its source as it is, since that is materialised already.

    Delta otherwise makes a copy of its own first.
    """
    spark.conf.set(_MATERIALIZE, "none")
    try:
        yield
    finally:
        spark.conf.unset(_MATERIALIZE)


def append_rows(rows: DataFrame, stream: str, path: Location, metadata: CommitMetadata) -> None:
    """Commit rows, which are added to those that are there."""
    with refuse_second_writer(stream):
        (
            rows.write.format("delta")
            .mode("append")
            .option("txnAppId", app_id(stream))
            .option("txnVersion", metadata.seq)
            .option("userMetadata", metadata.to_json())
            .save(str(path))
        )
