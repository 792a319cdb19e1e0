"""The memory of deletes: the order of each, so that a late update cannot resurrect a deleted key.

A companion table, append-only by seq; the data table stays free of dead rows. A projection of the
commits: see ``ingestion.lake.side_tables``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from oncelake.ingestion.declaration.modes import CURRENT, VALID_FROM, VALID_TO
from oncelake.ingestion.delta.files import is_delta
from oncelake.ingestion.modes import sql
from oncelake.ingestion.modes.mode import Target

# Whether a delete is remembered with the row that it ended, in streams where that may be needed.
HAS_ROW: Final = "_has_row"
# What is told of a contested key, which is no delete; see ``ingestion.pipeline.contested_keys``.
CONTEST: Final = "_contest"
# Of a record that is no version, as no tracked column has changed: the batch that has read it.
ROW_SEQ: Final = "_row_seq"


def remember_deletes(target: Target, deletes: str = "") -> None:
    """Write the place of each delete of this batch, which a query selects, beside the table.

    Contests are written behind them; there may be some without a delete.

    Where a later record may take over columns of a row that has moved to another key, its delete
    is written with the row. Where only tracked columns make versions, so are the other records: a
    later one may make versions of them.
    """
    spec = target.spec
    names = [*spec.keys, *spec.order_columns, "_timestamp", "_epoch", "_seq"]
    columns = {name: sql.name(name) for name in names}
    if spec.unavailable == "keep" and spec.mode != "scd2":
        has_row = "_unavailable IS NOT NULL"
        columns[HAS_ROW] = has_row
        for column in spec.columns:
            of_row = f"CASE WHEN {has_row} THEN {sql.name(column.name)} END"
            columns.setdefault(column.name, of_row)
    if spec.track:
        is_row = "_what IN ('untracked', 'withdrawn')"
        columns |= {"_seq": f"CAST({target.seq} AS BIGINT)"}
        columns[ROW_SEQ] = f"CASE WHEN {is_row} THEN _seq END"
        for name in target.table.columns:
            if name not in (VALID_FROM, VALID_TO, CURRENT):
                columns.setdefault(name, f"CASE WHEN {is_row} THEN {sql.name(name)} END")
    remembered = [f"SELECT {sql.selected(columns)} FROM ({deletes}) d"] if deletes else []
    if target.contests:
        remembered = _with_contests(target, columns, deletes)
    query = " UNION ALL ".join(remembered)
    target.write_side("tombstones", target.paths.tombstones, query)


def _with_contests(target: Target, columns: Mapping[str, str], deletes: str) -> list[str]:
    """Select deletes, if there are any, and contests behind them, with the columns of both."""
    names = dict.fromkeys([*columns, *target.spec.types, CONTEST])
    stamped = {"_seq": f"CAST({target.seq} AS BIGINT)"}
    if "_timestamp" not in target.spec.order_columns:
        stamped["_timestamp"] = "CAST(NULL AS TIMESTAMPTZ)"
    if HAS_ROW in columns:
        stamped[HAS_ROW] = "FALSE"
    of_contest = {name: stamped.get(name, sql.name(name)) for name in names}
    contests = f"SELECT {sql.selected(of_contest)} FROM ({target.contests}) c"
    if not deletes:
        return [contests]
    of_delete = {name: columns.get(name, "NULL") for name in names}
    return [f"SELECT {sql.selected(of_delete)} FROM ({deletes}) d", contests]


def define_newest_deletes(target: Target) -> bool:
    """Call the newest committed delete of each key ``dead``.

    Returns:
        Whether there may be any.
    """
    if not define_deletes(target):
        return False
    spec = target.spec
    newest_first = sql.ranked(("_epoch", *spec.order_columns), "DESC")
    columns = dict.fromkeys([*spec.keys, "_epoch", *spec.order_columns])
    target.engine.define(
        "dead",
        sql.first_of("deletes", columns, by=spec.keys, order=newest_first),
    )
    return True


def define_deletes(target: Target) -> bool:
    """Call every committed delete that counts ``deletes``; tell whether there may be any."""
    return _define(target, "deletes")


def define_contests(target: Target) -> bool:
    """Call what is remembered of contested keys ``contests``; tell whether there may be any."""
    return _define(target, "contests", of=CONTEST)


def define_kept(target: Target) -> bool:
    """Call the records remembered as no version ``kept``; tell whether there may be any."""
    return _define(target, "kept", of=ROW_SEQ)


def _define(target: Target, name: str, *, of: str = "") -> bool:
    """Name what is remembered and has the column ``of``; deletes have none of these."""
    path, engine = target.paths.tombstones, target.engine
    if not is_delta(path):
        return False
    engine.open_table("remembered", path)
    others = {CONTEST, ROW_SEQ} & {*engine.columns("remembered")}
    if of and of not in others:
        return False
    is_one = [f"{each} IS {'NOT NULL' if each == of else 'NULL'}" for each in sorted(others)]
    kept = " AND ".join([*is_one, *([f"NOT ({target.forgotten})"] if target.forgotten else [])])
    engine.define(name, f"SELECT * FROM remembered WHERE {kept or 'TRUE'}")
    return True
