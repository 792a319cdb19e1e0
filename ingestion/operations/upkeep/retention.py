"""How much headroom a stream's unread records have, and whether a person should know."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from typing import Any, Literal

from oncelake.ingestion.declaration.spec import StreamSpec
from oncelake.ingestion.errors import IngestionError
from oncelake.ingestion.kafka.offsets import Offsets
from oncelake.ingestion.kafka.retention import Headroom, Level, duration, read_headroom
from oncelake.ingestion.lake.stream import Stream
from oncelake.ingestion.recovery.position import read_position
from oncelake.ingestion.recovery.standing import ALTERED
from oncelake.ingestion.recovery.start import begin_offsets
from oncelake.ingestion.recovery.topics import refuse_another_topic, resolve_topics
from oncelake.ingestion.settings import Settings
from oncelake.ingestion.storage.volumes import translate_disk_errors


@dataclass(frozen=True, kw_only=True, slots=True)
class Retention:
    """The records that Kafka may delete before a stream has read them.

    Attributes:
        least: The headroom nearest to a loss by its level, and by its seconds within one level;
            ``None`` when nothing unread can go.
        oldest_unread: When the oldest unread record was written, by its timestamp.
        unknown: Why the headroom, or a limit of it, could not be measured.
    """

    spec: StreamSpec
    least: Headroom | None = None
    oldest_unread: dt.datetime | None = None
    unknown: str = ""

    @property
    def level(self) -> Level | Literal["unknown"]:
        """Judge it by the stream's declaration."""
        warning = self.spec.retention_warning_seconds
        known: Level = self.least.level(warning) if self.least else "ok"
        return "unknown" if self.unknown and known == "ok" else known

    @property
    def is_low(self) -> bool:
        """Tell whether records may be lost soon, or are."""
        return self.level in {"low", "critical", "lost"}

    def __str__(self) -> str:
        name = self.spec.name
        if self.level == "unknown":
            return f"{name}: the retention headroom is unknown: {self.unknown}"
        if self.least is None:
            return f"{name}: Kafka holds nothing unread that it may delete"
        if not self.is_low:
            return f"{name}: {self.least}"
        if self.least.lost:
            return f"{name}: {self.least}. Next: oncelake status {name}, which says what to do"
        return (
            f"{name}: {self.least}; {self._threshold}. Next: oncelake run {name}, or, if that "
            f"takes too long or is refused, raise {self.least.setting} of topic "
            f"{self.least.at.topic}"
        )

    @property
    def _threshold(self) -> str:
        if self.spec.retention_warning:
            return f"retention_warning is {self.spec.retention_warning}"
        granted = duration(self.least.of_seconds) if self.least else ""
        return f"that is less than a quarter of the {granted} that the topic retains"

    def document(self) -> dict[str, Any]:
        """Return the JSON form."""
        least = self.least
        where = {**least.at._asdict(), "offset": least.offset} if least else {}
        limit = {"limit": least.limit, "lost": least.lost} if least else {}
        return {"level": self.level, **where, **limit, "says": str(self)}


def retention_of(stream: Stream, reached: Offsets) -> Retention:
    """Measure the headroom behind the offsets that a stream has reached; topics by name."""
    warning = stream.spec.retention_warning_seconds
    try:
        measured = read_headroom(reached, stream.kafka, stream.settings)
    except IngestionError as error:
        return Retention(spec=stream.spec, unknown=str(error))
    return Retention(
        spec=stream.spec,
        least=max(measured.headrooms, key=lambda each: each.urgency(warning), default=None),
        oldest_unread=measured.oldest,
        unknown=measured.unknown,
    )


def retention_now(spec: StreamSpec, settings: Settings) -> Retention:
    """Measure the headroom of a stream as its table stands; before its first run there is none.

    Needs neither lock nor Spark, so it can be told while runs are refused, hang, or are not there.
    """
    try:
        with translate_disk_errors(spec.name):
            stream = Stream(spec=spec, settings=settings)
            at = read_position(stream.paths, *ALTERED)
            if at is None:
                return Retention(spec=spec)
            stream = resolve_topics(stream)
            topics = refuse_another_topic(stream.spec, stream.kafka, at.identity)
            return retention_of(stream, begin_offsets(at, topics))
    except IngestionError as error:
        return Retention(spec=spec, unknown=str(error))
    except Exception as error:  # noqa: BLE001 (unknown is an answer; other streams can be known)
        return Retention(spec=spec, unknown=f"{type(error).__name__}: {error}")
