"""The rows of a batch before anything is computed: records, and what becomes of them.

Every stage between the bytes and the judgement is a function from Arrow batches to Arrow batches.
The same function runs in this process, in a worker of Spark's or on an executor.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, Final, TypeAlias, Union

import pyarrow as pa

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

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
_PLAIN: Final = re.compile(r"\w+")
Work = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


class UnevaluatedError(Exception):
    """A worker cannot evaluate an expression as Spark would; Spark can."""


def unchanged(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Do the work of rows that are there already."""
    return batches


@dataclass(frozen=True, kw_only=True, slots=True)
class Rows:
    """The rows of a batch at one of its stages; see ``ingestion.pipeline.columns``.

    Attributes:
        records: Those of the source, or rows that Spark has made of them.
        work: Makes the rows of their batches.
        sql: The query over the result, as the table ``decoded``.
        in_spark: Returns the same rows with the statements evaluated by Spark, in case ``work``
            raises ``UnevaluatedError``; ``None`` where it evaluates none. The query is the same.
    """

    records: Records
    work: Work
    sql: str = "FROM decoded"
    in_spark: Callable[[], Rows] | None = None

    def then(self, stage: Callable[[Work], Work]) -> Rows:
        """Return the rows behind a further stage, which gets the work before it."""
        rows = replace(self, work=stage(self.work))
        if (before := self.in_spark) is None:
            return rows
        return replace(rows, in_spark=lambda: before().then(stage))

    def here(self) -> pa.Table:
        """Compute the rows of a table, in this process."""
        assert isinstance(self.records, pa.Table), "rows of a frame are computed by workers"
        return pa.Table.from_batches(self.work(iter(self.records.to_batches() or [self._none()])))

    def without_any(self) -> pa.Table:
        """Return no rows, with the columns that rows would have."""
        return pa.Table.from_batches(self.work(iter([self._none()])))

    def frame(self) -> DataFrame:
        """Return the rows as a frame, which Spark's workers compute whenever it is read."""
        from pyspark.sql.pandas.types import from_arrow_schema

        if self.work is unchanged:
            return as_frame(self.records)
        made = from_arrow_schema(self.without_any().schema, prefer_timestamp_ntz=True)
        return map_in_workers(as_frame(self.records), self.work, made)

    def _none(self) -> pa.RecordBatch:
        if isinstance(self.records, pa.Table):
            return pa.RecordBatch.from_pylist([], self.records.schema)
        from pyspark.sql.pandas.types import to_arrow_schema

        return pa.RecordBatch.from_pylist([], to_arrow_schema(self.records.schema, timezone="UTC"))


def map_in_workers(frame: DataFrame, work: Work, schema: StructType | str) -> DataFrame:
    """Return what Spark's workers make of a frame, with the columns of ``schema``."""
    names = frame.columns
    # PySpark takes a backtick for the beginning of a quoted name, and a dot for the end of one.
    is_plain = all(_PLAIN.fullmatch(name) for name in names)
    plain = frame if is_plain else frame.toDF(*map(str, range(len(names))))
    return plain.mapInArrow(
        lambda batches: work(each.rename_columns(names) for each in batches), schema
    )


def distinct_texts(
    records: Records, texts_in: Callable[[pa.RecordBatch], Iterable[str]], *, most: int
) -> list[str]:
    """Return the texts that a function finds in records, each once.

    Of a frame it costs one job of Spark's, and workers get all columns.

    Args:
        records: What the function reads.
        texts_in: Returns the texts of a batch; executors get it.
        most: How many are wanted; there may be more.
    """
    if isinstance(records, pa.Table):
        texts = dict.fromkeys(text for batch in records.to_batches() for text in texts_in(batch))
        return [*islice(texts, most)]

    def texts_of(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield pa.RecordBatch.from_pydict({"text": pa.array(texts_in(batch), pa.string())})

    made = map_in_workers(records, texts_of, "text STRING")
    return [row["text"] for row in made.distinct().limit(most).collect()]


def as_frame(records: Records) -> DataFrame:
    """Return records that are a frame as one."""
    assert not isinstance(records, pa.Table), "what only Spark computes is refused of a table"
    return records
