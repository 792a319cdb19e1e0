"""Compacts a table: merges small files, and rewrites those with rows that are marked as gone.

No row changes. Every step may be repeated; needs the stream's lock.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

from oncelake.ingestion.declaration.ddl import DeclaredColumn
from oncelake.ingestion.delta.commits import translate_conflicts
from oncelake.ingestion.delta.data_files import AddedFile
from oncelake.ingestion.delta.description import columns_of
from oncelake.ingestion.delta.durability import seal_commits
from oncelake.ingestion.delta.features import (
    KEY_INDEX,
    is_beyond_delta_rs,
    is_on,
    unwritable_features,
)
from oncelake.ingestion.delta.files import data_files, open_delta, read_delta
from oncelake.ingestion.delta.log import all_files
from oncelake.ingestion.delta.vectors import has_vectors
from oncelake.ingestion.sinks.delta.transaction import (
    DeltaTransaction,
    copy_files,
    refuse_altered,
)
from oncelake.ingestion.storage.failpoints import Failpoint, hit
from oncelake.ingestion.storage.location import Location
from oncelake.ingestion.tables.table import Layout, Tell


@dataclass(frozen=True, kw_only=True, slots=True)
class TableSize:
    """The size of a table, and of its folder in all."""

    files: int
    bytes: int
    bytes_on_disk: int

    @classmethod
    def of(cls, path: Location) -> TableSize:
        """Measure a table."""
        there = path.files()
        sizes = [there[name] for name in all_files(path, read_delta(path))]
        return cls(files=len(sizes), bytes=sum(sizes), bytes_on_disk=sum(there.values()))


@dataclass(frozen=True, kw_only=True, slots=True)
class TableUpkeep:
    """The upkeep of one table.

    Attributes:
        name: The table's folder.
        vacuumed: Data files removed from the disk.
        removed_rows: Rows that it need not hold any more.
    """

    name: str
    before: TableSize
    after: TableSize
    vacuumed: int
    removed_rows: int = 0


def compact(path: Location, *, target_bytes: int, is_clustered: bool = False) -> None:
    """Merge small files.

    Args:
        path: The table.
        target_bytes: What a file grows to.
        is_clustered: Whether the files of a clustered table are to have ranges of their own.

    Raises:
        DamagedTableError: a file that would be copied is not as it was written.
        TableBusyError: somebody else changed the table meanwhile.
    """
    table = open_delta(path)
    # What only Spark writes, delta-rs refuses below.
    is_ours, by = not unwritable_features(table), table.metadata().partition_columns
    has_small_pages = is_ours and is_on(table, KEY_INDEX)
    is_only_ours = is_beyond_delta_rs(table) or has_small_pages
    if is_only_ours or (is_ours and (by or has_vectors(table))):
        _compact_by_partition(
            path,
            target_bytes=target_bytes,
            is_only_ours=is_only_ours,
            is_clustered=is_clustered,
        )
        if is_only_ours or by:
            return
        table = open_delta(path)
    small = {name: size for name, size in data_files(table).items() if size < target_bytes}
    if len(small) < 2:
        return
    refuse_altered(path, small)
    with translate_conflicts(path.name):
        table.optimize.compact(target_size=target_bytes)
    seal_commits(path)
    hit(Failpoint.COMPACTED)


def widen(path: Location, columns: Sequence[DeclaredColumn], tell: Tell) -> None:
    """Give some columns wider types, in one commit.

    Raises:
        DamagedTableError: a file that would be copied is not as it was written.
        TableBusyError: somebody else changed the table meanwhile.
    """
    wider = {column.name: column.type for column in columns}
    found = columns_of(read_delta(path))
    wanted = [replace(each, type=wider.get(each.name, each.type)) for each in found]
    layout = Layout(columns=wanted, found=found, tell=tell)
    DeltaTransaction.upkeep(path).reshape(layout, None)


def _compact_by_partition(
    path: Location, *, target_bytes: int, is_only_ours: bool, is_clustered: bool
) -> None:
    """Rewrite files of which many rows are marked as gone, and merge the small ones of a partition.

    Where vectors are not declared any more, every file that has one. Of a table without partitions,
    delta-rs merges those files of which no row is marked, unless this process alone keeps to its
    features. A clustered table has no partitions.
    """
    begun, of = DeltaTransaction.upkeep(path), defaultdict[Any, list[AddedFile]](list)
    for file in begun.files:
        of[tuple(file.partition.values())].append(file)
    if is_clustered:
        groups = begun.to_cluster(begun.files, begun.clustered, target_bytes)
    else:
        groups = [begun.worn(alike, target_bytes) for alike in of.values()]
    files = [*chain.from_iterable(groups)]
    if any(is_only_ours or file.vector or file.partition for file in files):
        order = begun.order if is_clustered else None
        copy_files(path, files, lambda: begun.rewrite(groups, target_bytes, order))
