"""Protocols that believe, count or read the wrong offsets."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import oncelake.ingestion.operations.run
import oncelake.ingestion.pipeline.batch
import oncelake.ingestion.recovery.standing
import oncelake.ingestion.recovery.start
from oncelake.ingestion.kafka.offsets import Fit, Offsets, Range
from oncelake.ingestion.pipeline.gaps import Gaps
from oncelake.ingestion.recovery.continuity import Continuity
from tests.model import query
from tests.model.patches import nothing, together


def position_from_the_checkpoint() -> AbstractContextManager[Any]:
    """Spark's checkpoint is believed before the table."""

    def reading(
        _spark: Any, _spec: Any, world: Any, *, starting: Offsets, lag: int
    ) -> query.Stream:
        return query.Stream(world, Offsets({**starting, **(world.checkpoint or {})}))

    return patch.object(oncelake.ingestion.operations.run, "read_stream", reading)


def unknown_partition_starts_at_its_end() -> AbstractContextManager[Any]:
    """What came into a new partition before we saw it is skipped."""
    honest = oncelake.ingestion.recovery.start.offsets_to_read

    def late(stream: Any, position: Any, topics: Any) -> Any:
        ends = stream.kafka.stable_end(topics.partitions)
        return honest(stream, replace(position, next=position.next.with_new(ends)), topics)

    return patch.object(oncelake.ingestion.recovery.start, "offsets_to_read", late)


def topic_id_ignored() -> AbstractContextManager[Any]:
    """A topic that was made again is read on from the old offsets."""
    ask = _ask_only
    return together(
        patch.object(oncelake.ingestion.recovery.start, "refuse_another_topic", ask),
        patch.object(oncelake.ingestion.pipeline.batch, "refuse_another_topic", ask),
    )


def topic_id_asked_only_at_the_start() -> AbstractContextManager[Any]:
    """A topic that is made again during a run goes unnoticed."""
    return patch.object(oncelake.ingestion.pipeline.batch, "refuse_another_topic", _ask_only)


def last_records_not_looked_for() -> AbstractContextManager[Any]:
    """A log that was cut and has grown again is read on from the old offsets."""
    unlooked = lambda *given: Continuity()  # noqa: E731 (one word)
    return patch.object(oncelake.ingestion.recovery.start, "compare_moved", unlooked)


def cuts_looked_for_only_at_the_start() -> AbstractContextManager[Any]:
    """A leader that takes over while a batch is read, and lacks some of it, goes unnoticed."""
    return patch.object(oncelake.ingestion.pipeline.batch, "refuse_cut_meanwhile", nothing)


def end_offset_off_by_one() -> AbstractContextManager[Any]:
    """The position is one short of what was read."""

    def advanced(here: Offsets, ranges: Any) -> Offsets:
        return Offsets({**here, **{r.topic_partition: max(r.start, r.end - 1) for r in ranges}})

    return patch.object(Offsets, "advanced_by", advanced)


def repeated_batches_not_recognised() -> AbstractContextManager[Any]:
    """A batch that comes again is new to the table."""

    def everything_is_new(planned: Any, reached: Offsets) -> Fit:
        return Fit(fresh=tuple(planned), holes=(), overlap=())

    return patch.object(oncelake.ingestion.pipeline.batch, "fit", everything_is_new)


def red_forgotten() -> AbstractContextManager[Any]:
    """A batch that does not balance does not stop the next run."""
    return patch.object(oncelake.ingestion.recovery.standing, "red_batches", lambda paths, rows: ())


def books_not_looked_at() -> AbstractContextManager[Any]:
    """Whatever the counts say, a batch is green."""
    return patch.object(oncelake.ingestion.pipeline.batch, "audit", lambda *_, **__: ())


def gaps_not_proven() -> AbstractContextManager[Any]:
    """A record that Spark passed over counts as a gap."""

    def trusting(engine: Any, planned: Any, tally: Any, **_: Any) -> Gaps:
        held = {(each.partition, each.offset) for each in engine.batch}
        missing = [
            Range(topic=part.topic, partition=part.partition, start=offset, end=offset + 1)
            for part in planned
            for offset in range(part.start, part.end)
            if (part.partition, offset) not in held
        ]
        return Gaps(holes=tuple(missing), proven=True)

    return patch.object(oncelake.ingestion.pipeline.batch, "find_gaps", trusting)


def _ask_only(spec: Any, kafka: Any, identity: Any) -> Any:
    return kafka.topics(spec.name, spec.subscribed)
