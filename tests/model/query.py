"""Spark's part in memory: the query that plans batches, the frame it hands over, and its counts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from ingestion.offsets import Offsets, Range, TopicPartition
from ingestion.sinks.protocol import Good
from ingestion.tally import PartitionTally, Tally
from tests.model.cluster import TOPIC, Record
from tests.model.process import CallFailedError, step

if TYPE_CHECKING:
    from tests.model.world import World


class Judged(NamedTuple):
    """A record that was read, and its fate."""

    partition: int
    offset: int
    record: Record
    fate: str


class Checkpoint:
    """What the query's offset log says of its batches."""

    def __init__(self, world: World, starting: Offsets) -> None:
        """Begin a generation."""
        self.path = self
        self.name = "1"
        self.world = world
        self.starting = starting
        self.ends: list[Offsets] = []

    def planned(self, batch_id: int) -> tuple[Range, ...]:
        """Return the ranges of a batch, as ``ingestion.checkpoint.Checkpoint`` does."""
        before = self.ends[batch_id - 1] if batch_id else self.starting
        return before.ranges_to(self.ends[batch_id])


@dataclass(slots=True)
class Stream:
    """The streaming frame: where it begins."""

    world: World
    starting: Offsets


@dataclass(slots=True)
class Frame:
    """What foreachBatch hands over: nothing is read before it is materialised."""

    world: World
    planned: tuple[Range, ...]
    reached: Offsets | None = None


class Copy(list[Judged]):
    """The one materialised copy of a batch."""

    sparkSession: Any = None  # noqa: N815 (Spark's own name)
    world: World
    is_doubled = False

    def where(self, condition: str) -> Copy:
        """Select the quarantined; the product asks for nothing else by text."""
        assert condition == "_fate = 'quarantined'", condition
        return self.of("quarantined")

    def of(self, *fates: str) -> Copy:
        """Select records of some fates."""
        found = Copy(each for each in self if each.fate in fates)
        found.world, found.is_doubled = self.world, self.is_doubled
        return found


def drain(
    stream: Stream,
    each_batch: Callable[[Frame, int], None],
    *,
    checkpoint: Checkpoint,
    **_: object,
) -> None:
    """Run a query like ``Trigger.AvailableNow``: the ends are asked for once, then batch by batch.

    A batch whose function returned may come again, and so may an older one: foreachBatch is
    at-least-once, and acknowledgements go astray.
    """
    world = stream.world
    step("start the query")
    at, ends = _frozen(world, stream.starting)
    checkpoint.starting = at
    batch_id = 0
    while at != ends:
        at = _next_ends(at, ends, world.batch_limit)
        checkpoint.ends.append(at)
        world.checkpoint = at
        step("plan the batch")
        each_batch(Frame(world, checkpoint.planned(batch_id)), batch_id)
        for again in (batch_id, batch_id - 1):
            if again >= 0 and world.takes("batch repeated" if again == batch_id else "reordered"):
                each_batch(Frame(world, checkpoint.planned(again)), again)
        batch_id += 1


def _frozen(world: World, starting: Offsets) -> tuple[Offsets, Offsets]:
    """Return starts and ends of every partition; one that is not named begins at its earliest."""
    now = {TopicPartition(TOPIC, i): part for i, part in enumerate(world.cluster.partitions)}
    if not set(starting) <= set(now):
        raise CallFailedError("KAFKA_DATA_LOSS: a partition is gone")
    begin = Offsets({at: starting.get(at, part.first) for at, part in now.items()})
    ends = Offsets({at: part.stable_end for at, part in now.items()})
    if any(ends[at] < begin[at] for at in now):
        raise CallFailedError("KAFKA_DATA_LOSS: PARTITION_OFFSET_CHANGED")
    return begin, ends


def _next_ends(at: Offsets, ends: Offsets, limit: int) -> Offsets:
    return Offsets({part: min(at[part] + limit, end) for part, end in ends.items()})


def judge(records: Frame, _spec: object, _schema: object, reached: Offsets) -> Frame:
    """Give each record its fate when it is read."""
    records.reached = reached
    return records


@contextmanager
def materialised(judged: Frame) -> Iterator[Copy]:
    """Read Kafka once."""
    step("fetch")
    yield _fetched(judged)


def _fetched(frame: Frame) -> Copy:
    world, copy = frame.world, Copy()
    copy.world = world
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
                fate = "overlap" if offset < reached else _FATES[record.kind]
                copy.append(Judged(part.partition, offset, record, fate))
    if copy and world.takes("record skipped"):
        del copy[-1]
    if copy and world.takes("record doubled"):
        copy.append(copy[-1])
        copy.is_doubled = True
    return copy


_FATES = {"row": "row", "delete": "delete", "ignored": "ignored", "bad": "quarantined"}


def count_records(copy: Copy) -> Tally:
    """Count as ``ingestion.tally`` does."""
    fates: dict[str, int] = {}
    offsets: dict[int, list[int]] = {}
    overlap: dict[int, int] = {}
    for each in copy:
        fates[each.fate] = fates.get(each.fate, 0) + 1
        offsets.setdefault(each.partition, []).append(each.offset)
        overlap[each.partition] = overlap.get(each.partition, 0) + (each.fate == "overlap")
    partitions = {
        TopicPartition(TOPIC, partition): PartitionTally(
            records=len(found),
            overlap=overlap[partition],
            first=min(found),
            last=max(found),
            offset_sum=sum(found),
        )
        for partition, found in offsets.items()
    }
    return Tally(fates=fates, partitions=partitions, good_bytes=1)


def holes_between(copy: Copy, planned: Sequence[Range], tally: Tally) -> list[Range]:
    """Find missing offsets as ``ingestion.gaps`` does."""
    found = []
    for part in planned:
        counted = tally.partitions.get(part.topic_partition)
        if counted is None or counted.fills(part):
            continue
        held = {each.offset for each in copy if each.partition == part.partition}
        found += [
            Range(topic=TOPIC, partition=part.partition, start=offset, end=offset + 1)
            for offset in range(part.start, part.end)
            if offset not in held
        ]
    return found


def good(copy: Copy, tally: Tally) -> Good:
    """Select what can be applied."""
    return Good(
        records=copy.of("row", "delete"),  # type: ignore[arg-type]
        count=tally.good,
        deletes=tally.fates.get("delete", 0),
        size_bytes=1,
    )
