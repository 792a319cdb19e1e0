"""The memory of deletes: the order of each, so that a late update cannot resurrect a deleted key.

A companion table, append-only by seq; the data table stays free of dead rows. A projection of the
commits: see ``ingestion.lake.side_tables``.
"""

from __future__ import annotations

from typing import Final

from oncelake.ingestion.modes import sql
from oncelake.ingestion.modes.mode import Target
from oncelake.ingestion.sinks.delta.files import is_delta

# Whether a delete is remembered with the row that it ended, in streams where that may be needed.
HAS_ROW: Final = "_has_row"


def remember_deletes(target: Target, deletes: str) -> None:
    """Write the place of each delete of this batch, which a query selects, beside the table.

    Where a later record may take over columns of a row that has moved to another key, its delete
    is written with the row.
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
    remembered = f"SELECT {sql.selected(columns)} FROM ({deletes}) d"
    target.write_side("tombstones", target.paths.tombstones, remembered)


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
    path = target.paths.tombstones
    if not is_delta(path):
        return False
    target.engine.open_table("remembered" if target.forgotten else "deletes", path)
    if target.forgotten:
        kept = f"SELECT * FROM remembered WHERE NOT ({target.forgotten})"
        target.engine.define("deletes", kept)
    return True
