"""The rows of one batch in a table: counted, written anew, and removed where the batch died.

delta-rs and Arrow count what Spark wrote: a second reader, and twenty times quicker than a Spark
job. Statistics on ``_seq`` leave only the files of the batch to read.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow.compute as pc
from pyspark.sql import DataFrame

from ingestion.lake.delta import is_delta, open_delta, open_rows
from ingestion.lake.integrity import translate_read_errors
from ingestion.lake.location import Location
from ingestion.lake.log_files import log_files


def count_rows(path: Location, condition: pc.Expression, *, version: int | None = None) -> int:
    """Count the rows for which ``condition`` holds, at a Delta version or at the newest.

    Raises:
        DamagedTableError: a file that has to be read is missing, cut short or garbage.
    """
    with translate_read_errors(path, version):
        return int(open_rows(path, version).count_rows(filter=condition))


def rows_of_seq(path: Location, seq: int, *, version: int | None = None) -> int:
    """Count the rows that carry a batch's number."""
    return count_rows(path, pc.field("_seq") == seq, version=version)


def overwrite_seq(rows: DataFrame, path: Location, seq: int, *, stats_on: Sequence[str]) -> None:
    """Replace the rows of ``seq`` by ``rows``; the table is made when it is not there.

    An attempt that died before the data commit leaves rows of its seq behind, perhaps of other
    ranges: they are replaced as a whole.
    """
    writer = rows.coalesce(1).write.format("delta").mode("overwrite")
    if is_delta(path):
        writer = writer.option("replaceWhere", f"_seq = {seq}").option("mergeSchema", "true")
    else:
        writer = writer.option("delta.dataSkippingStatsColumns", ",".join(stats_on))
    writer.save(str(path))
    log_files(path).forget()


def remove_beyond(path: Location, seq: int) -> int:
    """Remove what dead attempts left, the rows of every seq above ``seq``; return how many."""
    if not is_delta(path):
        return 0
    left_over = count_rows(path, pc.field("_seq") > seq)
    if left_over:
        open_delta(path).delete(f"_seq > {seq}")
    return left_over
