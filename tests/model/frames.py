"""A batch in memory: the frame that Spark hands over, its one copy, and what is counted of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from ingestion.declaration.spec import StreamSpec
from ingestion.kafka.offsets import Offsets, Range, TopicPartition
from ingestion.pipeline.counts import BatchCounts, PartitionCounts
from ingestion.sinks.sink import Good
from tests.model.cluster import TOPIC, Record
from tests.model.process import CallFailedError, step

if TYPE_CHECKING:
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


class Copy(list[Judged]):
    """The one materialised copy of a batch."""

    sparkSession: Any = None  # noqa: N815 (Spark's own name)
    world: World
    is_doubled = False
    skipped: Judged | None = None

    def where(self, condition: str) -> Copy:
        """Select the quarantined; the product asks for nothing else by text."""
        assert condition == "_disposition = 'quarantined'", condition
        return self.of("quarantined")

    def of(self, *dispositions: str) -> Copy:
        """Select records of some dispositions."""
        found = Copy(each for each in self if each.disposition in dispositions)
        found.world, found.is_doubled = self.world, self.is_doubled
        found.skipped = self.skipped
        return found


def judge(
    records: Frame,
    _spec: object,
    _schema: object,
    reached: Offsets,
    *,
    settings: object,
    materialize: object,
) -> Frame:
    """Give each record its disposition when it is read."""
    records.reached = reached
    return records


@contextmanager
def holding() -> Iterator[Callable[[Frame], Copy]]:
    """Read Kafka once."""
    yield _read


def _read(judged: Frame) -> Copy:
    step("fetch")
    return _fetched(judged)


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
                disposition = "overlap" if offset < reached else _FATES[record.kind]
                copy.append(Judged(part.partition, offset, record, disposition))
    if copy and world.takes("record skipped"):
        copy.skipped = copy.pop()
    if copy and world.takes("record doubled"):
        copy.append(copy[-1])
        copy.is_doubled = True
    return copy


_FATES = {"row": "row", "delete": "delete", "ignored": "ignored", "bad": "quarantined"}


def count_records(copy: Copy) -> BatchCounts:
    """Count as ``ingestion.pipeline.counts`` does."""
    dispositions: dict[str, int] = {}
    offsets: dict[int, list[int]] = {}
    overlap: dict[int, int] = {}
    for each in copy:
        dispositions[each.disposition] = dispositions.get(each.disposition, 0) + 1
        offsets.setdefault(each.partition, []).append(each.offset)
        overlap[each.partition] = overlap.get(each.partition, 0) + (each.disposition == "overlap")
    partitions = {
        TopicPartition(TOPIC, partition): PartitionCounts(
            records=len(found),
            overlap=overlap[partition],
            first=min(found),
            last=max(found),
            offset_sum=sum(found),
        )
        for partition, found in offsets.items()
    }
    return BatchCounts(dispositions=dispositions, partitions=partitions, good_bytes=1)


def holes_between(copy: Copy, planned: Sequence[Range], tally: BatchCounts) -> list[Range]:
    """Find missing offsets as ``ingestion.pipeline.gaps`` does."""
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


def good(copy: Copy, tally: BatchCounts, _: StreamSpec) -> Good:
    """Select what can be applied."""
    return Good(
        records=copy.of("row", "delete"),  # type: ignore[arg-type]
        count=tally.good,
        deletes=tally.dispositions.get("delete", 0),
        size_bytes=1,
    )
