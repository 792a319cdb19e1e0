"""What a batch's keys say, in one aggregation: how many, and whether they have an order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from ingestion.declaration.spec import COORDINATES
from ingestion.errors import KeyInTwoPartitionsError
from ingestion.latest import incomparable, quoted

# A literal range of these lets MERGE skip files. Timestamps are left out: their way through
# Python's time zones and back is not exact, and a wrong range inserts duplicates.
_PRUNABLE = {"tinyint", "smallint", "int", "bigint", "date", "string"}


@dataclass(frozen=True, kw_only=True, slots=True)
class KeyFacts:
    """What the keys of a batch's good records say.

    Attributes:
        distinct: How many keys there are: each has one winner.
        split: A key that came from two partitions, with both places, or ``None``.
        ranges: Lowest and highest value of each key column that files can be skipped by.
    """

    distinct: int
    split: Mapping[str, Any] | None
    ranges: Mapping[str, tuple[Any, Any]]


def examine_keys(records: DataFrame, keys: Sequence[str]) -> KeyFacts:
    """Aggregate the keys of at least one record, in one job."""
    at = F.struct(*COORDINATES)
    per_key = records.groupBy(*map(quoted, keys)).agg(
        F.min(at).alias("_first"), F.max(at).alias("_last")
    )
    types = dict(per_key.dtypes)
    prunable = [name for name in keys if types[name] in _PRUNABLE]
    is_split = F.struct("_first._topic", "_first._partition") != F.struct(
        "_last._topic", "_last._partition"
    )
    key = F.struct(*map(quoted, keys)).alias("key")
    evidence = F.struct(key, F.col("_first").alias("one"), F.col("_last").alias("other"))
    row = per_key.agg(
        F.count(F.lit(1)).alias("distinct"),
        F.first(F.when(is_split, evidence), ignorenulls=True).alias("split"),
        *(F.min(quoted(name)).alias(f"min {name}") for name in prunable),
        *(F.max(quoted(name)).alias(f"max {name}") for name in prunable),
    ).collect()[0]
    return KeyFacts(
        distinct=row["distinct"],
        split=row["split"].asDict(recursive=True) if row["split"] else None,
        ranges={name: (row[f"min {name}"], row[f"max {name}"]) for name in prunable},
    )


@contextmanager
def told_incomparable(stream: str) -> Iterator[None]:
    """Translate the error by which ``is_newer`` stops a statement.

    Raises:
        KeyInTwoPartitionsError: two records of one key cannot be ordered.
    """
    try:
        yield
    except (PySparkException, Py4JJavaError) as error:
        evidence = incomparable(str(error))
        if evidence is None:
            raise
        raise two_partitions(stream, evidence) from None


def two_partitions(stream: str, evidence: Mapping[str, Any]) -> KeyInTwoPartitionsError:
    """Say which key has no order, and where its two records are."""
    one, other = (
        f"{at['_topic']}-{at['_partition']} offset {at['_offset']}"
        for at in (evidence["one"], evidence["other"])
    )
    key = ", ".join(f"{name}={value}" for name, value in evidence["key"].items())
    return KeyInTwoPartitionsError(
        stream,
        f"key ({key}) came from {one} and from {other}, and offsets of two partitions cannot say "
        "which record is newer; nothing of this batch was written.",
        remedy=f"declare `sequence_by: [column]` in {stream}.yaml, a column that grows with each "
        "change of a row, or make the producer partition by key",
    )
