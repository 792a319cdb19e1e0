"""How a Spark statement becomes a commit of ours: fenced by ``txn``, explained by its note.

An append takes both as options of its own. MERGE, UPDATE and DELETE take them from the session's
configuration only, which later statements of the same session would inherit, and be skipped in
silence; so it is set around one statement.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from ingestion.notes import Note, app_id

_APP_ID = "spark.databricks.delta.write.txnAppId"
_VERSION = "spark.databricks.delta.write.txnVersion"
_USER_METADATA = "spark.databricks.delta.commitInfo.userMetadata"


@contextmanager
def fenced(spark: SparkSession, stream: str, note: Note) -> Iterator[None]:
    """Make the one Delta statement of the block a commit with our seq and note."""
    spark.conf.set(_APP_ID, app_id(stream))
    spark.conf.set(_VERSION, str(note.seq))
    spark.conf.set(_USER_METADATA, note.to_json())
    try:
        yield
    finally:
        # The version first: an application id alone fails loudly, both together skip silently.
        for key in (_VERSION, _APP_ID, _USER_METADATA):
            spark.conf.unset(key)


def commit_note_alone(spark: SparkSession, stream: str, path: Path, note: Note) -> None:
    """Commit a note that changes no row: offsets move, and nothing else does."""
    nothing = spark.read.format("delta").load(str(path)).where(F.lit(False))
    (
        nothing.write.format("delta")
        .mode("append")
        .option("txnAppId", app_id(stream))
        .option("txnVersion", note.seq)
        .option("userMetadata", note.to_json())
        .save(str(path))
    )
