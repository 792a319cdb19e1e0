"""Lets Spark write all files of an Iceberg table anew, again and again, as a compactor does.

python compact.py URI TABLE PAUSE-SECONDS

Prints a line for each time, ``made`` or ``lost``, until its input ends.
"""

from __future__ import annotations

import sys
import threading

from py4j.protocol import Py4JJavaError
from read import spark_with


def main() -> None:
    """Compact until nobody listens any more."""
    uri, table, pause = sys.argv[1:]
    spark = spark_with(
        catalog_tried="org.apache.iceberg.spark.SparkCatalog",
        catalog_tried_type="rest",
        catalog_tried_uri=uri,
        **{"catalog_tried_cache-enabled": "false"},
    )
    ended = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
    call = f"CALL tried.system.rewrite_data_files('{table}', options => map('rewrite-all', 'true'))"
    print("ready", flush=True)
    while not ended.wait(float(pause)):
        try:
            spark.sql(call).collect()
        except Py4JJavaError as error:
            # The stream has committed meanwhile to what it was at.
            if "CommitFailedException" not in str(error) and "ValidationException" not in str(
                error
            ):
                raise
            print("lost", flush=True)
        else:
            print("made", flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
