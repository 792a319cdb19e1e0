"""How far streams are behind, and whether a run is due all the same; no Spark.

One stream alone is judged as its run would: what a run would refuse is refused here. All together
cost two requests to Kafka, which cannot tell a topic that was made again; a run then does.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from ingestion.declaration.spec import StreamSpec
from ingestion.kafka.admin import Kafka
from ingestion.kafka.offsets import Offsets, TopicPartition
from ingestion.lake.paths import StreamPaths
from ingestion.lake.stream import Stream
from ingestion.recovery.position import is_ledger_behind, position_of
from ingestion.recovery.snapshot import TableSnapshot, read_snapshot
from ingestion.recovery.start import offsets_to_read
from ingestion.recovery.topics import refuse_another_topic, resolve_topics
from ingestion.settings import Settings

# Changes with every commit to a stream's table or ledger, and when either is replaced.
LakeState = tuple[tuple[int, int] | None, ...]


def lake_state(stream: str, settings: Settings) -> LakeState:
    """Return what changes whenever somebody commits to a stream's table or ledger."""
    paths = StreamPaths.of(stream, settings)
    return tuple(_state(path / "_delta_log") for path in (paths.data, paths.ledger))


def awaits_run(snapshot: TableSnapshot) -> bool:
    """Tell whether a run is due whatever is unread.

    The first one writes down where the stream begins, before more comes; another one finishes what
    a run left that died behind its commit.
    """
    return snapshot.table is None or snapshot.table.seq is None or is_ledger_behind(snapshot)


def lag_of(
    spec: StreamSpec, settings: Settings, snapshot: TableSnapshot | None = None
) -> dict[str, int]:
    """Count the offsets of each topic that the table has not reached, up to the last stable one.

    Before the first run that is everything Kafka holds. The table is read, unless its snapshot is
    given.

    Raises:
        RefusedError: a run would not go on: with this table, with these topics, or since records
            that it should read or has read are gone.
        DependencyError: Kafka does not answer.
    """
    stream = Stream(spec=spec, settings=settings)
    position = position_of(snapshot or read_snapshot(stream.paths))
    stream = resolve_topics(stream)
    spec, kafka = stream.spec, stream.kafka
    if position is None:
        partitions = kafka.topics(spec.name, spec.subscribed).partitions
        begin, ends = kafka.earliest(partitions), kafka.stable_end(partitions)
    else:
        topics = refuse_another_topic(spec, kafka, position.identity)
        begin, ends = offsets_to_read(spec, position, kafka, topics)
    return {
        topic: begin.lag_to({at: end for at, end in ends.items() if at.topic == topic})
        for topic in spec.subscribed
    }


class LagReader:
    """Counts what streams have not read; a table is read again only when it has changed."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._kafka: Kafka | None = None
        self._known: dict[str, tuple[LakeState, Offsets | None]] = {}

    def read(self, specs: Sequence[StreamSpec]) -> dict[str, int | None]:
        """Count the offsets that each stream has not read; ``None`` when only a run can tell.

        Raises:
            DependencyError: Kafka does not answer.
        """
        kafka, self._kafka = self._kafka or Kafka(self._settings), None
        by_topic: dict[str, list[TopicPartition]] = {}
        for at in kafka.partitions() if specs else ():
            by_topic.setdefault(at.topic, []).append(at)
        topics = {spec.name: _topics_of(spec, by_topic) for spec in specs}
        wanted = {topic for names in topics.values() for topic in names} & by_topic.keys()
        ends = kafka.known_ends(at for topic in wanted for at in by_topic[topic])
        # Kept only now: after a failure the address is looked up again.
        self._kafka = kafka
        return {
            name: self._lag(name, [by_topic.get(topic, []) for topic in of_stream], ends)
            for name, of_stream in topics.items()
        }

    def _lag(self, stream: str, topics: list[list[TopicPartition]], ends: Offsets) -> int | None:
        partitions = [at for topic in topics for at in topic]
        try:
            reached = self._next_of(stream)
        except Exception:  # noqa: BLE001 (a run says what is wrong, in its own words)
            return None
        if reached is None:
            return None
        is_known = topics and all(topics) and all(at in ends for at in partitions)
        if not is_known or any(ends[at] < reached.get(at, 0) for at in partitions):
            return None
        return reached.lag_to({at: ends[at] for at in partitions})

    def _next_of(self, stream: str) -> Offsets | None:
        """Return the next offsets of a table; ``None`` while a run is due whatever is unread."""
        state = lake_state(stream, self._settings)
        known = self._known.get(stream)
        if known is None or known[0] != state:
            snapshot = read_snapshot(StreamPaths.of(stream, self._settings))
            at = position_of(snapshot)
            reached = at.next if at and not awaits_run(snapshot) else None
            known = self._known[stream] = (state, reached)
        return known[1]


def _topics_of(spec: StreamSpec, existing: Mapping[str, object]) -> Iterable[str]:
    if spec.topic_pattern is None:
        return spec.subscribed
    return [topic for topic in existing if re.fullmatch(spec.topic_pattern, topic)]


def _state(folder: Path) -> tuple[int, int] | None:
    try:
        found = folder.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns
