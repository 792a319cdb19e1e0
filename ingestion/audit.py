"""Counting what a table really holds, by another reader than the one that wrote it.

delta-rs and Arrow read the files that Spark wrote: a witness of its own, and twenty times quicker
to ask than a Spark job. Statistics on ``_seq`` leave only the files of the batch to read.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow.compute as pc
from deltalake import DeltaTable

from ingestion.damage import told_as_damage


def count_rows(path: Path, condition: pc.Expression, *, version: int | None = None) -> int:
    """Count the rows of a table for which ``condition`` holds.

    Args:
        path: The table's folder.
        condition: What to count.
        version: Delta version to read; the newest when not given.

    Raises:
        DamagedTableError: a file that has to be read is missing, cut short or garbage.
    """
    with told_as_damage(path):
        dataset = DeltaTable(path, version=version).to_pyarrow_dataset()
        return int(dataset.count_rows(filter=condition))


def rows_of_seq(path: Path, seq: int, *, version: int | None = None) -> int:
    """Count the rows that carry a batch's number."""
    return count_rows(path, pc.field("_seq") == seq, version=version)
