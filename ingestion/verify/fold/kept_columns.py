"""Columns that updates leave out because they have not changed, filled by a second reading.

The events of each key, those of a batch and what earlier batches left of it, are walked in their
order: an update takes over what the row before it has, a delete leaves nothing to take over, and an
update that finds nothing belongs in quarantine. A row that had another key before takes over what
that key's row had right before its delete.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import takewhile

from oncelake.ingestion.kafka.offsets import TopicPartition
from oncelake.ingestion.verify.fold.rule import Erased, Events, FoldContext, Settled, add_events
from oncelake.ingestion.verify.read.record import UNSEEN, Place, Record, Row, RowChange
from oncelake.ingestion.verify.read.spill import SpillTable

_NOTHING = "an update left out a column that has not changed, and no row has its value"
# Of each key: its events, with whether each is of this batch.
_Lines = dict[str, list[tuple[RowChange, bool]]]


class KeptColumns:
    """Fills the changes of a stream whose updates may leave columns out."""

    def __init__(self, context: FoldContext, is_quarantined: Callable[[Record], bool]) -> None:
        """Begin before the first batch; ``is_quarantined`` tells what the engine did."""
        self._context, self._is_quarantined = context, is_quarantined
        self._new: SpillTable[Events] = context.store.table("unsettled")
        # Of each key the newest event, before a delete the row that it ended; of history all.
        self._known: SpillTable[Events] = context.store.table("settled")
        # Keys whose rows have moved in this batch, and the keys that they had before.
        self._linked: set[str] = set()
        self._no_ends: dict[str, list[RowChange]] = {}
        self._no_ends_of: Counter[tuple[TopicPartition, int]] = Counter()

    def know_no_ends(self, changes: Sequence[RowChange]) -> None:
        """Learn which records of moves in the batch have ended no row of their key."""
        self._no_ends = {}
        for change in changes:
            self._no_ends.setdefault(change.key, []).append(change)
        self._no_ends_of = Counter((change.at, change.offset) for change in changes)

    def take(self, changes: Sequence[RowChange]) -> None:
        """Keep changes of a batch until it is whole."""
        add_events(self._new, changes)
        for change in changes:
            if change.moved_from is not None:
                self._linked |= {change.key, change.moved_from}

    def erase(self, erased: Erased) -> None:
        """Forget what is known of a key."""
        self._known.remove_where(erased.is_of_any)

    def settle(self) -> Iterator[Settled]:
        """Fill the changes of the batch, key by key; linked keys together."""
        linked, self._linked = self._linked, set()
        if linked:
            yield self._settled(self._new.get(linked), self._known.get(linked))
        for new in self._new.chunks():
            rest = {key: changes for key, changes in new.items() if key not in linked}
            yield self._settled(rest, self._known.get(rest))
        self._new.clear()

    def _settled(self, new: Mapping[str, Events], known: Mapping[str, Events]) -> Settled:
        events: _Lines = {key: [(event, False) for event in old] for key, old in known.items()}
        for key, changes in new.items():
            events.setdefault(key, []).extend((change, True) for change in changes)
        walk = _Walk(self._context, self._is_quarantined, events, self._no_ends)
        lines = {key: walk.remembered(key) for key in new}
        # A record is applied as a whole, or not at all.
        bad = {(record.at, record.offset) for record, _ in walk.settled.bad}
        self._known.put({key: tuple(_without(bad, line)) for key, line in lines.items()})
        whole = _without(bad, walk.settled.changes)
        walk.settled.spared = -sum(self._no_ends_of[place] for place in bad)
        walk.settled.taken_back = len(walk.settled.changes) - len(whole) - walk.settled.spared
        walk.settled.changes = whole
        return walk.settled


def _without(
    places: Collection[tuple[TopicPartition, int]], line: Sequence[RowChange]
) -> list[RowChange]:
    return [change for change in line if (change.at, change.offset) not in places]


class _Walk:
    """Walks the lines of some keys, each as far as somebody asks."""

    def __init__(
        self,
        context: FoldContext,
        is_quarantined: Callable[[Record], bool],
        events: _Lines,
        no_ends: Mapping[str, Sequence[RowChange]],
    ) -> None:
        spec, self._no_ends = context.spec, no_ends
        self._coverage, self._is_quarantined = context.coverage, is_quarantined
        self._is_history = spec.mode == "scd2"
        # Where the declared order stands in a place, behind the epoch.
        self._order = slice(1, 1 + len(spec.sequence_by))
        self._lines = {key: sorted(found, key=self._when) for key, found in events.items()}
        # Of each key: the row that is there before each event so far, and the events as filled.
        self._held: dict[str, list[RowChange | None]] = {key: [None] for key in events}
        self._filled: dict[str, list[RowChange | None]] = {key: [] for key in events}
        self._unseen = {
            key: all(is_new for _, is_new in found) and context.coverage.doubts(None)
            for key, found in events.items()
        }
        # Keys whose lines are being walked.
        self._in_walk: set[str] = set()
        self.settled = Settled()

    def remembered(self, key: str) -> list[RowChange]:
        """Walk the whole line of a key; return what later batches must know of it."""
        self._go(key, len(self._lines[key]))
        line = [event for event in self._filled[key] if event is not None]
        if self._is_history or not line:
            return line
        if not line[-1].is_delete:
            return line[-1:]
        # A delete that has come again has ended the row before the first.
        end = self._moment(line[-1])
        again = takewhile(lambda e: end and e.is_delete and self._moment(e) == end, line[-2::-1])
        first = len(line) - 1 - sum(1 for _ in again)
        return [*line[:first][-1:], line[-1]]

    def _go(self, key: str, until: int) -> RowChange | None:
        """Walk a key's line up to an event; return the row that is there before it."""
        line, held, filled = self._lines[key], self._held[key], self._filled[key]
        is_outer = key not in self._in_walk
        self._in_walk.add(key)
        while len(filled) < until:
            at = len(filled)
            event, is_new = line[at]
            made = self._made(event, at) if is_new and event.left_out else event
            filled.append(made)
            if made is None:
                assert event.record is not None, "whoever leaves columns out has its record"
                self.settled.bad.append((event.record, _NOTHING))
            elif is_new:
                self.settled.changes.append(made)
                self.settled.kept += 0 if made.is_delete else len(event.left_out)
            if made is None or made.left_out:
                held.append(held[-1])
            else:
                held.append(None if made.is_delete else made)
                self._unseen[key] = False
        if is_outer:
            self._in_walk.remove(key)
        return held[until]

    def _made(self, event: RowChange, at: int) -> RowChange | None:
        """Return an update with all its columns; without them when it is stale; else nothing."""
        assert event.row is not None, "only updates leave columns out"
        assert event.record is not None, "whoever leaves columns out has its record"
        line = self._lines[event.key]
        if event.moved_from is None:
            held, is_unseen = self._held[event.key][at], self._unseen[event.key]
        else:
            held, is_unseen = self._before_the_move(event, event.moved_from, event.record)
        source: Row
        if held is not None and held.row is not None:
            source = held.row
        elif event.is_delete:
            source = event.row
        elif not self._is_history and any(not is_new for _, is_new in line[at:]):
            return event
        elif is_unseen and not self._is_quarantined(event.record):
            source = (UNSEEN,) * len(event.row)
        else:
            return None
        row = tuple(source[i] if i in event.left_out else v for i, v in enumerate(event.row))
        return event._replace(row=row, left_out=(), moved_from=None, record=None)

    def _before_the_move(
        self, move: RowChange, old: str, record: Record
    ) -> tuple[RowChange | None, bool]:
        """Return the row that the old key had before its delete, and whether it may be unseen."""
        if old not in self._lines:
            return None, self._coverage.doubts(None)
        line = [event for event, _ in self._lines[old]]
        before = [at for at, event in enumerate(line) if self._may_precede(event, move)]
        ends = [at for at in before if line[at].is_delete]
        is_open = not ends and self._order.stop > 1
        if is_open or self._is_unended(old, move, [line[at] for at in ends]):
            # Updates before it, of a partition that is read later, may not have come either.
            return None, self._unseen[old]
        if ends:
            # An event that comes a second time has its delete beside the first one's.
            newest = max(self._moment(line[at]) for at in ends)
            until = next(at for at in ends if self._moment(line[at]) == newest)
            until = until if newest else ends[-1]
        else:
            until = before[-1] + 1 if before else 0
        if old in self._in_walk and until > len(self._filled[old]):
            # Nothing orders moves in a circle that several partitions have.
            return None, True
        held = self._go(old, until)
        if not ends:
            return held, self._unseen[old]
        # The engine finds a row of an earlier batch only while the table's history reaches it.
        is_earlier = held is not None and held.seq < move.seq and not self._is_history
        if is_earlier and self._is_quarantined(record):
            return None, False
        return held, self._unseen[old]

    def _is_unended(self, old: str, move: RowChange, ends: Sequence[RowChange]) -> bool:
        """Tell whether the newest delete of a key before a move has taken no row."""
        no_ends = [each for each in self._no_ends.get(old, ()) if self._may_precede(each, move)]
        if not no_ends:
            return False
        newest = max(map(self._moment, (*ends, *no_ends)))
        at_last = [e.place for e in (*ends, *no_ends) if self._moment(e) == newest]
        last = min(at_last) if newest else max(at_last)
        return any(each.place == last for each in no_ends)

    def _may_precede(self, event: RowChange, move: RowChange) -> bool:
        if self._order.stop > 1:
            return self._moment(event) <= self._moment(move)
        return event.at != move.at or event.offset <= move.offset

    def _moment(self, event: RowChange) -> Place:
        """Return the part of a place that the declared order gives."""
        return event.place[self._order]

    def _when(self, event: tuple[RowChange, bool]) -> tuple[Place, bool]:
        change, is_new = event
        return change.when if self._is_history else change.place, is_new
