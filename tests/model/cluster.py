"""A Kafka cluster in memory: one topic with several partitions, and the lives it has had."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from oncelake.ingestion.errors import DependencyError
from oncelake.ingestion.kafka.admin import Topics
from oncelake.ingestion.kafka.offsets import Ends, Offsets, Range, TopicPartition
from tests.model.evolution import Shape
from tests.model.process import step

TOPIC = "t"


class Record(NamedTuple):
    """What an offset holds: a ``row``, a ``delete``, an ``ignored`` tombstone, or a ``bad`` one.

    No two are ``sent`` at the same time. Its columns are those of its schema, of a ``shape``.
    """

    kind: str
    key: int
    at: int
    sent: int = 0
    shape: Shape = Shape()


@dataclass(slots=True)
class Partition:
    """One partition.

    Attributes:
        slots: A record an offset, or ``None`` for a marker or an aborted record.
        first: First offset that retention has left.
        open_from: Offset at which a transaction is open, which read_committed cannot pass.
        leader_epoch: How often it got another leader, or the same that was started again.
        begun: Where each of these epochs began.
        before: What it held when its end was lost, once for each time.
    """

    slots: list[Record | None] = field(default_factory=list)
    first: int = 0
    open_from: int | None = None
    leader_epoch: int = 0
    begun: dict[int, int] = field(default_factory=lambda: {0: 0})
    before: list[list[Record | None]] = field(default_factory=list)

    def change_leader(self) -> None:
        """Begin an epoch."""
        self.leader_epoch += 1
        self.begun[self.leader_epoch] = len(self.slots)

    def lose_end(self, offset: int) -> None:
        """Get a leader whose log ends before an offset."""
        self.before.append(self.slots)
        self.slots, self.open_from = self.slots[:offset], None
        self.begun = {epoch: at for epoch, at in self.begun.items() if at < offset}
        self.change_leader()

    def end_of(self, leader_epoch: int) -> int:
        """Return where an epoch ended, or where the first later one that is known begins."""
        later = [at for epoch, at in self.begun.items() if epoch > leader_epoch]
        return min(later, default=len(self.slots))

    @property
    def stable_end(self) -> int:
        """The last stable offset."""
        return len(self.slots) if self.open_from is None else self.open_from


class FirstRecord(NamedTuple):
    """A record as the product's second client hands it over."""

    place: int
    record: Record

    def offset(self) -> int:
        """Return its offset."""
        return self.place

    def timestamp(self) -> tuple[int, int]:
        """Return when it was sent."""
        return 1, self.record.sent

    def key(self) -> bytes:
        """Return what a digest is made of."""
        return repr(self.record).encode()

    def value(self) -> None:
        """Return nothing more."""

    def headers(self) -> None:
        """Return nothing more."""


class Cluster:
    """Answers what the product asks its second client, and what Spark's source reads."""

    address = "model:9092"

    def __init__(self, partitions: int) -> None:
        """Create the topic."""
        self.id = "c1"
        self.sent = 0
        self.lives: list[list[Partition]] = []
        self.create(partitions)

    def create(self, partitions: int) -> None:
        """Create the topic, again if it was there: its offsets begin at 0, under a new id."""
        self.lives.append([Partition() for _ in range(partitions)])

    @property
    def topic_id(self) -> str:
        """Id of the topic's present life."""
        return str(len(self.lives))

    @property
    def partitions(self) -> list[Partition]:
        """The partitions of the present life."""
        return self.lives[-1]

    def life(self, topic_id: str) -> list[Partition]:
        """Return the partitions of a life, past or present."""
        return self.lives[int(topic_id) - 1]

    def topics(self, stream: str, names: Iterable[str]) -> Topics:
        """Answer as ``ingestion.kafka.admin.Kafka`` does."""
        step("ask for the topic's id")
        return Topics(
            cluster_id=self.id,
            ids={TOPIC: self.topic_id},
            partitions=tuple(TopicPartition(TOPIC, i) for i in range(len(self.partitions))),
        )

    def earliest(self, partitions: Iterable[TopicPartition]) -> Offsets:
        """Answer as ``ingestion.kafka.admin.Kafka`` does."""
        step("ask for the first offsets")
        return Offsets({at: self._partition(at).first for at in partitions})

    def stable_end(self, partitions: Iterable[TopicPartition]) -> Ends:
        """Answer as ``ingestion.kafka.admin.Kafka`` does."""
        step("ask for the ends")
        parts = {at: self._partition(at) for at in partitions}
        return Ends({at: (part.stable_end, part.leader_epoch) for at, part in parts.items()})

    def first_records(
        self, offsets: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, FirstRecord]:
        """Answer as ``ingestion.kafka.admin.Kafka`` does."""
        if offsets:
            step("ask for records again")
        found = {}
        for at, offset in offsets.items():
            part = self._partition(at)
            for place in range(max(offset, part.first), len(part.slots)):
                if (record := part.slots[place]) is not None:
                    found[at] = FirstRecord(place, record)
                    break
        return found

    def truncated(
        self, ends: Mapping[TopicPartition, int], leader_epochs: Mapping[TopicPartition, int]
    ) -> frozenset[TopicPartition]:
        """Answer as ``ingestion.kafka.admin.Kafka`` does."""
        if ends:
            step("ask where epochs ended")
        parts = {at: self._partition(at) for at in ends}
        return frozenset(
            at for at, part in parts.items() if part.end_of(leader_epochs[at]) < ends[at]
        )

    def cluster_id(self) -> str:
        """Answer as ``ingestion.kafka.admin.Kafka`` does."""
        return self.id

    def withheld(self, partitions: Iterable[TopicPartition], **_: object) -> Offsets:
        """Answer as ``ingestion.kafka.admin.Kafka`` does: no transaction here is old."""
        return Offsets()

    def records_in(self, holes: Iterable[Range]) -> Iterator[tuple[TopicPartition, int]]:
        """Answer as ``ingestion.kafka.admin.Kafka`` does."""
        for hole in holes:
            slots = self._partition(hole.topic_partition).slots
            for offset in range(hole.start, min(hole.end, len(slots))):
                if slots[offset] is not None:
                    yield hole.topic_partition, offset

    def _partition(self, at: TopicPartition) -> Partition:
        if at.partition >= len(self.partitions):
            raise DependencyError(f"{at} does not exist")
        return self.partitions[at.partition]
