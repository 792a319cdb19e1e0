"""Records that could not be applied: raw, with the reason, under the seq of their batch."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

import pyarrow.compute as pc
from deltalake import Field
from deltalake.schema import PrimitiveType
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from ingestion.declaration.modes import COORDINATES
from ingestion.declaration.spec import StreamSpec, engine_version, fingerprint
from ingestion.lake.checksums import seal_commit
from ingestion.lake.commit_metadata import CommitMetadata
from ingestion.lake.delta import is_delta, open_delta
from ingestion.lake.location import Location
from ingestion.lake.side_tables import count_rows


def redrive_marks(quarantine: Location, seq: int) -> int:
    """Count the records that a redrive has marked."""
    return count_rows(quarantine, pc.field("redriven_seq") == seq)


def clear_marks_beyond(quarantine: Location, seq: int) -> int:
    """Remove the marks of redrives that died before their commit; return how many there were."""
    if not is_delta(quarantine):
        return 0
    left_over = count_rows(quarantine, pc.field("redriven_seq") > seq)
    if left_over:
        open_delta(quarantine).update(
            updates={"redriven_seq": "CAST(NULL AS BIGINT)"}, predicate=f"redriven_seq > {seq}"
        )
    return left_over


_RAW: Final = ("key", "value", "headers")
# A format that knows the id of a record's schema begins its detail with it.
_SCHEMA_ID: Final = "^schema id ([0-9]+):"
STATISTICS: Final = ("_seq", "_offset", "redriven_seq")
# What tables of an earlier version do not have.
_ADDED: Final = {
    "schema_id": "integer",
    "engine_version": "string",
    "run_id": "string",
    "declaration": "string",
    "removed": "string",
}


def quarantine_rows(metadata: CommitMetadata, spec: StreamSpec, *, bare: str = "FALSE") -> str:
    """Select the rows that a batch puts into quarantine, from the table ``batch``.

    Args:
        metadata: Of the commit to come.
        spec: The declaration that found the records bad.
        bare: Which of them keep no bytes, in SQL.
    """
    key, value, headers, detail = (
        f"CASE WHEN {bare} THEN NULL ELSE _{name} END AS {name}" for name in (*_RAW, "detail")
    )
    declared = fingerprint(spec).replace("'", "''")
    return (
        "SELECT _topic, _partition, _offset, _timestamp, "
        f"CAST({metadata.seq} AS BIGINT) AS _seq, "
        f"{key}, {value}, {headers}, _reason AS reason, {detail}, "
        "CAST(NULL AS BIGINT) AS redriven_seq, "
        f"TRY_CAST(regexp_extract(_detail, '{_SCHEMA_ID}', 1) AS INTEGER) AS schema_id, "
        f"'{engine_version()}' AS engine_version, '{metadata.run_id}' AS run_id, "
        f"'{declared}' AS declaration, "
        f"CASE WHEN {bare} THEN 'read before an erase' END AS removed "
        "FROM batch WHERE _disposition = 'quarantined'"
    )


def add_missing_columns(path: Location) -> None:
    """Give a table of an earlier version the columns that it does not have."""
    if not is_delta(path):
        return
    table = open_delta(path)
    there = {field.name for field in table.schema().fields}
    missing = [
        Field(name, PrimitiveType(type_)) for name, type_ in _ADDED.items() if name not in there
    ]
    if missing:
        table.alter.add_columns(missing)


def is_waiting(columns: Collection[str]) -> pc.Expression:
    """Tell the records that a redrive would send in, by the columns that the table has."""
    is_unmarked = pc.field("redriven_seq").is_null()
    return is_unmarked & pc.field("removed").is_null() if "removed" in columns else is_unmarked


def remove_payloads(path: Location, where: str, why: str, *, redriven: bool = False) -> int:
    """Remove key, value, headers and detail, which may quote them; return of how many records.

    Place and reason stay, so that the proof knows what was there.

    Args:
        path: The quarantine.
        where: Which records, in delta-rs' SQL.
        why: Stays beside them, as ``removed``.
        redriven: Whether records that were sent in again are meant, too.
    """
    if not is_delta(path):
        return 0
    add_missing_columns(path)
    table = open_delta(path)
    before = table.version()
    meant = "removed IS NULL" if redriven else "removed IS NULL AND redriven_seq IS NULL"
    done = table.update(
        updates={**dict.fromkeys((*_RAW, "detail"), "NULL"), "removed": f"'{why}'"},
        predicate=f"{meant} AND ({where})",
    )
    if table.version() != before:
        seal_commit(path, table.version())
    return int(done["num_updated_rows"])


def waiting_records(quarantined: DataFrame, reason: str | None) -> DataFrame:
    """Return the records that no redrive has sent in yet, as validation takes them, with ``_seq``.

    With a ``reason``, only those that were refused for it.
    """
    rows = quarantined.where("redriven_seq IS NULL")
    if "removed" in rows.columns:
        rows = rows.where("removed IS NULL")
    if reason is not None:
        rows = rows.where(F.col("reason") == reason)
    raw = (F.col(name).alias(f"_{name}") for name in _RAW)
    return rows.select(*COORDINATES, "_timestamp", *raw, "_seq")
