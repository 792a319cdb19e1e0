"""The rows of one attempt beside a table: counted, written anew, removed once it has failed.

delta-rs and Arrow count what Spark wrote: a second reader, and twenty times quicker than a Spark
job. Statistics on ``_seq`` leave only the files of the batch to read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from deltalake import DeltaTable
from pyspark.sql import DataFrame

from ingestion.lake.attempts import ROWS, Attempt, Attempts, Columns, find_leftovers
from ingestion.sinks.delta.durability import seal_commits
from ingestion.sinks.delta.files import is_delta, open_delta, open_rows
from ingestion.sinks.delta.integrity import translate_read_errors
from ingestion.sinks.delta.log_files import log_files
from ingestion.storage.location import Location

_STATISTICS: Final = "delta.dataSkippingStatsColumns"


def count_of(path: Location, attempt: Attempt, columns: Columns = ROWS) -> int:
    """Count the rows of a side table that name an attempt."""
    with translate_read_errors(path):
        return int(open_rows(path).count_rows(filter=attempt.as_filter(columns)))


def overwrite_attempt(
    rows: DataFrame, path: Location, attempt: Attempt, *, stats_on: Sequence[str]
) -> None:
    """Replace the rows of an attempt by ``rows``; the table is made when it is not there."""
    writer = rows.coalesce(1).write.format("delta").mode("overwrite")
    if is_delta(path):
        writer = writer.option("replaceWhere", attempt.as_sql()).option("mergeSchema", "true")
    else:
        writer = writer.option(_STATISTICS, ",".join(stats_on))
    writer.save(str(path))
    seal_commits(path)
    log_files(path).forget()


def remove_failed(
    path: Location, snapshot: DeltaTable, committed: Attempts, *, are_dead: bool = False
) -> bool:
    """Remove the rows of attempts that can commit no more; tell whether others have left some.

    With ``are_dead``, no attempt can.
    """
    left_over = find_leftovers(path, committed, snapshot=snapshot)
    if failed := left_over if are_dead else left_over.of_failed(committed):
        open_delta(path).delete(failed.as_sql())
    return left_over != failed
