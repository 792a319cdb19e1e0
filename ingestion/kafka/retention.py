"""Retention headroom: how long until Kafka may delete the next unread record of a partition.

    cleanup.policy   what it looks at              when it may delete a record, at the earliest
    delete           age, by retention.ms          at the record's timestamp + retention.ms
    delete           size, by retention.bytes      when so much was written from it on: an estimate
    compact          age, by delete.retention.ms   a delete: at its timestamp + delete.retention.ms

Kafka deletes whole segments, and a segment only when its newest record is old enough, or when the
log without it is still as large as it may be. So by its timestamp, which its producer may have set,
no record goes earlier; by size it does when more is written from now on than was written of late.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from ingestion.errors import IngestionError
from ingestion.kafka.admin import Kafka
from ingestion.kafka.offsets import Offsets, TopicPartition
from ingestion.kafka.transactions import java_admin
from ingestion.settings import Settings

Limit = Literal["time", "size", "compaction"]
Level = Literal["ok", "low", "critical", "lost"]
# Seconds that are left, and those that a limit grants to any record.
_Left = tuple[float, float]

# Of what a limit grants a record, where the stream's file does not say when to warn.
WARN_SHARE: Final = 0.25
# Of what is warned of: less is critical.
CRITICAL_SHARE: Final = 0.25
# Writing is no slower than in so long a time, or than since the unread record was written.
RATE_WINDOW: Final = dt.timedelta(minutes=10)


@dataclass(frozen=True, kw_only=True, slots=True)
class Policy:
    """What Kafka deletes of a topic, by its configuration; ``None`` is no limit."""

    age_seconds: float | None = None
    size_bytes: int | None = None
    tombstone_seconds: float | None = None

    @classmethod
    def of(cls, config: Mapping[str, str]) -> Policy:
        """Read it from a topic's configuration."""
        policies = {word.strip() for word in config["cleanup.policy"].split(",")}
        age, size = int(config["retention.ms"]), int(config["retention.bytes"])
        deletes = "delete" in policies
        return cls(
            age_seconds=age / 1000 if deletes and age >= 0 else None,
            size_bytes=size if deletes and size >= 0 else None,
            tombstone_seconds=(
                int(config["delete.retention.ms"]) / 1000 if "compact" in policies else None
            ),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Unread:
    """What was measured of a partition with unread offsets.

    Attributes:
        offset: The next one that the table has not reached.
        earliest: The first that Kafka still has.
        end: Where the log ends, what an open transaction withholds included.
        written: When the first unread record was, by its timestamp; ``None`` where only offsets
            without a record are unread, or the record has no timestamp.
        size_bytes: The log's size, from ``earliest`` to ``end``; ``None`` where nobody asked.
        recent: How many offsets were written in the last ``RATE_WINDOW``.
    """

    at: TopicPartition
    offset: int
    earliest: int
    end: int
    written: dt.datetime | None
    size_bytes: int | None = None
    recent: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Headroom:
    """How long until Kafka may delete the next unread record of a partition.

    Attributes:
        limit: What deletes it; ``size`` is an estimate.
        seconds: 0 when it may be deleted at any moment, or is.
        of_seconds: How long the limit grants to any record.
        lost: Unread offsets that are gone already.
    """

    at: TopicPartition
    offset: int
    limit: Limit
    seconds: float
    of_seconds: float
    lost: int = 0
    written: dt.datetime | None = None

    def level(self, warning_seconds: float | None = None) -> Level:
        """Judge it: low below what is declared, else below a quarter of what the limit grants."""
        threshold = self.of_seconds * WARN_SHARE if warning_seconds is None else warning_seconds
        if self.lost:
            return "lost"
        if self.seconds < threshold * CRITICAL_SHARE:
            return "critical"
        return "low" if self.seconds < threshold else "ok"

    def __str__(self) -> str:
        if self.lost:
            return f"{self.at}: Kafka has deleted {self.lost:,} unread offsets from {self.offset}"
        if not self.seconds:
            return f"{self.at}: Kafka may delete unread offset {self.offset} at any moment"
        about = "in about" if self.limit == "size" else "in"
        what = "drop a delete at" if self.limit == "compaction" else "delete"
        by = {"time": "retention.ms", "size": "retention.bytes", "compaction": "compaction"}
        return (
            f"{self.at}: Kafka may {what} unread offset {self.offset} {about} "
            f"{duration(self.seconds)} ({by[self.limit]})"
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """What was measured of a stream's unread records.

    Attributes:
        headrooms: The headroom of each partition where something unread can go, least first.
        oldest: When the oldest unread record was written, by its timestamp.
        unknown: Why a limit of size is left out, if it is.
    """

    headrooms: tuple[Headroom, ...] = ()
    oldest: dt.datetime | None = None
    unknown: str = ""


def headroom_of(unread: Unread, policy: Policy, now: dt.datetime) -> Headroom | None:
    """Return the least headroom that any limit leaves; ``None`` when nothing unread can be lost."""
    if unread.offset < unread.earliest:
        lost = unread.earliest - unread.offset
        return Headroom(
            at=unread.at, offset=unread.offset, limit="time", seconds=0, of_seconds=0, lost=lost
        )
    if unread.written is None:
        return None
    age = (now - unread.written).total_seconds()
    limits: dict[Limit, _Left | None] = {
        "time": _by_age(policy.age_seconds, age),
        "compaction": _by_age(policy.tombstone_seconds, age),
        "size": _by_size(unread, policy.size_bytes, age),
    }
    found = [
        Headroom(
            at=unread.at,
            offset=unread.offset,
            limit=limit,
            seconds=max(0.0, left[0]),
            of_seconds=left[1],
            written=unread.written,
        )
        for limit, left in limits.items()
        if left
    ]
    return min(found, key=lambda each: each.seconds, default=None)


def _by_age(limit: float | None, age: float) -> _Left | None:
    return None if limit is None else (limit - age, limit)


def _by_size(unread: Unread, limit: int | None, age: float) -> _Left | None:
    """Estimate when ``limit`` bytes have been written from the unread offset on."""
    held = unread.end - unread.earliest
    if limit is None or not unread.size_bytes or not held:
        return None
    per_offset = unread.size_bytes / held
    behind = unread.end - unread.offset
    rate = max(behind / max(age, 1.0), unread.recent / RATE_WINDOW.total_seconds()) * per_offset
    return (limit - behind * per_offset) / rate, limit / rate


def read_headroom(reached: Offsets, kafka: Kafka, settings: Settings) -> Measured:
    """Measure the headroom of partitions with unread offsets, the least first.

    Costs five requests, and none but the first where everything is read. Only where a topic is
    limited by size is a small JVM asked, for a second: confluent-kafka cannot tell a log's size.

    Args:
        reached: The next offset to read of each partition.

    Raises:
        DependencyError: Kafka does not answer, or does not let us ask.
    """
    ends = kafka.written_end(reached)
    begin = Offsets({at: offset for at, offset in reached.items() if offset < ends[at]})
    if not begin:
        return Measured()
    configs = kafka.topic_configs({at.topic for at in begin})
    policies = {topic: Policy.of(config) for topic, config in configs.items()}
    earliest = kafka.earliest(begin)
    there = Offsets({at: offset for at, offset in begin.items() if earliest[at] <= offset})
    written = kafka.timestamps_at(there)
    now = dt.datetime.now(dt.UTC)
    limited = [at for at in there if policies[at.topic].size_bytes is not None]
    (sizes, unknown), recent = (
        _sizes(limited, settings),
        kafka.first_since(limited, now - RATE_WINDOW),
    )
    found = (
        headroom_of(
            Unread(
                at=at,
                offset=offset,
                earliest=earliest[at],
                end=ends[at],
                written=written.get(at),
                size_bytes=sizes.get(at),
                recent=ends[at] - recent.get(at, ends[at]),
            ),
            policies[at.topic],
            now,
        )
        for at, offset in begin.items()
    )
    least_first = sorted(filter(None, found), key=lambda each: (-each.lost, each.seconds))
    oldest = min(written.values(), default=None)
    return Measured(headrooms=tuple(least_first), oldest=oldest, unknown=unknown)


def _sizes(
    partitions: list[TopicPartition], settings: Settings
) -> tuple[Mapping[TopicPartition, int], str]:
    """Return the sizes of logs, or why they are unknown: few users may ask brokers for them."""
    if not partitions:
        return {}, ""
    try:
        with java_admin(settings) as admin:
            return admin.log_sizes(partitions), ""
    except IngestionError as error:
        return {}, f"the size of the log, which retention.bytes limits: {error}"


def duration(seconds: float) -> str:
    """Write a duration in its two largest units: ``3 d 4 h``, ``12 min 30 s``."""
    left, parts = int(seconds), []
    for name, size in (("d", 86400), ("h", 3600), ("min", 60), ("s", 1)):
        number, left = divmod(left, size)
        if number:
            parts.append(f"{number} {name}")
    return " ".join(parts[:2]) or "0 s"
