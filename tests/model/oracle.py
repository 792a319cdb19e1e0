"""What must hold after every step: the second opinion of the model, folded on its own.

It reads the commits of the table one by one as they land, and shares no planning with the product:
contiguity, the fold of the records, the quarantine and the verdicts are worked out again here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from oncelake.ingestion.tables.commit_log import Commit
from oncelake.ingestion.tables.commit_metadata import REWOUND_TO, CommitMetadata
from tests.model.cluster import TOPIC, Partition, Record
from tests.model.evolution import Shape
from tests.model.lake import Rows, Table
from tests.model.world import World


class ViolationError(AssertionError):
    """A promise was broken; the message is the evidence."""


class Change(NamedTuple):
    """The newest that is known of a key."""

    place: tuple[int, int, int, int]
    is_delete: bool
    shape: Shape


class Bad(NamedTuple):
    """A record in quarantine: the batch that read it, and its place."""

    seq: int
    partition: int
    offset: int


@dataclass(slots=True)
class Contents:
    """What a stream's tables must hold after a commit.

    Attributes:
        next: Next offset of each partition.
        read: What was read at each offset of each partition.
        newest: The newest of every key.
        bad: Every record in quarantine, and the redrive that has sent it in.
    """

    next: dict[int, int] = field(default_factory=dict)
    read: dict[tuple[int, int], Record | None] = field(default_factory=dict)
    newest: dict[int, Change] = field(default_factory=dict)
    bad: dict[Bad, int | None] = field(default_factory=dict)

    def copy(self) -> Contents:
        """Keep what must be there now."""
        return Contents(dict(self.next), dict(self.read), dict(self.newest), dict(self.bad))


class Oracle:
    """Follows one world.

    Attributes:
        due: What must be there, by the commits seen so far.
        then: What had to be there after each seq.
        undone: Seqs that a rewind has undone.
        accepted: Seqs that a person has accepted.
        unproven: What a note said that nobody can know: epoch, partition, offset and record.
    """

    def __init__(self, world: World) -> None:
        """Follow a world from its beginning."""
        self.world = world
        self.seen = 0
        self.seq = -1
        self.epoch = 1
        self.metadata: dict[int, CommitMetadata] = {}
        self.due = Contents()
        self.then: dict[int, Contents] = {}
        self.undone: set[int] = set()
        self.accepted: set[int] = set()
        self.unproven: set[tuple[int, int, int, Record | None]] = set()
        # Whether the newest commit was in the ledger, which may be lost again.
        self._had_row = False

    @property
    def next(self) -> dict[int, int]:
        """Next offset of each partition."""
        return self.due.next

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
        if self.metadata:
            self._check_ledger()
            self._check_quarantine()
            self._check_tombstones()
            self._check_files()

    def _follow_columns(self, table: Table, commit: Commit) -> None:
        """No column goes, and none gets narrower, but where a rewind brings back those of then."""
        metadata, now = commit.metadata, Shape.of(table.columns[commit.version])
        before = Shape.of(table.columns[max(0, commit.version - 1)])
        if metadata is not None and metadata.kind == "rewind":
            before = Shape.of(self.metadata[metadata.counts[REWOUND_TO]].columns)
        expect(now.holds(before), "version {}: {} became {}", commit.version, before, now)
        if metadata is not None and metadata.columns:
            said = Shape.of(metadata.columns)
            expect(now.holds(said), "seq {} says {}, it has {}", metadata.seq, said, now)

    def _follow(self, table: Table, commit: Commit, rows: Rows) -> None:
        metadata = commit.metadata
        self._follow_columns(table, commit)
        if metadata is None:
            expect(rows == table.states[max(0, commit.version - 1)], "somebody changed rows")
            return
        expect(TOPIC in metadata.identity.topic_ids, "seq {} does not say its topic", metadata.seq)
        expect(metadata.seq == self.seq + 1, "seq {} follows seq {}", metadata.seq, self.seq)
        self.seq, self._had_row = metadata.seq, False
        self.world.happens(f"commit: {metadata.kind}")
        self.metadata[metadata.seq] = metadata
        if metadata.kind == "ingest":
            self._follow_batch(metadata)
        elif metadata.kind == "accept":
            self._follow_word(metadata)
        elif metadata.kind == "redrive":
            self._follow_redrive(metadata)
        elif metadata.kind == "rewind":
            self._follow_rewind(metadata)
        else:
            self.due.next = {at.partition: offset for at, offset in metadata.next.items()}
        self.then[metadata.seq] = self.due.copy()
        said = {at.partition: offset for at, offset in metadata.next.items() if offset}
        known = {partition: offset for partition, offset in self.next.items() if offset}
        expect(said == known, "seq {} says {}, its ranges lead to {}", metadata.seq, said, known)
        self._check_rows(metadata.seq, rows)

    def _follow_batch(self, metadata: CommitMetadata) -> None:
        life = self.world.cluster.life(metadata.identity.topic_ids[TOPIC])
        if not self.world.zombies:
            self._check_that_red_is_accepted(metadata)
        expect(metadata.epoch == self.epoch, "seq {} is of epoch {}", metadata.seq, metadata.epoch)
        for counted in metadata.ranges:
            part = counted.range
            known = self.next.get(part.partition, 0)
            held = self._held(metadata, life, part.partition)
            # Of a partition where nothing was read, the log may be shorter by now.
            is_there = not len(part) or part.end <= len(held)
            expect(is_there, "seq {}: {} was never there", metadata.seq, part)
            expect(
                part.start == known, "seq {}: {} does not begin at {}", metadata.seq, part, known
            )
            self.next[part.partition] = part.end
            unlike = self._unlike(part.partition, held, life[part.partition].first)
            lost = [
                each for each in unlike if (self.epoch, part.partition, *each) not in self.unproven
            ]
            # Behind a last record that retention has taken, only the note can say that none knows.
            is_told = metadata.counts.get("log_unproven") and not any(each for _, each in lost)
            is_fair = not len(part) or not lost or is_told
            expect(is_fair, "seq {} reads on behind {}", metadata.seq, lost)
            # What a note has told of once, no later one can find out.
            self.unproven |= {(self.epoch, part.partition, *each) for each in lost if len(part)}
            self._fold(metadata, part.partition, held, range(part.start, part.end))

    def _unlike(
        self, number: int, held: Sequence[Record | None], first: int
    ) -> list[tuple[int, Record | None]]:
        """Return what was read of a partition, and is not there, although retention left it.

        What was empty as far as the first record that was read, nothing can be known by.
        """
        read = [(at[1], record) for at, record in self.due.read.items() if at[0] == number]
        begun = min((offset for offset, record in read if record), default=len(held))
        return [
            (offset, record)
            for offset, record in read
            if offset >= max(first, begun) and record not in held[offset : offset + 1]
        ]

    @property
    def is_cut(self) -> bool:
        """Tell whether the topic has lost what was read of it, wherever retention is by now.

        Of what was read as a gap, the end alone may show it: a transaction is open below.
        """
        return any(
            self._unlike(number, part.slots, 0) or part.stable_end < self.next.get(number, 0)
            for number, part in enumerate(self.world.cluster.partitions)
        )

    def _held(
        self, metadata: CommitMetadata, life: Sequence[Partition], number: int
    ) -> Sequence[Record | None]:
        """Return what a partition held when a batch read it."""
        if number >= len(life):
            return ()
        lost = self.world.read_in[metadata.seq].get(number, 0)
        return [*life[number].before, life[number].slots][lost]

    def _check_that_red_is_accepted(self, metadata: CommitMetadata) -> None:
        """Red stops the next run; only a zombie can tell too late what it spoiled."""
        decided = self.accepted | self.undone
        for (_, seq), row in self.world.ledger.items():
            is_open = row.is_red and seq < metadata.seq and seq not in decided
            expect(not is_open, "seq {} was committed, though seq {} is red", metadata.seq, seq)

    def _fold(
        self,
        metadata: CommitMetadata,
        partition: int,
        held: Sequence[Record | None],
        offsets: Iterable[int],
    ) -> None:
        for offset in offsets:
            record = self.due.read[partition, offset] = held[offset]
            if record is None:
                continue
            if (metadata.seq, partition, offset) in self.world.skipped:
                # Retention took it before the second client could be asked: the gap says so.
                told = metadata.counts.get("gaps_unproven", 0)
                expect(
                    told > 0, "seq {}: {}-{} was skipped, unsaid", metadata.seq, partition, offset
                )
                continue
            if record.kind == "bad":
                self.due.bad[Bad(metadata.seq, partition, offset)] = None
            elif record.kind != "ignored":
                self._fold_one(metadata, record, (metadata.epoch, record.at, partition, offset))

    def _fold_one(
        self, metadata: CommitMetadata, record: Record, place: tuple[int, int, int, int]
    ) -> None:
        if self.world.spoiled.get(metadata.seq) == record.key:
            return
        known = self.due.newest.get(record.key)
        if known is None or place > known.place:
            self.due.newest[record.key] = Change(place, record.kind == "delete", record.shape)

    def _follow_redrive(self, metadata: CommitMetadata) -> None:
        """Each record that waits is sent in, once, in one commit an epoch."""
        epoch, sent = self.world.applied[metadata.seq]
        waiting = {
            bad[1:]: bad
            for bad, mark in self.due.bad.items()
            if mark is None and self.metadata[bad.seq].epoch == epoch
        }
        expect(sent == waiting.keys(), "seq {} sends in {}, not {}", metadata.seq, sent, waiting)
        topic = self.metadata[next(iter(waiting.values())).seq].identity.topic_ids[TOPIC]
        for (partition, offset), bad in waiting.items():
            self.due.bad[bad] = metadata.seq
            life = self.world.cluster.life(topic)
            record = self._held(self.metadata[bad.seq], life, partition)[offset]
            assert record is not None
            self._fold_one(metadata, record, (epoch, record.at, partition, offset))

    def _follow_rewind(self, metadata: CommitMetadata) -> None:
        """All is as it was then, and what came since does not count."""
        to = metadata.counts[REWOUND_TO]
        self.due = self.then[to].copy()
        self.undone |= set(range(to + 1, metadata.seq))

    def _follow_word(self, metadata: CommitMetadata) -> None:
        self.accepted |= set(metadata.accepts)
        if metadata.epoch != self.epoch:
            expect(
                metadata.epoch == self.epoch + 1, "epoch {} follows {}", metadata.epoch, self.epoch
            )
            self.epoch = metadata.epoch
            self.due.next = {at.partition: offset for at, offset in metadata.next.items()}
            self.due.read = {}
            return
        life = self.world.cluster.life(metadata.identity.topic_ids[TOPIC])
        for counted in metadata.ranges:
            part = counted.range
            known = self.next.get(part.partition, 0)
            expect(part.start == known, "{} was given up, the table stood at {}", part, known)
            if not len(part):
                # What was read of a log that was cut need not be there any more.
                read = self.due.read.items()
                self.due.read = {at: each for at, each in read if at[0] != part.partition}
                continue
            first = life[part.partition].first
            expect(part.end <= first, "{} was given up, Kafka holds it from {} on", part, first)
            self.next[part.partition] = part.end

    def _check_rows(self, seq: int, rows: Rows) -> None:
        due = self.due.newest.items()
        expected = {key: (each.place, each.shape) for key, each in due if not each.is_delete}
        if not self.world.follows:
            expected = {key: (place, Shape()) for key, (place, _) in expected.items()}
        found = {key: (row.place, row.shape) for key, row in rows.items()}
        expect(found == expected, "after seq {} the table holds {}, not {}", seq, found, expected)

    def _check_ledger(self) -> None:
        for (_, seq), row in self.world.ledger.items():
            metadata = self.metadata.get(seq)
            expect(metadata is not None, "the ledger has seq {}, which was never committed", seq)
            assert metadata is not None
            expect(row.ranges == metadata.ranges, "the ledger's seq {} has ranges of its own", seq)
            expect(row.run_id == metadata.run_id, "the ledger's seq {} is of another run", seq)
            spoiled = seq in self.world.spoiled
            expect(
                not (row.balanced and spoiled),
                "seq {} is spoiled, and the ledger calls it balanced",
                seq,
            )
            honest = row.balanced or spoiled or row.kind == "accept"
            expect(honest, "seq {} is sound, and red: {}", seq, row.problems)

    def _check_quarantine(self) -> None:
        """Whoever reads the table as it is meets what commits say, all but the newest at least."""
        side, newest = self.world.paths.quarantine, self.metadata[self.seq]
        before = self.then[self.seq - 1].bad if self.seq - 1 in self.then else {}
        rows = Counter(Bad(row.seq, *row.content[:2]) for row in side.rows)
        twice = [bad for bad, n in rows.items() if n > 1 and bad.seq not in self.world.spoiled]
        expect(not twice, "{} stand in the quarantine twice", twice)
        found = {Bad(row.seq, *row.content[:2]): row.mark for row in side.rows}
        is_recorded = ("table", self.seq) in self.world.ledger or self._had_row
        self._had_row = is_recorded
        states = [self.due.bad] if is_recorded else [self.due.bad, before]
        if newest.kind == "rewind" and not is_recorded:
            # It removes rows, and then marks.
            rowless = {bad: mark for bad, mark in before.items() if bad in self.due.bad}
            states.append(rowless)
        wrong = [self._unlike_quarantine(found, due) for due in states]
        expect(not all(wrong), "after seq {} the quarantine differs by {}", self.seq, wrong[0])

    def _unlike_quarantine(
        self, found: Mapping[Bad, int | None], due: Mapping[Bad, int | None]
    ) -> list[tuple[Bad, object, object]]:
        both = [
            (bad, found.get(bad, "no"), due.get(bad, "no")) for bad in found.keys() | due.keys()
        ]
        return [
            each for each in both if each[1] != each[2] and each[0].seq not in self.world.spoiled
        ]

    def _check_tombstones(self) -> None:
        """No delete is remembered that was not committed, or that a rewind has undone."""
        open_to = self.metadata[self.seq].kind == "rewind" and not self._had_row
        for row in self.world.paths.tombstones.rows:
            is_there = row.seq in self.metadata and (open_to or row.seq not in self.undone)
            expect(is_there, "{} is remembered, which no commit says", row)

    def _check_files(self) -> None:
        """What the newest commit names is there until it is projected."""
        if self._had_row:
            return
        for name, file in self.metadata[self.seq].side.items():
            side = (
                self.world.paths.tombstones if name == "tombstones" else self.world.paths.quarantine
            )
            expect(file.path in side.files, "{}, which seq {} names, is gone", file, self.seq)


def expect(holds: bool, evidence: str, *found: object) -> None:
    """Raise the evidence, with what was found put into it, unless a promise holds."""
    if not holds:
        raise ViolationError(evidence.format(*found))
