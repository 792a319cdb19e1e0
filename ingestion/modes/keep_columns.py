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

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from oncelake.ingestion.declaration.modes import COORDINATES, DELETED_COLUMN
from oncelake.ingestion.declaration.spec import StreamSpec
from oncelake.ingestion.modes import sql
from oncelake.ingestion.modes.mode import Target
from oncelake.ingestion.modes.tombstones import HAS_ROW, define_deletes

REASONS: Final = {
    "nothing_to_keep": "an update left out a column that has not changed, and no row has its value",
}
_IS_UPDATE: Final = "_disposition = 'row' AND _unavailable IS NOT NULL"
_IS_MOVE: Final = f"{_IS_UPDATE} AND _moved_from IS NOT NULL"
# A delete of a row that gets another key.
_IS_END: Final = "_disposition = 'delete' AND _unavailable IS NOT NULL"
# One that takes no row, since another has that key, or that waits: then its record as a whole.
_IS_NO_END: Final = (
    "(_moves AND (_disposition = 'ignored' OR (_disposition = 'quarantined' AND _index = 0)))"
)
# A row of the batch: a record that moves a row has two.
_ROW: Final = (*COORDINATES, "_index")
# The row of the batch that an event is of; an event of a move stands in another key's line.
_RECORD: Final = tuple(f"_of{column}" for column in _ROW)
_OF: Final = ", ".join(_RECORD)
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
    lacking = engine.rows(f"""
        WITH left_out AS (
            SELECT unnest(_unavailable) AS name, CASE WHEN {_IS_MOVE} THEN 1 ELSE 0 END AS _is_move
            FROM batch WHERE {_lacks(target.spec.mode)}
        )
        SELECT name, max(_is_move) AS is_move FROM left_out GROUP BY name ORDER BY name
    """)
    if not lacking:
        return
    has_moves = any(row["is_move"] for row in lacking)
    concerned, rounds = _concerned(target.spec.keys, target.spec.mode, has_moves=has_moves), 1
    target.table.open_before(concerned)
    has_deletes = define_deletes(target)
    if has_moves:
        engine.define("ends", _ends(target, has_deletes=has_deletes), keep=True)
        # Until rows that moved more than once in the batch are whole, too.
        rounds = _longest_chain(target) + 2
    fill = _Fill(
        target=target,
        columns=[row["name"] for row in lacking],
        concerned=concerned,
        has_moves=has_moves,
        has_deletes=has_deletes,
    )
    for left in reversed(range(rounds)):
        engine.define("batch", fill.statement(is_last=not left), keep=True)
    if has_moves:
        engine.define("batch", _WHOLE_RECORDS, keep=True)


def _lacks(mode: str) -> str:
    """Tell the records of a batch that leave columns out; history has the rows that have moved."""
    return _IS_UPDATE if mode == "scd2" else f"({_IS_UPDATE} OR {_IS_END})"


def _concerned(key: Sequence[str], mode: str, *, has_moves: bool) -> str:
    """Select the keys of all updates that leave anything out, and the keys they had before."""
    keys = sql.names(key)
    old = f"UNION ALL SELECT {_old_key(key)} FROM batch WHERE {_IS_MOVE}" if has_moves else ""
    new = f"SELECT {keys} FROM batch WHERE {_lacks(mode)}"
    return f"SELECT DISTINCT {keys} FROM ({new} {old}) n"


def _old_key(keys: Sequence[str]) -> str:
    return sql.selected({key: f"_moved_from.{sql.name(key)}" for key in keys})


def _epoch(target: Target) -> str:
    return f"CAST({target.epoch} AS INTEGER)"


def _order(spec: StreamSpec) -> tuple[str, ...]:
    """Return what orders a line; history goes by time before the epoch: a topic follows another."""
    if spec.mode == "scd2":
        return (*spec.sequence_by, "_epoch", *spec.origin)
    return ("_epoch", *spec.order_columns)


def _place(spec: StreamSpec) -> list[str]:
    return list(dict.fromkeys([*spec.keys, *spec.order_columns]))


@dataclass(frozen=True, kw_only=True, slots=True)
class _Fill:
    """One round that fills the columns of a batch as far as they are known.

    Every event of the keys concerned stands in the line of its key: the batch's records, the
    table's rows and the deletes that are remembered. An event has its place, its values, the row of
    the batch that it is of, what it leaves out, whether no row is left, whether it was there before
    the batch, and its turn among those at one place.

    A line's parts begin where an event says a column. A whole row says all of them; so does the
    end of one, after which there is none. What is stale changes nothing, so it needs nothing; but
    any version of a history is inserted.

    Attributes:
        columns: Those that updates of the batch leave out.
        concerned: Selects the keys of those updates, and the keys that their rows had before.
        has_moves: Whether a row that lacks a column has moved to another key.
        has_deletes: Whether deletes are remembered.
    """

    target: Target
    columns: Sequence[str]
    concerned: str
    has_moves: bool
    has_deletes: bool

    def statement(self, *, is_last: bool) -> str:
        """Select the batch; in the last round, with what finds no value judged."""
        return f"""
            WITH concerned AS ({self.concerned}),
            events AS ({" UNION ALL ".join(self._events())}),
            lines AS ({self._lines()}),
            judged AS ({self._judged()}),
            records AS (
                SELECT {_OF}, {sql.names(self.columns)}, _left_out, _gone,
                    _gone AND {self._is_needed()} AS _nothing
                FROM judged WHERE _is_known = 0
            )
            SELECT {sql.selected(self._columns_of_batch(is_last=is_last))}
            FROM batch b LEFT JOIN records k
                ON {_SAME_RECORD.format(of="k", row="b")} AND k._left_out IS NOT NULL
        """

    def _events(self) -> Iterator[str]:
        """Select the events, by the columns of the first select."""
        spec, epoch = self.target.spec, _epoch(self.target)
        place = _place(spec)
        whole = [*place, *self.columns]
        no_values, no_record = _nulls(self.columns), _nulls(_RECORD)
        own = sql.selected({f"_of{name}": f"b.{name}" for name in _ROW})
        in_line = {side: sql.equal(spec.keys, side, "k") for side in "btd"}
        is_gone = sql.name(DELETED_COLUMN, "t") if spec.deletes == "soft" else "FALSE"
        yield f"""
            SELECT {sql.names(whole, "b")}, {epoch} AS _epoch, {own},
                CASE WHEN b._disposition = 'row' AND b._moved_from IS NULL
                    THEN b._unavailable
                END AS _left_out,
                b._disposition = 'delete' AS _is_gone, 0 AS _is_known, 1 AS _turn
            FROM batch b JOIN concerned k ON {in_line["b"]}
            WHERE b._disposition IN ('row', 'delete')
        """
        yield f"""
            SELECT {sql.names(whole, "t")}, t._epoch, {no_record}, NULL, {is_gone}, 1, 0
            FROM "before" t JOIN concerned k ON {in_line["t"]}
        """
        if self.has_deletes:
            yield f"""
                SELECT {sql.names(place, "d")}, {no_values}, d._epoch, {no_record}, NULL, TRUE, 1, 1
                FROM deletes d JOIN concerned k ON {in_line["d"]}
            """
        if self.has_deletes and {HAS_ROW, *self.columns} <= {
            *self.target.engine.columns("deletes")
        }:
            yield f"""
                SELECT {sql.names(whole, "d")}, d._epoch, {no_record}, NULL, FALSE, 1, -3
                FROM deletes d JOIN concerned k ON {in_line["d"]} WHERE d.{HAS_ROW}
            """
        if spec.mode != "scd2":
            yield f"""
                SELECT {sql.names(place, "b")}, {no_values}, {epoch}, {own},
                    b._unavailable, FALSE, 0, -2
                FROM batch b WHERE {_IS_END}
            """
        if self.has_moves:
            yield self._moves()

    def _moves(self) -> str:
        """Select what each record that moves a row says, at the end of the row's old key."""
        spec = self.target.spec
        of_end = [
            f"coalesce({sql.name(name, 'e')}, {sql.name(name, 'm')})"
            if name in spec.sequence_by and name not in spec.keys
            else sql.name(name, "e")
            for name in _place(spec)
        ]
        return f"""
            SELECT {", ".join(of_end)}, {sql.names(self.columns, "m")},
                coalesce(e._epoch, {_epoch(self.target)}), {sql.names(_RECORD, "e")},
                m._unavailable, FALSE, 0, -1
            FROM batch m JOIN ends e ON {_SAME_RECORD.format(of="e", row="m")}
            WHERE {_IS_MOVE}
        """

    def _line(self, part: str = "") -> str:
        """Write the window of an event's line, or of a part of it."""
        spec = self.target.spec
        by = ", ".join(filter(None, (sql.names(spec.keys), part)))
        order = ", ".join(f"{sql.name(name)} NULLS LAST" for name in (*_order(spec), "_turn"))
        return f"PARTITION BY {by} ORDER BY {order}"

    def _lines(self) -> str:
        """Select the events, each with the number of its part by column, and of its whole row."""
        so_far = f"OVER ({self._line()} ROWS UNBOUNDED PRECEDING)"
        parts = {
            _part(column): f"sum(CASE WHEN coalesce(list_contains(_left_out, {sql.text(column)}), "
            f"FALSE) THEN 0 ELSE 1 END) {so_far}"
            for column in self.columns
        }
        return f"""
            SELECT *, {sql.selected(parts)},
                sum(CASE WHEN _left_out IS NULL THEN 1 ELSE 0 END) {so_far} AS _wholes
            FROM events
        """

    def _judged(self) -> str:
        """Select the events with the newest values at their places, and what they are."""
        newest = {
            column: f"first_value({sql.name(column)}) OVER ({self._line(sql.name(_part(column)))})"
            for column in self.columns
        }
        behind = f"OVER ({self._line()} ROWS BETWEEN 1 FOLLOWING AND UNBOUNDED FOLLOWING)"
        return f"""
            SELECT {_OF}, _turn, _is_known, _left_out, {sql.selected(newest)},
                CASE WHEN _wholes = 0 THEN TRUE
                    ELSE first_value(_is_gone) OVER ({self._line("_wholes")})
                END AS _gone,
                max(_is_known) {behind} AS _is_stale
            FROM lines
        """

    def _is_needed(self) -> str:
        """Tell a record that changes anything."""
        if self.target.spec.mode == "scd2":
            return "TRUE"
        is_stale = f"max(CASE WHEN _turn = 1 THEN _is_stale END) OVER (PARTITION BY {_OF})"
        return f"coalesce({is_stale}, 0) = 0"

    def _columns_of_batch(self, *, is_last: bool) -> dict[str, str]:
        """Return the batch's columns, each by its name."""
        lacks = "b._disposition = 'row' AND k._of_offset IS NOT NULL AND k._nothing"
        # A delete that finds no row stays what it is; whether it finds one is known in the end.
        nothing_ended = "b._disposition = 'delete'" + (" AND k._gone" if is_last else "")
        filled = {name: sql.name(name, "b") for name in self.target.engine.columns("batch")}
        filled |= {
            column: f"CASE WHEN k._of_offset IS NULL OR {nothing_ended} "
            f"THEN {sql.name(column, 'b')} ELSE {sql.name(column, 'k')} END"
            for column in self.columns
        }
        if self.has_moves:
            # A stale row whose old key has nothing has none of its values for a later row.
            is_bare = "b._disposition = 'row' AND k._gone AND NOT k._nothing"
            filled["_moved_from"] = f"CASE WHEN {is_bare} THEN NULL ELSE b._moved_from END"
        if is_last:
            filled["_unavailable"] = f"CASE WHEN {nothing_ended} THEN NULL ELSE b._unavailable END"
        left_out = "'not sent: ' || array_to_string(b._unavailable, ', ')"
        filled["_disposition"] = f"CASE WHEN {lacks} THEN 'quarantined' ELSE b._disposition END"
        filled["_reason"] = f"CASE WHEN {lacks} THEN 'nothing_to_keep' ELSE b._reason END"
        filled["_detail"] = f"CASE WHEN {lacks} THEN {left_out} ELSE b._detail END"
        return filled


def _part(column: str) -> str:
    return f"part of {column}"


def _nulls(columns: Sequence[str]) -> str:
    return ", ".join(["NULL"] * len(columns))


def _ends(target: Target, *, has_deletes: bool) -> str:
    """Select of each row that has moved the delete of its old key; if none is known, nulls.

    Delete and create share one place in the database's log. Where that orders the records, an
    event that comes a second time has its delete beside the first one's.
    """
    spec, place = target.spec, sql.names(_place(target.spec))
    if spec.sequence_by:
        is_before = f"NOT {sql.is_beyond(spec.sequence_by, 'd', 'm')}"
        newest = f"{sql.ranked(spec.sequence_by, 'DESC', 'd')}, "
        newest += sql.ranked(("_epoch", *spec.origin), "ASC", "d")
    else:
        is_before = (
            "(d._topic <> m._topic OR d._partition <> m._partition OR d._offset <= m._offset)"
        )
        newest = sql.ranked(("_epoch", *spec.origin), "DESC", "d")
    of_move = dict.fromkeys(name for name in (*spec.sequence_by, *_ROW) if name not in spec.keys)
    of_delete = [name for name in _place(spec) if name not in spec.keys]
    remembered = f"UNION ALL SELECT {place}, _epoch, TRUE FROM deletes" if has_deletes else ""
    # Of a delete that takes no row nothing is known; its key is no row's. One that has not come, of
    # another partition then, may have updates before it that have not come either.
    is_end = f"coalesce(d._is_end, {not spec.sequence_by})"
    keys = {name: f"CASE WHEN {is_end} THEN {sql.name(name, 'm')} END" for name in spec.keys}
    return f"""
        WITH moves AS (
            SELECT {_old_key(spec.keys)}, {sql.names(of_move)} FROM batch WHERE {_IS_MOVE}
        ),
        ended AS (
            SELECT {place}, {_epoch(target)} AS _epoch, _disposition = 'delete' AS _is_end
            FROM batch WHERE _disposition = 'delete' OR {_IS_NO_END}
            {remembered}
        ),
        pairs AS (
            SELECT {sql.selected(keys)}, {sql.names(of_delete, "d")}, d._epoch,
                {sql.selected({f"_of{name}": f"m.{name}" for name in _ROW})},
                row_number() OVER (
                    PARTITION BY {sql.names(COORDINATES, "m")} ORDER BY {newest}
                ) AS _rank
            FROM moves m LEFT JOIN ended d ON {sql.equal(spec.keys, "m", "d")} AND {is_before}
        )
        SELECT * FROM pairs WHERE _rank = 1
    """


def _longest_chain(target: Target) -> int:
    """Return how many rows of the batch moved one after the other, in the longest chain of them."""
    record = " || '/' || ".join(f"CAST({{0}}{name} AS VARCHAR)" for name in COORDINATES)
    pairs = target.engine.rows(f"""
        WITH moves AS (SELECT *, {_epoch(target)} AS _epoch FROM batch WHERE {_IS_MOVE})
        SELECT {record.format("e._of")} AS later, {record.format("m.")} AS earlier
        FROM ends e LEFT JOIN moves m ON {sql.equal(target.spec.keys, "e", "m")}
            AND (e._offset IS NULL OR {sql.is_beyond(_order(target.spec), "e", "m")})
    """)
    length = dict.fromkeys((pair["later"] for pair in pairs), 0)
    for _ in range(len(length)):
        longer = dict(length)
        for later, earlier in ((pair["later"], pair["earlier"]) for pair in pairs):
            longer[later] = max(longer[later], 1 + length.get(earlier, -1))
        if longer == length:
            break
        length = longer
    return max(length.values())
