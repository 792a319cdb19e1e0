"""What a table's features ask of a commit, and which of them commits of this process keep to.

Source: Delta's protocol, "Row Tracking", "In-Commit Timestamps", "Clustered Table".
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from oncelake.ingestion.delta.log_files import actions_in, commit_file, log_files
from oncelake.ingestion.delta.vectors import FEATURE, newest_checkpoint
from oncelake.ingestion.storage.location import Location

# Features of a table that commits of this process keep to, and delta-rs as well.
_WRITTEN: Final = {
    *("appendOnly", "invariants", "timestampNtz", "variantType", "checkConstraints", FEATURE),
    *("generatedColumns", "changeDataFeed"),
}
FEED: Final = "delta.enableChangeDataFeed"
# Features of a table that is clustered.
CLUSTERED: Final = ("clustering", "domainMetadata")
# Ours: new files are written to be read by a few rows.
KEY_INDEX: Final = "oncelake.keyIndex"
# Those to which delta-rs does not keep; its checkpoints do.
_BEYOND_DELTA_RS: Final = {
    *("allowColumnDefaults", *CLUSTERED, "inCommitTimestamp", "rowTracking"),
    "vacuumProtocolCheck",
}
_DOMAIN: Final = "domainMetadata"
_CLUSTERING: Final = "delta.clustering"
_COLUMNS: Final = "clusteringColumns"
_ROW_IDS: Final = "delta.rowTracking"
_HIGHEST: Final = "rowIdHighWaterMark"
# What begins so is of features that a table goes on to have, whatever else comes back to it.
_LASTING: Final = (
    *("delta.enableInCommitTimestamps", "delta.inCommitTimestampEnablement"),
    *("delta.enableRowTracking", "delta.rowTracking"),
)


def unwritable_features(table: DeltaTable) -> list[str]:
    """Return the features of a table that only Spark writes."""
    features = _features_of(table) - _WRITTEN - _BEYOND_DELTA_RS
    # Somebody is about to drop it.
    if is_on(table, "delta.rowTrackingSuspended"):
        features.add("rowTracking")
    return sorted(features)


def is_beyond_delta_rs(table: DeltaTable) -> bool:
    """Tell whether commits of this process keep to the table's features, and delta-rs refuses."""
    return bool(_features_of(table) & _BEYOND_DELTA_RS) and not unwritable_features(table)


def has_feed(table: DeltaTable) -> bool:
    """Tell whether a table tells its readers which rows a commit has changed."""
    return is_on(table, FEED)


def is_on(table: DeltaTable, name: str) -> bool:
    """Tell whether a property is true; Spark keeps it as a person has typed it."""
    return str(table.metadata().configuration.get(name, "")).lower() == "true"


def tracks_rows(table: DeltaTable) -> bool:
    """Tell whether every row of a table has an id."""
    return "rowTracking" in _features_of(table)


def clustering_columns(path: Location, table: DeltaTable) -> list[str]:
    """Return the columns by which a table is clustered, of which each file has statistics."""
    if "clustering" not in _features_of(table):
        return []
    columns = _domain(path, table, _CLUSTERING).get(_COLUMNS, [])
    # Of one within a struct, the names on the way to it.
    return [names if isinstance(names, str) else ".".join(names) for names in columns]


def clustered_by(columns: Sequence[str]) -> dict[str, Any]:
    """Return the action by which a table is clustered by columns."""
    return _domain_action(_CLUSTERING, {_COLUMNS: [[name] for name in columns]})


def settings_as_of(then: DeltaTable, now: DeltaTable) -> dict[str, str]:
    """Return the properties of then, but for features that a table goes on to have."""
    before, after = (each.metadata().configuration for each in (then, now))
    back = {name: value for name, value in before.items() if not name.startswith(_LASTING)}
    return back | {name: value for name, value in after.items() if name.startswith(_LASTING)}


def clustering_as_of(path: Location, then: DeltaTable, now: DeltaTable) -> list[dict[str, Any]]:
    """Return the action by which a table is clustered as it was then; none where it still is."""
    before, after = (_domain(path, each, _CLUSTERING).get(_COLUMNS, []) for each in (then, now))
    return [] if before == after else [_domain_action(_CLUSTERING, {_COLUMNS: before})]


def with_row_ids(
    path: Location, table: DeltaTable, actions: Sequence[Mapping[str, Any]]
) -> Iterator[Mapping[str, Any]]:
    """Yield the actions of the commit that follows a version, with ids of the rows that are new.

    A row that is copied or updated gets another id, which the protocol allows: see ``kept_rows``.

    Args:
        path: The table.
        table: That version.
        actions: Those of the commit.

    Raises:
        DeltaError: a file that comes back has no statistics.
    """
    before = highest = _domain(path, table, _ROW_IDS).get(_HIGHEST, -1)
    for action in actions:
        add = action.get("add")
        if add is None or "baseRowId" in add:
            yield action
            continue
        ids = {"baseRowId": highest + 1, "defaultRowCommitVersion": table.version() + 1}
        yield {"add": {**add, **ids}}
        rows = json.loads(add.get("stats") or "{}").get("numRecords")
        if rows is None:
            raise DeltaError(f"the log does not say how many rows {add['path']} has")
        highest += rows
    if highest > before:
        yield _domain_action(_ROW_IDS, {_HIGHEST: highest})


def kept_rows(actions: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Return what a commit says of its rows: whether all that were there keep their ids."""
    return {f"{_ROW_IDS}.preserved": str(not any("remove" in each for each in actions)).lower()}


def _features_of(table: DeltaTable) -> set[str]:
    protocol = table.protocol()
    return {*(protocol.writer_features or ()), *(protocol.reader_features or ())}


def _domain_action(name: str, said: Mapping[str, Any]) -> dict[str, Any]:
    text = json.dumps({**said, "domainName": name})
    return {_DOMAIN: {"domain": name, "configuration": text, "removed": False}}


def _domain(path: Location, table: DeltaTable, name: str) -> Any:
    """Return what a domain of a version's metadata says, which delta-rs keeps to itself."""
    if _DOMAIN not in _features_of(table):
        return {}
    log, version = log_files(path), table.version()
    begin, parts = newest_checkpoint(log.names(), version)
    commits = (actions_in(log.read(commit_file(n))) for n in range(begin + 1, version + 1))
    found = chain(
        chain.from_iterable(_in_checkpoint(log.read(part)) for part in parts),
        (each[_DOMAIN] for each in chain.from_iterable(commits) if _DOMAIN in each),
    )
    latest = {each["domain"]: each for each in found}.get(name, {"removed": True})
    return {} if latest["removed"] else json.loads(latest["configuration"])


def _in_checkpoint(content: bytes) -> list[Any]:
    file = pq.ParquetFile(pa.BufferReader(content))
    if _DOMAIN not in file.schema_arrow.names:
        return []
    found: list[Any] = file.read([_DOMAIN]).column(_DOMAIN).drop_null().to_pylist()
    return found
