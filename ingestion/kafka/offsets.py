"""The algebra of half-open offset ranges: pure, so that it can be tested to death.

Everything the guarantee rests on is decided here: which part of a planned range is new to the
table, which was there already, and whether anything in between is missing.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple


class TopicPartition(NamedTuple):
    """One partition of one topic."""

    topic: str
    partition: int

    def __str__(self) -> str:
        """Write it as Kafka's own tools do: ``topic-3``."""
        return f"{self.topic}-{self.partition}"


class InvalidRangeError(ValueError):
    """A range whose start lies beyond its end, or below zero."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Range:
    """The offsets of one partition that a batch covers, end exclusive.

    Attributes:
        topic: Kafka topic.
        partition: Partition number within the topic.
        start: First offset covered.
        end: First offset not covered; equal to ``start`` when nothing is.

    Raises:
        InvalidRangeError: ``start`` lies beyond ``end``, or below zero.
    """

    topic: str
    partition: int
    start: int
    end: int

    def __post_init__(self) -> None:
        """Refuse what is not a range."""
        if not 0 <= self.start <= self.end:
            raise InvalidRangeError(f"{self.topic}-{self.partition} [{self.start}, {self.end})")

    def __str__(self) -> str:
        """Write it as mathematics does: ``topic-3 [10, 20)``."""
        return f"{self.topic_partition} [{self.start}, {self.end})"

    def __len__(self) -> int:
        """Count the offsets covered."""
        return self.end - self.start

    @property
    def topic_partition(self) -> TopicPartition:
        """The partition that the range lies in."""
        return TopicPartition(self.topic, self.partition)

    def follows(self, earlier: Range) -> bool:
        """Tell whether this range begins exactly where ``earlier`` ended."""
        return self.topic_partition == earlier.topic_partition and self.start == earlier.end

    def from_offset(self, offset: int) -> Range:
        """Return the part of this range at and beyond ``offset``; an empty part lies there."""
        return replace(self, start=max(self.start, offset), end=max(self.end, offset))


class Offsets(Mapping[TopicPartition, int]):
    """The next offset to read of each partition: what a table, or a checkpoint, has reached."""

    def __init__(self, positions: Mapping[TopicPartition, int] | None = None) -> None:
        self._positions = {
            TopicPartition(*key): at for key, at in sorted((positions or {}).items())
        }

    def __getitem__(self, key: TopicPartition) -> int:
        """Return the next offset of a partition."""
        return self._positions[key]

    def __iter__(self) -> Iterator[TopicPartition]:
        """Walk the partitions in order."""
        return iter(self._positions)

    def __len__(self) -> int:
        """Count the partitions."""
        return len(self._positions)

    def __repr__(self) -> str:
        """Write every position, for errors and test failures."""
        return f"Offsets({', '.join(f'{key}: {at}' for key, at in self.items())})"

    def with_new(self, others: Mapping[TopicPartition, int]) -> Offsets:
        """Add the partitions that are not known yet, and leave the others as they are."""
        return Offsets({**others, **self._positions})

    def advanced_by(self, ranges: Iterable[Range]) -> Offsets:
        """Move each partition to the end of its range."""
        return Offsets({**self._positions, **{r.topic_partition: r.end for r in ranges}})

    def ranges_to(self, ends: Mapping[TopicPartition, int]) -> tuple[Range, ...]:
        """Return the range of each partition in ``ends``; one not known here begins at 0.

        Raises:
            InvalidRangeError: an end lies before the position here.
        """
        return tuple(
            Range(topic=at.topic, partition=at.partition, start=self.get(at, 0), end=end)
            for at, end in sorted(ends.items())
        )

    def lag_to(self, ends: Mapping[TopicPartition, int]) -> int:
        """Count the offsets between here and ``ends``; a position beyond its end counts as 0."""
        return sum(max(0, end - self.get(at, 0)) for at, end in ends.items())

    def to_json(self) -> str:
        """Write the form that Spark's Kafka source reads and writes."""
        by_topic: dict[str, dict[str, int]] = {}
        for (topic, partition), at in self.items():
            by_topic.setdefault(topic, {})[str(partition)] = at
        return json.dumps(by_topic)

    @classmethod
    def from_json(cls, text: str) -> Offsets:
        """Read the form that Spark's Kafka source reads and writes.

        Raises:
            ValueError: the text is not of that form.
        """
        try:
            return cls(
                {
                    TopicPartition(topic, int(partition)): int(at)
                    for topic, positions in json.loads(text).items()
                    for partition, at in positions.items()
                }
            )
        except (AttributeError, TypeError) as error:
            raise ValueError(
                f"not a map of topics to partitions to offsets: {text[:200]}"
            ) from error


@dataclass(frozen=True, kw_only=True, slots=True)
class Fit:
    """How the planned ranges of a batch lie against what the table holds.

    Attributes:
        fresh: The part of each planned range that the table does not hold yet.
        holes: Offsets between the table's position and the plan's start: they would be skipped.
        overlap: Offsets planned again that the table holds already.
    """

    fresh: tuple[Range, ...]
    holes: tuple[Range, ...]
    overlap: tuple[Range, ...]

    @property
    def is_stale(self) -> bool:
        """Tell whether the table holds the whole plan already, so that nothing is to be done."""
        return bool(self.overlap) and not any(len(part) for part in self.fresh)


def fit(planned: Iterable[Range], reached: Offsets) -> Fit:
    """Lay planned ranges against the table's next offsets.

    A partition that the table has never seen begins at 0: records before the plan's start would
    be skipped, so they count as a hole.
    """
    planned = tuple(planned)
    before = {r.topic_partition: reached.get(r.topic_partition, 0) for r in planned}
    fresh = tuple(r.from_offset(before[r.topic_partition]) for r in planned)
    holes = (
        replace(r, start=before[r.topic_partition], end=r.start)
        for r in planned
        if r.start > before[r.topic_partition]
    )
    overlap = (
        replace(r, end=min(before[r.topic_partition], r.end))
        for r in planned
        if r.start < before[r.topic_partition] and len(r)
    )
    return Fit(fresh=fresh, holes=tuple(holes), overlap=tuple(overlap))
