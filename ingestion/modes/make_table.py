"""A stream's table is made: by its sink, or by Spark where only Spark can."""

from __future__ import annotations

import datetime as dt

from delta.tables import DeltaTable
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from oncelake.ingestion.declaration.ddl import system_columns
from oncelake.ingestion.delta.description import properties_of
from oncelake.ingestion.delta.durability import seal_commits
from oncelake.ingestion.delta.log_files import log_files
from oncelake.ingestion.lake.stream import Stream
from oncelake.ingestion.modes.engines.choose import EngineName
from oncelake.ingestion.tables.table import TableDefinition


def make_table(engine: EngineName, spark: SparkSession, stream: Stream, schema: StructType) -> None:
    """Make the table if it is not there.

    Args:
        engine: What executes the run; Spark makes Delta tables.
        spark: Its session.
        stream: The stream.
        schema: The table's columns, as Spark has read the declaration.
    """
    spec, path = stream.spec, stream.paths.data
    wanted = TableDefinition(
        columns=(*spec.table_columns, *system_columns()),
        keys=spec.row_keys,
        description=spec.description,
        window=dt.timedelta(days=spec.rewind_window_days),
        deletion_vectors=spec.deletion_vectors,
    )
    if engine == "delta_rs":
        stream.paths.table.create(wanted)
        return
    builder = DeltaTable.createIfNotExists(spark).location(str(path))
    builder = builder.addColumns(schema).comment(spec.description)
    for name, value in properties_of(wanted).items():
        builder = builder.property(name, value)
    builder.execute()
    seal_commits(path)
    log_files(path).forget()
