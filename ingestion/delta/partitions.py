"""How a Delta table is partitioned: by columns of its own, or by days of them, which it computes.

The values stand in the log, as text; those of plain columns in the files as well. A day is one of
UTC: Delta's own words for it, ``CAST(at AS DATE)``, mean another in each session's time zone, by
which Spark would leave out files that have wanted rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from oncelake.ingestion.declaration.partitions import (
    DELTA_TYPES,
    IDENTITY,
    DeclaredPartition,
    computed_name,
)
from oncelake.ingestion.declaration.sql import quoted
from oncelake.ingestion.declaration.types import SqlType
from oncelake.ingestion.errors import RefusedError

GENERATED: Final = "delta.generationExpression"
# Of a moment: its seconds, whole days of them. Delta allows few functions, and these have no zone.
_DAY_OF_MOMENT: Final = (
    "date_add(DATE'1970-01-01', CAST((CAST({0} AS BIGINT) - pmod(CAST({0} AS BIGINT), 86400)) "
    "DIV 86400 AS INT))"
)
_DAY: Final = "CAST({0} AS DATE)"
_BEGINS: Final = {"day": "{0}", "month": "trunc({0}, 'MONTH')", "year": "trunc({0}, 'YEAR')"}


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredPartition:
    """One column by which a table is partitioned.

    Attributes:
        name: The column.
        of: What it is, as it is declared; ``None`` of one that is not computed here.
    """

    name: str
    of: DeclaredPartition | None

    @property
    def is_computed(self) -> bool:
        """Tell whether no row has it, since it follows from another column."""
        return self.of is not None and self.of.transform != IDENTITY

    def values(self, rows: pa.Table) -> pa.ChunkedArray:
        """Compute it of rows."""
        assert self.of is not None
        found = rows.column(self.of.column)
        if not self.is_computed:
            return found
        if not pa.types.is_date(found.type):
            found = found.cast(pa.timestamp("us"))
        return pc.floor_temporal(found, unit=self.of.transform).cast(pa.date32())


def expression(transform: str, column: str, type_: SqlType) -> str:
    """Write what computes a transform of a column, in the words that Delta knows."""
    day = _DAY_OF_MOMENT if type_.word == "TIMESTAMP" else _DAY
    return _BEGINS[transform].format(day.format(quoted(column)))


def computed_field(partition: DeclaredPartition, type_: SqlType) -> dict[str, Any]:
    """Return the column that is a transform of another, as the log has it."""
    return {
        "name": computed_name(partition),
        "type": "date",
        "nullable": True,
        "metadata": {GENERATED: expression(partition.transform, partition.column, type_)},
    }


def partitions_of(table: DeltaTable, types: Mapping[str, SqlType]) -> list[StoredPartition]:
    """Return how a table is partitioned, given the types of its columns."""
    generated = {
        each.name: each.metadata[GENERATED]
        for each in table.schema().fields
        if GENERATED in (each.metadata or {})
    }
    found = []
    for name in table.metadata().partition_columns:
        if name in generated:
            of = _transform_of(generated[name], types)
        else:
            is_kept = types[name].word in DELTA_TYPES[IDENTITY]
            of = DeclaredPartition(transform=IDENTITY, column=name) if is_kept else None
        found.append(StoredPartition(name=name, of=of))
    return found


def _transform_of(sql: str, types: Mapping[str, SqlType]) -> DeclaredPartition | None:
    """Read an expression; one of others means a day of UTC, too, which is Spark's session here."""
    for name, type_ in types.items():
        for transform in _BEGINS:
            if type_.word in DELTA_TYPES[transform]:
                theirs = _BEGINS[transform].format(_DAY.format(quoted(name)))
                known = (expression(transform, name, type_), theirs)
                if _plain(sql) in map(_plain, known):
                    return DeclaredPartition(transform=transform, column=name)
    return None


def _plain(sql: str) -> str:
    return "".join(sql.lower().replace("`", "").split())


def stored(partition: DeclaredPartition) -> StoredPartition:
    """Return what a declared one is in a table that was made by us."""
    is_column = partition.transform == IDENTITY
    name = partition.column if is_column else computed_name(partition)
    return StoredPartition(name=name, of=partition)


def computed(partitions: Iterable[StoredPartition]) -> set[str]:
    """Name the columns that no row has."""
    return {each.name for each in partitions if each.is_computed}


def texts_of(partitions: Sequence[StoredPartition], rows: pa.Table) -> list[pa.Array]:
    """Return the values of each row as the log has them, partition by partition.

    Raises:
        NoPartitionError: Delta has no text for one.
    """
    return [_as_text(each, rows) for each in partitions]


class NoPartitionError(ValueError):
    """A row is of none that Delta's log can name; says why, and what to do."""


def unnamed_partition(stream: str, error: NoPartitionError) -> RefusedError:
    """Return what a person is told of a batch with such a row."""
    return RefusedError(
        stream,
        f"a row cannot be kept: {error}. Nothing was changed.",
        remedy="let `select` make another value of it, or set such records aside by a rule of "
        "`expect`, as docs/sinks.md shows for partitions; if the row is in the table already, "
        "name another column in `partition_by`",
    )


def taken_for_null(column: str, what: str = "an empty text") -> NoPartitionError:
    """Return the error of a row whose value would be read as NULL."""
    return NoPartitionError(
        f"{column}, by which the table is partitioned, is {what}, which Delta takes for NULL"
    )


class PartitionValues:
    """What the files of a table have in common, by its columns, which is not in the files."""

    def __init__(self, partitions: Sequence[StoredPartition], added: pa.Table) -> None:
        """Take the partitions, and the files as delta-rs lists them."""
        self._added = added
        self.names = [each.name for each in partitions]

    @cached_property
    def values(self) -> dict[str, pa.ChunkedArray]:
        """What each column is in each file."""
        return {name: self._added[f"partition.{name}"] for name in self.names}

    @cached_property
    def texts(self) -> list[dict[str, str | None]]:
        """What the log says of each file, as text."""
        columns = [self.values[name].cast(pa.string()).to_pylist() for name in self.names]
        if not columns:
            return [{} for _ in range(len(self._added))]
        return [dict(zip(self.names, row, strict=True)) for row in zip(*columns, strict=True)]

    def of_file(self, number: int) -> dict[str, pa.Scalar]:
        """Return what each column is in one file."""
        return {name: values[number] for name, values in self.values.items()}


def _as_text(partition: StoredPartition, rows: pa.Table) -> pa.Array:
    values = partition.values(rows).combine_chunks()
    texts = values.cast(pa.string())
    if pa.types.is_string(values.type) and pc.any(pc.equal(texts, "")).as_py():
        raise taken_for_null(partition.name)
    if pa.types.is_date(values.type):
        is_far = pc.not_equal(pc.utf8_length(texts), len("2026-11-30"))
        if pc.any(is_far).as_py():
            years = "is beyond the years 1 to 9999, as which alone Delta keeps it"
            raise NoPartitionError(f"{partition.name}, by which the table is partitioned, {years}")
    return texts
