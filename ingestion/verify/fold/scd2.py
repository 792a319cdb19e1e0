"""SCD2: every record is a version of its key, valid until the next event of its key.

With ``track`` a record is none where its tracked columns are those of the event before it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import pairwise, zip_longest
from operator import attrgetter

from oncelake.ingestion.declaration.modes import CURRENT, VALID_FROM, VALID_TO
from oncelake.ingestion.verify.decode.coerce import UnprovableError
from oncelake.ingestion.verify.fold.rule import (
    Erased,
    Events,
    FoldContext,
    Recount,
    Rule,
    add_events,
)
from oncelake.ingestion.verify.read.record import (
    SYSTEM_COLUMNS,
    Place,
    Row,
    RowChange,
    ranked,
    text_of,
)
from oncelake.ingestion.verify.read.spill import SpillTable


class HistoryRule(Rule):
    """Remembers every event of each key."""

    def __init__(self, context: FoldContext) -> None:
        super().__init__(context)
        self.columns = (*self.columns, VALID_FROM, VALID_TO, CURRENT)
        spec = context.spec
        names = [column.name for column in spec.columns]
        self._tracked = [names.index(name) for name in spec.track]
        self._tail = len(SYSTEM_COLUMNS) + bool(spec.explode) + (spec.extra_fields == "keep")
        self._new: SpillTable[Events] = context.store.table("new")
        self._events: SpillTable[Events] = context.store.table("events")

    def take(self, changes: Sequence[RowChange], recount: Recount) -> None:
        """Keep the events of a batch, by key."""
        add_events(self._new, changes)

    def newest_of(self, keys: Collection[str]) -> Mapping[str, RowChange]:
        """Return the last event of each key."""
        return {key: events[-1] for key, events in self._events.get(keys).items()}

    def settle(self, recount: Recount) -> None:
        """Give each event of the batch its place among its key's, and its disposition."""
        for new in self._new.chunks():
            known = self._events.get(new)
            for key, events in new.items():
                before = known.get(key, ())
                places = {event.place for event in before}
                added = tuple(event for event in events if event.place not in places)
                if again := len(events) - len(added):
                    recount.dispositions["unchanged"] += again
                known[key] = tuple(sorted((*before, *added), key=attrgetter("when")))
                self._count(before, added, known[key], recount)
            self._events.put(known)
        self._new.clear()

    def erase(self, erased: Erased) -> None:
        """Forget the events of a key."""
        self._events.remove_where(erased.is_of_any)

    def rows(self) -> SpillTable[RowChange]:
        """Return every version, by key and place; without its end where that is unknown."""
        if self._is_partial:
            self.columns = self.columns[:-2]
        for chunk in self._events.chunks():
            versions = (row for events in chunk.values() for row in self._versions(events))
            self._rows.put({f"{row.key} {text_of(row.place)}": row for row in versions})
        return self._rows

    def key_of(self, row: Row) -> str:
        """Return the text of key and place."""
        return f"{self._classifier.key_of(row)} {text_of(self.place_of(row))}"

    def limits(self) -> Sequence[str]:
        """Every column is proven, until Kafka forgets what stood between two versions."""
        if not self._is_partial:
            return ()
        return (
            f"{VALID_TO} and {CURRENT} of versions were not compared: Kafka no longer holds all "
            "the events between them",
        )

    def _count(self, before: Events, new: Events, after: Events, recount: Recount) -> None:
        if self._is_partial and self._tracked:
            raise UnprovableError(
                "with `track` a version can be proven only from its key's first record on, and "
                "Kafka no longer holds all of them"
            )
        ends, ended = dict(_ends(self._shown(before))), dict(_ends(self._shown(after)))
        if not self._is_partial:
            both = ends.keys() & ended.keys()
            recount.extra["closed"] += sum(ends[place] != ended[place] for place in both)
        versions = sum(change.place in ended for change in new)
        recount.extra["versions"] += versions
        if self._tracked:
            untracked = sum(change.row is not None for change in new) - versions
            recount.extra["untracked"] += untracked
            recount.extra["withdrawn"] += len(ends.keys() - ended.keys())
            recount.extra["restored"] += len(ended.keys() - ends.keys()) - versions
        previous = {b.place: a for a, b in pairwise(after)}
        for change in new:
            if change.row is not None:
                disposition = "inserted" if change.place in ended else "unchanged"
                recount.dispositions[disposition] += 1
            elif self._is_partial:
                recount.doubtful += 1
                recount.doubtful_left += change.is_left
            else:
                one_before = previous.get(change.place)
                if one_before is not None and one_before.row is not None:
                    recount.dispositions["deleted"] += 1
                elif change.is_left:
                    recount.counts["exploded"] -= 1
                    recount.extra["left_absent"] += 1
                else:
                    recount.dispositions["deleted_absent"] += 1

    def _versions(self, events: Events) -> Iterable[RowChange]:
        for change, following in _with_next(self._shown(events)):
            if change.row is None:
                continue
            at = len(change.row) - self._tail
            end = _moment(following) if following else None
            valid = (_moment(change), *(() if self._is_partial else (end, following is None)))
            yield change._replace(row=(*change.row[:at], *valid, *change.row[at:]))

    def _shown(self, events: Events) -> Events:
        """Return the events that begin or end a version."""
        pairs = pairwise((None, *events))
        return tuple(each for one, each in pairs if each and self._differs(one, each))

    def _differs(self, one: RowChange | None, other: RowChange) -> bool:
        if not self._tracked or one is None or one.row is None or other.row is None:
            return True
        return any(ranked(one.row[at]) != ranked(other.row[at]) for at in self._tracked)


def _moment(change: RowChange) -> object:
    return change.place[1]


def _with_next(events: Events) -> Iterable[tuple[RowChange, RowChange | None]]:
    return zip_longest(events, events[1:]) if events else ()


def _ends(events: Events) -> Iterable[tuple[Place, object]]:
    """Return when each version ends: the time of the next event, or nothing."""
    for change, following in _with_next(events):
        if change.row is not None:
            yield change.place, (_moment(following),) if following else None
