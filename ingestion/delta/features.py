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

from oncelake.ingestion.delta.log_files import actions_in, commit_file, log_files
from oncelake.ingestion.delta.vectors import FEATURE, newest_checkpoint
from oncelake.ingestion.storage.location import Location

# Features of a table that commits of this process keep to, and delta-rs as well.
_WRITTEN: Final = {
    *("appendOnly", "invariants", "timestampNtz", "variantType", "checkConstraints", FEATURE),
    "generatedColumns",
}
# Those to which delta-rs does not keep; its checkpoints do.
_BEYOND_DELTA_RS: Final = {
    *("allowColumnDefaults", "clustering", "domainMetadata", "inCommitTimestamp", "rowTracking"),
    "vacuumProtocolCheck",
}
_DOMAIN: Final = "domainMetadata"
_ROW_IDS: Final = "delta.rowTracking"
_HIGHEST: Final = "rowIdHighWaterMark"


def unwritable_features(table: DeltaTable) -> list[str]:
    """Return the features of a table that only Spark writes."""
    features = _features_of(table)
    # An older protocol has it without a name.
    if table.metadata().configuration.get("delta.enableChangeDataFeed") == "true":
        features.add("changeDataFeed")
    return sorted(features - _WRITTEN - _BEYOND_DELTA_RS)


def is_beyond_delta_rs(table: DeltaTable) -> bool:
    """Tell whether commits of this process keep to the table's features, and delta-rs refuses."""
    return bool(_features_of(table) & _BEYOND_DELTA_RS) and not unwritable_features(table)


def tracks_rows(table: DeltaTable) -> bool:
    """Tell whether every row of a table has an id."""
    return "rowTracking" in _features_of(table)


def clustering_columns(path: Location, table: DeltaTable) -> list[str]:
    """Return the columns by which a table is clustered, of which each file has statistics."""
    if "clustering" not in _features_of(table):
        return []
    columns = _domains(path, table).get("delta.clustering", {}).get("clusteringColumns", [])
    # Of one within a struct, the names on the way to it.
    return [".".join(names) for names in columns]


def with_row_ids(
    path: Location, table: DeltaTable, actions: Sequence[Mapping[str, Any]]
) -> Iterator[Mapping[str, Any]]:
    """Yield the actions of the commit that follows a version, with ids of the rows that are new.

    A row that is copied or updated gets another id, which the protocol allows: see ``kept_rows``.

    Args:
        path: The table.
        table: That version.
        actions: Those of the commit; the stats of each file count its rows.
    """
    before = highest = _domains(path, table).get(_ROW_IDS, {}).get(_HIGHEST, -1)
    for action in actions:
        add = action.get("add")
        if add is None or "baseRowId" in add:
            yield action
            continue
        ids = {"baseRowId": highest + 1, "defaultRowCommitVersion": table.version() + 1}
        yield {"add": {**add, **ids}}
        highest += json.loads(add["stats"])["numRecords"]
    if highest > before:
        said = json.dumps({_HIGHEST: highest})
        yield {_DOMAIN: {"domain": _ROW_IDS, "configuration": said, "removed": False}}


def kept_rows(actions: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Return what a commit says of its rows: whether all that were there keep their ids."""
    return {f"{_ROW_IDS}.preserved": str(not any("remove" in each for each in actions)).lower()}


def _features_of(table: DeltaTable) -> set[str]:
    protocol = table.protocol()
    return {*(protocol.writer_features or ()), *(protocol.reader_features or ())}


def _domains(path: Location, table: DeltaTable) -> dict[str, Any]:
    """Return the domains of metadata of a version, which delta-rs keeps to itself."""
    log, version = log_files(path), table.version()
    begin, parts = newest_checkpoint(log.names(), version)
    commits = (actions_in(log.read(commit_file(n))) for n in range(begin + 1, version + 1))
    latest = {
        each["domain"]: each
        for each in chain(
            chain.from_iterable(_in_checkpoint(log.read(part)) for part in parts),
            (each[_DOMAIN] for each in chain.from_iterable(commits) if _DOMAIN in each),
        )
    }
    return {
        name: json.loads(each["configuration"])
        for name, each in latest.items()
        if not each["removed"]
    }


def _in_checkpoint(content: bytes) -> list[Any]:
    file = pq.ParquetFile(pa.BufferReader(content))
    if _DOMAIN not in file.schema_arrow.names:
        return []
    found: list[Any] = file.read([_DOMAIN]).column(_DOMAIN).drop_null().to_pylist()
    return found
