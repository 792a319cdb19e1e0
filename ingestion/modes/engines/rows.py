"""The rows of a batch before anything is computed: in Spark, or in a worker of Spark's alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# Nobody needs these of a record that can be applied.
RAW: Final = ("_key", "_value", "_headers")
Work = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


class UnevaluatedError(Exception):
    """A worker cannot evaluate an expression as Spark would; Spark can."""


@dataclass(frozen=True, kw_only=True, slots=True)
class InWorker:
    """Rows that a Python worker makes of records, with no way back through the JVM.

    Attributes:
        records: The frame of the source.
        work: What a worker makes of its batches.
        sql: What is asked of the result, as the table ``decoded``.
    """

    records: DataFrame
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
