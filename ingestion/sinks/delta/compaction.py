"""Compacts a table: merges small files, and rewrites those with rows that are marked as gone.

No row changes. Every step may be repeated; needs the stream's lock.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

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

# Clustering rewrites the whole table: not for a share of its bytes that is smaller than this.
_CLUSTERED_SHARE: Final = 0.25


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


def compact(path: Location, *, target_bytes: int, cluster_by: Sequence[str] = ()) -> None:
    """Merge small files, in the order of ``cluster_by`` where that is given.

    Raises:
        DamagedTableError: a file that would be copied is not as it was written.
        TableBusyError: somebody else changed the table meanwhile.
    """
    table = open_delta(path)
    # What only Spark writes, delta-rs refuses below.
    is_ours, by = not unwritable_features(table), table.metadata().partition_columns
    has_small_pages = is_on(table, KEY_INDEX) and is_ours and not cluster_by
    is_only_ours = is_beyond_delta_rs(table) or has_small_pages
    # Of one partition all rows have the same value.
    cluster_by = [name for name in cluster_by if name not in by]
    if is_only_ours or (is_ours and (by or has_vectors(table))):
        is_all = bool(cluster_by) and not is_only_ours
        is_due = _compact_by_partition(
            path, target_bytes=target_bytes, is_all=is_all, is_only_ours=is_only_ours
        )
        if is_only_ours or (by and not (cluster_by and is_due)):
            return
        table = open_delta(path)
    every = data_files(table)
    small = {name: size for name, size in every.items() if size < target_bytes}
    if len(small) < 2:
        return
    share = _CLUSTERED_SHARE * sum(every.values())
    is_clustered = cluster_by and sum(small.values()) >= share
    refuse_altered(path, every if is_clustered else small)
    with translate_conflicts(path.name):
        if is_clustered:
            table.optimize.z_order(cluster_by, target_size=target_bytes)
        else:
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
    path: Location, *, target_bytes: int, is_all: bool, is_only_ours: bool
) -> bool:
    """Rewrite files of which many rows are marked as gone, and merge the small ones of a partition.

    Where vectors are not declared any more, or all is to be put in order, every file that has one.
    Of a table without partitions, delta-rs merges those files of which no row is marked, unless
    this process alone keeps to its features.

    Returns:
        Whether any was due.
    """
    begun, of = DeltaTransaction.upkeep(path), defaultdict[Any, list[AddedFile]](list)
    for file in begun.files:
        of[tuple(file.partition.values())].append(file)
    files = list[AddedFile]()
    for alike in of.values():
        small = begun.mergeable(alike, target_bytes, target_bytes)
        worn = [file for file in alike if file.vector and begun.is_worn(file, is_all=is_all)]
        files += [*worn, *(file for file in small if file not in worn)]
    is_due = any(is_only_ours or file.vector or file.partition for file in files)
    if is_due:
        copy_files(path, files, lambda: begun.rewrite(files, target_bytes=target_bytes))
    return is_due
