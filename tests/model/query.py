"""Spark's query in memory: it plans batches and hands them over, once or more often."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from oncelake.ingestion.kafka.offsets import Offsets, Range, TopicPartition
from tests.model.cluster import TOPIC
from tests.model.frames import Frame
from tests.model.process import CallFailedError, step

if TYPE_CHECKING:
    from tests.model.world import World


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
        """Return the ranges of a batch, as ``ingestion.pipeline.checkpoint.Checkpoint`` does."""
        before = self.ends[batch_id - 1] if batch_id else self.starting
        return before.ranges_to(self.ends[batch_id])


@dataclass(slots=True)
class Stream:
    """The streaming frame: where it begins."""

    world: World
    starting: Offsets


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
