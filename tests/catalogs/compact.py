"""Compacts a table all the time, as Spark does, in the environment of ``make readers``.

python compact.py URI TABLE

It prints how many files it has put together, a line each time, until its input ends.
"""

from __future__ import annotations

import sys
import threading

# Of this line of Spark, for which Iceberg 1.12 has a runtime; ivy fetches it once.
RUNTIME = "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0"


def main() -> None:
    """Compact until the input ends; a commit that met another's counts as none."""
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    uri, table = sys.argv[1:]
    session = (
        SparkSession.builder.master("local[1]")
        .config("spark.jars.packages", RUNTIME)
        .config("spark.driver.memory", "700m")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.catalog.c", "org.apache.iceberg.spark.SparkCatalog")
        .config("spark.sql.catalog.c.type", "rest")
        .config("spark.sql.catalog.c.uri", uri)
        # Others change the table, and Spark would remember it for half a minute.
        .config("spark.sql.catalog.c.cache-enabled", "false")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("OFF")
    ended = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
    options = "map('min-input-files', '2', 'rewrite-all', 'false')"
    call = f"CALL c.system.rewrite_data_files(table => '{table}', options => {options})"
    while not ended.is_set():
        try:
            [done] = session.sql(call).collect()
            print(done["rewritten_data_files_count"], flush=True)
        except PySparkException as error:
            print(f"- {str(error).splitlines()[0]}", flush=True)
    session.stop()


if __name__ == "__main__":
    main()
