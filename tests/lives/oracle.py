"""What a stream's tables must hold, followed commit by commit by rules of the harness's own.

A commit of the data table tells only why it was made, and which ranges it read. What became of
their records is decided here, from what was sent.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from deltalake import DeltaTable

from tests.lives.streams import PARTITIONS, Kind, Record
from tests.trials.oracle import Place, Row

# Why a new table's first commits are erasures: those of the table that it replaces.
_INHERITED = "erased before this table was made"

Records = Mapping[Place, Record]
Ledger = dict[int, tuple[str, tuple[tuple[int, int, int], ...]]]


class Deed(NamedTuple):
    """What a command was about, as its commit does not tell it.

    Attributes:
        key: What an erase erases.
        reason: Of which reason a redrive takes records; all when it is empty.
        lenient: Columns that the declaration is lenient about.
        restores: Whether a table of the past may take the place.
    """

    key: str = ""
    reason: str = ""
    lenient: tuple[str, ...] = ()
    restores: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class State:
    """A stream as one of its batches left it.

    Attributes:
        next: Next offset of each partition.
        applied: Records that are in the fold.
        waiting: Records in quarantine, with the reason.
        lost: Records whose rows in quarantine a person has written off.
    """

    next: tuple[int, ...] = (0,) * PARTITIONS
    applied: frozenset[Place] = frozenset()
    waiting: Mapping[Place, str] = field(default_factory=dict)
    lost: frozenset[Place] = frozenset()

    def after_reading(self, places: Iterable[Place], records: Records, deed: Deed) -> State:
        """Return it with these records applied, or waiting."""
        faults = {at: records[at].fault_with(deed.lenient) for at in places}
        bad = {at: fault for at, fault in faults.items() if fault}
        return replace(
            self,
            applied=self.applied | (faults.keys() - bad),
            waiting={**self.waiting, **bad},
            lost=self.lost - faults.keys(),
        )

    def after_redrive(self, dead: set[Place], records: Records, deed: Deed) -> State:
        """Return it with those applied that wait, and are good now."""
        sent = {at for at, why in self.waiting.items() if deed.reason in {"", why}} - dead
        good = {at for at in sent if not records[at].fault_with(deed.lenient)}
        left = {at: why for at, why in self.waiting.items() if at not in good}
        return replace(self, applied=self.applied | good, waiting=left)


@dataclass(kw_only=True)
class Life:
    """A table's life, from the commit that made it.

    Attributes:
        version: The newest version of the table that was followed.
        states: The state after each batch.
        ledger: Kind and ranges of each batch.
        reach: How far each partition was ever read.
        buried: Records that were dead in the table before this one.
        dead: Records of erased keys that had been read by then.
        until: How far each partition had been read by the last erase.
        bare: Records in quarantine without bytes, which no longer wait.
        barrier: The last batch behind which no rewind goes.
        has_forgotten: Whether deletes are forgotten, so that an old record may bring a key back.
        past: Each life of the stream as it was, by the commit that was its newest.
    """

    kind: Kind
    table_id: str = ""
    version: int = -1
    seq: int = 0
    states: dict[int, State] = field(default_factory=lambda: {0: State()})
    ledger: Ledger = field(default_factory=dict)
    reach: tuple[int, ...] = (0,) * PARTITIONS
    buried: frozenset[Place] = frozenset()
    dead: set[Place] = field(default_factory=set)
    until: tuple[int, ...] = (0,) * PARTITIONS
    bare: set[Place] = field(default_factory=set)
    barrier: int = 0
    has_forgotten: bool = False
    past: dict[bytes, Life] = field(default_factory=dict, repr=False)

    @property
    def state(self) -> State:
        """The stream as it is."""
        return self.states[self.seq]

    @property
    def waiting(self) -> Counter[str]:
        """Count what waits, by reason."""
        waits = self.state.waiting.items()
        return Counter(why for at, why in waits if at not in self.bare | self.dead)

    def rows(self, records: Records) -> list[Row]:
        """Fold what was applied."""
        living = [records[at] for at in self.state.applied - self.dead]
        return sorted(self.kind.fold(sorted(living, key=lambda it: it.place)), key=repr)

    def copy(self) -> Life:
        """Return one that goes on apart from it."""
        return replace(
            self,
            states=dict(self.states),
            ledger=dict(self.ledger),
            dead=set(self.dead),
            bare=set(self.bare),
        )

    def take(self, metadata: Mapping[str, Any], records: Records, deed: Deed) -> None:
        """Follow one commit."""
        kind, counts, state = metadata["kind"], metadata["counts"], self.state
        parts = tuple(
            (part["partition"], part["start"], part["end"]) for part in metadata["ranges"]
        )
        places = {
            at for at in records for n, first, end in parts if at[0] == n and first <= at[1] < end
        }
        if kind == "ingest":
            ends = {partition: end for partition, _, end in parts}
            reached = tuple(ends.get(n, offset) for n, offset in enumerate(state.next))
            state = replace(self._read(places, records, deed), next=reached)
        elif kind == "replay":
            state = self._read(state.lost & places, records, deed)
        elif kind == "redrive":
            state = state.after_redrive(self.bare | self.dead, records, deed)
        elif kind == "rewind":
            state = self.states[counts["rewound_to"]]
            self.bare = {at for at in self.bare if at[1] < state.next[at[0]]}
        elif kind == "erase":
            self._erase(metadata, records, deed.key)
        if "quarantine_written_off" in counts:
            state = replace(state, waiting={}, lost=state.lost | state.waiting.keys())
        if "tombstones_written_off" in counts:
            self.has_forgotten = True
        if any(name.endswith("_written_off") for name in counts):
            self.barrier = metadata["seq"]
        self.seq = metadata["seq"]
        self.states[self.seq] = state
        self.reach = tuple(map(max, self.reach, state.next))
        if self.seq:
            self.ledger[self.seq] = (kind, parts)

    def _read(self, places: Iterable[Place], records: Records, deed: Deed) -> State:
        """Apply records, or let them wait: without bytes where a key was erased since."""
        state = self.state.after_reading(places, records, deed)
        fresh = state.waiting.keys() - self.state.waiting.keys()
        self.bare |= {at for at in fresh if at[1] < self.until[at[0]]}
        return state

    def _erase(self, metadata: Mapping[str, Any], records: Records, key: str) -> None:
        """Bury the records of a key, or all that were dead in the table that this one replaces."""
        self.barrier, state = metadata["seq"], self.state
        (read,) = json.loads(metadata["erased"]["until"]).values()
        self.until = tuple(max(at, read.get(str(n), 0)) for n, at in enumerate(self.until))
        if metadata["reason"] == _INHERITED:
            self.dead |= self.buried
        else:
            self.dead |= {at for at in records if self._is_erased(records[at], state, key)}

    def _is_erased(self, record: Record, state: State, key: str) -> bool:
        """Tell whether an erase finds a record: in quarantine by its raw bytes."""
        partition, offset = record.place
        id = record.values["id"] if record.place in state.applied else record.readable_key
        return offset < state.next[partition] and id == key


def follow(life: Life, table: Path, records: Records, deed: Deed) -> Life:
    """Follow a table's commits since the last that was followed; another table is another life."""
    if not DeltaTable.is_deltatable(str(table)):
        return life
    table_id = str(DeltaTable(table).metadata().id)
    if deed.restores or table_id != life.table_id:
        life = _recall(life, table, table_id)
    commits = [file for file in _commits(table) if int(file.stem) > life.version]
    if not commits:
        return life
    life = life.copy()
    for file in commits:
        life.version = int(file.stem)
        metadata = _metadata(file)
        if metadata is not None:
            life.take(metadata, records, deed)
    life.past[commits[-1].read_bytes()] = life
    return life


def _recall(life: Life, table: Path, table_id: str) -> Life:
    """Return the life of a table as its newest commit that is known left it, or a new one."""
    known = (life.past.get(file.read_bytes()) for file in reversed(_commits(table)))
    new = Life(kind=life.kind, table_id=table_id, buried=frozenset(life.dead), past=life.past)
    return next(filter(None, known), new)


def _commits(table: Path) -> list[Path]:
    return [
        file for file in sorted((table / "_delta_log").glob("[0-9]*.json")) if len(file.stem) == 20
    ]


def _metadata(commit: Path) -> dict[str, Any] | None:
    """Read what a commit says of itself; nothing of another writer's."""
    actions = map(json.loads, commit.read_text().splitlines())
    texts = (action.get("commitInfo", {}).get("userMetadata") for action in actions)
    ours = next((text for text in texts if text and '"oncelake"' in text), None)
    return json.loads(ours) if ours else None
