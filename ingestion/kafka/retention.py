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
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, get_args

from oncelake.ingestion.errors import IngestionError, counted
from oncelake.ingestion.kafka.admin import Kafka
from oncelake.ingestion.kafka.offsets import Offsets, TopicPartition
from oncelake.ingestion.kafka.transactions import java_admin
from oncelake.ingestion.settings import Settings

Limit = Literal["time", "size", "compaction"]
Level = Literal["ok", "low", "critical", "lost"]
_LEVELS: Final = get_args(Level)
_SETTINGS: Final[dict[Limit, str]] = {
    "time": "retention.ms",
    "size": "retention.bytes",
    "compaction": "delete.retention.ms",
}
# What an offset takes, by partition, or why that is unknown.
OffsetSizes = tuple[Mapping[TopicPartition, float], str]
# Seconds that are left, and those that a limit grants to any record.
_Left = tuple[float, float]

# Of what a limit grants a record, where the stream's file does not say when to warn.
WARN_SHARE: Final = 0.25
# Of what is warned of: less is critical.
CRITICAL_SHARE: Final = 0.25
# Writing is no slower than in so long a time, or than since the unread record was written.
RATE_WINDOW: Final = dt.timedelta(minutes=10)
# What an offset takes changes little, and finding it out costs a JVM.
_SIZES_LAST_SECONDS: Final = 300.0
_sizes: dict[tuple[object, ...], tuple[float, OffsetSizes]] = {}


@dataclass(frozen=True, kw_only=True, slots=True)
class Policy:
    """A topic's retention, by its configuration; ``None`` is no limit.

    Attributes:
        unknown: Settings that limit it, and that the brokers do not report.
    """

    age_seconds: float | None = None
    size_bytes: float | None = None
    tombstone_seconds: float | None = None
    unknown: tuple[str, ...] = ()

    @classmethod
    def of(cls, config: Mapping[str, str | None]) -> Policy:
        """Read it from a topic's configuration; a service that speaks Kafka may lack a part."""
        policies = {word.strip() for word in (config.get("cleanup.policy") or "delete").split(",")}
        names = ("retention.ms", "retention.bytes") if "delete" in policies else ()
        if "compact" in policies:
            names = (*names, "delete.retention.ms")
        limits = {name: float(value) for name in names if (value := config.get(name)) is not None}
        age, size, tombstone = (
            limits[name] if limits.get(name, -1) >= 0 else None
            for name in ("retention.ms", "retention.bytes", "delete.retention.ms")
        )
        return cls(
            age_seconds=None if age is None else age / 1000,
            size_bytes=size,
            tombstone_seconds=None if tombstone is None else tombstone / 1000,
            unknown=tuple(name for name in names if name not in limits),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Unread:
    """The measured headroom of a partition with unread offsets.

    Attributes:
        offset: The next one that the table has not reached.
        earliest: The first that Kafka still has.
        end: Where the log ends, what an open transaction withholds included.
        written: When the first unread record was, by its timestamp; ``None`` where only offsets
            without a record are unread, or the record has no timestamp.
        offset_bytes: What an offset takes in the log, on average; ``None`` where nobody asked.
        recent: How many offsets were written in the last ``RATE_WINDOW``.
    """

    at: TopicPartition
    offset: int
    earliest: int
    end: int
    written: dt.datetime | None
    offset_bytes: float | None = None
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

    def urgency(self, warning_seconds: float | None = None) -> tuple[int, int, float]:
        """Return what orders headrooms: of two, the greater one is nearer to a loss."""
        return _LEVELS.index(self.level(warning_seconds)), self.lost, -self.seconds

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
            lost = counted(self.lost, "unread offset")
            return f"{self.at}: Kafka has deleted {lost} from {self.offset}"
        about = "in about" if self.limit == "size" else "in"
        when = f"{about} {duration(self.seconds)}" if self.seconds else "at any moment"
        what = "Kafka may delete unread offset"
        if self.limit == "compaction":
            what = "Kafka may drop a delete at unread offset"
        return f"{self.at}: {what} {self.offset} {when} ({self.setting})"

    @property
    def setting(self) -> str:
        """The topic's setting that is the limit."""
        return _SETTINGS[self.limit]


@dataclass(frozen=True, kw_only=True, slots=True)
class Measurement:
    """The measured headroom of a stream's unread records.

    Attributes:
        headrooms: What each limit leaves of each partition where something unread can go.
        oldest: When the oldest unread record was written, by its timestamp.
        unknown: Why a limit is left out, if one is.
    """

    headrooms: tuple[Headroom, ...] = ()
    oldest: dt.datetime | None = None
    unknown: str = ""


def headrooms_of(unread: Unread, policy: Policy, now: dt.datetime) -> Iterator[Headroom]:
    """Yield the headroom that each limit leaves; none where nothing unread can be lost."""
    if unread.offset < unread.earliest:
        lost = unread.earliest - unread.offset
        yield Headroom(
            at=unread.at, offset=unread.offset, limit="time", seconds=0, of_seconds=0, lost=lost
        )
        return
    if unread.written is None:
        return
    age = (now - unread.written).total_seconds()
    limits: dict[Limit, _Left | None] = {
        "time": _by_age(policy.age_seconds, age),
        "compaction": _by_age(policy.tombstone_seconds, age),
        "size": _by_size(unread, policy.size_bytes, age),
    }
    for limit, left in limits.items():
        if left:
            yield Headroom(
                at=unread.at,
                offset=unread.offset,
                limit=limit,
                seconds=max(0.0, left[0]),
                of_seconds=left[1],
                written=unread.written,
            )


def _by_age(limit: float | None, age: float) -> _Left | None:
    return None if limit is None else (limit - age, limit)


def _by_size(unread: Unread, limit: float | None, age: float) -> _Left | None:
    """Estimate when ``limit`` bytes have been written from the unread offset on."""
    size = unread.offset_bytes
    if limit is None or not size:
        return None
    behind = unread.end - unread.offset
    rate = max(behind / max(age, 1.0), unread.recent / RATE_WINDOW.total_seconds()) * size
    return (limit - behind * size) / rate, limit / rate


def read_headroom(reached: Offsets, kafka: Kafka, settings: Settings) -> Measurement:
    """Measure the headroom of partitions with unread offsets.

    Costs five requests and a consumer at most, and one request where everything is read. Only where
    a topic is limited by size is a small JVM asked, for a second, every five minutes:
    confluent-kafka cannot tell a log's size.

    Args:
        reached: The next offset to read of each partition.

    Raises:
        DependencyError: Kafka does not answer, or does not let us ask.
    """
    ends = kafka.written_end(reached)
    behind = {at.topic for at, offset in reached.items() if offset < ends[at]}
    if not behind:
        return Measurement()
    policies = {name: Policy.of(config) for name, config in kafka.topic_configs(behind).items()}
    now = dt.datetime.now(dt.UTC)
    by_size = {topic for topic, policy in policies.items() if policy.size_bytes is not None}
    unread, unknown = _read_unread(reached, ends, by_size, kafka, settings)
    untold = (
        f"the brokers do not tell {', '.join(policy.unknown)} of topic {topic}"
        for topic, policy in policies.items()
        if policy.unknown
    )
    return Measurement(
        headrooms=tuple(
            headroom
            for each in unread
            for headroom in headrooms_of(each, policies[each.at.topic], now)
        ),
        oldest=min((each.written for each in unread if each.written), default=None),
        unknown="; ".join(filter(None, (unknown, *untold))),
    )


def _read_unread(
    reached: Offsets, ends: Offsets, by_size: set[str], kafka: Kafka, settings: Settings
) -> tuple[list[Unread], str]:
    """Measure partitions with unread offsets; say why the size of their logs is unknown, if so."""
    earliest, since = kafka.earliest(reached), dt.datetime.now(dt.UTC) - RATE_WINDOW
    behind = {at: offset for at, offset in reached.items() if offset < ends[at]}
    kept = {at: offset for at, offset in behind.items() if earliest[at] <= offset}
    written = kafka.timestamps_at(kept)
    limited = [at for at in reached if at.topic in by_size and earliest[at] < ends[at]]
    sizes, unknown = _offset_sizes(limited, earliest, ends, settings)
    recent = kafka.first_since(limited, since)
    return [
        Unread(
            at=at,
            offset=offset,
            earliest=earliest[at],
            end=ends[at],
            written=written.get(at),
            offset_bytes=sizes.get(at),
            recent=ends[at] - recent.get(at, ends[at]),
        )
        for at, offset in behind.items()
    ], unknown


def _offset_sizes(
    partitions: Sequence[TopicPartition], earliest: Offsets, ends: Offsets, settings: Settings
) -> OffsetSizes:
    """Return the size of an offset in logs, or why it is unknown: few users have that right."""
    if not partitions:
        return {}, ""
    key, now = (settings.bootstrap_servers(), *partitions), time.monotonic()
    known = _sizes.get(key)
    if known is None or now - known[0] > _SIZES_LAST_SECONDS:
        known = _sizes[key] = now, _read_offset_sizes(partitions, earliest, ends, settings)
    return known[1]


def _read_offset_sizes(
    partitions: Sequence[TopicPartition], earliest: Offsets, ends: Offsets, settings: Settings
) -> OffsetSizes:
    unknown = "the size of the log, which retention.bytes limits"
    try:
        with java_admin(settings) as admin:
            sizes = admin.log_sizes(partitions)
    except IngestionError as error:
        return {}, f"{unknown}: {error}"
    of_offsets = {at: size / (ends[at] - earliest[at]) for at, size in sizes.items()}
    return of_offsets, "" if len(sizes) == len(partitions) else f"{unknown}: no broker tells it"


def duration(seconds: float) -> str:
    """Write a duration in its two largest units: ``3 d 4 h``, ``12 min 30 s``."""
    left, parts = int(seconds), []
    for name, size in (("d", 86400), ("h", 3600), ("min", 60), ("s", 1)):
        number, left = divmod(left, size)
        if number:
            parts.append(f"{number} {name}")
    return " ".join(parts[:2]) or "0 s"
