"""The partitions of a table, as they are declared, and its sort order: ``day(at)``, ``region``.

The words are those of Iceberg's specification, and so is what each makes of which type.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from oncelake.ingestion.declaration.names import suggest
from oncelake.ingestion.declaration.rules.violations import Violation
from oncelake.ingestion.declaration.types import SqlType

IDENTITY: Final = "identity"
_HIGHEST: Final = (1 << 31) - 1
_CALL: Final = re.compile(r"\s*(?P<name>\w+)\s*\((?P<given>.*)\)\s*", re.DOTALL)
_MOMENTS: Final = ("TIMESTAMP", "TIMESTAMP_NTZ")
_NUMBERS_AND_TEXTS: Final = (
    *("TINYINT", "SMALLINT", "INT", "BIGINT", "DECIMAL"),
    *("STRING", "VARCHAR", "BINARY"),
)
# The types of which there is a value; of a float there is none, since equal ones differ in bits.
TYPES: Final[Mapping[str, tuple[str, ...]]] = {
    IDENTITY: ("BOOLEAN", *_NUMBERS_AND_TEXTS, "DATE", *_MOMENTS),
    "year": ("DATE", *_MOMENTS),
    "month": ("DATE", *_MOMENTS),
    "day": ("DATE", *_MOMENTS),
    "hour": _MOMENTS,
    "bucket": (*_NUMBERS_AND_TEXTS, "DATE", *_MOMENTS),
    "truncate": _NUMBERS_AND_TEXTS,
}
# Of the text of a VARIANT, an order says nothing.
_SORTED: Final = (*TYPES[IDENTITY], "FLOAT", "DOUBLE")
_ARE: Final = {"sort_by": "sorted", "cluster_by": "clustered"}
# Of which the statistics of a file tell where it begins and ends.
CLUSTERED_TYPES: Final = (
    *("TINYINT", "SMALLINT", "INT", "BIGINT", "STRING", "DATE"),
    *_MOMENTS,
)
# Delta keeps them as texts in its log, where some types have none that every reader takes, and
# computes few things of a column.
DELTA_TYPES: Final[Mapping[str, tuple[str, ...]]] = {
    IDENTITY: ("BOOLEAN", "TINYINT", "SMALLINT", "INT", "BIGINT", "STRING", "VARCHAR", "DATE"),
    **{word: TYPES[word] for word in ("year", "month", "day")},
}
_WITH_NUMBER: Final = {"bucket": 16, "truncate": 10}
_BY_TIME: Final = ("year", "month", "day", "hour")


@dataclass(frozen=True, kw_only=True, slots=True)
class DeclaredPartition:
    """One field by which a table is partitioned: a transform of a column.

    Attributes:
        number: Of buckets, or what values are cut to; of other transforms 0.
    """

    transform: str
    column: str
    number: int = 0

    def __str__(self) -> str:
        if self.transform == IDENTITY:
            return self.column
        number = f"{self.number}, " if self.number else ""
        return f"{self.transform}({number}{self.column})"


def parse_partition(text: str) -> DeclaredPartition:
    """Read one field: a column, or a transform of one.

    Raises:
        ValueError: the text is none.
    """
    if not (call := _CALL.fullmatch(text)):
        return DeclaredPartition(transform=IDENTITY, column=text.strip())
    name, given = call["name"], call["given"].strip()
    if name not in TYPES:
        raise ValueError(f"{name!r} is no transform; {suggest(name, TYPES, likeness=0.5)}")
    if name not in _WITH_NUMBER:
        return DeclaredPartition(transform=name, column=given)
    number, _, column = (part.strip() for part in given.partition(","))
    if not column or not number.lstrip("-").isdecimal():
        meant = next((each for each in (column, number) if not each.isdecimal() and each), "id")
        example = f"{name}({_WITH_NUMBER[name]}, {meant})"
        raise ValueError(f"`{name}` takes a number and a column; write for example {example}")
    if not 0 < int(number) <= _HIGHEST:
        raise ValueError(f"{number} is not from 1 to {_HIGHEST}; write such a number")
    return DeclaredPartition(transform=name, column=column, number=int(number))


def rejoined(texts: Sequence[Any]) -> list[Any]:
    """Put together what YAML takes apart at the comma in ``[bucket(16, id), region]``."""
    whole = list[Any]()
    for text in texts:
        if whole and isinstance(text, str) and isinstance(whole[-1], str) and _is_open(whole[-1]):
            whole[-1] = f"{whole[-1]}, {text}"
        else:
            whole.append(text)
    return whole


def _is_open(text: str) -> bool:
    return text.count("(") > text.count(")")


def readable_partition(text: str) -> str:
    """Return the text of one field; see ``parse_partition``."""
    parse_partition(text)
    return text


def computed_name(partition: DeclaredPartition) -> str:
    """Return what a table calls a transform of which it has a column."""
    return f"{partition.column}_{partition.transform}"


def partition_violations(
    texts: Sequence[str],
    types: Mapping[str, SqlType],
    able: Mapping[str, tuple[str, ...]],
    *,
    has_columns: bool,
) -> Iterator[Violation]:
    """Yield every field that the table cannot be partitioned by.

    Args:
        types: The types of all columns of the table, by name.
        able: The types that the sink partitions by, by transform.
        has_columns: Whether the table has a column for each transform.
    """
    known, names = set[tuple[str, str]](), {name.lower() for name in types}
    for nth, each in enumerate(map(parse_partition, texts)):
        # Of a column's years, months, days and hours, one says all that others do.
        kind = "time" if each.transform in _BY_TIME else str(each)
        if problem := _problem(each, types, able):
            yield ("partition_by", nth), problem
        elif has_columns and each.transform != IDENTITY and computed_name(each).lower() in names:
            taken = f"the table has a column {computed_name(each)} for {each}"
            yield ("partition_by", nth), f"{taken}; give yours another name"
        elif (each.column, kind) in known:
            same = f"{each.column} already has a field of that kind"
            yield ("partition_by", nth), f"{same}; remove {each}, or the other"
        known.add((each.column, kind))


def _problem(
    each: DeclaredPartition, types: Mapping[str, SqlType], able: Mapping[str, tuple[str, ...]]
) -> str | None:
    name, word = each.column, each.transform
    if word not in able:
        return f"this sink has no `{word}`; write one of {', '.join(able)}"
    if name not in types:
        return _unknown(name, types, "partition")
    if types[name].word in able[word]:
        # Cut to more, the lowest numbers would have more bytes than their column.
        highest = 10 ** types[name].precision // 4
        if word == "truncate" and types[name].word == "DECIMAL" and each.number > highest:
            return f"{each.number} is too much for a {types[name]}; write at most {highest}"
        return None
    if others := [other for other in able if types[name].word in able[other]]:
        return f"{name} is {types[name]}, which has no `{word}`; it has {', '.join(others)}"
    what = f"{name} is {types[name]}, by which no table is partitioned"
    return f"{what}; name another column, or `select` one for it"


def _unknown(name: str, known: Collection[str], act: str) -> str:
    column, _, part = name.partition(".")
    if part and column in known:
        return (
            f"{name} is a field within {column}; `select` it as a column of its own, and "
            f"{act} by that"
        )
    return f"{name!r} is not a column of the table; {suggest(name, known, likeness=0.5)}"


def sort_violations(
    field: str,
    columns: Sequence[str],
    types: Mapping[str, SqlType],
    able: Collection[str] = _SORTED,
) -> Iterator[Violation]:
    """Yield every column that rows cannot be sorted, or clustered, by.

    Args:
        field: That names the columns.
        types: The types of all columns of the table, by name.
        able: Those by which rows are.
    """
    for nth, name in enumerate(columns):
        if name not in types:
            yield (field, nth), _unknown(name, types, field.removesuffix("_by"))
        elif types[name].word not in able:
            what = f"{name} is {types[name]}, by which no rows are {_ARE[field]}"
            yield (field, nth), f"{what}; name another column, or `select` one for it"
        elif name in columns[:nth]:
            yield (field, nth), f"{name} is there before; remove it here"


def lookup_of(partitions: Sequence[DeclaredPartition], keys: Sequence[str]) -> str:
    """Say which files of a partitioned table are searched for the rows of a batch.

    A field narrows that only if it is computed of a key column: a delete has no other values, and
    an update may have others than its row.
    """
    if by := ", ".join(str(each) for each in partitions if each.column in keys):
        return f"a batch searches the partitions of its keys alone, by {by}"
    fields = ", ".join(map(str, partitions))
    return (
        f"a batch searches each file that may have one of its keys, by the bounds of "
        f"{', '.join(keys)}, in all partitions: {fields} does not follow from `keys`"
    )
