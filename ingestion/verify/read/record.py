"""One Kafka record as the second client delivers it, and the change to a row that it means."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Iterable
from enum import Enum
from typing import Any, Final, NamedTuple

from oncelake.ingestion.kafka.offsets import TopicPartition

Row = tuple[Any, ...]
Place = tuple[Any, ...]

EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
# A column has a time of Kafka's from the first day of today's calendar until the end of 9999.
FIRST_MS: Final = (dt.datetime(1582, 10, 15, tzinfo=dt.UTC) - EPOCH) // dt.timedelta(milliseconds=1)
_FIRST: Final = dt.datetime.min.replace(tzinfo=dt.UTC)
_LAST: Final = dt.datetime.max.replace(tzinfo=dt.UTC)
LAST_MS: Final = (_LAST - EPOCH) // dt.timedelta(milliseconds=1)

# What the engine adds to the declared columns, in the order in which rows are compared.
SYSTEM_COLUMNS: Final = ("_topic", "_partition", "_offset", "_timestamp", "_epoch", "_seq")


class Unseen(Enum):
    """Stands for a value that only a record had which Kafka no longer holds."""

    VALUE = "unseen"


UNSEEN: Final = Unseen.VALUE


def text_of(values: Iterable[Any]) -> str:
    """Return a text that is the same for equal values, whatever the time zone of a moment."""
    return repr(
        [
            value.astimezone(dt.UTC) if isinstance(value, dt.datetime) and value.tzinfo else value
            for value in values
        ]
    )


class HighestNaN(float):
    """Not a number, as Spark ranks it: above every number, and equal to itself."""

    def __eq__(self, other: object) -> bool:
        """Compare with whatever else stands at this part of a place."""
        return isinstance(other, HighestNaN)

    def __gt__(self, other: object) -> bool:
        """Stand above all but itself."""
        return self != other

    def __lt__(self, other: object) -> bool:
        """Stand below nothing."""
        return False

    def __hash__(self) -> int:
        """Be one."""
        return 0


def ranked(value: Any) -> Any:
    """Return a value that compares as the engine compares it."""
    return HighestNaN(value) if isinstance(value, float) and math.isnan(value) else value


def at_of(place: Place) -> TopicPartition:
    """Return the partition of a place."""
    return TopicPartition(*place[-4:-2])


def offset_of(place: Place) -> int:
    """Return the offset of a place."""
    return int(place[-2])


class Record(NamedTuple):
    """One Kafka record, undecoded; ``headers`` is ``None`` where its client cannot read them."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] | None = ()

    @property
    def at(self) -> TopicPartition:
        """The partition that the record lies in."""
        return TopicPartition(self.topic, self.partition)

    @property
    def has_time(self) -> bool:
        """Tell whether its time is one that a column can have."""
        return FIRST_MS <= self.timestamp_ms <= LAST_MS

    @property
    def sent(self) -> dt.datetime:
        """Its time as a column has it: the first or last moment of all instead of one beyond."""
        if self.has_time:
            return EPOCH + dt.timedelta(milliseconds=self.timestamp_ms)
        return _FIRST if self.timestamp_ms < 0 else _LAST

    def __str__(self) -> str:
        """Say where the record lies."""
        return f"{self.at} offset {self.offset}"


class RowChange(NamedTuple):
    """The change of one key by a good record.

    Attributes:
        key: The key's values, by ``text_of``.
        place: Epoch, declared order, topic, partition, offset, and which element of the record
            (0 where it is not exploded): greater is newer.
        row: The expected row: declared columns, the element's index where records are exploded,
            ``SYSTEM_COLUMNS``; none for a delete.
        left_out: Which of the declared columns the record leaves out because they have not changed.
        moved_from: By ``text_of``, the key that the row had before, if it was another. That row has
            what the record leaves out.
        record: The record, where it leaves any out or is of a move.
        coerced: How many of its values were of another type than their lenient column.
        is_left: Whether it is a delete by a record that is not of this table.
        is_alone: Whether it is a delete by a record whose own row is not of this table.
        is_gone: Whether that record says that the row is gone from where it was, too; it takes none
            of this table.
        mover: The declared columns of a row that gets this key by a move, or loses it, or is not
            of this table, as far as the record tells them.
        moves: Whether it is by a move.
        has_undeclared: Whether its record's schema has fields that no column names.
        keyed: The key's values.
        is_delete: Whether its record deletes the row, though that may stay, marked as deleted.
    """

    key: str
    place: Place
    row: Row | None
    seq: int
    left_out: tuple[int, ...] = ()
    moved_from: str | None = None
    record: Record | None = None
    coerced: int = 0
    is_left: bool = False
    is_alone: bool = False
    is_gone: bool = False
    mover: Row | None = None
    moves: bool = False
    has_undeclared: bool = False
    keyed: Row = ()
    is_delete: bool = False

    @property
    def at(self) -> TopicPartition:
        """The partition that the record lies in."""
        return at_of(self.place)

    @property
    def offset(self) -> int:
        """The record's offset."""
        return offset_of(self.place)

    @property
    def when(self) -> Place:
        """Its place in a history, which goes by time before the epoch: a topic follows another."""
        epoch, moment, *coordinates = self.place
        return (moment, epoch, *coordinates)

    def __str__(self) -> str:
        """Say where the record lies."""
        return f"{self.at} offset {self.offset}"
