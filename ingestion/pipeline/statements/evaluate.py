"""Declared statements, evaluated where a batch is decoded: rows do not go through the JVM for them.

What must stay true: the rows are those that Spark would make. DuckDB evaluates what the module
``translate`` has found to mean the same to both; whatever it fails at is left to Spark, for the
whole batch.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from oncelake.ingestion.declaration.names import plain_name
from oncelake.ingestion.declaration.sql import OFFLINE
from oncelake.ingestion.modes.engines.rows import UnevaluatedError, Work
from oncelake.ingestion.pipeline.plan import RowsPlan
from oncelake.ingestion.pipeline.statements.translate import Statement

if TYPE_CHECKING:
    import duckdb

# What becomes of a record that ``where`` leaves out, beside the delete that it may be.
FILTERED: Final = "filtered"
MISFIT: Final = pa.struct([("reason", pa.string()), ("detail", pa.string())])


@dataclass(frozen=True, kw_only=True, slots=True)
class Transformation:
    """A declared transformation for workers, which get it whole.

    Attributes:
        where: The condition that a row must meet, if there is one.
        columns: What makes each column of the table, in order.
        row: The type of the table's row.
        plan: What becomes of records that give no such row.
    """

    where: Statement | None
    columns: Sequence[Statement]
    row: pa.StructType
    plan: RowsPlan


def evaluate(decode: Work, transformation: Transformation) -> Work:
    """Return work that decodes, and adds the columns of ``transform``."""

    def transformed(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in decode(batches):
            yield _transformed(batch, transformation)

    return transformed


def _transformed(batch: pa.RecordBatch, by: Transformation) -> pa.RecordBatch:
    decoded, plan = fields_of(batch.column("_decoded")), by.plan
    if plan.explode:
        is_other = batch.column("_is_empty")
    else:
        batch = batch.append_column("_index", pa.repeat(pa.scalar(0, pa.int32()), batch.num_rows))
        is_other = pa.repeat(pa.scalar(False), batch.num_rows)
    if plan.record and not plan.explode:
        of_type = pc.is_in(decoded["record"], pa.array(plan.record, pa.string()))
        is_other = pc.and_(pc.is_valid(decoded["record"]), pc.invert(of_type))
    is_row = pc.and_(pc.is_valid(batch.column("_value")), pc.is_null(decoded["reason"]))
    is_row = pc.and_(is_row, pc.invert(is_other))
    is_asked = pc.and_(is_row, pc.invert(pc.fill_null(decoded["is_delete"], False)))
    passes = pc.invert(is_other)
    given = _given(batch, decoded["row"])
    is_left = pa.repeat(pa.scalar(False), batch.num_rows)
    if by.where:
        (answer,) = evaluated([by.where], given, is_asked)
        is_left = pc.fill_null(pc.invert(answer), not plan.ignore_null_updates)
        is_left = pc.and_(is_asked, is_left)
        passes = pc.and_(passes, pc.or_(pc.invert(is_asked), pc.fill_null(answer, False)))
    is_row = pc.and_(is_row, pc.is_valid(decoded["row"]))
    row, misfit = _rows(given, pc.and_(passes, is_row), by)
    added = {"_transformed": row, "_selected": passes, "_misfit": misfit}
    if plan.leaves_by_where:
        left, _ = _rows(given, pc.and_(is_left, is_row), by, only=plan.leaving_columns)
        added["_transformed"] = pc.if_else(is_left, left, row)
        by_route = decoded.get("left_to", pa.scalar(None, pa.string()))
        added["_left_to"] = pc.if_else(is_left, FILTERED, by_route)
    if plan.moved_by:
        is_ended = pc.is_valid(decoded["ended"])
        if plan.explode:
            ended = pa.nulls(batch.num_rows, by.row)
        else:
            ended, _ = _rows(_given(batch, decoded["ended"]), is_ended, by)
        # Of elements, and of what no table could hold, nothing is known but that it has ended.
        added["_ended"] = pa.StructArray.from_arrays(
            ended.flatten(), fields=list(by.row), mask=pc.invert(is_ended)
        )
    for name, column in added.items():
        batch = batch.append_column(name, column)
    return batch


def check(work: Work, conditions: Mapping[str, Statement]) -> Work:
    """Return work that adds ``_violated``: a condition that a row does not meet, else null."""

    def checked(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in work(batches):
            given = {name: batch.column(name) for name in batch.schema.names}
            wanted = pa.repeat(pa.scalar(True), batch.num_rows)
            answers = evaluated([*conditions.values()], given, wanted)
            violated = pa.nulls(batch.num_rows, pa.string())
            for name, answer in zip(conditions, answers, strict=True):
                named = pc.if_else(pc.fill_null(answer, False), None, pa.scalar(name))
                violated = pc.coalesce(violated, named)
            yield batch.append_column("_violated", violated)

    return checked


def _given(batch: pa.RecordBatch, value: pa.StructArray) -> dict[str, pa.Array]:
    """Return what statements may read: the columns of the record, which a value's hide."""
    return {name: batch.column(name) for name in batch.schema.names} | fields_of(value)


def _rows(
    given: Mapping[str, pa.Array],
    is_row: pa.BooleanArray,
    by: Transformation,
    *,
    only: Collection[str] | None = None,
) -> tuple[pa.StructArray, pa.StructArray]:
    """Return the table's rows of some values, and why no table could hold them; else null.

    Columns that are not among ``only`` are null, unless all are wanted.
    """
    wanted = [only is None or field.name in only for field in by.row]
    pairs = list(zip(by.columns, by.row, wanted, strict=True))
    made = [each for each, _, is_wanted in pairs if is_wanted and not each.is_column]
    computed = iter(evaluated(made, given, is_row))
    columns = [
        _cast(given[each.columns[0]] if each.is_column else next(computed), field.type)
        if is_wanted
        else pa.nulls(len(is_row), field.type)
        for each, field, is_wanted in pairs
    ]
    fits, details = is_row, pa.nulls(len(is_row), pa.string())
    by_name = dict(zip((field.name for field in by.row), columns, strict=True))
    for each in by.plan.made:
        if each.type.word == "VARCHAR":
            size = pc.utf8_length(by_name[each.name])
            is_long = pc.fill_null(pc.greater(size, each.type.precision), False)
            is_long = pc.and_(is_long, fits)
            details = pc.if_else(is_long, each.name, details)
            fits = pc.and_(fits, pc.invert(is_long))
    reasons = pc.if_else(pc.is_valid(details), "too_long", pa.scalar(None, pa.string()))
    misfit = pa.StructArray.from_arrays(
        [reasons, details], fields=list(MISFIT), mask=pc.is_null(details)
    )
    return pa.StructArray.from_arrays(columns, fields=list(by.row), mask=pc.invert(fits)), misfit


def _cast(values: pa.Array, type_: pa.DataType) -> pa.Array:
    """Cast values as Arrow does, which refuses a VARIANT that is null for its parts."""
    return values if values.type == type_ else values.cast(type_)


def evaluated(
    statements: Sequence[Statement], given: Mapping[str, pa.Array], wanted: pa.BooleanArray
) -> list[pa.Array]:
    """Return what statements give for the rows that are wanted, and null for the others.

    Raises:
        UnevaluatedError: DuckDB does not say.
    """
    if not statements:
        return []
    import duckdb

    used = dict.fromkeys(name for each in statements for name in each.columns)
    is_wanted = plain_name("wanted", used)
    table = pa.table({is_wanted: wanted, **{name: given[name] for name in used}})
    selected = ", ".join(
        f"CASE WHEN value.{is_wanted} THEN {each.sql} END AS e{n}"
        for n, each in enumerate(statements)
    )
    try:
        connection = _connection().register("value", table)
        found = connection.sql(f"SELECT {selected} FROM value").to_arrow_table()
    except duckdb.Error as error:
        raise UnevaluatedError(str(error)) from error
    return [column.combine_chunks() for column in found.columns]


@lru_cache(maxsize=1)
def _connection() -> duckdb.DuckDBPyConnection:
    """Open a database of this worker, once; its rows keep their order."""
    import duckdb

    connection = duckdb.connect(config={**OFFLINE, "threads": 1})
    connection.execute("SET TimeZone = 'UTC'")
    return connection


def fields_of(struct: pa.StructArray) -> dict[str, pa.Array]:
    """Return the fields of a struct, null where it is null itself."""
    return dict(zip((field.name for field in struct.type), struct.flatten(), strict=True))
