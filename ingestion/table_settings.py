"""Properties and features of a table that take away what the guarantee rests on.

Somebody may set them on a table of ours, with the best intentions; the next run says so before it
writes, instead of failing in the middle of a batch or losing its fence in silence.
"""

from __future__ import annotations

from typing import Final

from deltalake import DeltaTable

from ingestion.commits import TableLog
from ingestion.errors import TableSettingsError

_PROPERTIES: Final = {
    "delta.setTransactionRetentionDuration": "lets the fence of our commits expire",
    "delta.appendOnly": "forbids the updates and deletes that an upsert makes",
}
_FEATURES: Final = {
    "deletionVectors": "delta-rs, which audits the books, cannot read such a table",
    "typeWidening": "delta-rs, which audits the books, cannot read such a table",
    "columnMapping": "delta-rs, which audits the books, cannot read such a table",
}
_COLUMN_MAPPING_READER: Final = 2


def refuse_settings(stream: str, log: TableLog) -> None:
    """Make sure that nothing on the table contradicts the ingestion.

    Raises:
        TableSettingsError: something does; names it, and the statement that undoes it.
    """
    table = DeltaTable(log.path)
    found = table.metadata().configuration
    for name, why in _PROPERTIES.items():
        if found.get(name, "false").lower() != "false":
            raise TableSettingsError(
                stream,
                f"somebody set {name} = {found[name]} on {log.path}, which {why}.",
                remedy=f"ALTER TABLE delta.`{log.path}` UNSET TBLPROPERTIES ('{name}')",
            )
    protocol = table.protocol()
    features = set(protocol.reader_features or ())
    if protocol.min_reader_version == _COLUMN_MAPPING_READER:
        features.add("columnMapping")
    for name in sorted(features & _FEATURES.keys()):
        raise TableSettingsError(
            stream,
            f"somebody enabled {name} on {log.path}: {_FEATURES[name]}.",
            remedy=f"ALTER TABLE delta.`{log.path}` DROP FEATURE {name}, or oncelake reset {stream}"
            ", to ingest the topic into a new table",
        )
