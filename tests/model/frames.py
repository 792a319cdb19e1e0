"""A batch in memory: the frame that Spark hands over, its one copy, and what is counted of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from oncelake.ingestion.kafka.last_record import digest_of
from oncelake.ingestion.kafka.offsets import Offsets, Range, TopicPartition
from oncelake.ingestion.pipeline.counts import BatchCounts, PartitionCounts
from tests.model.cluster import TOPIC, Record
from tests.model.lake import SideRow, holds
from tests.model.process import CallFailedError

if TYPE_CHECKING:
    from tests.model.engine import ModelEngine
    from tests.model.world import World


class Judged(NamedTuple):
    """A record that was read, and its disposition."""

    partition: int
    offset: int
    record: Record
    disposition: str


@dataclass(slots=True)
class Frame:
    """What foreachBatch hands over: nothing is read before it is materialised."""

    world: World
    planned: tuple[Range, ...]
    reached: Offsets | None = None
    sparkSession: Any = None  # noqa: N815 (Spark's own name)

    def records(self) -> Iterator[Record]:
        """Yield what Kafka holds now of it, as far as it does."""
        partitions = self.world.cluster.partitions
        for part in self.planned:
            if part.partition < len(partitions):
                slots = partitions[part.partition].slots[part.start : part.end]
                yield from filter(None, slots)


@dataclass(slots=True)
class Waiting:
    """What a redrive sends in: the rows of the quarantine that waited when it was read."""

    world: World
    held: tuple[SideRow, ...]
    sparkSession: Any = None  # noqa: N815 (Spark's own name)

    def where(self, condition: str) -> Waiting:
        """Keep the rows of some batches."""
        kept = (each for each in self.held if holds(condition, each.seq))
        return Waiting(self.world, tuple(kept))

    def records(self) -> Iterator[Record]:
        """Yield what is sent in."""
        return (row.record for row in self.rows())

    def rows(self) -> Iterator[Judged]:
        """Judge them by the declaration of now."""
        for each in self.held:
            row = Judged(*each.content)
            yield row._replace(disposition="row") if self.world.is_mended else row


class Copy(list[Judged]):
    """The one materialised copy of a batch."""

    world: World
    is_doubled = False
    skipped: Judged | None = None
    lives: Mapping[int, int] = MappingProxyType({})

    def of(self, *dispositions: str) -> Copy:
        """Select records of some dispositions."""
        found = Copy(each for each in self if each.disposition in dispositions)
        found.world, found.is_doubled = self.world, self.is_doubled
        found.skipped, found.lives = self.skipped, self.lives
        return found


def validate(
    records: Frame | Waiting, _plan: object, reached: Offsets, *_asked: object
) -> Frame | Waiting:
    """Give each record its disposition when it is read."""
    if isinstance(records, Frame):
        records.reached = reached
    return records


def unchanged(records: Frame, *_: object) -> Frame:
    """Explode and transform: a model's record is one row."""
    return records


def fetched(frame: Frame | Waiting) -> Copy:
    """Read what Kafka holds now of the ranges that were planned, or what waits."""
    world, copy = frame.world, Copy()
    copy.world = world
    if isinstance(frame, Waiting):
        copy.extend(frame.rows())
        return copy
    copy.lives = {n: len(each.before) for n, each in enumerate(world.cluster.partitions)}
    for part in frame.planned:
        if not len(part):
            continue
        partitions = world.cluster.partitions
        held = partitions[part.partition] if part.partition < len(partitions) else None
        if held is None or part.start < held.first or part.end > len(held.slots):
            raise CallFailedError("KAFKA_DATA_LOSS")
        reached = (frame.reached or {}).get(part.topic_partition, 0)
        for offset in range(part.start, part.end):
            record = held.slots[offset]
            if record is not None:
                disposition = "overlap" if offset < reached else _DISPOSITIONS[record.kind]
                copy.append(Judged(part.partition, offset, record, disposition))
    if copy and world.takes("record skipped"):
        copy.skipped = copy.pop()
    if copy and world.takes("record doubled"):
        copy.append(copy[-1])
        copy.is_doubled = True
    return copy


_DISPOSITIONS = {"row": "row", "delete": "delete", "ignored": "ignored", "bad": "quarantined"}


def count_records(engine: ModelEngine) -> BatchCounts:
    """Count as ``ingestion.pipeline.counts`` does."""
    dispositions: dict[str, int] = {}
    offsets: dict[int, list[int]] = {}
    overlap: dict[int, int] = {}
    # Records of a partition come in the order of their offsets.
    newest: dict[int, Record] = {}
    for each in engine.batch:
        dispositions[each.disposition] = dispositions.get(each.disposition, 0) + 1
        offsets.setdefault(each.partition, []).append(each.offset)
        newest[each.partition] = each.record
        overlap[each.partition] = overlap.get(each.partition, 0) + (each.disposition == "overlap")
    partitions = {
        TopicPartition(TOPIC, partition): PartitionCounts(
            records=len(found),
            overlap=overlap[partition],
            first=min(found),
            last=max(found),
            offset_sum=sum(found),
            last_ms=newest[partition].sent,
            last_digest=digest_of(repr(newest[partition]).encode(), None, ()),
        )
        for partition, found in offsets.items()
    }
    return BatchCounts(dispositions=dispositions, partitions=partitions, good_bytes=1)


def holes_between(engine: ModelEngine, planned: Sequence[Range], tally: BatchCounts) -> list[Range]:
    """Find missing offsets as ``ingestion.pipeline.gaps`` does."""
    found = []
    for part in planned:
        counted = tally.partitions.get(part.topic_partition)
        if counted is None or counted.fills(part):
            continue
        held = {each.offset for each in engine.batch if each.partition == part.partition}
        found += [
            Range(topic=TOPIC, partition=part.partition, start=offset, end=offset + 1)
            for offset in range(part.start, part.end)
            if offset not in held
        ]
    return found
