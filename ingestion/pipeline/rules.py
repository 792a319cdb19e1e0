"""The rules of a batch, as SQL that DuckDB and Spark run: one disposition for each decoded row.

decoded → events: every column, and which rows are deletes
        → checked: what is wrong with a row that was decoded
        → explained: the reason and the detail → judged: the disposition → the batch's columns
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from oncelake.ingestion.declaration.modes import EXTRA_COLUMN, TIME_COLUMN
from oncelake.ingestion.declaration.parts import Window
from oncelake.ingestion.declaration.routes import Route
from oncelake.ingestion.formats.coerce import FIRST_DAY, LAST_DAY
from oncelake.ingestion.kafka.client import FIRST_MOMENT, LAST_MOMENT
from oncelake.ingestion.kafka.offsets import Offsets
from oncelake.ingestion.modes import sql
from oncelake.ingestion.modes.engines.rows import RAW
from oncelake.ingestion.pipeline.columns import DELETED_ELSEWHERE, PLACE
from oncelake.ingestion.pipeline.explode import rejoined
from oncelake.ingestion.pipeline.plan import JudgePlan
from oncelake.ingestion.pipeline.statements.evaluate import FILTERED

# Of what ``where`` leaves out, why its delete waits: without a key that can be there it has none.
_WAITING: Final = ("bad_time", "missing_order", "violates_constraint")
_IS_FILTERED: Final = f"coalesce(_left_to = {sql.text(FILTERED)}, FALSE)"
# Not what another stream has, which sees to it.
_IS_OWN: Final = f"(_left_to IS NULL OR {_IS_FILTERED})"
# Columns of EVENTS that are null unless what they tell is declared. ``_ended``, whose type is the
# row's, and ``_moved_from``, whose type is the key's, are read only where they are declared.
_SOMETIMES: Final = {
    "_unavailable": "VARCHAR[]",
    "_coerced": "VARCHAR[]",
    "_moved_from": "VARCHAR",
    "_record": "VARCHAR",
    "_moves": "BOOLEAN",
    "_is_shared": "BOOLEAN",
    "_left_to": "VARCHAR",
    "_is_gone": "BOOLEAN",
    "_is_selected": "BOOLEAN",
    "_violated": "VARCHAR",
    "_unknown": "VARCHAR",
}
# Those that a batch has, too.
_KEPT: Final = ("_unavailable", "_coerced", "_moved_from", "_record", "_moves", "_is_shared")
# What only a record in quarantine needs.
_OF_BAD: Final = ("_reason", "_detail", *RAW)


def judged(plan: JudgePlan, reached: Offsets, *, has_constraints: bool = False) -> str:
    """Select the rows of ``decoded`` with ``_disposition``, ``_reason`` and ``_detail``.

    ``_fault`` is why a record that could be decoded cannot be applied. What the stream leaves out
    has none, but where a time is missing by which it would have been left out or not.
    """
    overlap = [
        f"_topic = {sql.text(topic)} AND _partition = {partition} AND _offset < {at}"
        for (topic, partition), at in reached.items()
    ]
    is_not_own = " OR ".join(f"_wrong = {sql.text(why)}" for why in plan.not_own)
    # What siblings share may have a key that is none of this table's.
    keyless = (
        "_is_shared AND _reason IN ('tombstone_without_key', 'missing_key') AND _wrong IS NULL"
    )
    return f"""
        WITH events AS ({_events(plan, has_constraints=has_constraints)}),
        checked AS (SELECT *, CAST({_fault(plan)} AS VARCHAR) AS _fault FROM events),
        explained AS (
            SELECT *, {_reason(plan)} AS _reason, {_detail(plan)} AS _detail FROM checked
        )
        SELECT *, CASE
            WHEN {" OR ".join(overlap) or "FALSE"} THEN 'overlap'
            WHEN {is_not_own or "FALSE"} THEN _wrong
            WHEN {keyless if "_is_shared" in plan.findings else "FALSE"} THEN 'ignored'
            WHEN _reason IS NOT NULL THEN 'quarantined'
            WHEN _is_tombstone AND {plan.tombstone_policy == "ignore"} THEN 'ignored'
            WHEN _left_to IS NOT NULL THEN _left_to
            WHEN NOT _selected THEN 'filtered'
            WHEN _is_delete THEN 'delete'
            ELSE 'row'
        END AS _disposition
        FROM explained
    """


def _events(plan: JudgePlan, *, has_constraints: bool) -> str:
    """Select the decoded rows with all columns of EVENTS: what is not declared is null."""
    given = {*plan.findings}
    given |= {"_left_to"} if plan.leaves_by_where else set()
    given |= {"_violated"} if has_constraints else set()
    given |= {"_is_selected"} if plan.apply_as_deletes else set()
    absent = {
        name: f"CAST(NULL AS {type_})" for name, type_ in _SOMETIMES.items() if name not in given
    }
    absent |= {} if plan.is_transformed else {"_index": "0", "_lacks": "''"}
    absent |= {} if plan.is_transformed else {"_selected": _is_meant(plan.record)}
    if plan.moved_by:
        absent["_unknown"] = _unknown_of_ended(plan)
    return f"""
        WITH whole AS (SELECT *, {sql.selected(absent)} FROM decoded)
        SELECT *,
            _is_tombstone OR coalesce(_says_delete, FALSE) OR coalesce(_is_selected, FALSE)
                OR _left_to IS NOT NULL AS _is_delete
        FROM whole
    """


def _fault(plan: JudgePlan) -> str:
    """Say why a record that could be decoded cannot be applied."""
    policy = plan.tombstone_policy
    nulls = [f"{sql.name(name)} IS NULL" for name in plan.needed]
    if plan.unavailable == "keep":
        # A column that is kept is not null in the end.
        kept = (f"coalesce(list_contains(_unavailable, {sql.text(n)}), FALSE)" for n in plan.needed)
        nulls = [f"({null} AND NOT {is_kept})" for null, is_kept in zip(nulls, kept, strict=True)]
    # What `select` makes of the time is asked of no row that leaves.
    is_needed = TIME_COLUMN in plan.sequence_by or plan.is_selected_by_time
    asks_time = "TRUE" if is_needed else f"NOT {_IS_FILTERED}"
    no_key = _any_null(plan.never_null)
    return f"""CASE
        WHEN _is_tombstone AND {policy == "ignore"} THEN NULL
        WHEN _is_tombstone AND {policy == "quarantine"} THEN '{plan.why_tombstones_wait}'
        WHEN _is_delete AND NOT {plan.write_mode.has_deletes} THEN 'unexpected_delete'
        WHEN {has_no_time(plan)} AND {asks_time} THEN 'bad_time'
        WHEN {_has_no_window(plan.window)} THEN 'bad_time'
        WHEN _is_tombstone AND {no_key} THEN 'tombstone_without_key'
        WHEN {no_key} THEN 'missing_key'
        WHEN {_key_bits(plan)} > {8 * plan.longest_key} THEN 'key_too_long'
        WHEN {_any_null(plan.sequence_by)} THEN 'missing_order'
        WHEN NOT _is_delete AND ({" OR ".join([*nulls, "_lacks <> ''"])}) THEN 'missing_required'
        -- The row of a key that is deleted softly is what the delete says.
        WHEN (NOT _is_delete OR {plan.deletes == "soft"}) AND _violated IS NOT NULL
            THEN 'violates_constraint'
    END"""


def _reason(plan: JudgePlan) -> str:
    """Say why a record waits in quarantine; null where it does not."""
    is_judged = "_selected"
    if plan.is_selected_by_time:
        is_judged = f"_selected OR ({has_no_time(plan)} AND {_is_meant(plan.record)})"
    waits = ", ".join(map(sql.text, _WAITING))
    is_judged = f"(_left_to IS NULL AND ({is_judged})) OR ({_IS_FILTERED} AND _fault IN ({waits}))"
    return f"""coalesce(
        _wrong, CASE WHEN {is_judged} THEN _fault END,
        CASE WHEN _unknown IS NOT NULL AND {_IS_OWN} THEN 'moved_key' END
    )"""


def _detail(plan: JudgePlan) -> str:
    """Say which columns, and of which element, a reason is about."""
    named = [
        f"CASE WHEN {sql.name(name)} IS NULL THEN {sql.text(name)} END" for name in plan.needed
    ]
    named.append("NULLIF(_lacks, '')")
    element = "'element ' || CAST(_index AS VARCHAR) || ': '" if plan.explode else "''"
    beyond = sql.text(plan.window.column) if plan.window else "''"
    return f"""coalesce(
        _wrong_detail,
        CASE
            WHEN _fault = 'bad_time' AND {_has_no_window(plan.window)} THEN {beyond}
            WHEN _fault = 'bad_time' THEN '{TIME_COLUMN}'
        END,
        CASE WHEN _is_tombstone THEN '' ELSE {element} END || CASE
            WHEN _fault = 'violates_constraint' THEN _violated
            WHEN _fault = 'key_too_long'
                THEN CAST(CAST(({_key_bits(plan)}) / 8 AS BIGINT) AS VARCHAR) || ' bytes'
            WHEN _fault IS NOT NULL THEN 'null: ' || concat_ws(', ', {", ".join(named)})
        END,
        'not told of the row before: ' || _unknown
    )"""


def batch_of(rows: str, plan: JudgePlan) -> str:
    """Select the columns of a batch from judged rows.

    What an update ends is a row of the same record, behind its own, and so is the delete of a row
    that is not here, or not any more; of a bad record there is none.
    """
    rows = f"({rejoined(rows) if plan.explode else rows})"
    columns = _own_row(plan)
    further = {
        name: row
        for name, row in (("ended", _ended_row(plan)), ("left", _left_row(plan, columns)))
        if row is not None
    }
    if not further:
        return f"SELECT {sql.selected(columns)} FROM {rows} j"
    columns |= {
        name: f"CASE _row_of WHEN 'own' THEN {own} {_of_further(name, further)} END"
        for name, own in columns.items()
        if name not in (*PLACE, "_digest")
    }
    others = ", ".join(
        f"CASE WHEN {row.is_there} THEN {sql.text(name)} END" for name, row in further.items()
    )
    return f"""
        SELECT {sql.selected(columns)}
        FROM (
            SELECT *, unnest(['own', {others}]) AS _row_of FROM {rows} j
        ) r
        WHERE _row_of IS NOT NULL
    """


class _FurtherRow(NamedTuple):
    """A delete that a record brings beside its own row."""

    is_there: str
    columns: Mapping[str, str]


def _own_row(plan: JudgePlan) -> dict[str, str]:
    """Return the columns of a record's own row, each by its name."""
    names = [*PLACE, "_index", *plan.types, "_disposition", "_extra", "_bytes", "_digest"]
    names += [EXTRA_COLUMN] if EXTRA_COLUMN in plan.findings else []
    columns = {name: sql.name(name) for name in (*names, *_KEPT)}
    if plan.moved_by:
        columns["_moves"] = f"(coalesce(_moves, FALSE) OR {_has_moved(plan.keys)})"
    # Whether there is anything to keep, and whose a key is, shows only beside the table.
    may_wait = ["_unavailable IS NOT NULL"]
    may_wait += [columns["_moves"], "_is_delete"] if plan.moved_by else []
    is_bad = " OR ".join(["_disposition = 'quarantined'", *may_wait])
    columns |= {name: f"CASE WHEN {is_bad} THEN {name} END" for name in _OF_BAD}
    return {**columns, "_left_to": "CAST(NULL AS VARCHAR)"}


def _ended_row(plan: JudgePlan) -> _FurtherRow | None:
    """Return the delete of the row that an update ends, which this table may have."""
    if not plan.moved_by:
        return None
    is_applied = "_disposition IN ('row', 'delete', 'filtered')"
    if plan.leaves_by_route:
        is_applied = f"({is_applied} OR (_disposition = _left_to AND _unknown IS NULL))"
    columns = {"_index": "1", "_moves": "TRUE"}
    columns |= {name: sql.name(name, "_ended") for name in plan.types}
    if plan.unavailable == "keep" and plan.movable:
        columns["_unavailable"] = f"[{', '.join(map(sql.text, plan.movable))}]"
    if plan.routed_by and plan.route:
        was_elsewhere = _was_elsewhere(plan.routed_by, plan.route)
        columns["_left_to"] = f"CASE WHEN {was_elsewhere} THEN '{DELETED_ELSEWHERE}' END"
    return _FurtherRow(f"{_has_moved(plan.keys)} AND {is_applied}", columns)


def _left_row(plan: JudgePlan, own: Mapping[str, str]) -> _FurtherRow | None:
    """Return the delete of a row that is not here, or not any more."""
    if not (plan.leaves_by_where or plan.leaves_by_route):
        return None
    is_there, left_to = "_disposition = _left_to AND _fault IS NULL", "_left_to"
    if plan.leaves_by_route and plan.settles_moves:
        left_to = f"CASE WHEN _is_gone THEN '{DELETED_ELSEWHERE}' ELSE _left_to END"
    elif plan.leaves_by_route:
        is_there += " AND NOT coalesce(_is_gone, FALSE)"
    moves = {"_moves": own["_moves"]} if plan.moved_by else {}
    columns = {name: sql.name(name) for name in ("_index", *plan.types)}
    return _FurtherRow(is_there, {**columns, **moves, "_left_to": left_to})


def _of_further(name: str, rows: Mapping[str, _FurtherRow]) -> str:
    """Select a column of the further rows of a record, by the name of each."""
    of_delete = {"_disposition": "'delete'", "_bytes": "0"}
    values = {
        row: of_delete.get(name) or further.columns.get(name) for row, further in rows.items()
    }
    return " ".join(f"WHEN '{row}' THEN {value}" for row, value in values.items() if value)


def _is_meant(record: Iterable[str]) -> str:
    """Tell the records of the declared types, and what has none: it may be bad."""
    names = ", ".join(map(sql.text, record))
    return f"coalesce(_record IN ({names}), TRUE)" if names else "TRUE"


def _has_moved(keys: Iterable[str]) -> str:
    """Tell an update that ends the row of another key; one that is filtered has no key left."""
    same = (f"{sql.name(key)} IS NOT DISTINCT FROM {sql.name(key, '_ended')}" for key in keys)
    return f"(_ended IS NOT NULL AND NOT ({' AND '.join(same)}))"


def _was_elsewhere(routed_by: str, route: Route) -> str:
    """Tell that the row before was another table's, as far as its route is told."""
    takes_rest = route.of_unrouted == "take"
    listed = route.others if takes_rest else route.own
    values = ", ".join(sql.text(v) if isinstance(v, str) else str(v).upper() for v in listed)
    told = sql.name(routed_by, "_ended")
    return f"{told} {'' if takes_rest else 'NOT '}IN ({values or 'NULL'})"


def _unknown_of_ended(plan: JudgePlan) -> str:
    """Name the columns that ``before`` lacks, without which its row cannot be deleted."""
    needed = [name for name in (*plan.keys, *plan.sequence_by) if name in plan.types]
    nulls = (
        f"CASE WHEN {sql.name(name, '_ended')} IS NULL THEN {sql.text(name)} END"
        for name in dict.fromkeys(needed)
    )
    unknown = f"NULLIF(concat_ws(', ', {', '.join(nulls)}), '')"
    return f"CASE WHEN {_has_moved(plan.keys)} THEN {unknown} END"


def _key_bits(plan: JudgePlan) -> str:
    """Add up texts and bytes of a key; DuckDB and Spark have no name in common for their bytes."""
    names = [(sql.name(name), plan.types[name].word) for name in plan.measured_keys]
    bits = (f"8 * octet_length({n})" if w == "BINARY" else f"bit_length({n})" for n, w in names)
    return " + ".join(f"coalesce({size}, 0)" for size in bits) or "0"


def has_no_time(plan: JudgePlan) -> str:
    """Tell a record that is asked for its time in Kafka, which no column can have.

    A null value has a place by it, and no columns that are made of it.
    """
    is_none = f"_timestamp IN (TIMESTAMPTZ '{FIRST_MOMENT}', TIMESTAMPTZ '{LAST_MOMENT}')"
    ordered_by = {*plan.sequence_by, *((plan.window.column,) if plan.window else ())}
    if TIME_COLUMN in ordered_by:
        return is_none
    return f"({is_none} AND NOT _is_tombstone)" if plan.is_made_of_time else "FALSE"


def _has_no_window(window: Window | None) -> str:
    """Tell a time whose window begins before the year 1 or ends after 9999, which none can read."""
    if window is None:
        return "FALSE"
    (first, end), at = windows_of(window), f"unix_micros({sql.name(window.column)})"
    return f"coalesce({at} < {first} OR {at} >= {end}, FALSE)"


def windows_of(window: Window) -> tuple[int, int]:
    """Return where the first window begins, and where the last one ends, in microseconds."""
    every = 1_000_000 * window.every_seconds
    day = 86_400_000_000
    return -(-FIRST_DAY * day // every) * every, ((LAST_DAY + 1) * day - 1) // every * every


def _any_null(names: Iterable[str]) -> str:
    conditions = " OR ".join(f"{sql.name(name)} IS NULL" for name in names)
    return f"({conditions})" if conditions else "FALSE"
