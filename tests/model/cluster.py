"""A Kafka cluster in memory: one topic with several partitions, and the lives it has had."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from ingestion.errors import DependencyError
from ingestion.kafka.admin import Topics
from ingestion.kafka.offsets import Offsets, Range, TopicPartition
from tests.model.process import step

TOPIC = "t"


class Record(NamedTuple):
    """What an offset holds: a ``row``, a ``delete``, an ``ignored`` tombstone, or a ``bad`` one."""

    kind: str
    key: int
    at: int


@dataclass(slots=True)
class Partition:
    """One partition.

    Attributes:
        slots: A record an offset, or ``None`` for a marker or an aborted record.
        first: First offset that retention has left.
        open_from: Offset at which a transaction is open, which read_committed cannot pass.
    """

    slots: list[Record | None] = field(default_factory=list)
    first: int = 0
    open_from: int | None = None

    @property
    def stable_end(self) -> int:
        """The last stable offset."""
        return len(self.slots) if self.open_from is None else self.open_from


class Cluster:
    """Answers what the product asks its second client, and what Spark's source reads."""

    address = "model:9092"

    def __init__(self, partitions: int) -> None:
        """Create the topic."""
        self.id = "c1"
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

    def stable_end(self, partitions: Iterable[TopicPartition]) -> Offsets:
        """Answer as ``ingestion.kafka.admin.Kafka`` does."""
        step("ask for the ends")
        return Offsets({at: self._partition(at).stable_end for at in partitions})

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
