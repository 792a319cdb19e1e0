"""Columns that an update leaves out because they have not changed: the row keeps what it holds.

A database's log may say of a large value only that it is the same as before (PostgreSQL's TOAST).
Such an update takes over, column by column, the newest value that is known before it in the order
of its key: from an earlier record of the batch, or from the table. A delete forgets. Where no row
is there to take a value from, the record goes to quarantine.

A row whose key changes is deleted under the old key and made again under the new one, by one record
or by two. What is left out then is what the old key's row held right before that delete. The two
may come in different batches, so such a delete is remembered with its row.

A record that comes late says nothing to updates that were applied before it: what those kept is
what the table held by then.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from ingestion.declaration.modes import COORDINATES, DELETED_COLUMN
from ingestion.modes import sql
from ingestion.modes.mode import Target
from ingestion.modes.tombstones import HAS_ROW, define_deletes

REASONS: Final = {
    "nothing_to_keep": "an update left out a column that has not changed, and no row has its value",
}
_IS_UPDATE: Final = "_disposition = 'row' AND _unavailable IS NOT NULL"
_IS_MOVE: Final = f"{_IS_UPDATE} AND _moved_from IS NOT NULL"
# A delete of a row that gets another key.
_IS_END: Final = "_disposition = 'delete' AND _unavailable IS NOT NULL"
# A row of the batch: a record that moves a row has two.
_ROW: Final = (*COORDINATES, "_index")
# The row of the batch that an event is of; an event of a move stands in another key's line.
_RECORD: Final = tuple(f"_of{column}" for column in _ROW)
_RECORD_NAMES: Final = ", ".join(_RECORD)
_SAME_RECORD: Final = " AND ".join(f"{{of}}._of{name} = {{row}}.{name}" for name in _ROW)
# A record is applied as a whole, or not at all.
_WHOLE_RECORDS: Final = (
    "SELECT b.* FROM batch b LEFT JOIN (SELECT * FROM batch WHERE _disposition = 'quarantined') q "
    f"ON {sql.equal(COORDINATES, 'b', 'q')} WHERE b._index = 0 OR q._offset IS NULL"
)


def keep_columns(target: Target) -> None:
    """Fill what the updates of ``batch`` leave out, or judge them ``quarantined``."""
    if target.spec.unavailable != "keep":
        return
    engine = target.engine
    lacking = engine.rows(
        "SELECT name, max(_is_move) AS is_move FROM (SELECT unnest(_unavailable) AS name, "
        f"CASE WHEN {_IS_MOVE} THEN 1 ELSE 0 END AS _is_move FROM batch WHERE {_lacks(target)}) u "
        "GROUP BY name ORDER BY name"
    )
    if not lacking:
        return
    has_moves = any(row["is_move"] for row in lacking)
    columns = [row["name"] for row in lacking]
    filling = _Filling(target, columns=columns, has_moves=has_moves)
    for _ in range(filling.rounds):
        engine.define("batch", filling.filled(), keep=True)
    if has_moves:
        engine.define("batch", _WHOLE_RECORDS, keep=True)


class _Filling:
    """The queries that fill one batch.

    Every event of the keys concerned stands in the line of its key: the batch's records, the
    table's rows and the deletes that are remembered. One that says a column begins the part of the
    line in which that is the column's value.
    """

    def __init__(self, target: Target, *, columns: Sequence[str], has_moves: bool) -> None:
        """Open what is known from before the batch.

        Args:
            target: The batch, and the table.
            columns: The columns that any update leaves out.
            has_moves: Whether any of the updates is of a row whose key has changed.
        """
        spec = target.spec
        self._target, self._columns, self._has_moves = target, columns, has_moves
        self._is_history = spec.mode == "scd2"
        # History goes by time before the epoch: one topic follows another.
        by_time = (*spec.sequence_by, "_epoch", *spec.origin)
        self._order = by_time if self._is_history else ("_epoch", *spec.order_columns)
        self._place = tuple(dict.fromkeys([*spec.keys, *spec.order_columns]))
        self._others = [name for name in self._place if name not in spec.keys]
        self._said = [column for column in columns if column not in self._place]
        self._epoch = f"CAST({target.epoch} AS INTEGER)"
        target.table.open_before(self._concerned())
        self._has_deletes = define_deletes(target)
        if has_moves:
            target.engine.define("ends", self._ends(), keep=True)

    @property
    def rounds(self) -> int:
        """How often to fill, until rows that moved more than once in the batch are whole, too."""
        return _longest_chain(self._chained()) + 2 if self._has_moves else 1

    def filled(self) -> str:
        """Select the batch with its columns filled as far as they are known.

        A line's parts begin where an event says a column. A whole row says all of them; so does the
        end of one, after which there is none. What is stale changes nothing, so it needs nothing;
        but any version of a history is inserted.
        """
        keys, names = sql.names(self._target.spec.keys), sql.names(self._columns)
        order = ", ".join(f"{sql.name(name)} NULLS LAST" for name in (*self._order, "_turn"))
        line = f"PARTITION BY {keys} ORDER BY {order}"
        so_far = f"OVER ({line} ROWS UNBOUNDED PRECEDING)"
        behind = f"OVER ({line} ROWS BETWEEN 1 FOLLOWING AND UNBOUNDED FOLLOWING)"
        parts = ", ".join(
            f"sum(CASE WHEN coalesce(list_contains(_left_out, {sql.text(column)}), FALSE) "
            f"THEN 0 ELSE 1 END) {so_far} AS {_part(column)}"
            for column in self._columns
        )
        values = ", ".join(
            f"first_value({sql.name(column)}) OVER (PARTITION BY {keys}, {_part(column)} "
            f"ORDER BY {order}) AS {sql.name(column)}"
            for column in self._columns
        )
        own = f"max(CASE WHEN _turn = 1 THEN _is_stale END) OVER (PARTITION BY {_RECORD_NAMES})"
        nothing = "_gone" if self._is_history else f"_gone AND coalesce({own}, 0) = 0"
        return f"""
            WITH concerned AS ({self._concerned()}),
            events AS ({self._events()}),
            lines AS (
                SELECT *, {parts},
                    sum(CASE WHEN _left_out IS NULL THEN 1 ELSE 0 END) {so_far} AS _wholes
                FROM events
            ),
            judged AS (
                SELECT {_RECORD_NAMES}, _turn, _is_known, _left_out, {values},
                    CASE WHEN _wholes = 0 THEN TRUE
                        ELSE first_value(_is_gone)
                            OVER (PARTITION BY {keys}, _wholes ORDER BY {order})
                    END AS _gone,
                    max(_is_known) {behind} AS _is_stale
                FROM lines
            ),
            records AS (
                SELECT {_RECORD_NAMES}, {names}, _left_out, _gone, {nothing} AS _nothing
                FROM judged WHERE _is_known = 0
            )
            SELECT {sql.selected(self._made())}
            FROM batch b LEFT JOIN records k
                ON {_SAME_RECORD.format(of="k", row="b")} AND k._left_out IS NOT NULL
        """

    def _made(self) -> Mapping[str, str]:
        """Return the columns of the batch: of ``b``, or what is kept of ``k``."""
        lacks = "b._disposition = 'row' AND k._of_offset IS NOT NULL AND k._nothing"
        left_out = "'not sent: ' || array_to_string(b._unavailable, ', ')"
        # A delete that finds no row stays what it is.
        nothing_ended = "b._disposition = 'delete' AND k._gone"
        made = {name: sql.name(name, "b") for name in self._target.engine.columns("batch")}
        made |= {
            column: f"CASE WHEN k._of_offset IS NULL OR {nothing_ended} "
            f"THEN {sql.name(column, 'b')} ELSE {sql.name(column, 'k')} END"
            for column in self._columns
        }
        made["_unavailable"] = f"CASE WHEN {nothing_ended} THEN NULL ELSE b._unavailable END"
        made["_disposition"] = f"CASE WHEN {lacks} THEN 'quarantined' ELSE b._disposition END"
        made["_reason"] = f"CASE WHEN {lacks} THEN 'nothing_to_keep' ELSE b._reason END"
        made["_detail"] = f"CASE WHEN {lacks} THEN {left_out} ELSE b._detail END"
        return made

    def _events(self) -> str:
        """Select the lines of all keys concerned."""
        spec = self._target.spec
        concerned = {
            side: f"{side} JOIN concerned k ON {sql.equal(spec.keys, side, 'k')}" for side in "btd"
        }
        record = {"_epoch": self._epoch, "_is_known": "0"}
        record |= {f"_of{name}": f"b.{name}" for name in _ROW}
        is_lacking = "b._disposition = 'row' AND b._moved_from IS NULL"
        left_out = f"CASE WHEN {is_lacking} THEN b._unavailable END"
        applied = f"batch {concerned['b']} WHERE b._disposition IN ('row', 'delete')"
        record |= {"_left_out": left_out, "_is_gone": "b._disposition = 'delete'", "_turn": "1"}
        is_gone = sql.name(DELETED_COLUMN, "t") if spec.deletes == "soft" else "FALSE"
        there = {"_is_gone": is_gone, "_turn": "0"}
        events = [
            self._event("b", applied, record),
            self._event("t", f'"before" {concerned["t"]}', there),
        ]
        if self._has_deletes:
            deletes = f"deletes {concerned['d']}"
            death = {"_is_gone": "TRUE", "_turn": "1"}
            events.append(self._event("d", deletes, death, says=False))
            if {HAS_ROW, *self._said} <= set(self._target.engine.columns("deletes")):
                ended = {"_turn": "-3"}
                events.append(self._event("d", f"{deletes} WHERE d.{HAS_ROW}", ended))
        if not self._is_history:
            end = record | {"_left_out": "b._unavailable", "_is_gone": "FALSE", "_turn": "-2"}
            events.append(self._event("b", f"batch b WHERE {_IS_END}", end, says=False))
        if self._has_moves:
            events.append(self._moves())
        return " UNION ALL ".join(events)

    def _event(self, side: str, source: str, marks: Mapping[str, str], *, says: bool = True) -> str:
        """Select events of one kind: key, order, values, and marks.

        Marks are what an event leaves out; whether no row is left; whether it was there before the
        batch; its turn among those at one place; the place of its own record. Unless ``marks`` say
        otherwise it is of a whole row that was there.
        """
        columns = {name: sql.name(name, side) for name in (*self._place, *self._said)}
        if not says:
            columns |= dict.fromkeys(self._said, "NULL")
        columns |= {"_epoch": f"{side}._epoch", "_left_out": "NULL", "_is_gone": "FALSE"}
        columns |= {"_is_known": "1", "_turn": "0", **dict.fromkeys(_RECORD, "NULL"), **marks}
        return f"SELECT {sql.selected(columns)} FROM {source}"

    def _moves(self) -> str:
        """Select what a record that moves a row to another key says, at the end of the old key."""
        marks = {name: sql.name(name, "e") for name in (*self._place, *_RECORD)}
        for name in self._target.spec.sequence_by:
            if name in self._others:
                marks[name] = f"coalesce({sql.name(name, 'e')}, {sql.name(name, 'm')})"
        marks |= {"_epoch": f"coalesce(e._epoch, {self._epoch})", "_left_out": "m._unavailable"}
        marks |= {"_is_known": "0", "_turn": "-1"}
        same_record = _SAME_RECORD.format(of="e", row="m")
        source = f"batch m JOIN ends e ON {same_record} WHERE {_IS_MOVE}"
        return self._event("m", source, marks)

    def _concerned(self) -> str:
        """Select the keys of all updates that leave anything out, and the keys they had before."""
        keys = self._target.spec.keys
        new = f"SELECT {sql.names(keys)} FROM batch WHERE {_lacks(self._target)}"
        if not self._has_moves:
            return f"SELECT DISTINCT {sql.names(keys)} FROM ({new}) n"
        return f"SELECT DISTINCT {sql.names(keys)} FROM ({new} UNION ALL {self._old_keys()}) n"

    def _old_keys(self, *more: str) -> str:
        keys = (f"_moved_from.{sql.name(key)} AS {sql.name(key)}" for key in self._target.spec.keys)
        return f"SELECT {', '.join((*keys, *more))} FROM batch WHERE {_IS_MOVE}"

    def _ends(self) -> str:
        """Select of each row that has moved the delete of its old key; if none is known, nulls.

        Delete and create share one place in the database's log. Where that orders the records, an
        event that comes a second time has its delete beside the first one's.
        """
        spec = self._target.spec
        if spec.sequence_by:
            is_before = f"NOT {sql.is_beyond(spec.sequence_by, 'd', 'm')}"
            newest = f"{sql.ranked(spec.sequence_by, 'DESC', 'd')}, "
            newest += sql.ranked(("_epoch", *spec.origin), "ASC", "d")
        else:
            is_before = (
                "(d._topic <> m._topic OR d._partition <> m._partition OR d._offset <= m._offset)"
            )
            newest = sql.ranked(("_epoch", *spec.origin), "DESC", "d")
        place = dict.fromkeys(n for n in (*spec.sequence_by, *_ROW) if n not in spec.keys)
        remembered = f"UNION ALL SELECT {sql.names(self._place)}, _epoch FROM deletes"
        return f"""
            WITH moves AS ({self._old_keys(*map(sql.name, place))}),
            deaths AS (
                SELECT {sql.names(self._place)}, {self._epoch} AS _epoch
                FROM batch WHERE _disposition = 'delete'
                {remembered if self._has_deletes else ""}
            ),
            pairs AS (
                SELECT {sql.names(spec.keys, "m")}, {sql.names(self._others, "d")}, d._epoch,
                    {", ".join(f"m.{name} AS _of{name}" for name in _ROW)},
                    row_number() OVER (
                        PARTITION BY {sql.names(COORDINATES, "m")} ORDER BY {newest}
                    ) AS _rank
                FROM moves m
                LEFT JOIN deaths d ON {sql.equal(spec.keys, "m", "d")} AND {is_before}
            )
            SELECT * FROM pairs WHERE _rank = 1
        """

    def _chained(self) -> Mapping[str, list[str]]:
        """Return the rows that have moved and, of each, those that its old key had before it."""
        record = " || '/' || ".join(f"CAST({{0}}{name} AS VARCHAR)" for name in COORDINATES)
        moves = f"SELECT *, {self._epoch} AS _epoch FROM batch WHERE {_IS_MOVE}"
        is_before = f"(e._offset IS NULL OR {sql.is_beyond(self._order, 'e', 'o')})"
        chained = self._target.engine.rows(
            f"SELECT {record.format('e._of')} AS later, {record.format('o.')} AS earlier "
            f"FROM ends e LEFT JOIN ({moves}) o "
            f"ON {sql.equal(self._target.spec.keys, 'e', 'o')} AND {is_before}"
        )
        found: dict[str, list[str]] = {}
        for pair in chained:
            found.setdefault(pair["later"], []).append(pair["earlier"] or "")
        return found


def _longest_chain(earlier: Mapping[str, Sequence[str]]) -> int:
    """Return how many moves the longest chain has, one row after the other."""
    length = dict.fromkeys(earlier, 0)
    for _ in earlier:
        longer = {
            move: 1 + max((length.get(each, -1) for each in before), default=-1)
            for move, before in earlier.items()
        }
        if longer == length:
            break
        length = longer
    return max(length.values())


def _lacks(target: Target) -> str:
    """Tell the records of a batch that leave columns out; history has the rows that have moved."""
    return _IS_UPDATE if target.spec.mode == "scd2" else f"({_IS_UPDATE} OR {_IS_END})"


def _part(column: str) -> str:
    return sql.name(f"part of {column}")
