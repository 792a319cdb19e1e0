"""What a batch's keys say, in one aggregation: how many, and whether they have an order."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from ingestion.declaration.modes import COORDINATES
from ingestion.declaration.sql import quoted
from ingestion.errors import KeyInTwoPartitionsError

TWO_PARTITIONS = "ONCELAKE_KEY_IN_TWO_PARTITIONS"


def latest_per_key(records: DataFrame, keys: Sequence[str], line: Sequence[str]) -> DataFrame:
    """Keep the newest record of each key.

    Args:
        records: Good records of one batch.
        keys: Columns that identify a row; at least one, none null.
        line: Columns that order them, most significant first. They end with a record's place in
            Kafka, so the order is total and the winner the same on every run.

    Returns:
        One row per distinct key, with the columns of ``records``.
    """
    return _winner_per_key(records, keys, line, F.desc)


def first_per_key(records: DataFrame, keys: Sequence[str], line: Sequence[str]) -> DataFrame:
    """Keep the oldest record of each key; see ``latest_per_key``, whose mirror image this is."""
    return _winner_per_key(records, keys, line, F.asc)


def _winner_per_key(
    records: DataFrame,
    keys: Sequence[str],
    line: Sequence[str],
    direction: Callable[[str], Column],
) -> DataFrame:
    winner_first = Window.partitionBy(*map(quoted, keys)).orderBy(
        *(direction(quoted(c)) for c in line)
    )
    return (
        records.withColumn("_rank", F.row_number().over(winner_first))
        .where("_rank = 1")
        .drop("_rank")
    )


def sort_key(side: str, line: Sequence[str]) -> Column:
    """Return a record's place along a line, as a struct that Spark compares field by field.

    A record of an earlier epoch always loses, so the epoch comes first.
    """
    return F.struct(*(F.col(f"{side}.{quoted(name)}").alias(name) for name in ("_epoch", *line)))


def is_newer(one: Column, other: Column, *, has_order: bool, key: Column) -> Column:
    """Tell whether place ``one`` is beyond place ``other``; whatever exists is beyond nothing.

    Without a declared order, evaluating it on two records of one epoch that come from different
    partitions raises an error that names ``key`` and both, marked with ``TWO_PARTITIONS``.
    """
    is_nothing = other["_offset"].isNull()
    if has_order:
        return is_nothing | (one > other)
    is_comparable = F.struct(one["_topic"], one["_partition"]) == F.struct(
        other["_topic"], other["_partition"]
    )
    evidence = F.to_json(F.struct(key.alias("key"), other.alias("one"), one.alias("other")))
    return (
        # MERGE asks for rows of the table that no record matches, too.
        F.when(one["_offset"].isNull(), False)
        .when(is_nothing, True)
        .when(one["_epoch"] != other["_epoch"], one["_epoch"] > other["_epoch"])
        .when(is_comparable, one > other)
        .otherwise(F.raise_error(F.concat(F.lit(f"{TWO_PARTITIONS} "), evidence)).cast("boolean"))
    )


def is_older(one: Column, other: Column, *, has_order: bool, key: Column) -> Column:
    """Tell whether place ``one`` is before place ``other``; whatever exists is before nothing."""
    is_after = is_newer(other, one, has_order=has_order, key=key)
    return other["_offset"].isNull() | (one["_offset"].isNotNull() & is_after)


def incomparable(error_text: str) -> dict[str, Any] | None:
    """Return the evidence that ``is_newer`` put into an error, or ``None`` for any other error.

    One that quotes its statement holds the marker, too, and no evidence behind it.
    """
    _, marker, rest = error_text.partition(f"{TWO_PARTITIONS} ")
    if not marker:
        return None
    try:
        evidence: dict[str, Any] = json.JSONDecoder().raw_decode(rest)[0]
    except ValueError:
        return None
    return evidence


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
def translate_ordering_errors(stream: str) -> Iterator[None]:
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
