"""Decode a batch: its values, and the keys where a null value could say something by its key."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from ingestion.formats import arrow_udf
from ingestion.lake.stream import Stream
from ingestion.pipeline.frame_cache import FrameCache
from ingestion.pipeline.schema import row_type, value_type


def decode(records: DataFrame, stream: Stream, frames: FrameCache) -> DataFrame:
    """Add ``_decoded`` to records, and where a null value may delete by its key ``_decoded_key``.

    Args:
        records: As the source returns them; see ``ingestion.pipeline.columns``.
        stream: The declaration, and where a schema registry is.
        frames: Keeps the bytes where schema ids must be known before decoding.
    """
    spec, settings = stream.spec, stream.settings
    if spec.format.options.uses_registry or spec.key_format.options.uses_registry:
        records = frames.keep_bytes(records)
    decoded = arrow_udf.decode(
        records,
        spec.format,
        column="_value",
        into="_decoded",
        schema=value_type(spec),
        extra_fields=spec.extra_fields,
        settings=settings,
    )
    if spec.tombstone_policy != "delete":
        return decoded
    schema = row_type(spec.ddl)
    of_tombstones = F.when(F.col("_value").isNull(), F.col("_key"))
    return arrow_udf.decode(
        decoded.withColumn("_tombstone_key", of_tombstones),
        spec.key_format,
        column="_tombstone_key",
        is_key=True,
        into="_decoded_key",
        schema=StructType([schema[name] for name in spec.keys]),
        extra_fields="ignore",
        settings=settings,
    ).drop("_tombstone_key")
