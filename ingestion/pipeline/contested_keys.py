"""Keys that a row takes over while another row still has them, as a chain or a swap of keys does.

A database may check its unique keys at the end of a statement. In `UPDATE t SET id = id + 1` row 1
gets key 2 before row 2 has left it, and its connector writes the changes in that order. So the
delete by which row 2 leaves its key must not take row 1, which has the key by then.

A key is contested from the move of one row onto the row of another until one of the two leaves. The
row before that change, as far as the record tells it, says which of them that is. Where it does not
tell, the record waits in quarantine. A contest that a batch leaves open is remembered beside the
deletes, with the row that was moved upon. A row that another table has, or none, has its key, too:
that it is deleted there says which row leaves, and deletes none here.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, NamedTuple

from oncelake.ingestion.declaration.modes import COORDINATES, CURRENT, DELETED_COLUMN
from oncelake.ingestion.delta.files import is_delta
from oncelake.ingestion.modes import sql
from oncelake.ingestion.modes.engines.engine import Engine
from oncelake.ingestion.modes.mode import Target
from oncelake.ingestion.modes.tombstones import CONTEST, define_contests, define_newest_deletes
from oncelake.ingestion.pipeline.columns import DELETED_ELSEWHERE
from oncelake.ingestion.pipeline.counts import is_first_row
from oncelake.ingestion.pipeline.erased import at_places, redefine
from oncelake.ingestion.pipeline.truncates import IS_TRUNCATE

_CHANGES: Final = "_disposition = 'delete' OR (_disposition = 'row' AND _moves)"
# What contests remember: a row that was moved upon, that it has left, and that a delete waits.
_BEGUN, _ENDED, _OPEN = "begun", "ended", "open"
_REMEMBERED: Final = (_BEGUN, _ENDED, _OPEN)
_WHATS: Final = ("row", "there", "gone", "delete", "null", "left", *_REMEMBERED)

_NOT_TOLD: Final = (
    "another row has taken its key, and the row before does not tell which of them moves"
)
_LATE: Final = (
    "a later delete of its new key, from another partition, was read before it, and may have been "
    "of either row; a new snapshot tells"
)

Event = Mapping[str, Any]
_At = tuple[Any, ...]


@dataclass(kw_only=True, slots=True)
class _Outcomes:
    """The decisions about the contested keys of a batch.

    Attributes:
        spared: Deletes that take no row: that of their key is another one's.
        unknown: Records that do not tell which row has left, and what they do not tell.
        remembered: Numbers of an event and of the row that it is about, and what to remember.
    """

    spared: list[Event] = field(default_factory=list)
    unknown: list[tuple[Event, str]] = field(default_factory=list)
    remembered: list[tuple[int, int, str]] = field(default_factory=list)


class _Row(NamedTuple):
    """What tells rows of one key apart.

    Attributes:
        sequence: Those of the order.
        columns: All that are declared.
        of_row: Those that rows may differ in, beside the time of a change.
        told_by: Those by which the record of a change tells its row.
        is_behind: Whether a truncate has waited, so that the source may have no row of these.
    """

    sequence: Sequence[str]
    columns: Sequence[str]
    of_row: Sequence[str]
    told_by: Sequence[str]
    is_behind: bool


def settle_contested_keys(target: Target) -> Target:
    """Leave out deletes of ``batch`` that take no row, and judge those ``quarantined`` that may.

    Returns:
        The target, with what is to be remembered.
    """
    changes = f"SELECT 1 AS a FROM batch WHERE {_CHANGES} LIMIT 1"
    if not (target.spec.settles_moves and target.engine.rows(changes)):
        return target
    settled = _settle_moves(target)
    if target.spec.leaves_by_route:
        _keep(target.engine, f"coalesce(_left_to, '') <> '{DELETED_ELSEWHERE}'")
    return settled


def _settle_moves(target: Target) -> Target:
    spec, engine = target.spec, target.engine
    has_contests = define_contests(target)
    _define_contested(target, has_contests=has_contests)
    fixed = {*spec.keys, *spec.sequence_by, *spec.format.options.of_envelope}
    lines: dict[_At, list[Event]] = {}
    for each in engine.rows("SELECT * FROM contested"):
        # A NaN is like any other.
        event = {n: "NaN" if v != v and n not in fixed else v for n, v in each.items()}
        lines.setdefault(tuple(event[name] for name in spec.keys), []).append(event)
    if not lines:
        return target
    order = [*spec.order_columns]
    # History goes by time: a topic follows another.
    order.insert(spec.mode == "scd2", "_epoch")
    of_row = [name for name in spec.types if name not in fixed]
    # What ``where`` leaves out has no more.
    told_by = spec.leaving_columns if spec.leaves_by_where else spec.types
    told = [name for name in of_row if name in told_by]
    row = _Row(spec.sequence_by, [*spec.types], of_row, told, _has_truncate(target))
    ordered = [sorted(line, key=partial(_place, order)) for line in lines.values()]
    outcomes = _settled(row, ordered, _of_others(engine))
    if outcomes.spared:
        is_delete = "_disposition = 'delete' AND _left_to IS NULL"
        redefine(
            engine, f"({at_places(outcomes.spared)}) AND {is_delete}", _disposition="'ignored'"
        )
    for detail in (_NOT_TOLD, _LATE):
        if waiting := [event for event, why in outcomes.unknown if why == detail]:
            _put_aside(target, at_places(waiting), detail)
    columns = {name: sql.name(name, "r") for name in spec.types}
    columns |= {name: sql.name(name, "e") for name in order if name not in spec.keys}
    return replace(target, contests=_remembered(columns, outcomes.remembered))


def _define_contested(target: Target, *, has_contests: bool) -> None:
    """Call the events of keys that may be contested ``contested``, each with a number.

    They are the records of the batch, the row of the table, and what is remembered of deletes and
    of contests.
    """
    spec, engine = target.spec, target.engine
    keys = sql.names(spec.keys)
    has_deletes = define_newest_deletes(target)
    begun = f"UNION SELECT {keys} FROM contests" if has_contests else ""
    begun += f" UNION SELECT {keys} FROM dead" if has_deletes and spec.sequence_by else ""
    moved = _moved_keys(spec.keys, has_contests=has_contests)
    target.table.open_before(moved)
    events = _events(target, has_deletes=has_deletes, has_contests=has_contests)
    engine.define(
        "contested",
        f"""
        WITH several AS (
            SELECT {keys} FROM batch WHERE _disposition IN ('row', 'delete')
            GROUP BY {keys} HAVING count(*) > 1
        ),
        concerned AS (
            SELECT m.* FROM ({moved}) m JOIN (
                SELECT {keys} FROM several UNION SELECT {keys} FROM "before" {begun}
            ) h ON {sql.equal(spec.keys, "m", "h")}
        ),
        events AS ({" UNION ALL ".join(events)})
        SELECT *, row_number() OVER (ORDER BY {keys}, {sql.names(COORDINATES)}, _row, _what)
            AS _nth
        FROM events WHERE _what IN ('{"', '".join(_WHATS)}')
        """,
        keep=True,
    )


def _moved_keys(key: Sequence[str], *, has_contests: bool) -> str:
    """Select the keys that rows have moved to, and the contested ones that a delete names."""
    keys = sql.names(key)
    arrives = f"_disposition = 'row' OR _left_to <> '{DELETED_ELSEWHERE}'"
    moved = f"SELECT {keys} FROM batch WHERE ({arrives}) AND _moves"
    if has_contests:
        moved += f"""
            UNION SELECT {sql.names(key, "b")} FROM batch b
            JOIN contests c ON {sql.equal(key, "b", "c")} WHERE b._disposition = 'delete'
        """
    return f"SELECT DISTINCT {keys} FROM ({moved}) a"


def _events(target: Target, *, has_deletes: bool, has_contests: bool) -> Iterator[str]:
    """Select the events of the keys concerned, from each relation that has any."""
    spec, engine = target.spec, target.engine
    there = f"CASE WHEN e.{DELETED_COLUMN} THEN 'gone' ELSE 'there' END"
    there = there if spec.deletes == "soft" else "'there'"
    lives = sql.name(CURRENT) if spec.mode == "scd2" else "TRUE"
    rows = f'(SELECT * FROM "before" WHERE {lives})'
    of_move = ("_moved_from", "_unavailable")
    names = dict.fromkeys([*spec.types, *spec.order_columns, *COORDINATES, *of_move])
    of_record = {
        "_epoch": f"CAST({target.epoch} AS INTEGER)",
        "_what": _what(),
        "_moves": "coalesce(e._moves, FALSE)",
        "_row": "e._index",
    }
    yield _in_lines(spec.keys, "batch", {name: sql.name(name, "e") for name in names} | of_record)
    known = {"before": (rows, there)}
    # A record that is sent again makes no row that has been deleted.
    if has_deletes:
        is_same = sql.equal(spec.keys, "d", "b")
        dead = f"SELECT d.* FROM dead d LEFT JOIN {rows} b ON {is_same} WHERE b._offset IS NULL"
        known["dead"] = (f"({dead})", "'gone'")
    if has_contests:
        known["contests"] = ("contests", f"e.{CONTEST}")
    for source, (table, what) in known.items():
        # What is remembered has not all columns of a row, or not those that came later.
        has = {*engine.columns(source)}
        columns = {name: sql.name(name, "e") if name in has else "NULL" for name in names}
        index = sql.name("_index", "e") if "_index" in names else "CAST(0 AS INTEGER)"
        of_event = {"_epoch": "e._epoch", "_what": what, "_moves": "FALSE", "_row": index}
        yield _in_lines(spec.keys, table, columns | of_event)


def _in_lines(keys: Sequence[str], table: str, columns: Mapping[str, str]) -> str:
    is_of_key = sql.equal(keys, "e", "k")
    return f"SELECT {sql.selected(columns)} FROM {table} e JOIN concerned k ON {is_of_key}"


def _what() -> str:
    """Say, in SQL, what a row of the batch is: a null value has neither bytes nor a move."""
    is_null = "e._disposition = 'delete' AND e._bytes = 0 AND NOT coalesce(e._moves, FALSE)"
    return f"""CASE
        WHEN _left_to = '{DELETED_ELSEWHERE}' THEN 'delete'
        WHEN _left_to IS NOT NULL THEN 'left'
        WHEN {is_null} THEN 'null'
        ELSE e._disposition
    END"""


def _settled(row: _Row, lines: Sequence[list[Event]], others: Collection[_At]) -> _Outcomes:
    """Walk the events of each key, again without the records that turn out to wait."""
    waiting: dict[_At, str] = {}
    while True:
        outcomes = _Outcomes()
        for line in lines:
            _Walk(row, outcomes, others).go(line, waiting)
        if not outcomes.unknown:
            all_ = (event for line in lines for event in line if _at(event) in waiting)
            outcomes.unknown = [(event, waiting[_at(event)]) for event in all_]
            return outcomes
        waiting |= {_at(event): why for event, why in outcomes.unknown}


def _has_truncate(target: Target) -> bool:
    """Tell whether a truncate was put aside, with this batch or an earlier one."""
    engine, path = target.engine, target.paths.quarantine
    truncates = f"SELECT 1 AS a FROM batch WHERE {IS_TRUNCATE}"
    if is_delta(path):
        engine.open_table("put_aside", path)
        truncates += " UNION ALL SELECT 1 AS a FROM put_aside WHERE reason = 'truncate'"
    return bool(engine.rows(f"SELECT a FROM ({truncates}) t LIMIT 1"))


def _of_others(engine: Engine) -> set[_At]:
    """Return the places of records whose own row is none of this table's: they never wait."""
    is_first = is_first_row("b")
    rows = engine.rows(
        f"SELECT DISTINCT {sql.names(COORDINATES, 'b')} FROM batch b "
        f"JOIN contested c ON {sql.equal(COORDINATES, 'b', 'c')} "
        f"WHERE {is_first} AND b._disposition NOT IN ('row', 'delete')"
    )
    return {*map(_at, rows)}


def _at(event: Event) -> _At:
    return tuple(event[name] for name in COORDINATES)


def _place(order: Sequence[str], event: Event) -> _At:
    """Return what orders the events of a key; what is remembered comes behind its record."""
    return (*(event[name] for name in (*order, "_row")), event["_what"] in _REMEMBERED)


class _Walk:
    """The events of one key, in their order."""

    def __init__(self, row: _Row, outcomes: _Outcomes, of_others: Collection[_At]) -> None:
        self._outcomes, self._of_others = outcomes, of_others
        self._sequence, self._columns, self._of_row, self._told_by, _ = row
        self._there: Event | None = None
        # Rows that another has moved upon.
        self._others: list[Event] = []
        self._moved_at: list[_At] = []
        # Rows that have left, each with the order of the record by which.
        self._left: list[tuple[_At, Event]] = []
        # Whether a delete waits, or a truncate has, so that it is unknown how many rows are left.
        self._is_open = row.is_behind
        self._is_spared = False

    def go(self, events: Iterable[Event], waiting: Collection[_At]) -> None:
        """Walk to the end, past the records that wait."""
        for event in events:
            what = event["_what"]
            if _at(event) in waiting and what not in _REMEMBERED:
                if what in ("delete", "null"):
                    self._open(event)
                continue
            was_spared, self._is_spared = self._is_spared, False
            if what in _REMEMBERED:
                self._know(event)
            elif what in ("row", "there", "left"):
                self._arrive(event)
            elif what == "gone":
                self._end(event)
            elif self._has_left(event) or (
                what == "null" and (was_spared or self._is_behind(event))
            ):
                # It repeats a delete.
                self._spare(event)
            elif not self._others:
                self._there = None
            elif self._is_blind(event):
                self._there = None
                self._forget(event)
            else:
                self._leave(event)

    def _open(self, event: Event) -> None:
        self._is_open = True
        self._outcomes.remembered.append((event["_nth"], event["_nth"], _OPEN))

    def _know(self, event: Event) -> None:
        if event["_what"] == _OPEN:
            self._is_open = True
        elif event["_what"] == _BEGUN:
            self._moved_at.append(self._moment(event))
            self._others.append(event)
        else:
            self._left.append((self._moment(event), event))
            alike = [other for other in self._others if self._is_same(other, event)]
            self._others = [other for other in self._others if other not in alike[:1]]

    def _end(self, gone: Event) -> None:
        """Meet a delete of an earlier batch: it may have been of the row moved upon.

        All records of a row are in one partition, so that a move of another one has come late.
        """
        there, self._there = self._there, None
        if there and there["_what"] == "row" and there["_moves"] and self._sequence:
            is_of_one = all(there[name] == gone[name] for name in COORDINATES[:2])
            self._outcomes.unknown += [] if is_of_one else [(there, _LATE)]

    def _forget(self, event: Event) -> None:
        nth = event["_nth"]
        self._outcomes.remembered += [(nth, other["_nth"], _ENDED) for other in self._others]
        self._others.clear()

    def _arrive(self, event: Event) -> None:
        there = self._there
        if event["_moves"] and there is not None and not self._is_again(event, there):
            self._others.append(there)
            self._moved_at.append(self._moment(event))
            self._outcomes.remembered.append((event["_nth"], there["_nth"], _BEGUN))
            if there["_unavailable"]:
                # Its values are not known, so that no row is like it.
                self._open(event)
        self._there = event

    def _leave(self, event: Event) -> None:
        rows = [*self._others, *([self._there] if self._there else [])]
        meant = [row for row in rows if self._tells(event, row)]
        # Of rows that are alike, any may leave, as long as one stays.
        is_told = self._are_alike(rows) or self._are_alike(meant)
        alike = meant or rows
        is_open = self._is_open or alike[-1]["_unavailable"]
        left, may_be_last = alike[0], is_open and alike[-1] is self._there
        if not is_told or left is self._there or may_be_last:
            if _at(event) in self._of_others:
                self._spare(event)
            else:
                self._outcomes.unknown.append((event, _NOT_TOLD))
            return
        self._others.remove(left)
        self._left.append((self._moment(event), left))
        self._spare(event)
        self._outcomes.remembered.append((event["_nth"], left["_nth"], _ENDED))

    def _is_behind(self, null: Event) -> bool:
        """Tell a null value whose delete, the record before it, was in an earlier batch."""
        before = (null["_epoch"], *_at(null)[:-1], null["_offset"] - 1)
        ended = (row for _, row in self._left if row["_what"] == _ENDED)
        return any((row["_epoch"], *_at(row)) == before for row in ended)

    def _is_blind(self, event: Event) -> bool:
        """Tell a delete that takes what is there: it has its key alone, and no order.

        Without one, changes that a connector repeats look like a contest, and must end right.
        """
        return not (self._sequence or any(event[name] for name in self._told_by))

    def _spare(self, event: Event) -> None:
        self._is_spared = True
        self._outcomes.spared.append(event)

    def _is_again(self, event: Event, there: Event) -> bool:
        """Tell a move that a connector has repeated, by its position in the database's log.

        Without one, it is the move within the batch that has made the same row of the same key.
        """
        moment = self._moment(event)
        if not moment:
            same = (*self._columns, "_moved_from")
            return there["_moves"] and all(there[name] == event[name] for name in same)
        # The row has kept what this record leaves out.
        is_same = self._is_same(there, event, event["_unavailable"] or ())
        return (self._moment(there) == moment and is_same) or moment in self._moved_at

    def _has_left(self, event: Event) -> bool:
        """Tell a delete that is repeated so: of a row that has left at its position."""
        moment = self._moment(event)
        return bool(moment) and any(
            at == moment and self._tells(event, row) for at, row in self._left
        )

    def _tells(self, event: Event, row: Event) -> bool:
        """Tell whether a row has all values that a delete tells; those made up tell nothing."""
        return all(row[name] == event[name] for name in self._told_by if event[name])

    def _moment(self, event: Event) -> _At:
        return tuple(event[name] for name in self._sequence)

    def _is_same(self, one: Event, other: Event, unsent: Collection[str] = ()) -> bool:
        return all(one[name] == other[name] for name in self._of_row if name not in unsent)

    def _are_alike(self, rows: Sequence[Event]) -> bool:
        return bool(rows) and all(self._is_same(rows[0], row) for row in rows)


def _put_aside(target: Target, places: str, detail: str) -> None:
    """Judge records ``quarantined``, each as a whole."""
    engine = target.engine
    is_first = is_first_row()
    redefine(
        engine,
        f"({places}) AND {is_first}",
        _disposition="'quarantined'",
        _reason="'moved_key'",
        _detail=sql.text(detail),
    )
    _keep(engine, f"NOT (({places}) AND NOT {is_first})")


def _keep(engine: Engine, those: str) -> None:
    """Leave the other rows out of the batch."""
    columns = sql.names(engine.columns("batch"))
    engine.define("batch", f"SELECT {columns} FROM batch WHERE {those}", keep=True)


def _remembered(columns: Mapping[str, str], pairs: Collection[tuple[int, int, str]]) -> str:
    """Select the rows of contests, at the places of the events that begin and end them."""
    if not pairs:
        return ""
    listed = ", ".join(f"({event}, {row}, '{what}')" for event, row, what in pairs)
    return (
        f"SELECT {sql.selected(columns)}, p._what AS {CONTEST} "
        f"FROM (VALUES {listed}) AS p(_event, _other, _what) "
        "JOIN contested e ON e._nth = p._event JOIN contested r ON r._nth = p._other"
    )
