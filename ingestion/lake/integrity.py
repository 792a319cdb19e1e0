"""Whether a table is fit to be written: its files whole, and its settings such as we can bear.

A reader that meets an empty commit file, or none, sees an older table and says nothing; a MERGE
that prunes a lost file does not miss it. So each run first checks the log and the size of every
data file (one listing, one ``stat`` a file). A bit flipped inside a file is found when a batch
copies the file's rows.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final
from urllib.parse import unquote

from ingestion.errors import TableSettingsError, counted
from ingestion.lake.checksums import matches_checksum
from ingestion.lake.damage import damaged_table, translate_read_errors
from ingestion.lake.table_log import Commit, TableLog, data_files

_CHECKPOINT: Final = re.compile(r"(\d{20})\.checkpoint\.(?:.+\.)?(?:parquet|json)")
# What is written only when the commit of that number is there: no draft of a commit that died.
_AFTER_COMMIT: Final = re.compile(r"(\d{20})\.crc|\.(\d{20})\.json\.crc")
_MOST_NAMED = 3


def refuse_damaged(log: TableLog) -> None:
    """Make sure that the log is whole and that every data file is there, in its full length.

    Raises:
        DamagedTableError: something is missing, cut short or not as it was written; names it.
    """
    table = log.path
    with translate_read_errors(table):
        for problem in _log_problems(log):
            raise damaged_table(table, problem)
        lost = list(_lost_files(log))
    if lost:
        more = f" and {len(lost) - _MOST_NAMED} more" if len(lost) > _MOST_NAMED else ""
        raise damaged_table(table, f"{', '.join(lost[:_MOST_NAMED])}{more}")


def _log_problems(log: TableLog) -> Iterator[str]:
    """Yield what is wrong with the log, from the checkpoint that readers begin at to its end."""
    names = sorted(each.name for each in (log.path / "_delta_log").iterdir())
    versions = set(log.versions())
    checkpoints = {int(found[1]): name for name in names if (found := _CHECKPOINT.fullmatch(name))}
    newest = max([*versions, *checkpoints], default=-1)
    for name in names:
        found = _AFTER_COMMIT.fullmatch(name)
        if found and int(found[1] or found[2]) > newest:
            yield f"_delta_log/{name} says that a commit is gone: the newest left is {newest}"
    begin = max(checkpoints, default=-1)
    for version in range(begin + 1, newest + 1):
        if version not in versions:
            yield f"_delta_log/{version:020d}.json is missing, and {newest} is the newest commit"
        log.read(version)
    for name in names:
        at = _CHECKPOINT.fullmatch(name)
        if at and int(at[1]) == begin and not matches_checksum(log.path / "_delta_log" / name):
            yield f"_delta_log/{name} is not as it was written"


def _lost_files(log: TableLog) -> Iterator[str]:
    """Yield each file of the snapshot that is missing or of another size."""
    files = log.snapshot.get_add_actions(flatten=True)
    for path, size in zip(
        files.column("path").to_pylist(), files.column("size_bytes").to_pylist(), strict=True
    ):
        file = log.path / unquote(path)
        found = file.stat().st_size if file.is_file() else None
        if found is None:
            yield f"data file {path} is missing"
        elif found != size:
            yield f"data file {path} has {counted(found, 'byte')}, and {size:,} were committed"


def altered_sources(table: Path, commit: Commit) -> Iterator[str]:
    """Yield each file whose rows a commit has copied or dropped, and that a disk had altered.

    Spark refuses to read such a file; delta-rs copies what it finds in it.
    """
    for name in commit.removed:
        if (table / name).is_file() and not matches_checksum(table / name):
            yield (
                f"data file {name}, whose rows this batch has copied, was not as it was written: "
                "rows that are not of this batch may have become wrong"
            )


def altered_files(log: TableLog) -> Iterator[str]:
    """Yield each file of the newest version that is lost, or not as it was written."""
    if log.exists:
        for name in sorted(data_files(log.snapshot)):
            file = log.path / name
            if not file.is_file() or not matches_checksum(file):
                yield name


_PROPERTIES: Final = {
    "delta.setTransactionRetentionDuration": "lets the batch numbers in the log expire",
    "delta.appendOnly": "forbids the updates and deletes that an upsert makes",
}
_UNREADABLE_FEATURES: Final = {"columnMapping", "deletionVectors", "typeWidening"}
_COLUMN_MAPPING_READER: Final = 2


def settings_error(stream: str, log: TableLog) -> TableSettingsError | None:
    """Return what on the table contradicts the ingestion, with the statement that undoes it."""
    configuration, protocol = log.snapshot.metadata().configuration, log.snapshot.protocol()
    for name, why in _PROPERTIES.items():
        if configuration.get(name, "false").lower() != "false":
            return TableSettingsError(
                stream,
                f"somebody set {name} = {configuration[name]} on {log.path}, which {why}.",
                remedy=f"ALTER TABLE delta.`{log.path}` UNSET TBLPROPERTIES ('{name}')",
            )
    features = set(protocol.reader_features or ())
    if protocol.min_reader_version == _COLUMN_MAPPING_READER:
        features.add("columnMapping")
    for name in sorted(features & _UNREADABLE_FEATURES):
        return TableSettingsError(
            stream,
            f"somebody enabled {name} on {log.path}: delta-rs, which audits the books, cannot read "
            "such a table.",
            remedy=f"ALTER TABLE delta.`{log.path}` DROP FEATURE {name}, or oncelake reset "
            f"{stream} --yes, to ingest the topic into a new table",
        )
    return None
