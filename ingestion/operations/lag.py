"""How far streams are behind: two requests to Kafka for all of them, and no Spark."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from ingestion.declaration.spec import StreamSpec
from ingestion.kafka.admin import Kafka
from ingestion.kafka.offsets import Offsets, TopicPartition
from ingestion.lake.paths import StreamPaths
from ingestion.recovery.position import is_ledger_behind, position_of
from ingestion.recovery.snapshot import read_snapshot
from ingestion.settings import Settings

# Changes with every commit to a stream's table or ledger, and when either is replaced.
LakeState = tuple[tuple[int, int] | None, ...]


def lake_state(stream: str, settings: Settings) -> LakeState:
    """Return what changes whenever somebody commits to a stream's table or ledger."""
    paths = StreamPaths.of(stream, settings)
    return tuple(_state(path / "_delta_log") for path in (paths.data, paths.ledger))


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
        """Return the next offsets of a table; ``None`` while a run has to finish its last batch."""
        state = lake_state(stream, self._settings)
        known = self._known.get(stream)
        if known is None or known[0] != state:
            snapshot = read_snapshot(StreamPaths.of(stream, self._settings))
            position = position_of(snapshot)
            reached = position.next if position else Offsets()
            known = self._known[stream] = (state, None if is_ledger_behind(snapshot) else reached)
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
