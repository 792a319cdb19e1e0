"""Reads an Iceberg table as others do, in an environment of theirs, which knows nothing of ours.

python read.py READER METADATA OUTPUT [CONDITION…]

All rows are written to the Parquet file OUTPUT-0, and those of each condition to OUTPUT-1, …, with
all columns, in no order.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Of this line of Spark, for which Iceberg 1.12 has a runtime; ivy fetches it once.
RUNTIME = "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0"


def by_duckdb(metadata: str, condition: str) -> pa.Table:
    """Read by DuckDB's own reader, in C++."""
    import duckdb

    connection = duckdb.connect(config={"allow_unsigned_extensions": "true"})
    connection.execute("SET TimeZone = 'UTC'")
    for name in ("avro", "iceberg"):
        package = import_module(f"duckdb_extension_{name}")
        for path in Path(package.__path__[0]).rglob("*.duckdb_extension"):
            connection.execute(f"LOAD '{path}'")
    query = f"SELECT * FROM iceberg_scan('{metadata}') WHERE {condition or 'true'}"
    return connection.execute(query).to_arrow_table()


def by_polars(metadata: str, condition: str) -> pa.Table:
    """Read by Polars' own reader, in Rust, of what pyiceberg has planned."""
    import polars

    scanned = polars.scan_iceberg(metadata, reader_override="native")
    if condition:
        scanned = scanned.filter(polars.sql_expr(condition))
    return scanned.collect().to_arrow()


def by_pyiceberg(metadata: str, condition: str) -> pa.Table:
    """Read by pyiceberg's scan."""
    from pyiceberg.table import StaticTable

    table = StaticTable.from_metadata(metadata)
    return (table.scan(condition) if condition else table.scan()).to_arrow()


def spark_with(library: str = RUNTIME, **more: str) -> SparkSession:
    """Start Spark with a format's own library, and listen on loopback alone.

    Args:
        library: By default Iceberg's.
        more: Its settings, behind ``spark.sql.``, with ``_`` for each point and ``__`` for ``_``.
    """
    from pyspark.sql import SparkSession

    builder = (
        SparkSession.builder.master("local[1]")
        .config("spark.jars.packages", library)
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.session.timeZone", "UTC")
    )
    for name, value in more.items():
        pointed = name.replace("_", ".").replace("..", "_")
        builder = builder.config(f"spark.sql.{pointed}", value)
    return builder.getOrCreate()


def by_spark(metadata: str, condition: str) -> pa.Table:
    """Read by Iceberg's own library, in Java."""
    session = spark_with()
    # Iceberg's library for Spark reserves these names, and refuses to read such columns.
    # Of the table's own tables, such as METADATA#files, too.
    rows = session.read.format("iceberg").load(metadata).drop("_partition", "_deleted")
    return (rows.where(condition) if condition else rows).toArrow()


READERS = {"duckdb": by_duckdb, "polars": by_polars, "pyiceberg": by_pyiceberg, "spark": by_spark}


def read_with(readers: Mapping[str, Callable[[str, str], pa.Table]]) -> None:
    """Read, and write what was read."""
    reader, metadata, output, *conditions = sys.argv[1:]
    for nth, condition in enumerate(["", *conditions]):
        pq.write_table(readers[reader](metadata, condition), f"{output}-{nth}")


if __name__ == "__main__":
    read_with(READERS)
