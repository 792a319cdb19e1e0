"""Records that could not be applied: raw, with the reason, under the seq of their batch."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from deltalake import DeltaTable, Field
from deltalake.schema import PrimitiveType
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from ingestion.audit import rows_of_seq
from ingestion.declaration.fingerprint import engine_version, fingerprint
from ingestion.declaration.spec import COORDINATES, StreamSpec
from ingestion.lake import StreamPaths
from ingestion.notes import Note
from ingestion.side_table import overwrite_seq

# A format that knows the id of a record's schema begins its detail with it.
_SCHEMA_ID: Final = r"^schema id (\d+):"
# What tables of an earlier version do not have.
_ADDED: Final = {
    "schema_id": "integer",
    "engine_version": "string",
    "run_id": "string",
    "declaration": "string",
}


def quarantine(bad: DataFrame, paths: StreamPaths, note: Note, spec: StreamSpec) -> int:
    """Write the bad records of one batch, replacing what a dead attempt left of the same seq.

    Args:
        bad: Quarantined records as ``ingestion.gate`` returns them.
        paths: The stream's tables.
        note: Of the batch to come.
        spec: The declaration that found them bad.

    Returns:
        How many the table holds of this batch now, read back.
    """
    rows = bad.select(
        "_topic",
        "_partition",
        "_offset",
        "_timestamp",
        F.lit(note.seq).cast("long").alias("_seq"),
        F.col("_key").alias("key"),
        F.col("_value").alias("value"),
        F.col("_headers").alias("headers"),
        F.col("_reason").alias("reason"),
        F.col("_detail").alias("detail"),
        F.lit(None).cast("long").alias("redriven_seq"),
        F.regexp_extract("_detail", _SCHEMA_ID, 1).try_cast("int").alias("schema_id"),
        F.lit(engine_version()).alias("engine_version"),
        F.lit(note.run_id).alias("run_id"),
        F.lit(fingerprint(spec)).alias("declaration"),
    )
    add_missing_columns(paths.quarantine)
    overwrite_seq(rows, paths.quarantine, note.seq, stats_on=["_seq", "_offset", "redriven_seq"])
    return rows_of_seq(paths.quarantine, note.seq)


def add_missing_columns(path: Path) -> None:
    """Give a table of an earlier version the columns that it does not have."""
    if not DeltaTable.is_deltatable(str(path)):
        return
    table = DeltaTable(path)
    there = {field.name for field in table.schema().fields}
    missing = [
        Field(name, PrimitiveType(type_)) for name, type_ in _ADDED.items() if name not in there
    ]
    if missing:
        table.alter.add_columns(missing)


def waiting(spark: SparkSession, path: Path, reason: str | None) -> DataFrame:
    """Return the records that no redrive has sent in yet, as the gate takes them, with ``_seq``.

    Args:
        spark: The session.
        path: The quarantine's folder.
        reason: Only those of this reason.
    """
    rows = spark.read.format("delta").load(str(path)).where("redriven_seq IS NULL")
    if reason is not None:
        rows = rows.where(F.col("reason") == reason)
    raw = (F.col(name).alias(f"_{name}") for name in ("key", "value", "headers"))
    return rows.select(*COORDINATES, "_timestamp", *raw, "_seq")
