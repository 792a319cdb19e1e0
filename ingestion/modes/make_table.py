"""A stream's table is made: a Delta table by the engine of its run, any other by its sink."""

from __future__ import annotations

import datetime as dt
from typing import Final

from delta.tables import DeltaTable
from deltalake import DeltaTable as LocalTable
from deltalake import Schema
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from ingestion.declaration.ddl import system_columns
from ingestion.declaration.types import SqlType
from ingestion.lake.stream import Stream
from ingestion.modes.engines.choose import EngineName
from ingestion.sinks.delta.compaction import retention_properties
from ingestion.sinks.delta.durability import seal_commits
from ingestion.sinks.delta.files import EXACT_DIGITS, storage_options
from ingestion.sinks.delta.log_files import log_files

# Commits from one checkpoint of the log to the next: Spark's own; delta-rs would write a tenth.
CHECKPOINT_INTERVAL = 10
# Delta refuses to keep any of these.
_WITHOUT_STATISTICS: Final = ("BINARY", "BOOLEAN", "VARCHAR")


def make_table(engine: EngineName, spark: SparkSession, stream: Stream, schema: StructType) -> None:
    """Make the table if it is not there.

    Args:
        engine: What executes the run.
        spark: Its session.
        stream: The stream.
        schema: The table's columns, as Spark has read the declaration.
    """
    spec = stream.spec
    if spec.sink.name == "delta":
        _make_delta(engine, spark, stream, schema)
        seal_commits(stream.paths.data)
        log_files(stream.paths.data).forget()
        return
    columns = (*spec.table_columns, *system_columns())
    stream.paths.table.create(columns, keys=spec.row_keys, description=spec.description)


def _make_delta(
    engine: EngineName, spark: SparkSession, stream: Stream, schema: StructType
) -> None:
    spec, path = stream.spec, stream.paths.data
    # Statistics on what MERGE prunes by and the audit reads; on every other column they cost a
    # third of the write.
    keys = [name for name in spec.keys if _has_statistics(spec.types[name])]
    properties = {
        "delta.dataSkippingStatsColumns": ",".join(
            f"`{name}`" for name in (*keys, "_offset", "_seq")
        ),
        **retention_properties(dt.timedelta(days=spec.rewind_window_days)),
        "delta.checkpointInterval": str(CHECKPOINT_INTERVAL),
    }
    if engine == "delta_rs":
        LocalTable.create(
            str(path),
            # Delta keeps a schema as Spark writes it.
            Schema.from_json(schema.json()),
            mode="ignore",
            description=spec.description,
            configuration=properties,
            storage_options=storage_options(path),
        )
        return
    builder = DeltaTable.createIfNotExists(spark).location(str(path))
    builder = builder.addColumns(schema).comment(spec.description)
    for name, value in properties.items():
        builder = builder.property(name, value)
    builder.execute()


def _has_statistics(type_: SqlType) -> bool:
    """Tell whether Delta keeps statistics of a column, and delta-rs exact ones."""
    is_long = type_.word == "DECIMAL" and (type_.precision or 0) > EXACT_DIGITS
    return type_.word not in _WITHOUT_STATISTICS and not is_long
