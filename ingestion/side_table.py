"""Writing the rows of one seq beside the data table, so that doing it again changes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow.compute as pc
from deltalake import DeltaTable
from pyspark.sql import DataFrame

from ingestion.audit import count_rows


def overwrite_seq(rows: DataFrame, path: Path, seq: int, *, stats_on: Sequence[str]) -> None:
    """Replace the rows of ``seq`` by ``rows``; the table is made when it is not there.

    An attempt that died before the data commit leaves rows of its seq behind, perhaps of other
    ranges: they are replaced as a whole.
    """
    writer = rows.coalesce(1).write.format("delta").mode("overwrite")
    if DeltaTable.is_deltatable(str(path)):
        writer = writer.option("replaceWhere", f"_seq = {seq}")
    else:
        writer = writer.option("delta.dataSkippingStatsColumns", ",".join(stats_on))
    writer.save(str(path))


def remove_beyond(path: Path, seq: int) -> int:
    """Remove what dead attempts left: the rows of every seq above ``seq``.

    Returns:
        How many rows were removed.
    """
    if not DeltaTable.is_deltatable(str(path)):
        return 0
    left_over = count_rows(path, pc.field("_seq") > seq)
    if left_over:
        DeltaTable(path).delete(f"_seq > {seq}")
    return left_over
