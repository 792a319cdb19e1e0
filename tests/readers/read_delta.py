"""Reads a Delta table as others do, in an environment of theirs, which knows nothing of ours.

python read_delta.py READER TABLE OUTPUT [CONDITION…]

It writes what ``read.py`` does.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pyarrow as pa
from read import read_with, spark_with

# Of the same line of Spark as Iceberg's; ivy fetches it once.
DELTA = "io.delta:delta-spark_4.1_2.13:4.4.0"


def by_delta_rs(table: str, condition: str) -> pa.Table:
    """Read by delta-rs' own query, by DataFusion."""
    from deltalake import DeltaTable, QueryBuilder

    query = f"SELECT * FROM t WHERE {condition or 'true'}"
    return pa.table(QueryBuilder().register("t", DeltaTable(table)).execute(query).read_all())


def by_duckdb(table: str, condition: str) -> pa.Table:
    """Read by DuckDB's reader, which is Delta's kernel in Rust."""
    import duckdb

    connection = duckdb.connect(config={"allow_unsigned_extensions": "true"})
    connection.execute("SET TimeZone = 'UTC'")
    package = import_module("duckdb_extension_delta")
    for path in Path(package.__path__[0]).rglob("*.duckdb_extension"):
        connection.execute(f"LOAD '{path}'")
    query = f"SELECT * FROM delta_scan('{table}') WHERE {condition or 'true'}"
    return connection.execute(query).to_arrow_table()


def by_polars(table: str, condition: str) -> pa.Table:
    """Read by Polars' own reader, of the files that delta-rs lists."""
    import polars

    scanned = polars.scan_delta(table)
    if condition:
        scanned = scanned.filter(polars.sql_expr(condition))
    return scanned.collect().to_arrow()


def by_spark(table: str, condition: str) -> pa.Table:
    """Read by Delta's own library, in Java."""
    session = spark_with(
        DELTA,
        extensions="io.delta.sql.DeltaSparkSessionExtension",
        catalog_spark__catalog="org.apache.spark.sql.delta.catalog.DeltaCatalog",
    )
    session.conf.set("spark.databricks.delta.snapshotPartitions", "1")
    rows = session.read.format("delta").load(table)
    return (rows.where(condition) if condition else rows).toArrow()


READERS = {"delta-rs": by_delta_rs, "duckdb": by_duckdb, "polars": by_polars, "spark": by_spark}

if __name__ == "__main__":
    read_with(READERS)
