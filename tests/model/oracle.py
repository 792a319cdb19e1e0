"""What must hold after every step: the second opinion of the model, folded on its own.

It reads the commits of the table one by one as they land, and shares no planning with the product:
contiguity, the fold of the records, the quarantine and the verdicts are worked out again here.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from ingestion.lake.commit_metadata import Note
from ingestion.lake.table_log import Commit
from tests.model.cluster import TOPIC, Partition, Record
from tests.model.lake import Rows, Table
from tests.model.world import World


class ViolationError(AssertionError):
    """A promise was broken; the message is the evidence."""


class Change(NamedTuple):
    """The newest that is known of a key."""

    place: tuple[int, int, int, int]
    is_delete: bool


class Oracle:
    """Follows one world.

    Attributes:
        next: Next offset of each partition, by the commits seen so far.
        accepted: Seqs that a person has accepted.
    """

    def __init__(self, world: World) -> None:
        """Follow a world from its beginning."""
        self.world = world
        self.seen = 0
        self.seq = -1
        self.epoch = 1
        self.next: dict[int, int] = {}
        self.notes: dict[int, Note] = {}
        self.newest: dict[int, Change] = {}
        self.quarantine: dict[int, list[tuple[int, int]]] = {}
        self.accepted: set[int] = set()

    def look(self) -> None:
        """Check everything that has changed since the last look.

        Raises:
            ViolationError: a promise was broken.
        """
        table = self.world.paths.data.table
        if table is None:
            return
        while self.seen < len(table.commits):
            self._follow(table, table.commits[self.seen], table.states[self.seen])
            self.seen += 1
        self._check_ledger()
        if not self.world.has_lease:
            self._check_quarantine()

    def _follow(self, table: Table, commit: Commit, rows: Rows) -> None:
        note = commit.note
        if note is None:
            expect(rows == table.states[max(0, commit.version - 1)], "somebody changed rows")
            return
        expect(TOPIC in note.identity.topic_ids, "seq {} does not say its topic", note.seq)
        expect(note.seq == self.seq + 1, "seq {} follows seq {}", note.seq, self.seq)
        self.seq = note.seq
        self.notes[note.seq] = note
        if note.kind == "ingest":
            self._follow_batch(note)
        elif note.kind == "accept":
            self._follow_word(note)
        else:
            self.next = {at.partition: offset for at, offset in note.next.items()}
        said = {at.partition: offset for at, offset in note.next.items() if offset}
        known = {partition: offset for partition, offset in self.next.items() if offset}
        expect(said == known, "seq {} says {}, its ranges lead to {}", note.seq, said, known)
        self._check_rows(note.seq, rows)

    def _follow_batch(self, note: Note) -> None:
        life = self.world.cluster.life(note.identity.topic_ids[TOPIC])
        if not self.world.zombies:
            self._check_that_red_is_accepted(note)
        expect(note.epoch == self.epoch, "seq {} is of epoch {}", note.seq, note.epoch)
        self.quarantine[note.seq] = []
        for counted in note.ranges:
            part = counted.range
            known = self.next.get(part.partition, 0)
            held = life[part.partition] if part.partition < len(life) else Partition()
            expect(part.end <= len(held.slots), "seq {}: {} was never there", note.seq, part)
            expect(part.start == known, "seq {}: {} does not begin at {}", note.seq, part, known)
            self.next[part.partition] = part.end
            self._fold(note, part.partition, held, range(part.start, part.end))

    def _check_that_red_is_accepted(self, note: Note) -> None:
        """Red stops the next run; only a zombie can tell too late what it spoiled."""
        for (_, seq), row in self.world.ledger.items():
            is_open = row.is_red and seq < note.seq and seq not in self.accepted
            expect(not is_open, "seq {} was committed, though seq {} is red", note.seq, seq)

    def _fold(self, note: Note, partition: int, held: Partition, offsets: Iterable[int]) -> None:
        for offset in offsets:
            record = held.slots[offset]
            if record is None:
                continue
            if (note.seq, partition, offset) in self.world.skipped:
                # Retention took it before the second client could be asked: the gap says so.
                told = note.counts.get("gaps_unproven", 0)
                expect(told > 0, "seq {}: {}-{} was skipped, unsaid", note.seq, partition, offset)
                continue
            if record.kind == "bad":
                self.quarantine[note.seq].append((partition, offset))
            elif record.kind in ("row", "delete"):
                self._fold_one(note, record, (note.epoch, record.at, partition, offset))

    def _fold_one(self, note: Note, record: Record, place: tuple[int, int, int, int]) -> None:
        if self.world.spoiled.get(note.seq) == record.key:
            return
        known = self.newest.get(record.key)
        if known is None or place > known.place:
            self.newest[record.key] = Change(place, record.kind == "delete")

    def _follow_word(self, note: Note) -> None:
        self.accepted |= set(note.accepts)
        if note.epoch != self.epoch:
            expect(note.epoch == self.epoch + 1, "epoch {} follows {}", note.epoch, self.epoch)
            self.epoch = note.epoch
            self.next = {at.partition: offset for at, offset in note.next.items()}
            return
        life = self.world.cluster.life(note.identity.topic_ids[TOPIC])
        for counted in note.ranges:
            part = counted.range
            known = self.next.get(part.partition, 0)
            expect(part.start == known, "{} was given up, the table stood at {}", part, known)
            first = life[part.partition].first
            expect(part.end <= first, "{} was given up, Kafka holds it from {} on", part, first)
            self.next[part.partition] = part.end

    def _check_rows(self, seq: int, rows: Rows) -> None:
        expected = {key: each.place for key, each in self.newest.items() if not each.is_delete}
        found = {key: row.place for key, row in rows.items()}
        expect(found == expected, "after seq {} the table holds {}, not {}", seq, found, expected)

    def _check_ledger(self) -> None:
        for (_, seq), row in self.world.ledger.items():
            note = self.notes.get(seq)
            expect(note is not None, "the ledger has seq {}, which was never committed", seq)
            assert note is not None
            expect(row.ranges == note.ranges, "the ledger's seq {} has ranges of its own", seq)
            expect(row.run_id == note.run_id, "the ledger's seq {} is of another run", seq)
            spoiled = seq in self.world.spoiled
            told = not row.balanced or bool(row.counts.get("derived"))
            expect(told or not spoiled, "seq {} is spoiled, and the ledger calls it balanced", seq)
            honest = row.balanced or spoiled or row.kind == "accept"
            expect(honest, "seq {} is sound, and red: {}", seq, row.problems)

    def _check_quarantine(self) -> None:
        found = {s: r for s, r in self.world.paths.quarantine.by_seq.items() if s <= self.seq and r}
        expected = {seq: tuple(places) for seq, places in self.quarantine.items() if places}
        for seq in (found.keys() | expected.keys()) - self.world.spoiled.keys():
            is_, due = sorted(found.get(seq, ())), sorted(expected.get(seq, ()))
            expect(is_ == due, "the quarantine holds {} of seq {}, not {}", is_, seq, due)


def expect(holds: bool, evidence: str, *found: object) -> None:
    """Raise the evidence, with what was found put into it, unless a promise holds."""
    if not holds:
        raise ViolationError(evidence.format(*found))
