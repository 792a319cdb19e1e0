"""Every row of a batch is given one disposition.

The disposition is what the books count by, so each record has exactly one:

    overlap      read again, though the table holds it already
    quarantined  it cannot be applied; the reason says why
    ignored      a tombstone that the stream ignores
    filtered     ``where``, the declared function, or ``record`` leaves it out
    row          it says what a row should be
    delete       it says that a row should be gone

Reasons, beside those of the format: see ``REASONS``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from ingestion.declaration.modes import EXTRA_COLUMN, TIME_COLUMN
from ingestion.declaration.parts import Window
from ingestion.declaration.spec import StreamSpec
from ingestion.declaration.sql import asks_for, quoted
from ingestion.formats.coerce import FIRST_DAY, LAST_DAY
from ingestion.kafka.client import FIRST_MOMENT, LAST_MOMENT, MOMENTS
from ingestion.kafka.offsets import Offsets
from ingestion.modes import sql
from ingestion.modes.engines.rows import RAW, Rows, Work
from ingestion.pipeline.columns import PLACE
from ingestion.pipeline.evaluate import fields_of
from ingestion.pipeline.explode import rejoin
from ingestion.pipeline.schema import declared_row

GOOD = ("row", "delete")
REASONS: Final = {
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
    "part of the old key is missing, or each element of an array is a row",
    "unexpected_delete": "the record is a delete, in a mode that deletes nothing",
    "violates_constraint": "the row does not meet a constraint of the table, named in the detail",
}
# What validation asks of a row beside its own columns, the size of its value and whether that is
# null: what decoding found wrong, and whether the format knows it for a delete.
_FINDINGS: Final = {
    "_wrong": "reason",
    "_wrong_detail": "detail",
    "_extra": "extra",
    "_says_delete": "is_delete",
}
# What only a record in quarantine needs.
_OF_BAD: Final = ("_reason", "_detail", *RAW)


def validate(
    transformed: Rows, spec: StreamSpec, reached: Offsets, constraints: Mapping[str, str]
) -> Rows:
    """Give each row its disposition, and the reason where it cannot be applied.

    The rules are SQL that every engine runs: Spark where rows come from it, else DuckDB.

    Args:
        transformed: Rows as declared; see ``ingestion.pipeline.columns``.
        spec: The declaration.
        reached: Next offsets of the table; records below them are overlap. Empty when the plan
            overlaps nothing: literals that change with every batch would make Spark compile anew.
        constraints: What the table asks of each row, by name; only Spark evaluates them.

    Returns:
        The judged batch, with the table's columns as far as the record says them; ``_extra`` has
        the names that the declaration does not have. Raw key, value and headers, and everything
        that only a record in quarantine needs, are null in the others.
    """

    def in_spark() -> DataFrame:
        # With sqlglot and Delta's client, which a run of the other engine does not need.
        from ingestion.modes.engines.spark import translate

        rows = _flat_in_spark(transformed.in_spark(), spec)
        rows = rows.withColumn("_violated", _violated(constraints))
        rows.createOrReplaceTempView("decoded")
        rules = _judged(spec, reached, has_constraints=True)
        judged = rows.sparkSession.sql(translate(rules))
        rejoin(judged, spec).createOrReplaceTempView("judged")
        return rows.sparkSession.sql(translate(_batch("judged", spec)))

    plan = transformed.in_worker
    if plan is None or spec.apply_as_deletes or constraints:
        return Rows(in_spark=in_spark)
    work, in_duckdb = validate_in_worker(plan.work, spec, reached)
    return Rows(in_spark=in_spark, in_worker=replace(plan, work=work, sql=in_duckdb))


def validate_in_worker(decode: Work, spec: StreamSpec, reached: Offsets) -> tuple[Work, str]:
    """Return the same without Spark: work that decodes, and what DuckDB asks of its result.

    Only where a declaration has no ``apply_as_deletes``, and the table has no constraint.
    """
    return _flat_in_worker(decode, spec), _batch(f"({_judged(spec, reached)})", spec)


def _flat_in_spark(rows: DataFrame, spec: StreamSpec) -> DataFrame:
    """Take the row that a value gives, or the key of a tombstone, and what decoding found."""
    of_record = [*PLACE, *RAW, "_digest", *(("_index",) if _has_index(spec) else ())]
    found = {name: F.col(f"_decoded.{part}") for name, part in _findings(spec).items()}
    found["_wrong_detail"] = _detail(spec)
    if spec.moved_by and spec.is_transformed:
        found["_ended"] = F.col("_ended")
    found["_is_tombstone"] = F.col("_value").isNull()
    found["_bytes"] = F.coalesce(F.octet_length("_value"), F.lit(0))
    if spec.is_transformed:
        found["_wrong"] = F.coalesce(found["_wrong"], "_misfit.reason")
        found["_wrong_detail"] = F.coalesce(found["_wrong_detail"], "_misfit.detail")
    flat = [column.alias(name) for name, column in found.items()]
    if spec.extra_fields == "keep":
        flat.append(F.col("_decoded.kept").alias(EXTRA_COLUMN))
    if spec.is_transformed:
        flat += [F.col("_selected"), _lacking(spec).alias("_lacks")]
    row = _row(spec).alias("_row")
    rows = rows.select(*of_record, *flat, row)
    rows = rows.select(*(name for name in rows.columns if name != "_row"), "_row.*")
    if spec.window:
        is_wrong = F.col("_wrong").isNull() & _is_beyond_windows(spec.window)
        if spec.is_transformed:
            is_wrong &= F.col("_selected")
        if spec.tombstone_policy == "ignore":
            is_wrong &= ~F.col("_is_tombstone")
        for name, text in (("_wrong_detail", spec.window.column), ("_wrong", "bad_time")):
            rows = rows.withColumn(name, F.when(is_wrong, text).otherwise(F.col(name)))
    if spec.apply_as_deletes is None:
        return rows
    return rows.withColumn("_is_selected", F.expr(spec.apply_as_deletes))


def _violated(constraints: Mapping[str, str]) -> Column:
    """Name a constraint that a row does not meet; one that is null is not met."""
    unmet = (
        F.when(~F.coalesce(F.expr(sql), F.lit(False)), F.lit(f"{name}: {sql}"))
        for name, sql in constraints.items()
    )
    return F.coalesce(F.lit(None).cast("string"), *unmet)


def _is_beyond_windows(window: Window) -> Column:
    """Tell a time whose window begins before the year 1 or ends after 9999, which none can read."""
    seconds, every = F.unix_seconds(quoted(window.column)), window.every_seconds
    first = -(-FIRST_DAY * 86_400 // every) * every
    end = ((LAST_DAY + 1) * 86_400 - 1) // every * every
    return ~F.coalesce((seconds >= first) & (seconds < end), F.lit(True))


def _findings(spec: StreamSpec) -> dict[str, str]:
    found = {"_unavailable": "unavailable"} if spec.unavailable else {}
    found |= {"_coerced": "coerced"} if spec.lenient else {}
    found |= {"_moved_from": "moved_from"} if spec.unavailable == "keep" else {}
    found |= {"_record": "record"} if spec.format.options.uses_registry else {}
    found |= {"_ended": "ended"} if spec.moved_by else {}
    return _FINDINGS | found


def _has_index(spec: StreamSpec) -> bool:
    return bool(spec.explode) or spec.is_transformed


def _detail(spec: StreamSpec) -> Column:
    """Return what the format says of a bad value or, where there is none, of a bad key."""
    if spec.tombstone_policy != "delete":
        return F.col("_decoded.detail")
    of_key = F.concat_ws(": ", "_decoded_key.reason", "_decoded_key.detail")
    return F.coalesce("_decoded.detail", F.when(F.col("_decoded_key.reason").isNotNull(), of_key))


def _lacking(spec: StreamSpec) -> Column:
    """Name the columns of `value_schema` that are null and may not be, whatever is made of them."""
    nulls = (
        F.when(F.col(f"_decoded.row.{quoted(name)}").isNull(), F.lit(name))
        for name in spec.required_value_columns
    )
    return F.concat_ws(", ", *nulls)


def _row(spec: StreamSpec) -> Column:
    """Take the columns from the value; for a tombstone, the key columns from the Kafka key."""
    row = F.col("_transformed" if spec.is_transformed else "_decoded.row")
    if spec.tombstone_policy != "delete":
        return row
    by_key = {name: F.col(f"_decoded_key.row.{quoted(name)}") for name in spec.keys}
    return F.when(F.col("_value").isNull(), declared_row(spec, by_key)).otherwise(row)


def _flat_in_worker(decode: Work, spec: StreamSpec) -> Work:
    """Return work that decodes, and takes the same columns."""
    # Executors get these, and not the declaration.
    findings, needed, measured = _findings(spec), _needed(spec), spec.measured_keys
    # Of several, one alone is longer than its part.
    part = spec.sink.kind.longest_key // max(1, len(measured))
    keys = spec.keys if spec.tombstone_policy == "delete" else ()
    has_deletes, is_timed = spec.write_mode.has_deletes, _has_no_time(spec) != "FALSE"
    is_transformed, required = spec.is_transformed, spec.required_value_columns
    made = ["_index", "_selected", *(["_ended"] if spec.moved_by else [])]

    def flat(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in decode(batches):
            value, raw = fields_of(batch.column("_decoded")), batch.column("_value")
            columns = {name: batch.column(name) for name in (*PLACE, "_digest")}
            columns |= {name: value[part] for name, part in findings.items()}
            columns["_is_tombstone"] = pc.is_null(raw)
            columns["_bytes"] = pc.fill_null(pc.binary_length(raw), 0)
            columns |= fields_of(batch.column("_transformed") if is_transformed else value["row"])
            if is_transformed:
                columns |= {name: batch.column(name) for name in made}
                misfit = fields_of(batch.column("_misfit"))
                columns["_wrong"] = pc.coalesce(columns["_wrong"], misfit["reason"])
                columns["_wrong_detail"] = pc.coalesce(columns["_wrong_detail"], misfit["detail"])
                columns["_lacks"] = _lacking_in_worker(value["row"], required)
            if keys:
                key = fields_of(batch.column("_decoded_key"))
                of_key = fields_of(key["row"])
                columns |= {name: pc.coalesce(columns[name], of_key[name]) for name in keys}
                described = pc.binary_join_element_wise(key["reason"], key["detail"], ": ")
                columns["_wrong_detail"] = pc.coalesce(columns["_wrong_detail"], described)
            # Their bytes are kept of records that may be bad; the rules tell which of them are.
            doubts = [columns["_is_tombstone"]]
            doubts += [pc.is_null(columns[name]) for name in needed]
            doubts += [pc.not_equal(columns["_lacks"], "")] if is_transformed else []
            sizes = (pc.fill_null(pc.binary_length(columns[name]), 0) for name in measured)
            doubts += [pc.greater(size, part) for size in sizes]
            if not has_deletes:
                doubts.append(pc.fill_null(columns["_says_delete"], False))
            # What is filtered is bad by these alone.
            may_be = {"_wrong", "_unavailable", "_ended"} & columns.keys()
            firm = [pc.is_valid(columns[name]) for name in may_be]
            if is_timed:
                sent = batch.column(TIME_COLUMN)
                firm.append(pc.is_in(sent, pa.array(MOMENTS, sent.type)))
            may_be_bad = reduce(pc.or_, doubts)
            if is_transformed:
                may_be_bad = pc.and_(may_be_bad, columns["_selected"])
            may_be_bad = reduce(pc.or_, firm, may_be_bad)
            columns |= {name: _only(may_be_bad, batch.column(name)) for name in RAW}
            yield pa.RecordBatch.from_pydict(columns)

    return flat


def _lacking_in_worker(rows: pa.StructArray, required: Sequence[str]) -> pa.Array:
    """Name the required columns of values that are null, as ``_lacking`` does."""
    lacks = pa.repeat("", len(rows))
    for name in required:
        longer = pc.binary_join_element_wise(lacks, name, ", ")
        longer = pc.if_else(pc.equal(lacks, ""), name, longer)
        lacks = pc.if_else(pc.is_null(rows.field(name)), longer, lacks)
    return lacks


def _only(wanted: pa.BooleanArray, values: pa.Array) -> pa.Array:
    """Return values, null where they are not wanted."""
    if wanted.true_count:
        return pc.if_else(wanted, values, pa.scalar(None, values.type))
    return pa.nulls(len(values), values.type)


def _judged(spec: StreamSpec, reached: Offsets, *, has_constraints: bool = False) -> str:
    """Select the rows of ``decoded`` with ``_disposition``, ``_reason`` and ``_detail``."""
    is_delete = ["_is_tombstone", "coalesce(_says_delete, FALSE)"]
    if spec.apply_as_deletes:
        is_delete.append("coalesce(_is_selected, FALSE)")
    constants = "" if _has_index(spec) else ", 0 AS _index"
    constants += "" if spec.is_transformed else f", {_is_meant(spec)} AS _selected"
    constants += "" if has_constraints else ", CAST(NULL AS VARCHAR) AS _violated"
    judged = "_selected"
    if spec.transform or _is_time_in(spec.where, spec):
        # What they would say of a time that the record does not have, nobody knows.
        judged = f"(_selected OR ({_has_no_time(spec)} AND {_is_meant(spec)}))"
    reason, detail = f"_wrong, CASE WHEN {judged} THEN _fault END", _missing(spec)
    if spec.moved_by:
        constants += f", {_unknown_of_ended(spec)} AS _unknown"
        reason += ", CASE WHEN _unknown IS NOT NULL THEN 'moved_key' END"
        detail += ", 'not told of the row before: ' || _unknown"
    return (
        f"SELECT *, {_disposition(spec, reached)} AS _disposition FROM ("
        f"SELECT *, coalesce({reason}) AS _reason, "
        f"coalesce(_wrong_detail, {detail}) AS _detail FROM ("
        f"SELECT *, {_fault(spec)} AS _fault FROM ("
        f"SELECT *{constants}, {' OR '.join(is_delete)} AS _is_delete FROM decoded) a) b) c"
    )


def _is_meant(spec: StreamSpec) -> str:
    """Tell the records of the declared types, and what has none: it may be bad."""
    names = ", ".join(map(sql.text, spec.record))
    return f"coalesce(_record IN ({names}), TRUE)" if names else "TRUE"


def _has_moved(spec: StreamSpec) -> str:
    """Tell an update that ends the row of another key; one that is filtered has no key left."""
    same = (f"{sql.name(key)} IS NOT DISTINCT FROM {sql.name(key, '_ended')}" for key in spec.keys)
    return f"(_ended IS NOT NULL AND NOT ({' AND '.join(same)}))"


def _unknown_of_ended(spec: StreamSpec) -> str:
    """Name what the row before does not tell, without which it cannot be deleted."""
    needed = [name for name in (*spec.keys, *spec.sequence_by) if name in spec.types]
    nulls = (
        f"CASE WHEN {sql.name(name, '_ended')} IS NULL THEN {sql.text(name)} END"
        for name in dict.fromkeys(needed)
    )
    return f"CASE WHEN {_has_moved(spec)} THEN NULLIF(concat_ws(', ', {', '.join(nulls)}), '') END"


def _batch(judged: str, spec: StreamSpec) -> str:
    """Select the columns of a batch from judged rows."""
    kept = [EXTRA_COLUMN] if spec.extra_fields == "keep" else []
    names = [*PLACE, "_index", *(column.name for column in spec.columns), *kept]
    columns = ["_disposition", "_extra", "_bytes", "_digest"]
    is_bad = "_disposition = 'quarantined'"
    if spec.unavailable:
        # Whether there is anything to keep shows only beside the table.
        is_bad += " OR _unavailable IS NOT NULL"
        columns.append("_unavailable")
        columns += ["_moved_from"] if spec.unavailable == "keep" else []
    columns += ["_coerced"] if spec.lenient else []
    columns += ["_record"] if spec.format.options.uses_registry else []
    selected = {name: sql.name(name) for name in (*names, *columns)}
    selected |= {name: f"CASE WHEN {is_bad} THEN {name} END" for name in _OF_BAD}
    if not spec.moved_by:
        return f"SELECT {sql.selected(selected)} FROM {judged} j"
    ended = _of_ended(spec)
    selected = {
        name: own
        if name in (*PLACE, "_digest")
        else f"CASE WHEN _is_own THEN {own} ELSE {ended[name]} END"
        for name, own in selected.items()
    }
    # What the update ends is a row of the same record, behind its own; of a bad one there is none.
    is_two = f"{_has_moved(spec)} AND _disposition IN ('row', 'delete', 'filtered')"
    rows = f"unnest(CASE WHEN {is_two} THEN [TRUE, FALSE] ELSE [TRUE] END)"
    return f"SELECT {sql.selected(selected)} FROM (SELECT *, {rows} AS _is_own FROM {judged} j) r"


def _of_ended(spec: StreamSpec) -> Mapping[str, str]:
    """Return the columns of a row that an update ends: those of a delete."""
    ended = defaultdict(lambda: "NULL", _index="1", _disposition="'delete'", _bytes="0")
    ended |= {name: sql.name(name, "_ended") for name in spec.types}
    if spec.unavailable == "keep" and spec.movable:
        ended["_unavailable"] = f"[{', '.join(map(sql.text, spec.movable))}]"
    return ended


def _fault(spec: StreamSpec) -> str:
    """Say why a record that could be decoded cannot be applied; null when it can."""
    is_tombstone, policy = "_is_tombstone", spec.tombstone_policy
    without_key, faults = _any_null(spec.never_null), []
    if policy == "ignore":
        faults.append((is_tombstone, "NULL"))
    if policy == "quarantine":
        faults.append((is_tombstone, sql.text(_why_no_tombstone(spec))))
    if not spec.write_mode.has_deletes:
        faults.append(("_is_delete", "'unexpected_delete'"))
    faults.append((_has_no_time(spec), "'bad_time'"))
    lacks = [*_required_nulls(spec), *(["_lacks <> ''"] if spec.is_transformed else [])]
    # The row of a key that is deleted softly is what the delete says.
    is_row = "TRUE" if spec.deletes == "soft" else "NOT _is_delete"
    faults += [
        (f"{is_tombstone} AND {without_key}", "'tombstone_without_key'"),
        (without_key, "'missing_key'"),
        (_is_too_long(spec), "'key_too_long'"),
        (_any_null(spec.sequence_by), "'missing_order'"),
        (f"NOT _is_delete AND {_any(lacks)}", "'missing_required'"),
        (f"{is_row} AND _violated IS NOT NULL", "'violates_constraint'"),
    ]
    cases = " ".join(f"WHEN {condition} THEN {reason}" for condition, reason in faults)
    return f"CAST(CASE {cases} END AS VARCHAR)"


def _is_too_long(spec: StreamSpec) -> str:
    """Tell a key that its sink may not take."""
    bits = _key_bits(spec)
    return f"{bits} > {8 * spec.sink.kind.longest_key}" if bits else "FALSE"


def _key_bits(spec: StreamSpec) -> str:
    """Add up texts and bytes of a key; DuckDB and Spark have no name in common for their bytes."""
    names = [(sql.name(name), spec.types[name].word) for name in spec.measured_keys]
    bits = (f"8 * octet_length({n})" if w == "BINARY" else f"bit_length({n})" for n, w in names)
    return " + ".join(f"coalesce({each}, 0)" for each in bits)


def _has_no_time(spec: StreamSpec) -> str:
    """Tell a record that is asked for its time in Kafka, which no column can have.

    A null value has a place by it, and no columns that are made of it.
    """
    is_none = f"_timestamp IN (TIMESTAMPTZ '{FIRST_MOMENT}', TIMESTAMPTZ '{LAST_MOMENT}')"
    ordered_by = {*spec.sequence_by, *((spec.window.column,) if spec.window else ())}
    if TIME_COLUMN in ordered_by:
        return is_none
    texts = (spec.where, *spec.select.values())
    is_asked = spec.transform or any(_is_time_in(text, spec) for text in texts)
    return f"({is_none} AND NOT _is_tombstone)" if is_asked else "FALSE"


def _is_time_in(text: str | None, spec: StreamSpec) -> bool:
    return TIME_COLUMN in spec.record_names and asks_for(TIME_COLUMN, text)


def _why_no_tombstone(spec: StreamSpec) -> str:
    if not spec.write_mode.has_deletes:
        return "unexpected_tombstone"
    return "tombstone_quarantined" if spec.tombstones_have_an_order else "tombstone_without_order"


def _required_nulls(spec: StreamSpec) -> list[str]:
    """Tell the columns that are null and may not be; one that is kept is not null in the end."""
    required = _required(spec)
    if spec.unavailable != "keep":
        return _nulls(required)
    return [f"({sql.name(name)} IS NULL AND NOT {_lacks(name)})" for name in required]


def _lacks(name: str) -> str:
    return f"coalesce(list_contains(_unavailable, {sql.text(name)}), FALSE)"


def _missing(spec: StreamSpec) -> str:
    """Name the columns that are null and may not be, or say what else is wrong with a row."""
    nulls = [
        f"CASE WHEN {sql.name(name)} IS NULL THEN {sql.text(name)} END" for name in _needed(spec)
    ]
    if spec.is_transformed:
        nulls.append("NULLIF(_lacks, '')")
    nth = "'element ' || CAST(_index AS VARCHAR) || ': '"
    where = f"CASE WHEN _is_tombstone THEN '' ELSE {nth} END || " if spec.explode else ""
    size = ""
    if bits := _key_bits(spec):
        size = f"CAST(CAST(({bits}) / 8 AS BIGINT) AS VARCHAR) || ' bytes'"
        size = f"WHEN _fault = 'key_too_long' THEN {size} "
    return (
        f"CASE WHEN _fault = 'bad_time' THEN '{TIME_COLUMN}' WHEN _fault IS NOT NULL THEN {where}"
        f"CASE WHEN _fault = 'violates_constraint' THEN _violated {size}"
        f"ELSE 'null: ' || concat_ws(', ', {', '.join(nulls) or 'NULL'}) END END"
    )


def _needed(spec: StreamSpec) -> list[str]:
    return list(dict.fromkeys([*spec.never_null, *spec.sequence_by, *_required(spec)]))


def _required(spec: StreamSpec) -> list[str]:
    return [column.name for column in spec.columns if not column.nullable]


def _nulls(names: Iterable[str]) -> list[str]:
    return [f"{sql.name(name)} IS NULL" for name in names]


def _any(conditions: Sequence[str]) -> str:
    return f"({' OR '.join(conditions)})" if conditions else "FALSE"


def _any_null(names: Iterable[str]) -> str:
    return _any(_nulls(names))


def _disposition(spec: StreamSpec, reached: Offsets) -> str:
    overlap = [
        f"_topic = {sql.text(topic)} AND _partition = {partition} AND _offset < {at}"
        for (topic, partition), at in reached.items()
    ]
    ignored = "WHEN _is_tombstone THEN 'ignored' " if spec.tombstone_policy == "ignore" else ""
    return (
        f"CASE WHEN {_any(overlap)} THEN 'overlap' WHEN _reason IS NOT NULL THEN 'quarantined' "
        f"{ignored}WHEN NOT _selected THEN 'filtered' "
        "WHEN _is_delete THEN 'delete' ELSE 'row' END"
    )
