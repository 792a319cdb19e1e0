"""SQL that every engine runs: names, equal keys, and which of two records is beyond the other.

The text is DuckDB's dialect in its common subset; the Spark engine translates it. Order is written
out column by column, since DataFusion, which evaluates the conditions of a merge, compares no
structs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from oncelake.ingestion.declaration.sql import equal as equal
from oncelake.ingestion.declaration.sql import identifier, literal

# Ends the statement that evaluates it; each engine puts in its own way to do so.
FAIL: Final = "ONCELAKE_FAIL()"
# What the error of such a statement contains.
FAILED: Final = "ONCELAKE_KEY_IN_TWO_PARTITIONS"
text: Final = literal


def name(column: str, side: str = "") -> str:
    """Quote a column's name, with the alias of its table before it."""
    return f"{side}.{identifier(column)}" if side else identifier(column)


def names(columns: Iterable[str], side: str = "") -> str:
    """Quote names, with commas between them."""
    return ", ".join(name(column, side) for column in columns)


def selected(columns: Mapping[str, str]) -> str:
    """Select values by the names that they get."""
    return ", ".join(f"{value} AS {name(column)}" for column, value in columns.items())


def ranked(columns: Sequence[str], direction: str, side: str = "") -> str:
    """Order rows along columns, ``DESC`` or ``ASC``."""
    return ", ".join(f"{name(column, side)} {direction}" for column in columns)


def stamp(epoch: int, seq: int) -> str:
    """Select what a row has of its batch."""
    return f"CAST({epoch} AS INTEGER) AS _epoch, CAST({seq} AS BIGINT) AS _seq"


def first_of(table: str, columns: Iterable[str], *, by: Sequence[str], order: str) -> str:
    """Select columns of the first row, in an order, of all that are equal ``by`` other columns."""
    return (
        f"SELECT {names(columns)} FROM (SELECT *, row_number() OVER "
        f"(PARTITION BY {names(by)} ORDER BY {order}) AS _rank FROM {table}) r WHERE _rank = 1"
    )


def is_newer(line: Sequence[str], one: str, other: str, *, has_order: bool) -> str:
    """Tell whether the row of ``one`` is beyond that of ``other``; any row is beyond none.

    A record of an earlier epoch always loses. Without a declared order, two records of one epoch
    that come from different partitions cannot be compared, and the statement fails.

    Args:
        line: Columns that order the records of a key, most significant first; they end with the
            place in Kafka, so no two records are equal.
        one: Alias of the row that may be newer.
        other: Alias of the row that is there, or not: all its columns are null then.
        has_order: Whether a person has declared what orders the records.
    """
    if has_order:
        beyond = is_beyond(("_epoch", *line), one, other)
        return f"({name('_offset', other)} IS NULL OR {beyond})"
    epochs = f"{name('_epoch', one)} <> {name('_epoch', other)}"
    return (
        # A merge evaluates it on rows that have no partner, too.
        f"(CASE WHEN {name('_offset', one)} IS NULL THEN FALSE "
        f"WHEN {name('_offset', other)} IS NULL THEN TRUE "
        f"WHEN {epochs} THEN {name('_epoch', one)} > {name('_epoch', other)} "
        f"WHEN {equal(('_topic', '_partition'), one, other)} THEN {is_beyond(line, one, other)} "
        f"ELSE {FAIL} END)"
    )


def is_older(line: Sequence[str], one: str, other: str, *, has_order: bool) -> str:
    """Tell whether the row of ``one`` is before that of ``other``; any row is before none."""
    after = is_newer(line, other, one, has_order=has_order)
    there = f"{name('_offset', one)} IS NOT NULL"
    return f"({name('_offset', other)} IS NULL OR ({there} AND {after}))"


def is_beyond(columns: Sequence[str], one: str, other: str) -> str:
    """Tell whether the row of ``one`` is beyond that of ``other``; no column of theirs is null."""
    first, *rest = columns
    mine, theirs = name(first, one), name(first, other)
    if not rest:
        return f"{mine} > {theirs}"
    return f"({mine} > {theirs} OR ({mine} = {theirs} AND {is_beyond(rest, one, other)}))"
