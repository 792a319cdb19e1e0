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
from functools import reduce
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from oncelake.ingestion.declaration.modes import EXTRA_COLUMN, TIME_COLUMN
from oncelake.ingestion.declaration.parts import Window
from oncelake.ingestion.declaration.spec import StreamSpec
from oncelake.ingestion.declaration.sql import asks_for, quoted
from oncelake.ingestion.formats.coerce import FIRST_DAY, LAST_DAY
from oncelake.ingestion.formats.route import ELSEWHERE, UNROUTED
from oncelake.ingestion.kafka.client import FIRST_MOMENT, LAST_MOMENT, MOMENTS
from oncelake.ingestion.kafka.offsets import Offsets
from oncelake.ingestion.modes import sql
from oncelake.ingestion.modes.engines.rows import RAW, Rows, Work
from oncelake.ingestion.pipeline.columns import DELETED_ELSEWHERE, PLACE
from oncelake.ingestion.pipeline.evaluate import FILTERED, fields_of
from oncelake.ingestion.pipeline.explode import of_any_element, rejoined
from oncelake.ingestion.pipeline.schema import declared_row

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
# Of what ``where`` leaves out, why its delete waits: without a key that can be there it has none.
_WAITING: Final = ("bad_time", "missing_order", "violates_constraint")
_IS_FILTERED: Final = f"coalesce(_left_to = {sql.text(FILTERED)}, FALSE)"
# Not what another stream has, which sees to it.
_IS_OWN: Final = f"(_left_to IS NULL OR {_IS_FILTERED})"
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
        from oncelake.ingestion.modes.engines.spark import translate

        rows = _flat_in_spark(transformed.in_spark(), spec)
        rows = rows.withColumn("_violated", _violated(constraints))
        rows.createOrReplaceTempView("decoded")
        rules = _batch(_judged(spec, reached, has_constraints=True), spec)
        return rows.sparkSession.sql(translate(rules))

    plan = transformed.in_worker
    if plan is None or spec.apply_as_deletes or constraints:
        return Rows(in_spark=in_spark)
    work, in_duckdb = validate_in_worker(plan.work, spec, reached)
    return Rows(in_spark=in_spark, in_worker=replace(plan, work=work, sql=in_duckdb))


def validate_in_worker(decode: Work, spec: StreamSpec, reached: Offsets) -> tuple[Work, str]:
    """Return the same without Spark: work that decodes, and what DuckDB asks of its result.

    Only where a declaration has no ``apply_as_deletes``, and the table has no constraint.
    """
    return _flat_in_worker(decode, spec), _batch(_judged(spec, reached), spec)


def _flat_in_spark(rows: DataFrame, spec: StreamSpec) -> DataFrame:
    """Take the row that a value gives, or the key of a tombstone, and what decoding found."""
    row = F.col("_transformed" if spec.is_transformed else "_decoded.row")
    columns = {name: F.col(f"_decoded.{part}") for name, part in _findings(spec).items()}
    columns |= {name: F.col(name) for name in _made_by_transform(spec)}
    columns["_is_tombstone"] = F.col("_value").isNull()
    columns["_bytes"] = F.coalesce(F.octet_length("_value"), F.lit(0))
    if spec.tombstone_policy == "delete":
        names = spec.tombstone_columns
        by_key = {name: F.col(f"_decoded_key.row.{quoted(name)}") for name in names}
        row = F.when(F.col("_value").isNull(), declared_row(spec, by_key)).otherwise(row)
        # What the format says of a bad value or, where there is none, of a bad key.
        of_key = F.concat_ws(": ", "_decoded_key.reason", "_decoded_key.detail")
        of_key = F.when(F.col("_decoded_key.reason").isNotNull(), of_key)
        columns["_wrong_detail"] = F.coalesce(columns["_wrong_detail"], of_key)
    if spec.is_transformed:
        columns["_wrong"] = F.coalesce(columns["_wrong"], "_misfit.reason")
        columns["_wrong_detail"] = F.coalesce(columns["_wrong_detail"], "_misfit.detail")
        columns["_selected"] = F.col("_selected")
        # Columns of `value_schema` that are null and may not be, whatever is made of them.
        columns["_lacks"] = F.concat_ws(
            ", ",
            *(
                F.when(F.col(f"_decoded.row.{quoted(name)}").isNull(), F.lit(name))
                for name in spec.required_value_columns
            ),
        )
    if spec.extra_fields == "keep":
        columns[EXTRA_COLUMN] = F.col("_decoded.kept")
    of_record = [*PLACE, *RAW, "_digest", *(("_index",) if _has_index(spec) else ())]
    flat = [column.alias(name) for name, column in columns.items()]
    rows = rows.select(*of_record, *flat, row.alias("_row")).select("*", "_row.*").drop("_row")
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


def _findings(spec: StreamSpec) -> dict[str, str]:
    """Return the fields of what decoding found, by the columns that they are in validation."""
    some = {
        "_unavailable": bool(spec.unavailable),
        "_coerced": bool(spec.lenient),
        "_moved_from": spec.unavailable == "keep",
        "_record": spec.format.options.uses_registry,
        "_ended": bool(spec.moved_by),
        "_moves": bool(spec.moved_by),
        "_is_shared": spec.shares_tombstones,
        "_left_to": spec.leaves_by_route,
        "_is_gone": spec.leaves_by_route,
    }
    return _FINDINGS | {name: name.removeprefix("_") for name, is_there in some.items() if is_there}


def _made_by_transform(spec: StreamSpec) -> list[str]:
    """Return what ``transform`` makes beside the row, of what decoding found."""
    ended = ["_ended"] if spec.moved_by and spec.is_transformed else []
    return [*ended, *(["_left_to"] if spec.leaves_by_where else [])]


def _has_index(spec: StreamSpec) -> bool:
    return bool(spec.explode) or spec.is_transformed


def _flat_in_worker(decode: Work, spec: StreamSpec) -> Work:
    """Return work that decodes, and takes the same columns."""
    # Executors get these, and not the declaration.
    findings, may_be_bad = _findings(spec), _doubts(spec)
    keys = spec.tombstone_columns if spec.tombstone_policy == "delete" else ()
    is_transformed, required = spec.is_transformed, spec.required_value_columns
    transformed = ["_index", "_selected", *_made_by_transform(spec)]
    keeps_extra = spec.extra_fields == "keep"

    def flat(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in decode(batches):
            value, raw = fields_of(batch.column("_decoded")), batch.column("_value")
            columns = {name: batch.column(name) for name in (*PLACE, "_digest")}
            columns |= {name: value[part] for name, part in findings.items()}
            if keeps_extra:
                columns[EXTRA_COLUMN] = value["kept"]
            columns["_is_tombstone"] = pc.is_null(raw)
            columns["_bytes"] = pc.fill_null(pc.binary_length(raw), 0)
            columns |= fields_of(batch.column("_transformed") if is_transformed else value["row"])
            if is_transformed:
                columns |= {name: batch.column(name) for name in transformed}
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
            is_doubted = may_be_bad(columns)
            columns |= {name: _only(is_doubted, batch.column(name)) for name in RAW}
            yield pa.RecordBatch.from_pydict(columns)

    return flat


def _doubts(spec: StreamSpec) -> Callable[[Mapping[str, pa.Array]], pa.BooleanArray]:
    """Return what tells the records that may be bad, whose bytes are kept.

    The rules tell which of them are.
    """
    needed, measured, not_own = _needed(spec), spec.measured_keys, _not_own(spec)
    # Of several, one alone is longer than its part.
    part = spec.sink.kind.longest_key // max(1, len(measured))
    # Whose key it is that a delete has shows only beside the table.
    may_wait = bool(spec.moved_by) or not spec.write_mode.has_deletes
    is_timed, is_transformed = _has_no_time(spec) != "FALSE", spec.is_transformed
    windows = {spec.window.column: _windows_of(spec.window)} if spec.window else {}
    is_exploded = bool(spec.explode)

    def may_be_bad(columns: Mapping[str, pa.Array]) -> pa.BooleanArray:
        doubts = [columns["_is_tombstone"]]
        doubts += [pc.is_null(columns[name]) for name in needed]
        doubts += [pc.not_equal(columns["_lacks"], "")] if is_transformed else []
        sizes = (pc.fill_null(pc.binary_length(columns[name]), 0) for name in measured)
        doubts += [pc.greater(size, part) for size in sizes]
        doubts += [_is_outside(columns[name], within) for name, within in windows.items()]
        doubts += [pc.fill_null(columns["_says_delete"], False)] if may_wait else []
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


def _not_own(spec: StreamSpec) -> list[str]:
    """Return the reasons of records that are no business of this stream."""
    if spec.route is None:
        return []
    return [ELSEWHERE, *([UNROUTED] if spec.route.of_unrouted == "ignore" else [])]


def _lacking_in_worker(rows: pa.StructArray, required: Sequence[str]) -> pa.Array:
    """Name the required columns of values that are null, as Spark does."""
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
    """Return values, null where they are not wanted."""
    if wanted.true_count:
        return pc.if_else(wanted, values, pa.scalar(None, values.type))
    return pa.nulls(len(values), values.type)


def _judged(spec: StreamSpec, reached: Offsets, *, has_constraints: bool = False) -> str:
    """Select the rows of ``decoded`` with ``_disposition``, ``_reason`` and ``_detail``.

    ``_fault`` is why a record that could be decoded cannot be applied. What the stream leaves out
    has none, but where a time is missing by which it would have been left out or not.
    """
    is_meant, has_no_time = _is_meant(spec), _has_no_time(spec)
    needed, no_key, bits = _needed(spec), _any_null(spec.never_null), _key_bits(spec)
    # Columns that ``decoded`` has in some streams.
    absent = {} if _has_index(spec) else {"_index": "0"}
    absent |= {} if has_constraints else {"_violated": "CAST(NULL AS VARCHAR)"}
    absent |= {} if spec.is_transformed else {"_selected": is_meant, "_lacks": "''"}
    absent["_unknown"] = _unknown_of_ended(spec) if spec.moved_by else "CAST(NULL AS VARCHAR)"
    absent |= {} if spec.leaves_rows else {"_left_to": "CAST(NULL AS VARCHAR)"}
    is_selected = "coalesce(_is_selected, FALSE)" if spec.apply_as_deletes else "FALSE"
    policy, has_deletes = spec.tombstone_policy, spec.write_mode.has_deletes
    why = "tombstone_quarantined" if spec.tombstones_have_an_order else "tombstone_without_order"
    why = why if spec.tombstones_have_a_key else "tombstone_without_key"
    why = why if has_deletes else "unexpected_tombstone"
    nulls = [f"{sql.name(name)} IS NULL" for name in needed]
    if spec.unavailable == "keep":
        # A column that is kept is not null in the end.
        kept = (f"coalesce(list_contains(_unavailable, {sql.text(n)}), FALSE)" for n in needed)
        nulls = [f"({null} AND NOT {is_kept})" for null, is_kept in zip(nulls, kept, strict=True)]
    named = [f"CASE WHEN {sql.name(name)} IS NULL THEN {sql.text(name)} END" for name in needed]
    named.append("NULLIF(_lacks, '')")
    element = "'element ' || CAST(_index AS VARCHAR) || ': '" if spec.explode else "''"
    is_judged = "_selected"
    if spec.transform or _is_time_in(spec.where, spec):
        is_judged = f"_selected OR ({has_no_time} AND {is_meant})"
    # What `select` makes of the time is asked of no row that leaves.
    has_no_window = _has_no_window(spec.window)
    beyond = sql.text(spec.window.column) if spec.window else "''"
    is_needed = TIME_COLUMN in spec.sequence_by or _is_time_in(spec.where, spec)
    asks_time = "TRUE" if is_needed or spec.transform else f"NOT {_IS_FILTERED}"
    waits = ", ".join(map(sql.text, _WAITING))
    is_judged = f"(_left_to IS NULL AND ({is_judged})) OR ({_IS_FILTERED} AND _fault IN ({waits}))"
    is_not_own = " OR ".join(f"_wrong = {sql.text(why)}" for why in _not_own(spec)) or "FALSE"
    # What siblings share may have a key that is none of this table's.
    keyless = (
        "_is_shared AND _reason IN ('tombstone_without_key', 'missing_key') AND _wrong IS NULL"
    )
    keyless = keyless if spec.shares_tombstones else "FALSE"
    overlap = [
        f"_topic = {sql.text(topic)} AND _partition = {partition} AND _offset < {at}"
        for (topic, partition), at in reached.items()
    ]
    return f"""
        WITH marked AS (
            SELECT *, {sql.selected(absent)},
                _is_tombstone OR coalesce(_says_delete, FALSE) OR {is_selected}
                    OR _left_to IS NOT NULL AS _is_delete
            FROM decoded
        ),
        checked AS (
            SELECT *, CAST(CASE
                WHEN _is_tombstone AND {policy == "ignore"} THEN NULL
                WHEN _is_tombstone AND {policy == "quarantine"} THEN '{why}'
                WHEN _is_delete AND NOT {has_deletes} THEN 'unexpected_delete'
                WHEN {has_no_time} AND {asks_time} THEN 'bad_time'
                WHEN {has_no_window} THEN 'bad_time'
                WHEN _is_tombstone AND {no_key} THEN 'tombstone_without_key'
                WHEN {no_key} THEN 'missing_key'
                WHEN {bits} > {8 * spec.sink.kind.longest_key} THEN 'key_too_long'
                WHEN {_any_null(spec.sequence_by)} THEN 'missing_order'
                WHEN NOT _is_delete AND ({" OR ".join([*nulls, "_lacks <> ''"])})
                    THEN 'missing_required'
                -- The row of a key that is deleted softly is what the delete says.
                WHEN (NOT _is_delete OR {spec.deletes == "soft"}) AND _violated IS NOT NULL
                    THEN 'violates_constraint'
            END AS VARCHAR) AS _fault
            FROM marked
        ),
        explained AS (
            SELECT *,
                coalesce(
                    _wrong, CASE WHEN {is_judged} THEN _fault END,
                    CASE WHEN _unknown IS NOT NULL AND {_IS_OWN} THEN 'moved_key' END
                ) AS _reason,
                coalesce(
                    _wrong_detail,
                    CASE
                        WHEN _fault = 'bad_time' AND {has_no_window} THEN {beyond}
                        WHEN _fault = 'bad_time' THEN '{TIME_COLUMN}'
                    END,
                    CASE WHEN _is_tombstone THEN '' ELSE {element} END || CASE
                        WHEN _fault = 'violates_constraint' THEN _violated
                        WHEN _fault = 'key_too_long'
                            THEN CAST(CAST(({bits}) / 8 AS BIGINT) AS VARCHAR) || ' bytes'
                        WHEN _fault IS NOT NULL
                            THEN 'null: ' || concat_ws(', ', {", ".join(named)})
                    END,
                    'not told of the row before: ' || _unknown
                ) AS _detail
            FROM checked
        )
        SELECT *, CASE
            WHEN {" OR ".join(overlap) or "FALSE"} THEN 'overlap'
            WHEN {is_not_own} THEN _wrong
            WHEN {keyless} THEN 'ignored'
            WHEN _reason IS NOT NULL THEN 'quarantined'
            WHEN _is_tombstone AND {policy == "ignore"} THEN 'ignored'
            WHEN _left_to IS NOT NULL THEN _left_to
            WHEN NOT _selected THEN 'filtered'
            WHEN _is_delete THEN 'delete'
            ELSE 'row'
        END AS _disposition
        FROM explained
    """


def _is_meant(spec: StreamSpec) -> str:
    """Tell the records of the declared types, and what has none: it may be bad."""
    names = ", ".join(map(sql.text, spec.record))
    return f"coalesce(_record IN ({names}), TRUE)" if names else "TRUE"


def _has_moved(spec: StreamSpec) -> str:
    """Tell an update that ends the row of another key; one that is filtered has no key left."""
    same = (f"{sql.name(key)} IS NOT DISTINCT FROM {sql.name(key, '_ended')}" for key in spec.keys)
    return f"(_ended IS NOT NULL AND NOT ({' AND '.join(same)}))"


def _was_elsewhere(spec: StreamSpec) -> str:
    """Tell that the row before was another table's, as far as its route is told."""
    assert spec.route is not None, "it has a column with the route"
    assert spec.routed_by is not None, "it has a column with the route"
    takes_rest = spec.route.of_unrouted == "take"
    listed = spec.route.others if takes_rest else spec.route.own
    values = ", ".join(sql.text(v) if isinstance(v, str) else str(v).upper() for v in listed)
    told = sql.name(spec.routed_by, "_ended")
    return f"{told} {'' if takes_rest else 'NOT '}IN ({values or 'NULL'})"


def _unknown_of_ended(spec: StreamSpec) -> str:
    """Name what the row before does not tell, without which it cannot be deleted."""
    needed = [name for name in (*spec.keys, *spec.sequence_by) if name in spec.types]
    nulls = (
        f"CASE WHEN {sql.name(name, '_ended')} IS NULL THEN {sql.text(name)} END"
        for name in dict.fromkeys(needed)
    )
    return f"CASE WHEN {_has_moved(spec)} THEN NULLIF(concat_ws(', ', {', '.join(nulls)}), '') END"


def _batch(judged: str, spec: StreamSpec) -> str:
    """Select the columns of a batch from judged rows.

    What an update ends is a row of the same record, behind its own, and so is the delete of a row
    that is not here, or not any more; of a bad record there is none.
    """
    judged = f"({rejoined(judged) if spec.explode else judged})"
    names = [*PLACE, "_index", *spec.types, "_disposition", "_extra", "_bytes", "_digest"]
    names += [EXTRA_COLUMN] if spec.extra_fields == "keep" else []
    names += [n for n in _findings(spec) if n not in {*_FINDINGS, "_ended", "_left_to", "_is_gone"}]
    columns = {name: sql.name(name) for name in names}
    if spec.moved_by:
        columns["_moves"] = f"(coalesce(_moves, FALSE) OR {_has_moved(spec)})"
    # Whether there is anything to keep, and whose a key is, shows only beside the table.
    may_wait = ["_unavailable IS NOT NULL"] if spec.unavailable else []
    may_wait += [columns["_moves"], "_is_delete"] if spec.moved_by else []
    is_bad = " OR ".join(["_disposition = 'quarantined'", *may_wait])
    columns |= {name: f"CASE WHEN {is_bad} THEN {name} END" for name in _OF_BAD}
    columns |= {"_left_to": "CAST(NULL AS VARCHAR)"} if spec.leaves_rows else {}
    rows: dict[str, str] = {}
    deletes: dict[str, dict[str, str]] = {}
    if spec.moved_by:
        rows["ended"], deletes["ended"] = _has_ended(spec), _ended_row(spec)
        if spec.routed_by:
            elsewhere = f"CASE WHEN {_was_elsewhere(spec)} THEN '{DELETED_ELSEWHERE}' END"
            deletes["ended"]["_left_to"] = elsewhere
    if spec.leaves_rows:
        rows["left"], left_to = "_disposition = _left_to AND _fault IS NULL", "_left_to"
        if spec.leaves_by_route and spec.settles_moves:
            left_to = f"CASE WHEN _is_gone THEN '{DELETED_ELSEWHERE}' ELSE _left_to END"
        elif spec.leaves_by_route:
            rows["left"] += " AND NOT coalesce(_is_gone, FALSE)"
        of_left = {n: sql.name(n) for n in ("_index", *spec.types)}
        moves = {"_moves": columns["_moves"]} if spec.moved_by else {}
        deletes["left"] = {**of_left, **moves, "_left_to": left_to}
    if not rows:
        return f"SELECT {sql.selected(columns)} FROM {judged} j"
    of_delete = {"_disposition": "'delete'", "_bytes": "0"}
    columns |= {
        name: f"CASE _row_of WHEN 'own' THEN {own} {_of_rows(name, deletes, of_delete)} END"
        for name, own in columns.items()
        if name not in (*PLACE, "_digest")
    }
    others = ", ".join(f"CASE WHEN {is_one} THEN {sql.text(n)} END" for n, is_one in rows.items())
    return f"""
        SELECT {sql.selected(columns)}
        FROM (
            SELECT *, unnest(['own', {others}]) AS _row_of FROM {judged} j
        ) r
        WHERE _row_of IS NOT NULL
    """


def _of_rows(name: str, rows: Mapping[str, Mapping[str, str]], of_each: Mapping[str, str]) -> str:
    """Select a column of the further rows of a record, by the name of each."""
    values = {row: of_each.get(name) or columns.get(name) for row, columns in rows.items()}
    return " ".join(f"WHEN '{row}' THEN {value}" for row, value in values.items() if value)


def _has_ended(spec: StreamSpec) -> str:
    """Tell an update that ends a row which this table may have."""
    is_applied = "_disposition IN ('row', 'delete', 'filtered')"
    if spec.leaves_by_route:
        is_applied = f"({is_applied} OR (_disposition = _left_to AND _unknown IS NULL))"
    return f"{_has_moved(spec)} AND {is_applied}"


def _ended_row(spec: StreamSpec) -> dict[str, str]:
    ended = {"_index": "1", "_moves": "TRUE"}
    ended |= {name: sql.name(name, "_ended") for name in spec.types}
    if spec.unavailable == "keep" and spec.movable:
        ended["_unavailable"] = f"[{', '.join(map(sql.text, spec.movable))}]"
    return ended


def _key_bits(spec: StreamSpec) -> str:
    """Add up texts and bytes of a key; DuckDB and Spark have no name in common for their bytes."""
    names = [(sql.name(name), spec.types[name].word) for name in spec.measured_keys]
    bits = (f"8 * octet_length({n})" if w == "BINARY" else f"bit_length({n})" for n, w in names)
    return " + ".join(f"coalesce({size}, 0)" for size in bits) or "0"


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


def _has_no_window(window: Window | None) -> str:
    """Tell a time whose window begins before the year 1 or ends after 9999, which none can read."""
    if window is None:
        return "FALSE"
    (first, end), at = _windows_of(window), f"unix_micros({sql.name(window.column)})"
    return f"coalesce({at} < {first} OR {at} >= {end}, FALSE)"


def _windows_of(window: Window) -> tuple[int, int]:
    """Return where the first window begins, and where the last one ends, in microseconds."""
    every = 1_000_000 * window.every_seconds
    day = 86_400_000_000
    return -(-FIRST_DAY * day // every) * every, ((LAST_DAY + 1) * day - 1) // every * every


def _is_time_in(text: str | None, spec: StreamSpec) -> bool:
    return TIME_COLUMN in spec.record_names and asks_for(TIME_COLUMN, text)


def _needed(spec: StreamSpec) -> list[str]:
    """Return the columns that may not be null."""
    required = (column.name for column in spec.columns if not column.nullable)
    return list(dict.fromkeys([*spec.never_null, *spec.sequence_by, *required]))


def _any_null(names: Iterable[str]) -> str:
    conditions = " OR ".join(f"{sql.name(name)} IS NULL" for name in names)
    return f"({conditions})" if conditions else "FALSE"
