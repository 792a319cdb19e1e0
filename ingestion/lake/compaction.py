"""Keeps one table small: few files, none that nobody can reach, a log that is read quickly.

No row changes. What readers may still need stays: VACUUM removes only files that left the table
longer ago than the rewind window. Every step may be repeated; needs the stream's lock.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from deltalake import DeltaTable

from ingestion.lake.checksums import matches_checksum, seal, seal_commit, sidecar_of
from ingestion.lake.damage import damaged_table
from ingestion.lake.failpoints import Failpoint, hit
from ingestion.lake.table_log import TableLog, data_files, translate_conflicts

_HOUR: Final = dt.timedelta(hours=1)
# Delta's own; commits must outlive the files that they name.
_LOG_DAYS: Final = 30
# Clustering rewrites the whole table: not for a share of its bytes that is smaller than this.
_CLUSTERED_SHARE: Final = 0.25


def retention_properties(window: dt.timedelta) -> dict[str, str]:
    """Return the properties of a table that can be rewound so far back."""
    days = window // dt.timedelta(days=1)
    return {
        "delta.deletedFileRetentionDuration": f"interval {days} days",
        "delta.logRetentionDuration": f"interval {max(_LOG_DAYS, days + 1)} days",
    }


@dataclass(frozen=True, kw_only=True, slots=True)
class TableSize:
    """What a table is made of, and what lies in its folder in all."""

    files: int
    bytes: int
    bytes_on_disk: int

    @classmethod
    def of(cls, path: Path) -> TableSize:
        """Measure a table."""
        sizes = [(path / name).stat().st_size for name in data_files(DeltaTable(path))]
        on_disk = sum(each.stat().st_size for each in path.rglob("*") if each.is_file())
        return cls(files=len(sizes), bytes=sum(sizes), bytes_on_disk=on_disk)


@dataclass(frozen=True, kw_only=True, slots=True)
class TableUpkeep:
    """What was done to one table.

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


def compact(path: Path, *, target_bytes: int, cluster_by: Sequence[str] = ()) -> None:
    """Put small files together, in the order of ``cluster_by`` where that is given.

    Raises:
        DamagedTableError: a file that would be copied is not as it was written.
        TableBusyError: somebody else changed the table meanwhile.
    """
    table = DeltaTable(path)
    every = [path / name for name in data_files(table)]
    small = [file for file in every if file.stat().st_size < target_bytes]
    if len(small) < 2:
        return
    is_clustered = cluster_by and _bytes(small) >= _CLUSTERED_SHARE * _bytes(every)
    rewritten = every if is_clustered else small
    for file in rewritten:
        if not matches_checksum(file):
            raise damaged_table(path, f"data file {file.name} is not as it was written")
    before = table.version()
    with translate_conflicts(path.name):
        if is_clustered:
            table.optimize.z_order(cluster_by, target_size=target_bytes)
        else:
            table.optimize.compact(target_size=target_bytes)
    for version in range(before + 1, table.version() + 1):
        seal_commit(path, version)
    hit(Failpoint.COMPACTED)


def vacuum(path: Path, *, window: dt.timedelta) -> int:
    """Remove files that left the table longer ago than ``window``; return how many data files."""
    table = DeltaTable(path)
    due, properties = retention_properties(window), table.metadata().configuration
    if window >= dt.timedelta(days=1) and not due.items() <= properties.items():
        # Delta's own VACUUM, and time travel in Spark, go by them.
        table.alter.set_table_properties(due)
    removed = table.vacuum(
        retention_hours=window // _HOUR,
        dry_run=False,
        enforce_retention_duration=False,
        # Also what died before its commit, and is in no log.
        full=True,
    )
    for folder in (path, path / "_delta_log"):
        _remove_orphans(folder)
    hit(Failpoint.VACUUMED)
    return len(removed)


def remove_unreferenced(path: Path) -> int:
    """Remove every file that the newest version does not hold; return how many data files.

    Unlike VACUUM it goes by no clock, so that it also finds what is dated in the future.
    """
    needed = {path / name for name in data_files(DeltaTable(path))}
    files = {file for file in path.rglob("[!._]*") if file.is_file()} - needed
    files -= set(path.glob("_delta_log/**/*"))
    for file in files:
        file.unlink()
    _remove_orphans(path)
    hit(Failpoint.VACUUMED)
    return len(files)


def checkpoint(path: Path) -> None:
    """Write a checkpoint of the log, and drop the commits that have aged out of it."""
    log = TableLog(path)
    newest = log.versions()[0]
    file = path / "_delta_log" / f"{newest:020d}.checkpoint.parquet"
    if file.exists():
        return
    log.snapshot.create_checkpoint()
    log.snapshot.cleanup_metadata()
    seal(file)


def drop_log_before(path: Path, version: int) -> None:
    """Remove the commits before a version, whose statistics hold lowest and highest values.

    A checkpoint at that version, or later, must be there.
    """
    log = path / "_delta_log"
    for file in log.iterdir():
        number = file.name.lstrip(".").partition(".")[0]
        if number.isdigit() and int(number) < version:
            file.unlink()


def _bytes(files: Iterable[Path]) -> int:
    return sum(file.stat().st_size for file in files)


def _remove_orphans(folder: Path) -> None:
    """Remove checksums of files that are gone, but for those that tell of a lost commit."""
    versions = [each.stem for each in folder.glob("*.json") if each.stem.isdigit()]
    for sidecar in folder.glob(".*.crc"):
        file = sidecar.with_name(sidecar.name.removeprefix(".").removesuffix(".crc"))
        is_newer = file.suffix == ".json" and versions and file.stem > max(versions)
        if not file.exists() and not is_newer and sidecar == sidecar_of(file):
            sidecar.unlink(missing_ok=True)
