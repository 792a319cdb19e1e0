"""Aggregate: every record is folded once into the state of its group."""

from __future__ import annotations

import datetime as dt
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Context, Decimal
from fractions import Fraction
from typing import Any, Final

from oncelake.ingestion.declaration.aggregates import Aggregate, aggregates_of
from oncelake.ingestion.declaration.modes import WINDOW_COLUMNS
from oncelake.ingestion.verify.decode.coerce import UnprovableError
from oncelake.ingestion.verify.fold.classify import window_of
from oncelake.ingestion.verify.fold.rule import FoldContext, Recount, Rule
from oncelake.ingestion.verify.read.record import (
    EPOCH,
    SYSTEM_COLUMNS,
    Place,
    Row,
    RowChange,
    ranked,
    text_of,
)
from oncelake.ingestion.verify.read.spill import SpillTable

# An estimate that another library would make otherwise.
_DEPENDENT: Final = "approx_distinct"
# Python's own context rounds to 28 digits.
_EXACT: Final = Context(prec=76)


@dataclass(frozen=True, kw_only=True, slots=True)
class AggregateFunction:
    """One aggregate function.

    Attributes:
        empty: The state of no records.
        add: Returns the state with one more record: its value, and its place in the order.
        columns: Returns the columns of a state: by suffix, empty for the aggregate's own.
    """

    empty: Any = None
    add: Callable[[Any, Any, Place], Any]
    columns: Callable[[Any], Mapping[str, Any]] = lambda state: {"": state}


def _unless_null(fold: Callable[[Any, Any], Any]) -> Callable[[Any, Any, Place], Any]:
    """Skip nulls, and begin with the first value."""

    def add(state: Any, value: Any, _: Place) -> Any:
        if value is None:
            return state
        return value if state is None else fold(state, value)

    return add


def _plus(a: Any, b: Any) -> Any:
    """Add whole numbers, or decimals of as many digits as a table holds, without rounding."""
    return _EXACT.add(a, b) if isinstance(a, Decimal) else a + b


def _average(state: Any) -> Mapping[str, Any]:
    total, count = state
    return {"": float(Fraction(total) / count) if count else None, "_sum": total, "_count": count}


def _from_place(is_better: Callable[[Place, Place], bool]) -> AggregateFunction:
    """Keep the value of one record: the place of no other is better."""
    return AggregateFunction(
        add=lambda state, value, place: (
            (place, value) if state is None or is_better(place, state[0]) else state
        ),
        columns=lambda state: dict(zip(("_place", ""), state, strict=True)),
    )


AGGREGATES: Final[Mapping[str, AggregateFunction]] = {
    "count": AggregateFunction(empty=0, add=lambda n, value, _: n + (value is not None)),
    "sum": AggregateFunction(add=_unless_null(_plus)),
    "min": AggregateFunction(add=_unless_null(lambda a, b: min(a, b, key=ranked))),
    "max": AggregateFunction(add=_unless_null(lambda a, b: max(a, b, key=ranked))),
    "avg": AggregateFunction(
        empty=(None, 0),
        add=lambda state, value, _: (
            state if value is None else (_plus(value, state[0] or 0), state[1] + 1)
        ),
        columns=_average,
    ),
    "set": AggregateFunction(
        empty=frozenset(),
        add=lambda values, value, _: values if value is None else values | {value},
        columns=lambda values: {"": sorted(values)},
    ),
    "first": _from_place(operator.lt),
    "last": _from_place(operator.gt),
}


@dataclass(kw_only=True, slots=True)
class _Group:
    """The state of one group.

    Attributes:
        newest: Epoch, topic, partition, offset, element and timestamp of its newest record.
        born: Batch of its first record.
        seq: Batch of its last one.
        accepted: Its last batch that a person accepted as it was; 0 without one.
    """

    key: Row
    states: list[Any]
    newest: Row
    born: int
    seq: int = 0
    accepted: int = 0


class AggregateRule(Rule):
    """Remembers the state of each group; its columns are those that this proof can compute."""

    def __init__(self, context: FoldContext) -> None:
        super().__init__(context)
        spec = context.spec
        self._keys, self._window, self._is_exploded = spec.keys, spec.window, bool(spec.explode)
        aggregates = aggregates_of(spec)
        self._proven = [a for a in aggregates if a.function != _DEPENDENT]
        self._dependent = [a.name for a in aggregates if a.function == _DEPENDENT]
        self._at = {column.name: nth for nth, column in enumerate(spec.columns)}
        nth = (f"sequence_{n}" for n, _ in enumerate(spec.sequence_by, 1))
        self._place_fields = ("epoch", *nth, *(name.removeprefix("_") for name in spec.origin))
        by_time = WINDOW_COLUMNS if spec.window else ()
        names = [name for aggregate in self._proven for name in aggregate.columns("")]
        self.columns = (*spec.keys, *by_time, *names)
        self._key_width = len(spec.keys) + len(by_time)
        self._clocks: dict[str, int] = {}
        self._groups: SpillTable[_Group] = context.store.table("groups")

    def take(self, changes: Sequence[RowChange], recount: Recount) -> None:
        """Fold each record, and count it by whether its group was there before the batch."""
        keyed = [(text_of(key := self._key(change)), key, change) for change in changes]
        known = self._groups.get({name for name, _, _ in keyed})
        for name, key, change in keyed:
            group = known.get(name)
            if group is None:
                states = [AGGREGATES[each.function].empty for each in self._proven]
                group = known[name] = _Group(key=key, states=states, newest=(), born=change.seq)
            self._count(group, change.seq, recount)
            self._fold(group, change)
        self._groups.put(known)

    def settle(self, recount: Recount) -> None:
        """Count the clock of each partition."""
        if not self._is_partial:
            recount.extra.update(self._clocks)

    def rows(self) -> SpillTable[RowChange]:
        """Return the row of each group."""
        if self._is_partial:
            raise UnprovableError(
                "a group can be proven only from its first record on, and Kafka no longer holds "
                "all that was folded"
            )
        for chunk in self._groups.chunks():
            self._rows.put({name: self._row(name, group) for name, group in chunk.items()})
        return self._rows

    def key_of(self, row: Row) -> str:
        """Return the text of the group's key columns."""
        return text_of(row[: self._key_width])

    def place_of(self, row: Row) -> Place:
        """Return the place of the newest record in it."""
        topic, partition, offset, _, epoch, _ = row[-len(SYSTEM_COLUMNS) :]
        element = row[-len(SYSTEM_COLUMNS) - 1] if self._is_exploded else 0
        return (epoch, topic, partition, offset, element)

    def limits(self) -> Sequence[str]:
        """Name the columns whose values this proof does not compute."""
        if not self._dependent:
            return ()
        named = ", ".join(self._dependent)
        return (f"{named}: not independent; an estimate that only Spark makes this way",)

    def _key(self, change: RowChange) -> Row:
        row = _row_of(change)
        keys = tuple(row[self._at[name]] for name in self._keys)
        if self._window is None:
            return keys
        name = self._window.column
        moment = row[self._at[name]] if name in self._at else row[-3]
        clock, at = f"clock_ms.{change.at}", (moment - EPOCH) // dt.timedelta(milliseconds=1)
        self._clocks[clock] = max(self._clocks.get(clock, 0), at)
        return (*keys, *window_of(moment, self._window.every_seconds))

    def _count(self, group: _Group, seq: int, recount: Recount) -> None:
        is_new, is_first = group.born == seq, group.seq != seq
        if is_new and self._coverage.doubts(None):
            recount.doubtful += 1
        else:
            recount.dispositions["inserted" if is_new else "updated"] += 1
        recount.extra["groups"] += is_first
        recount.extra["groups_new"] += is_first and is_new
        group.seq = seq
        if self._coverage.is_accepted(seq):
            group.accepted = seq

    def _fold(self, group: _Group, change: RowChange) -> None:
        row = _row_of(change)
        topic, partition, offset, timestamp, epoch, _ = row[-len(SYSTEM_COLUMNS) :]
        newest = (epoch, topic, partition, offset, change.place[-1], timestamp)
        group.newest = max(group.newest, newest)
        for nth, aggregate in enumerate(self._proven):
            value = row[self._at[aggregate.column]] if aggregate.column else 1
            add = AGGREGATES[aggregate.function].add
            group.states[nth] = add(group.states[nth], value, change.place)

    def _row(self, name: str, group: _Group) -> RowChange:
        epoch, topic, partition, offset, element, timestamp = group.newest
        states = zip(self._proven, group.states, strict=True)
        values = (value for each, state in states for value in self._columns(each, state))
        index = (element,) if self._is_exploded else ()
        system = (topic, partition, offset, timestamp, epoch, group.seq)
        row = (*group.key, *values, *index, *system)
        return RowChange(name, group.newest[:-1], row, group.accepted or group.seq)

    def _columns(self, aggregate: Aggregate, state: Any) -> Iterator[Any]:
        """Yield the values of an aggregate's columns, in the order of the table's."""
        columns = AGGREGATES[aggregate.function].columns(state)
        for name in aggregate.columns(""):
            value = columns[suffix := name.removeprefix(aggregate.name)]
            # A place ends with an element's index, which only exploded records have in the table.
            is_place = suffix == "_place"
            yield dict(zip(self._place_fields, value, strict=False)) if is_place else value


def _row_of(change: RowChange) -> Row:
    assert change.row is not None, "a delete is bad in a mode that deletes nothing"
    return change.row
