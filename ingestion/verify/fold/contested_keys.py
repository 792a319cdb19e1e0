"""Keys that one row got by a move while another row still had them, decided a second time.

Whose row a later delete takes from such a key is what the row before it says. Where that says
nothing that distinguishes them, the record belongs in quarantine.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from oncelake.ingestion.kafka.offsets import TopicPartition
from oncelake.ingestion.verify.decode.coerce import UnprovableError
from oncelake.ingestion.verify.fold.rule import (
    Erased,
    Events,
    FoldContext,
    Rule,
    Settled,
    add_events,
)
from oncelake.ingestion.verify.read.record import (
    Place,
    Record,
    Row,
    RowChange,
    at_of,
    offset_of,
    ranked,
)
from oncelake.ingestion.verify.read.spill import SpillTable

_LATE: Final = "a later delete of its new key was read before it, and may have been of either row"
_WHY: Final = "a move from a key that two rows have, and the row before does not say which of them"
_UNKNOWN: Final = (
    "whose row leaves a key that another row has taken over can be proven only while Kafka holds "
    "all records of both; a new snapshot of the source and `oncelake rebuild` make a table that can"
)
_Name = tuple[str, Place]
_At = tuple[TopicPartition, int]


@dataclass(slots=True)
class Contest:
    """The state of a key that more than one row has had at a time.

    Attributes:
        pushed: Rows onto which another has moved, and that have not left yet, each behind the place
            of that move.
        arrivals: Positions in the database's log of the moves onto them.
        departures: Places of the records by which such rows have left, each with the row.
        is_doubtful: Whether a record in quarantine may have taken any of the rows.
    """

    pushed: list[tuple[Place, Row]] = field(default_factory=list)
    arrivals: set[Place] = field(default_factory=set)
    departures: list[tuple[Place, Row]] = field(default_factory=list)
    is_doubtful: bool = False

    def copied(self) -> Contest:
        """Return one that can be changed alone."""
        return Contest([*self.pushed], {*self.arrivals}, [*self.departures], self.is_doubtful)


class ContestedKeys:
    """Decides about moves of a stream, batch by batch."""

    def __init__(
        self, context: FoldContext, rule: Rule, is_waiting: Callable[[Record], bool]
    ) -> None:
        """Begin before the first batch; ``rule`` knows the rows.

        ``is_waiting`` tells which records the engine has put aside.
        """
        spec = context.spec
        self._rule, self._coverage, self._is_waiting = rule, context.coverage, is_waiting
        self._new: SpillTable[Events] = context.store.table("unmoved")
        self._moving: set[str] = set()
        self._contests: dict[str, Contest] = {}
        # Deletes of earlier batches.
        self._gone: set[_Name] = set()
        self._order = slice(1, 1 + len(spec.sequence_by))
        self._by_time, self._is_behind = spec.mode == "scd2", False
        fixed = {*spec.keys, *spec.sequence_by, *spec.format.options.of_envelope}
        self._width = len(spec.types)
        self._of_row = [i for i, n in enumerate(spec.types) if n not in fixed]
        told = spec.leaving_columns if spec.leaves_by_where else spec.types
        self._told_by = {i for i, n in enumerate(spec.types) if n in told}

    def take(self, changes: Sequence[RowChange]) -> None:
        """Keep changes until the batch is whole."""
        add_events(self._new, changes)
        self._moving |= {each.key for each in changes if each.moves and self._arrives(each)}

    def erase(self, erased: Erased) -> None:
        """Forget the contests of a key, or all where everything was deleted."""
        for key in [*self._contests]:
            if erased.truncate or erased.is_key(key):
                del self._contests[key]

    def settle(self, *, is_behind: bool) -> tuple[Settled, Iterator[list[RowChange]]]:
        """Decide about the moves; return what became of them, and all changes that are left.

        The table ``is_behind`` the source where a truncate has waited: any row may be gone there.
        """
        self._is_behind = is_behind
        lines = self._lines()
        waiting: dict[_At, tuple[Record, str]] = {}
        while True:
            spared, unknown, contests = self._walked(lines, waiting)
            if not unknown:
                break
            waiting |= unknown
        if self._coverage.doubts(None):
            self._refuse_unknown(lines, waiting)
        self._contests |= contests
        self._moving.clear()
        settled = Settled(bad=[*waiting.values()], taken_back=-len(waiting))
        settled.spared = sum(not is_left for is_left in spared.values())
        rows = (change for each in self._new.chunks() for line in each.values() for change in line)
        for row in rows:
            is_bad = (row.at, row.offset) in waiting
            settled.taken_back += row.is_gone or is_bad
            is_first = row.moves and not (row.is_left or row.place[-1])
            if is_first and (is_bad or (row.key, row.place) in spared):
                settled.no_ends.append(row)
        return settled, self._left(spared, waiting)

    def _lines(self) -> dict[str, list[RowChange]]:
        """Return the events of each key from which or to which a row moves, in their order."""
        keys = self._moving | self._contests.keys()
        lines = {key: list(events) for key, events in self._new.get(keys).items()}
        self._gone.clear()
        for key, change in self._rule.newest_of(lines).items():
            # What made the row that is there has moved it in a batch of its own.
            lines[key].append(change._replace(moves=False))
            if change.is_delete:
                self._gone.add((key, change.place))
        return {key: sorted(line, key=self._when) for key, line in lines.items()}

    def _walked(
        self, lines: Mapping[str, Sequence[RowChange]], waiting: Container[_At]
    ) -> tuple[dict[_Name, bool], dict[_At, tuple[Record, str]], dict[str, Contest]]:
        spared: dict[_Name, bool] = {}
        unknown: dict[_At, tuple[Record, str]] = {}
        contests: dict[str, Contest] = {}
        for key, line in lines.items():
            contest, there = self._contests.get(key, Contest()).copied(), None
            was_spared = False
            for change in line:
                if (change.at, change.offset) in waiting:
                    contest.is_doubtful |= not self._arrives(change)
                    continue
                was_spared = change.mover is None and (was_spared or self._is_next(change))
                is_again = was_spared or self._has_left(contest, change)
                was_spared = False
                if (key, change.place) in self._gone:
                    if there is not None and self._came_late(there, change):
                        assert there.record is not None, "it is of a move"
                        unknown[there.at, there.offset] = there.record, _LATE
                    there = None
                elif self._arrives(change):
                    there = self._arrived(contest, there, change)
                elif not (is_again or self._pushed(contest, change)):
                    self._refuse_another(there, change)
                    there = None
                elif not is_again and self._is_blind(change):
                    there = None
                    contest.departures += ((change.place, row) for _, row in contest.pushed)
                    contest.pushed.clear()
                elif (
                    is_again
                    or self._spares(contest, there, change)
                    or change.is_alone
                    or change.record is None
                ):
                    spared[key, change.place] = change.is_left or change.is_gone
                    was_spared = True
                else:
                    unknown[change.at, change.offset] = change.record, _WHY
            contests[key] = contest
        return spared, unknown, {key: each for key, each in contests.items() if each.arrivals}

    def _refuse_unknown(
        self, lines: Mapping[str, Sequence[RowChange]], waiting: Container[_At]
    ) -> None:
        """Refuse to judge records that wait for rows of which Kafka no longer holds all records."""
        for change in (change for line in lines.values() for change in line):
            record, is_known = change.record, (change.at, change.offset) in waiting
            if record is not None and not is_known and self._is_waiting(record):
                raise UnprovableError(_UNKNOWN)

    def _refuse_another(self, there: RowChange | None, change: RowChange) -> None:
        """Refuse to decide about a delete of a row that had the key before any that is known."""
        if there is None or change.mover is None or not self._coverage.doubts(None):
            return
        if not _tells(self._told(change), self._row(there)):
            raise UnprovableError(_UNKNOWN)

    def _arrived(self, contest: Contest, there: RowChange | None, change: RowChange) -> RowChange:
        """Return the change that a row is of now; one onto which it has moved is pushed."""
        moment = change.place[self._order]
        if change.moves and there is None and self._coverage.doubts(None):
            # Perhaps another row had the key.
            contest.arrivals.add(moment or change.place)
        if not change.moves or there is None:
            return change
        one, other = self._values(there), self._values(change)
        if moment:
            # The row has kept what this record leaves out.
            told = (i for i in self._of_row if i not in change.left_out)
            is_same = moment == there.place[self._order] and all(one[i] == other[i] for i in told)
            is_repeated = is_same or moment in contest.arrivals
        else:
            # Without a position, it is the move of the batch that has made this row of this key.
            is_repeated = there.moves and one == other and there.moved_from == change.moved_from
        if not is_repeated:
            contest.pushed.append((self._when(change), self._row(there)))
            contest.arrivals.add(moment or change.place)
            # Of what it leaves out the values are not known, so that no row is like it.
            contest.is_doubtful |= bool(there.left_out)
        return change

    def _came_late(self, there: RowChange, gone: RowChange) -> bool:
        """Tell a row moved upon one that was deleted since, by another partition's record."""
        is_of_another = there.at != gone.at and not there.is_left
        return self._order.stop > 1 and there.moves and is_of_another

    def _values(self, change: RowChange) -> Row:
        values = change.mover if change.is_left else change.row
        assert values is not None, "it has a row, in this table or another"
        return tuple(map(ranked, values[: self._width]))

    def _row(self, change: RowChange) -> Row:
        values = self._values(change)
        return tuple(values[i] for i in self._of_row)

    def _told(self, change: RowChange) -> Row:
        """Return what the record of a delete tells of its row; a null value tells nothing."""
        values = change.mover or (None,) * self._width
        return tuple(ranked(values[i]) if i in self._told_by else None for i in self._of_row)

    def _pushed(self, contest: Contest, change: RowChange) -> list[Row]:
        """Return the rows that were moved upon before a change, which may come late."""
        return [row for at, row in contest.pushed if at <= self._when(change)]

    def _has_left(self, contest: Contest, change: RowChange) -> bool:
        """Tell a delete of a row that has left already, at the same position."""
        moment, told = change.place[self._order], self._told(change)
        return bool(moment) and any(
            at[self._order] == moment and _tells(told, row) for at, row in contest.departures
        )

    def _is_next(self, null: RowChange) -> bool:
        """Tell a null value whose delete, the record before it, was in an earlier batch."""
        before = (null.place[0], null.at, null.offset - 1)
        left = self._contests.get(null.key, Contest()).departures
        return any((at[0], at_of(at), offset_of(at)) == before for at, _ in left)

    def _is_blind(self, change: RowChange) -> bool:
        """Tell a delete that has nothing but its key, where no order tells a repeated one."""
        return not (change.place[self._order] or any(self._told(change)))

    def _spares(self, contest: Contest, there: RowChange | None, change: RowChange) -> bool:
        """Tell whether a pushed row, and no other, is the one that a delete takes from its key."""
        pushed = self._pushed(contest, change)
        rows = [*pushed, *([] if there is None else [self._row(there)])]
        if any(row != rows[0] for row in rows):
            told = self._told(change)
            rows = [row for row in rows if _tells(told, row)]
            if not rows or any(row != rows[0] for row in rows):
                return False
        # The newest row alone would stay, or none at all.
        may_be_newest = there is not None and rows[0] == self._row(there)
        may_be_none = contest.is_doubtful or self._is_behind or (there and there.left_out)
        if rows[0] not in pushed or (may_be_none and may_be_newest):
            return False
        del contest.pushed[[row for _, row in contest.pushed].index(rows[0])]
        contest.departures.append((change.place, rows[0]))
        return True

    def _arrives(self, change: RowChange) -> bool:
        return not change.is_delete or (change.is_left and not change.is_gone)

    def _when(self, change: RowChange) -> Place:
        """Return what orders the events of a key."""
        return change.when if self._by_time else change.place

    def _left(self, spared: Container[_Name], waiting: Container[_At]) -> Iterator[list[RowChange]]:
        for events in self._new.chunks():
            yield [
                change
                for changes in events.values()
                for change in changes
                if not (change.is_gone or (change.at, change.offset) in waiting)
                and not (change.is_delete and (change.key, change.place) in spared)
            ]
        self._new.clear()


def _tells(told: Row, row: Row) -> bool:
    """Tell whether a row has all values that are told; what connectors make up tells nothing."""
    return all(value == of_row for value, of_row in zip(told, row, strict=True) if value)
