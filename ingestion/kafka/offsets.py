"""The algebra of half-open offset ranges; pure, so that it can be tested exhaustively.

The guarantee depends on it: which part of a planned range is new to the table, which part the
table already holds, and whether anything in between is missing.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
    """A range whose start is greater than its end, or negative."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Range:
    """The offsets of one partition that a batch covers, end exclusive.

    Attributes:
        end: First offset not covered; equal to ``start`` if the range is empty.

    Raises:
        InvalidRangeError: ``start`` is greater than ``end``, or negative.
    """

    topic: str
    partition: int
    start: int
    end: int

    def __post_init__(self) -> None:
        if not 0 <= self.start <= self.end:
            raise InvalidRangeError(f"{self.topic}-{self.partition} [{self.start}, {self.end})")

    def __str__(self) -> str:
        """Write it as an interval: ``topic-3 [10, 20)``."""
        return f"{self.topic_partition} [{self.start}, {self.end})"

    def __len__(self) -> int:
        return self.end - self.start

    @property
    def topic_partition(self) -> TopicPartition:
        """The partition of the range."""
        return TopicPartition(self.topic, self.partition)

    def follows(self, earlier: Range) -> bool:
        """Tell whether this range starts exactly where ``earlier`` ended."""
        return self.topic_partition == earlier.topic_partition and self.start == earlier.end

    def from_offset(self, offset: int) -> Range:
        """Return the part of this range from ``offset`` on; an empty part starts at ``offset``."""
        return replace(self, start=max(self.start, offset), end=max(self.end, offset))


class Offsets(Mapping[TopicPartition, int]):
    """The next offset to read of each partition; one that is absent was never read."""

    def __init__(self, positions: Mapping[TopicPartition, int] | None = None) -> None:
        self._positions = {
            TopicPartition(*key): at for key, at in sorted((positions or {}).items())
        }

    def __getitem__(self, key: TopicPartition) -> int:
        return self._positions[key]

    def __iter__(self) -> Iterator[TopicPartition]:
        return iter(self._positions)

    def __len__(self) -> int:
        return len(self._positions)

    def __repr__(self) -> str:
        return f"Offsets({', '.join(f'{key}: {at}' for key, at in self.items())})"

    def with_new(self, others: Mapping[TopicPartition, int]) -> Offsets:
        """Add the unknown partitions, and leave the others unchanged."""
        return Offsets({**others, **self._positions})

    def advanced_by(self, ranges: Iterable[Range]) -> Offsets:
        """Move each partition to the end of its range."""
        return Offsets({**self._positions, **{r.topic_partition: r.end for r in ranges}})

    def ranges_to(self, ends: Mapping[TopicPartition, int]) -> tuple[Range, ...]:
        """Return the range of each partition in ``ends``; an unknown partition starts at 0.

        Raises:
            InvalidRangeError: an end is before the position.
        """
        return tuple(
            Range(topic=at.topic, partition=at.partition, start=self.get(at, 0), end=end)
            for at, end in sorted(ends.items())
        )

    def ranges_below(self, ends: Mapping[TopicPartition, int]) -> tuple[Range, ...]:
        """Return the range up to its end of each partition of ours that is not there yet."""
        return tuple(
            Range(topic=at.topic, partition=at.partition, start=start, end=ends[at])
            for at, start in self.items()
            if start < ends.get(at, 0)
        )

    def lag_to(self, ends: Mapping[TopicPartition, int]) -> int:
        """Count the offsets up to ``ends``; a position beyond its end counts as 0."""
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
            positions = {
                TopicPartition(topic, int(partition)): _whole(at)
                for topic, of_topic in json.loads(text).items()
                for partition, at in of_topic.items()
            }
        except (AttributeError, TypeError) as error:
            problem = f"not a map of topics to partitions to offsets: {text[:200]}"
            raise ValueError(problem) from error
        return cls(positions)


def _whole(at: object) -> int:
    if type(at) is not int:
        raise TypeError("no whole number")
    return at


class Ends(Offsets):
    """The ends of partitions, and the epoch of the leader that reported each; -1 without one."""

    def __init__(self, answers: Mapping[TopicPartition, tuple[int, int | None]]) -> None:
        super().__init__({at: offset for at, (offset, _) in answers.items()})
        self.leader_epochs = {
            at: -1 if epoch is None else epoch for at, (_, epoch) in answers.items()
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class Fit:
    """How the planned ranges of a batch compare with the table's next offsets.

    Attributes:
        fresh: The part of each planned range that the table does not hold yet.
        holes: Offsets between the table's position and the plan's start, which would be skipped.
        overlap: Planned offsets that the table already holds.
    """

    fresh: tuple[Range, ...]
    holes: tuple[Range, ...]
    overlap: tuple[Range, ...]

    @property
    def is_stale(self) -> bool:
        """Tell whether the table already holds the whole plan, so that there is nothing to do."""
        return bool(self.overlap) and not any(len(part) for part in self.fresh)


def fit(planned: Iterable[Range], reached: Offsets) -> Fit:
    """Compare planned ranges with the table's next offsets.

    A partition that the table does not know starts at 0: records before the plan's start would
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


def cut(ranges: Sequence[Range], largest: int) -> Iterator[tuple[Range, ...]]:
    """Divide ranges into batches of about ``largest`` offsets, each with a part of every range.

    Ranges that are shorter than there are batches are spread over them; those that are empty go
    with the first, so that the ledger knows where each partition begins.
    """
    empty = tuple(each for each in ranges if not len(each))
    ranges = [each for each in ranges if len(each)]
    parts = -(-sum(map(len, ranges)) // largest)
    shifts = [at * parts // len(ranges) for at in range(len(ranges))]
    for number in range(parts):
        batch = (
            replace(
                each,
                start=each.start + (len(each) * number + shift) // parts,
                end=each.start + (len(each) * (number + 1) + shift) // parts,
            )
            for each, shift in zip(ranges, shifts, strict=True)
        )
        if part := tuple(each for each in batch if len(each)):
            yield (*empty, *part)
            empty = ()
