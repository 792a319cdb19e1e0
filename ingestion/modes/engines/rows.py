"""The rows of a batch before anything is computed: in Spark, or in a worker of Spark's alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias, Union

import pyarrow as pa

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# Nobody needs these of a record that can be applied.
RAW: Final = ("_key", "_value", "_headers")
# What a source returns, one row a record. By ``_digest``, of key, value and headers,
# ``ingestion.kafka.last_record`` knows a record again.
RECORDS: Final = pa.schema(
    [
        *(("_topic", pa.string()), ("_partition", pa.int32()), ("_offset", pa.int64())),
        ("_timestamp", pa.timestamp("us", "UTC")),
        *(("_key", pa.binary()), ("_value", pa.binary())),
        ("_headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
        ("_digest", pa.int64()),
    ]
)
# As a frame of Spark's, or as a table in this process.
Records: TypeAlias = Union["DataFrame", pa.Table]
Work = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


class UnevaluatedError(Exception):
    """A worker cannot evaluate an expression as Spark would; Spark can."""


@dataclass(frozen=True, kw_only=True, slots=True)
class InWorker:
    """Rows that a Python worker makes of records, with no way back through the JVM.

    Attributes:
        records: Those of the source.
        work: What a worker makes of its batches.
        sql: What is asked of the result, as the table ``decoded``.
    """

    records: Records
    work: Work
    sql: str = "FROM decoded"


@dataclass(frozen=True, kw_only=True, slots=True)
class Rows:
    """The rows of a batch at one of its stages; see ``ingestion.pipeline.columns``.

    Attributes:
        in_spark: Returns them as a frame; called only when the frame is needed.
        in_worker: The same rows without Spark, unless that raises ``UnevaluatedError``; ``None``
            behind what only Spark executes: some statements, a function, an array that gives rows.
    """

    in_spark: Callable[[], DataFrame]
    in_worker: InWorker | None = None
