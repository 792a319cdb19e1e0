"""Rules that hold of the rows themselves, whatever records have made them.

Engine and proof may share a mistake about what becomes of a record. These rules ask nothing of
records: a table has no row that its condition excludes, and no two tables of a file have the row
of one key.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import duckdb
import pyarrow as pa

from oncelake.ingestion.declaration.modes import CURRENT, DELETED_COLUMN, VALID_FROM, VALID_TO
from oncelake.ingestion.declaration.spec import StreamSpec
from oncelake.ingestion.declaration.sql import OFFLINE, equal, identifier
from oncelake.ingestion.kafka.offsets import TopicPartition
from oncelake.ingestion.tables.table import SinkTable
from oncelake.ingestion.verify.decode.coerce import UnprovableError
from oncelake.ingestion.verify.fold.transform import Condition
from oncelake.ingestion.verify.read.record import Row
from oncelake.ingestion.verify.read.snapshot import Batch

PLACE: Final = ("_topic", "_partition", "_offset")


def excluding(
    spec: StreamSpec, names: Sequence[str], batches: Mapping[int, Batch]
) -> Callable[[Sequence[Row]], list[Row]]:
    """Return what finds the rows of a table that ``where`` excludes.

    Nothing is found where the condition is about other columns than the table's, where it is not
    understood, or where a row is made of several records, as a group is, and of rows that another
    condition let pass. A version that has ended, and a row that is marked as deleted, may be any.

    Args:
        names: The columns of the rows; the last is the seq.
        batches: The batches by seq, with what was declared then.
    """
    takes_columns = not (spec.select or spec.value_ddl or spec.ignore_null_updates)
    takes_columns &= spec.mode != "aggregate"
    if spec.where is None or spec.on_filtered == "keep" or not takes_columns:
        return lambda _: []
    try:
        condition = Condition("where", spec.where, tuple(spec.in_statements(spec.columns)))
    except UnprovableError:
        return lambda _: []
    flags = [names.index(name) for name in (DELETED_COLUMN,) if name in names]
    current = [names.index(name) for name in (CURRENT,) if name in names]

    def counts(row: Row) -> bool:
        declared = (batches[row[-1]].declaration or {}) if row[-1] in batches else {}
        is_of_today = (declared.get("where"), declared.get("on_filtered")) == (spec.where, None)
        return is_of_today and all(row[i] for i in current) and not any(row[i] for i in flags)

    def excluded(rows: Sequence[Row]) -> list[Row]:
        own = [row for row in rows if counts(row)]
        with suppress(UnprovableError):
            passes = condition([row[: len(spec.columns)] for row in own]) if own else []
            return [row for row, is_met in zip(own, passes, strict=True) if not is_met]
        return []

    return excluded


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of a table.

    Attributes:
        names: The columns of the table.
        scan: Reads those of some names.
        until: The offsets up to where the table has read.
    """

    names: frozenset[str]
    scan: Callable[[Sequence[str]], Iterator[pa.RecordBatch]]
    until: Mapping[TopicPartition, int]

    @classmethod
    def of(cls, table: SinkTable, batches: Sequence[Batch], version: int | None = None) -> Rows:
        """Return those of a table as of a version, which batches have made."""
        names = frozenset(column.name for column in table.columns())
        # Of each partition, the furthest end comes last.
        ends = sorted((part.at, part.end) for batch in batches for part in batch.ranges)
        return cls(names, partial(table.scan, version=version), dict(ends))

    def living(self) -> str:
        """Tell, in SQL, rows that are there: neither marked as deleted, nor history."""
        is_history = {CURRENT, VALID_FROM, VALID_TO} <= self.names
        lives = [f"NOT {DELETED_COLUMN}"] if DELETED_COLUMN in self.names else []
        return " AND ".join([*lives, *([CURRENT] if is_history else []), "TRUE"])


def shared_keys(keys: Sequence[str], own: Rows, other: Rows) -> list[dict[str, Any]]:
    """Return the keys of which two tables have a row, though each has read what made the other's.

    Args:
        keys: The key columns of both.
    """
    columns = [*keys, *PLACE]
    both = " AND ".join(
        f"coalesce({side}._offset < {_next_of(rows.until, side)}, FALSE)"
        for side, rows in (("o", own), ("t", other))
    )
    with duckdb.connect(config=dict(OFFLINE)) as tables:
        for name, rows in (("own", own), ("other", other)):
            flags = {DELETED_COLUMN, CURRENT} & rows.names
            batches = list(rows.scan([*dict.fromkeys([*columns, *sorted(flags)])]))
            if not batches:
                return []
            tables.register(name, pa.Table.from_batches(batches))
        selected = ", ".join(f"t.{identifier(name)}" for name in columns)
        found = tables.sql(
            f"SELECT {selected} FROM (FROM own WHERE {own.living()}) t "
            f"JOIN (FROM other WHERE {other.living()}) o ON {equal(keys, 't', 'o')} WHERE {both}"
        )
        rows_of_two: list[dict[str, Any]] = found.to_arrow_table().to_pylist()
    return rows_of_two


def _next_of(until: Mapping[TopicPartition, int], side: str) -> str:
    """Return, in SQL, up to where a table has read the partition of a row of the other."""
    cases = " ".join(
        f"WHEN {side}._topic = '{at.topic}' AND {side}._partition = {at.partition} THEN {offset}"
        for at, offset in until.items()
    )
    return f"CASE {cases} END" if cases else "NULL"
