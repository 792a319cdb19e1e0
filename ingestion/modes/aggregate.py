"""Aggregate: one row a group, into which every record is folded exactly once.

The batch is reduced to one state a group, and those are folded into the table's. Applying a batch
twice would count it twice, so all that protects a row is the fence: state and ``txn`` are one
commit. Nothing here can be replayed; ``oncelake rebuild`` makes the table anew.

Rows to records: a row is any number of records. ``inserted`` are the records of groups that were
new, ``updated`` those of groups that were there; ``groups`` rows carry the batch's seq, of which
``groups_new`` were new.
"""

from __future__ import annotations

from collections.abc import Mapping

from oncelake.ingestion.declaration.aggregates import aggregates_of
from oncelake.ingestion.declaration.modes import TIME_COLUMN, WINDOW_COLUMNS
from oncelake.ingestion.errors import NotReplayableError, RefusedError, first_line
from oncelake.ingestion.modes import sql
from oncelake.ingestion.modes.aggregate_functions import (
    folded,
    made_of,
    of_records,
    place_in,
    struct,
)
from oncelake.ingestion.modes.engines.engine import OverflowedError
from oncelake.ingestion.modes.mode import Good, Target, WriteMode
from oncelake.ingestion.modes.watermark import clocks_after
from oncelake.ingestion.tables.commit_metadata import Kind


class AggregateMode(WriteMode):
    """Writes one batch to a table of groups."""

    deletes = ()

    def __init__(self, target: Target, good: Good) -> None:
        """Take the good records of a batch; nothing is read or written yet."""
        super().__init__(target, good)
        self._aggregates = aggregates_of(target.spec)
        self._provenance = ("_epoch", *target.spec.origin, TIME_COLUMN)
        self._groups_by = target.spec.row_keys

    def decide(self, kind: Kind) -> Mapping[str, int]:
        """Reduce the batch to its groups, and fold them into those that are there.

        Raises:
            NotReplayableError: the commit would fold records that may have been folded before.
            RefusedError: a sum does not fit.
        """
        if kind == "replay":
            name = self._target.spec.name
            raise NotReplayableError(
                name,
                "a record that is read again would be counted twice.",
                remedy=f"oncelake rebuild {name}, which folds the topic into a new table",
            )
        clocks = clocks_after(self._target) if self._target.spec.window else {}
        if not self._good.count:
            return {**self._counts("inserted", "updated"), "groups": 0, "groups_new": 0, **clocks}
        try:
            self._fold()
        except OverflowedError as error:
            name = self._target.spec.name
            raise RefusedError(
                name,
                f"a sum of `aggregates` has more digits than its column: {first_line(error)}. "
                "Nothing of the batch was committed.",
                remedy="declare the column that is added as DECIMAL(38, s), whose sums have 37 "
                f"digits, then oncelake rebuild {name}",
            ) from error
        records = self._engine.rows(
            "SELECT _what, CAST(sum(_records) AS BIGINT) AS n FROM decided GROUP BY _what"
        )
        return {
            "inserted": 0,
            "updated": 0,
            **{row["_what"]: row["n"] for row in records},
            "groups": self._decision.count(("inserted", "updated")),
            "groups_new": self._decision.count(("inserted",)),
            **clocks,
        }

    def _fold(self) -> None:
        self._engine.define("groups", self._reduced(), keep=True)
        keys = f"SELECT {sql.names(self._groups_by)} FROM groups"
        self._table.open_before(keys, size_bytes=self._good.size_bytes)
        self._decide(self._folded())

    @classmethod
    def changes(cls, counts: Mapping[str, int]) -> Mapping[str, int]:
        """Return the rows, which are groups."""
        new = counts.get("groups_new", 0)
        return {"inserted": new, "updated": counts.get("groups", 0) - new, "deleted": 0}

    def _reduced(self) -> str:
        """Select one row a group: its state, the newest record's place, and how many records."""
        spec, target = self._target.spec, self._target
        columns = (aggregate.column for aggregate in self._aggregates if aggregate.column)
        names = dict.fromkeys([*spec.keys, *columns, *spec.sequence_by, *spec.origin, TIME_COLUMN])
        records = {name: sql.name(name) for name in names}
        records |= {"_epoch": f"CAST({target.epoch} AS INTEGER)", **self._window()}
        place = place_in(spec)
        states = {
            name: state
            for aggregate in self._aggregates
            for name, state in of_records(aggregate, place).items()
        }
        states["_newest"] = f"max({struct({name: sql.name(name) for name in self._provenance})})"
        keys = sql.names(self._groups_by)
        return f"""
            SELECT {keys}, {sql.selected(states)}, count(*) AS _records
            FROM (SELECT {sql.selected(records)} FROM good) r GROUP BY {keys}
        """

    def _window(self) -> dict[str, str]:
        """Return the bounds of a record's window, by the columns that have them."""
        if (window := self._target.spec.window) is None:
            return {}
        at, every = f"unix_micros({sql.name(window.column)})", 1_000_000 * window.every_seconds
        start = f"{at} - (({at} % {every}) + {every}) % {every}"
        bounds = (f"timestamp_micros({start})", f"timestamp_micros({start} + {every})")
        return dict(zip(WINDOW_COLUMNS, bounds, strict=True))

    def _folded(self) -> str:
        """Select each group as it will be: new, or both states folded into one."""
        states = [s for one in self._aggregates for s in folded(one, "t", "s").items()]
        mine, theirs = struct(self._place_of("s")), struct(self._place_of("t"))
        newest = {
            name: f"CASE WHEN {mine} > {theirs} THEN {mine_of} ELSE {sql.name(name, 't')} END"
            for name, mine_of in self._place_of("s").items()
        }
        of_both = dict(states) | newest
        of_one = {name: sql.name(name, "s") for name, _ in states} | self._place_of("s")
        row = {name: sql.name(name, "s") for name in self._groups_by}
        row |= {
            name: f"CASE WHEN t._offset IS NULL THEN {own} ELSE {of_both[name]} END"
            for name, own in of_one.items()
        }
        row["_seq"] = f"CAST({self._target.seq} AS BIGINT)"
        row["_what"] = "CASE WHEN t._offset IS NULL THEN 'inserted' ELSE 'updated' END"
        row["_records"] = "s._records"
        made = {name: value for each in self._aggregates for name, value in made_of(each).items()}
        whole = {name: sql.name(name) for name in row} | made
        return f"""
            SELECT {sql.selected(whole)} FROM (
                SELECT {sql.selected(row)}
                FROM groups s LEFT JOIN "before" t ON {sql.equal(self._groups_by, "t", "s")}
            ) g
        """

    def _place_of(self, side: str) -> dict[str, str]:
        """Return where the newest record of a group is, in ``groups`` or in the table."""
        of = "s._newest." if side == "s" else "t."
        return {name: f"{of}{sql.name(name)}" for name in self._provenance}


MODE = AggregateMode
