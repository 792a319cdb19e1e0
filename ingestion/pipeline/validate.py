"""Every row of a batch is given one disposition.

The disposition is what the books count by, so each record has exactly one:

    overlap      read again, though the table holds it already
    routed_elsewhere  it belongs to another stream of its file
    unrouted     it belongs to no stream of its file, which ignores such records
    quarantined  it cannot be applied; the reason says why
    ignored      a tombstone that the stream ignores
    filtered     ``where``, the declared function, or ``record`` leaves it out
    row          it says what a row should be
    delete       it says that a row should be gone

Reasons, beside those of the format: see ``REASONS``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial, reduce
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F

from oncelake.ingestion.declaration.ddl import DeclaredColumn
from oncelake.ingestion.declaration.modes import TIME_COLUMN
from oncelake.ingestion.formats.route import UNROUTED
from oncelake.ingestion.kafka.client import MOMENTS
from oncelake.ingestion.kafka.offsets import Offsets
from oncelake.ingestion.modes.engines.rows import RAW, Rows, Work, unchanged
from oncelake.ingestion.pipeline.columns import PLACE
from oncelake.ingestion.pipeline.explode import of_any_element
from oncelake.ingestion.pipeline.plan import JudgePlan
from oncelake.ingestion.pipeline.rules import (
    batch_of,
    has_no_time,
    judged,
    windows_of,
)
from oncelake.ingestion.pipeline.statements.evaluate import check, fields_of
from oncelake.ingestion.pipeline.statements.translate import Statement, translate_conditions

GOOD = ("row", "delete")
REASONS: Final = {
    "bad_header": "a header of `from_headers` is no value that its column can hold without a loss",
    "bad_key": "the Kafka key cannot be read by `key_format`, and `from_key` takes columns from it",
    "missing_key": "a key column, or the column of `window`, is null or absent",
    "key_too_long": "texts and bytes of the key have more bytes together than an index of "
    "PostgreSQL takes for sure, 2,000",
    "missing_order": "a column of `sequence_by` is null or absent",
    "missing_required": "a `NOT NULL` column is null or absent",
    "tombstone_without_key": "a null value whose Kafka key does not give the key columns",
    "tombstone_without_order": "a null value that `sequence_by` cannot place",
    "tombstone_quarantined": "a null value, and the stream says `tombstones: quarantine`",
    "unexpected_tombstone": "a null value, in a mode that deletes nothing",
    "moved_key": "an update moves a row to another key, and which rows are gone is not known: a "
    "part of the old key is missing, each element of an array is a row, or another row has taken "
    "the key",
    "unexpected_delete": "the record is a delete, in a mode that deletes nothing",
    UNROUTED: "the record's route is none of a table's, or it has none that can be read",
    "violates_constraint": "the row does not meet a constraint of the table, or a rule of `expect` "
    "that quarantines, named in the detail",
}


def validate(
    transformed: Rows,
    plan: JudgePlan,
    reached: Offsets,
    constraints: Mapping[str, str],
    conditions: Mapping[str, Statement] | None = None,
) -> Rows:
    """Give each row its disposition, and the reason where it cannot be applied.

    The rules are SQL that every engine runs.

    Args:
        transformed: Rows as declared; see ``ingestion.pipeline.columns``.
        plan: What the rules are written from.
        reached: Next offsets of the table; records below them are overlap. Empty when the batch
            overlaps nothing: literals that change with every batch would make Spark compile anew.
        constraints: What is asked of each row, by name; Spark evaluates them, and
            ``apply_as_deletes``.
        conditions: The constraints for workers, where they can evaluate all of them: see
            ``plan_conditions``.

    Returns:
        Rows whose query gives the judged batch, with the table's columns as far as the record says
        them; ``_extra`` has the names that the declaration does not have. Raw key, value and
        headers, and everything that only a record in quarantine needs, are null in the others.
    """
    rules = batch_of(judged(plan, reached, has_constraints=bool(constraints)), plan)
    in_spark = partial(flatten_with_conditions, transformed, plan, constraints)
    is_by_spark = bool(plan.apply_as_deletes or (constraints and not conditions))
    if is_by_spark:
        flat = in_spark()
    else:
        flat = transformed.then(partial(flatten, plan=plan))
        if conditions:
            flat = replace(flat.then(partial(check, conditions=conditions)), in_spark=in_spark)
    if plan.explode and (is_by_spark or transformed.in_spark is None):
        # Spark has cut the rows of a record apart: the rules alone tell which is bad.
        return replace(flat, sql=rules)
    dropped = replace(flat.then(partial(drop_bytes, plan=plan)), sql=rules)
    return replace(dropped, in_spark=flat.in_spark) if plan.explode else dropped


def flatten_with_conditions(
    transformed: Rows, plan: JudgePlan, constraints: Mapping[str, str]
) -> Rows:
    """Flatten rows, and let Spark evaluate conditions over them, and so what they are made by.

    That adds ``_is_selected``, of ``apply_as_deletes``, and ``_violated``, the constraint not met.
    """
    made = transformed if transformed.in_spark is None else transformed.in_spark()
    rows = made.then(partial(flatten, plan=plan)).frame()
    if plan.apply_as_deletes:
        rows = rows.withColumn("_is_selected", F.expr(plan.apply_as_deletes))
    if constraints:
        rows = rows.withColumn("_violated", _violated(constraints))
    return Rows(records=rows, work=unchanged)


def _violated(constraints: Mapping[str, str]) -> Column:
    """Name a constraint that a row does not meet; one that is null is not met."""
    unmet = (
        F.when(~F.coalesce(F.expr(sql), F.lit(False)), F.lit(described(name, sql)))
        for name, sql in constraints.items()
    )
    return F.coalesce(F.lit(None).cast("string"), *unmet)


def plan_conditions(
    spark: SparkSession, row: Iterable[DeclaredColumn], constraints: Mapping[str, str]
) -> Mapping[str, Statement] | None:
    """Return constraints for workers, by what a record's detail says of one that is not met.

    ``None`` where there are none, or Spark alone understands one.
    """
    if not constraints:
        return None
    statements = translate_conditions(spark, row, constraints.values())
    named = (described(name, sql) for name, sql in constraints.items())
    return None if statements is None else dict(zip(named, statements, strict=True))


def described(constraint: str, sql: str) -> str:
    """Return what a record's detail says of a constraint that its row does not meet."""
    return f"{constraint}: {sql}"


def flatten(decode: Work, plan: JudgePlan) -> Work:
    """Return work that decodes, and takes the row that a value or a null value's key gives.

    With it stands what decoding found.
    """
    # Executors get these, and not the plan.
    findings = plan.findings
    keys = plan.tombstone_columns if plan.tombstone_policy == "delete" else ()
    is_transformed, required = plan.is_transformed, plan.required_value_columns
    transformed = ["_index", "_selected"]
    transformed += ["_ended"] if plan.moved_by else []
    transformed += ["_left_to"] if plan.leaves_by_where else []

    def flat(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in decode(batches):
            value, raw = fields_of(batch.column("_decoded")), batch.column("_value")
            columns = {name: batch.column(name) for name in (*PLACE, *RAW, "_digest")}
            columns |= {name: value[part] for name, part in findings.items()}
            columns["_is_tombstone"] = pc.is_null(raw)
            columns["_bytes"] = pc.fill_null(pc.binary_length(raw), 0)
            columns |= fields_of(batch.column("_transformed") if is_transformed else value["row"])
            if is_transformed:
                columns |= {name: batch.column(name) for name in transformed}
                misfit = fields_of(batch.column("_misfit"))
                columns["_wrong"] = pc.coalesce(columns["_wrong"], misfit["reason"])
                columns["_wrong_detail"] = pc.coalesce(columns["_wrong_detail"], misfit["detail"])
                # Without required columns, what Spark has evaluated comes without the value's row.
                columns["_lacks"] = _lacking(value.get("row", raw), required)
            if keys:
                key = fields_of(batch.column("_decoded_key"))
                of_key = fields_of(key["row"])
                columns |= {name: pc.coalesce(columns[name], of_key[name]) for name in keys}
                described = pc.binary_join_element_wise(key["reason"], key["detail"], ": ")
                columns["_wrong_detail"] = pc.coalesce(columns["_wrong_detail"], described)
            yield pa.RecordBatch.from_pydict(columns)

    return flat


def drop_bytes(work: Work, plan: JudgePlan) -> Work:
    """Return work that leaves the raw bytes to the records that may be bad.

    The rows of an exploded record lie together.
    """
    may_be_bad = _doubts(plan)

    def dropped(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in work(batches):
            columns = {name: batch.column(name) for name in batch.schema.names}
            is_doubted = may_be_bad(columns)
            columns |= {name: _only(is_doubted, columns[name]) for name in RAW}
            yield pa.RecordBatch.from_pydict(columns)

    return dropped


def _doubts(plan: JudgePlan) -> Callable[[Mapping[str, pa.Array]], pa.BooleanArray]:
    """Return what tells the records that may be bad, whose bytes are kept.

    The rules tell which of them are.
    """
    needed, measured, not_own = plan.needed, plan.measured_keys, plan.not_own
    # Of several, one alone is longer than its part.
    part = plan.longest_key // max(1, len(measured))
    # Whose key it is that a delete has shows only beside the table.
    may_wait = bool(plan.moved_by) or not plan.write_mode.has_deletes
    is_timed, is_transformed = has_no_time(plan) != "FALSE", plan.is_transformed
    windows = {plan.window.column: windows_of(plan.window)} if plan.window else {}
    is_exploded = bool(plan.explode)

    def may_be_bad(columns: Mapping[str, pa.Array]) -> pa.BooleanArray:
        doubts = [columns["_is_tombstone"]]
        doubts += [pc.is_null(columns[name]) for name in needed]
        doubts += [pc.not_equal(columns["_lacks"], "")] if is_transformed else []
        sizes = (pc.fill_null(pc.binary_length(columns[name]), 0) for name in measured)
        doubts += [pc.greater(size, part) for size in sizes]
        doubts += [_is_outside(columns[name], within) for name, within in windows.items()]
        says_delete = {"_says_delete", "_is_selected"} & columns.keys() if may_wait else ()
        doubts += [pc.fill_null(columns[name], False) for name in says_delete]
        doubts += [pc.is_valid(columns[name]) for name in {"_violated"} & columns.keys()]
        # What is filtered is bad by these alone.
        may_be = {"_wrong", "_unavailable", "_ended", "_moves"} & columns.keys()
        firm = [pc.is_valid(columns[name]) for name in may_be]
        if is_timed:
            sent = columns[TIME_COLUMN]
            firm.append(pc.is_in(sent, pa.array(MOMENTS, sent.type)))
        found = reduce(pc.or_, doubts)
        if is_transformed:
            may_leave = [pc.is_valid(columns[name]) for name in {"_left_to"} & columns.keys()]
            found = pc.and_(found, reduce(pc.or_, may_leave, columns["_selected"]))
        found = reduce(pc.or_, firm, found)
        if not_own:
            is_own = pc.invert(pc.is_in(columns["_wrong"], pa.array(not_own, pa.string())))
            found = pc.and_(found, is_own)
        return of_any_element(found, columns["_index"]) if is_exploded else found

    return may_be_bad


def _lacking(rows: pa.Array, required: Sequence[str]) -> pa.Array:
    """Name the required columns of values that are null."""
    lacks = pa.repeat("", len(rows))
    for name in required:
        longer = pc.binary_join_element_wise(lacks, name, ", ")
        longer = pc.if_else(pc.equal(lacks, ""), name, longer)
        lacks = pc.if_else(pc.is_null(rows.field(name)), longer, lacks)
    return lacks


def _is_outside(moments: pa.Array, within: tuple[int, int]) -> pa.Array:
    first, end = within
    micros = moments.cast(pa.int64())
    return pc.fill_null(pc.or_(pc.less(micros, first), pc.greater_equal(micros, end)), False)


def _only(wanted: pa.BooleanArray, values: pa.Array) -> pa.Array:
    """Return values, null where they are not wanted; ``if_else`` would keep room for those."""
    if not wanted.true_count:
        return pa.nulls(len(values), values.type)
    mask = pc.invert(wanted).to_numpy(zero_copy_only=False)
    return values.take(pa.array(np.arange(len(values)), mask=mask))
