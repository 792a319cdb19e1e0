"""What a disk, or a hand, does to one file; and where the files of a Delta table are."""

from __future__ import annotations

from collections.abc import Callable
from os import PathLike
from pathlib import Path

from deltalake import DeltaTable

from oncelake.ingestion.delta.log import DeltaLog
from oncelake.ingestion.storage.location import Location


def _flipped(content: bytes) -> bytes:
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]


CHANGES: dict[str, Callable[[bytes], bytes]] = {
    "zero-length": lambda content: b"",
    "truncated": lambda content: content[: len(content) // 2],
    "garbage": lambda content: b"garbage \x80\xff" * 9,
    "flipped": _flipped,
}
DAMAGES = ("missing", *CHANGES)


def do(damage: str, file: Path) -> None:
    """Do one kind of damage to a file that is there."""
    content = file.read_bytes()
    if damage == "missing":
        file.unlink()
    else:
        file.write_bytes(CHANGES[damage](content))


def newest_commit(table: PathLike[str]) -> Path:
    """Return the file of the newest commit."""
    return _commit(table, DeltaLog(Location.of(table)).versions()[0])


def second_newest_commit(table: PathLike[str]) -> Path:
    """Return the file of the commit before the newest."""
    return _commit(table, DeltaLog(Location.of(table)).versions()[1])


def oldest_commit(table: PathLike[str]) -> Path:
    """Return the file of the first commit."""
    return _commit(table, DeltaLog(Location.of(table)).versions()[-1])


def checkpoint(table: PathLike[str]) -> Path:
    """Return the newest checkpoint."""
    return max((Path(table) / "_delta_log").glob("*.checkpoint.parquet"))


def last_checkpoint(table: PathLike[str]) -> Path:
    """Return the file that tells readers where to begin."""
    return Path(table) / "_delta_log" / "_last_checkpoint"


def data_file(table: PathLike[str]) -> Path:
    """Return one data file of the newest version."""
    return Path(table) / min(Path(uri).name for uri in DeltaTable(Path(table)).file_uris())


def forget_commits(table: PathLike[str]) -> None:
    """Let every commit but the newest age out of a log, as Delta's own clean-up does."""
    DeltaTable(Path(table)).create_checkpoint()
    _, *older = DeltaLog(Location.of(table)).versions()
    for version in older:
        _commit(table, version).unlink()


def _commit(table: PathLike[str], version: int) -> Path:
    return Path(table) / "_delta_log" / f"{version:020d}.json"
