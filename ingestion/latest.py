"""One winner a key: which of two records is newer, and what to do when nothing can say.

Records are ordered along their stream's line (``StreamSpec.line``): ``sequence_by``, then topic,
partition, offset and, of an exploded record, element. Without ``sequence_by``, only what lies in
one partition is comparable: the same key in two partitions has no order at all, and calling either
stale would lose data behind balanced books.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

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


def place(side: str, line: Sequence[str]) -> Column:
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


def quoted(name: str) -> str:
    """Quote a column's name for Spark SQL."""
    return f"`{name}`"


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
