"""What others read of our Delta tables, in an environment of their own: ``make readers``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from oncelake.ingestion.declaration.ddl import parse_columns, system_columns
from oncelake.ingestion.declaration.partitions import parse_partition
from oncelake.ingestion.delta.features import FEED
from oncelake.ingestion.sinks.delta.compaction import compact
from oncelake.ingestion.sinks.delta.table import DeltaSinkTable
from oncelake.ingestion.storage.location import Location
from oncelake.ingestion.tables.table import TableDefinition
from tests.readers.test_readers import (
    DDL,
    PAGE,
    PYTHON,
    Shown,
    compare,
    compare_page,
    of_all_types,
    rewound,
    with_marks,
    with_moved_rows,
    with_other_columns,
)
from tests.support.orders import NOTE

READERS = ("delta-rs", "duckdb", "polars", "spark")


class ShownDelta(Shown):
    """A Delta table of ours, and what it must show."""

    script = "read_delta.py"

    def __init__(self, lake: Path, *, by: str = "", feed: bool = False, **definition: Any) -> None:
        self.lake, self.seq = lake, 0
        properties = {FEED: "true"} if feed else {}
        self.table: Any = DeltaSinkTable("orders", Location.of(lake / "orders"), properties)
        columns = (*parse_columns(DDL), *system_columns())
        partitions = tuple(map(parse_partition, by.split("; "))) if by else ()
        self.table.create(
            TableDefinition(columns=columns, keys=("id",), partitions=partitions, **definition)
        )
        self.table.commit_note(replace(NOTE, seq=0))

    def address(self) -> str:
        """Return the table's folder."""
        return str(self.lake / "orders")

    def compact(self, target_bytes: int) -> None:
        """Put files together, and sort them."""
        compact(self.table.path, target_bytes=target_bytes)


def erased(shown: Shown) -> None:
    """Erase a key, and what older versions had of it."""
    with_marks(shown)
    shown.seq += 1
    keys = pa.table({"id": pa.array([50], pa.int64())})
    table: Any = shown.table
    table.erase(keys, replace(NOTE, kind="erase", seq=shown.seq))
    table.remove_older_versions(table.written_files())


def clustered(shown: Shown) -> None:
    """Let upkeep sort the files whose ranges overlap."""
    for start in range(4):
        shown.merge(new=range(1 + start, 400, 4))
    shown.merge(changed=range(5, 300, 40), gone=range(6, 300, 40), t="other")
    shown.compact(1 << 20)
    shown.merge(new=range(400, 420))


VECTORS: dict[str, Any] = {"deletion_vectors": True}
DIVIDED: dict[str, Any] = {"by": "t; day(at)"}
# By their names in docs/readers.md.
HISTORIES: dict[str, tuple[dict[str, Any], Callable[[Shown], None]]] = {
    "types": ({}, of_all_types),
    "vectors": (VECTORS, with_marks),
    "partitions": (DIVIDED, with_moved_rows),
    "partitions with vectors": ({**DIVIDED, **VECTORS}, with_moved_rows),
    "clustered": ({"sort_by": ("t", "d")}, clustered),
    "change data feed": ({"feed": True}, of_all_types),
    "columns": ({}, with_other_columns),
    "columns with vectors": (VECTORS, with_other_columns),
    "rewound": (VECTORS, rewound),
    "erased": (VECTORS, erased),
}


@pytest.mark.skipif(not PYTHON, reason="left to make readers")
@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("history", HISTORIES)
def test_others_read_our_delta_tables(tmp_path: Path, history: str, reader: str) -> None:
    """All rows and columns, and those that a condition leaves; see docs/readers.md."""
    definition, act = HISTORIES[history]
    shown = ShownDelta(tmp_path, **definition)
    act(shown)

    compare(shown, reader)


def test_the_page_has_a_cell_for_each_test_of_delta() -> None:
    """Of each table that is read, and each reader, by their names."""
    _, part = PAGE.read_text().split("## Delta tables")

    compare_page(part, READERS, HISTORIES)
