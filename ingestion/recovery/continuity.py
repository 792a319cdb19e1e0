"""Whether Kafka still holds the log that was read: it may have been cut, and have grown again.

The last record read of a partition must still be at its offset. Where retention or compaction has
removed it, the epoch of the leader that it was read from decides: Kafka knows where each ends. What
neither tells is not proven, and said so.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from typing import cast

from confluent_kafka import Message

from oncelake.ingestion.errors import DependencyError, MissingRightError, TopicTruncatedError
from oncelake.ingestion.kafka.admin import Kafka
from oncelake.ingestion.kafka.client import timestamp_micros_of
from oncelake.ingestion.kafka.last_record import LastRecord, LastRecords, moment
from oncelake.ingestion.kafka.offsets import Ends, Offsets, Range, TopicPartition
from oncelake.ingestion.lake.paths import StreamPaths
from oncelake.ingestion.lake.stream import Stream
from oncelake.ingestion.recovery.position import Position


@dataclass(frozen=True, kw_only=True, slots=True)
class Cut:
    """A partition that lost its end, with records that were read, and grew again.

    Attributes:
        known: The last record that was read.
        found: What shows that it is gone, in words.
    """

    at: TopicPartition
    known: LastRecord
    found: str

    def __str__(self) -> str:
        """Say what was expected, and what is there."""
        return f"{self.at}: the last record read was at {self.known}; {self.found}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Continuity:
    """How the logs of now compare with those that were read.

    Attributes:
        cuts: Partitions that lost records which were read, and grew again.
        unproven: Partitions of which nothing can tell.
    """

    cuts: tuple[Cut, ...] = ()
    unproven: tuple[TopicPartition, ...] = ()


def compare_moved(
    kafka: Kafka,
    position: Position,
    ends: Ends,
    *,
    known: Container[tuple[TopicPartition, int]] = (),
) -> Continuity:
    """Compare the logs of partitions where something has changed since they were read.

    That is one with a new record, or with another leader, or the same that was started again. Who
    may not read the topic compares nothing: whoever reads it does.

    Args:
        kafka: The client.
        position: Where the table stands.
        ends: How the partitions end now.
        known: Partitions and leaders' epochs that have been compared.

    Raises:
        DependencyError: Kafka does not answer.
    """
    reached, epochs = position.next, ends.leader_epochs
    moved = {
        at: record
        for at, record in position.last.items()
        if at in ends
        and (at, epochs[at]) not in known
        and (ends[at] > reached[at] or epochs[at] != record.leader_epoch)
    }
    try:
        return compare_logs(kafka, moved, reached, ends)
    except MissingRightError:
        return Continuity()


def compare_logs(kafka: Kafka, last: LastRecords, reached: Offsets, ends: Ends) -> Continuity:
    """Find the last records that were read; of none nothing is asked.

    Behind one that is there, up to the offset that was reached, there must still be no other.

    Raises:
        DependencyError: Kafka does not answer.
    """
    known = {at: record for at, record in last.items() if at in ends}
    there = kafka.first_records({at: record.offset for at, record in known.items()})
    cuts, gone, empty = [], {}, []
    for at, record in known.items():
        is_same = _is_same(record, there.get(at))
        if is_same is None:
            gone[at] = record
        elif not is_same:
            cuts.append(Cut(at=at, known=record, found=_described(there[at])))
        elif record.offset + 1 < reached[at]:
            empty.append(
                Range(
                    topic=at.topic, partition=at.partition, start=record.offset + 1, end=reached[at]
                )
            )
    filled = dict(kafka.records_in(empty)) if empty else {}
    cuts += [
        Cut(at=at, known=known[at], found=f"offset {offset} behind it was empty, and holds one")
        for at, offset in filled.items()
    ]
    of_epochs, unproven = _by_leader_epochs(kafka, gone, ends)
    return Continuity(cuts=(*cuts, *of_epochs), unproven=unproven)


def refuse_shorter(
    stream: str, reached: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]
) -> None:
    """Make sure that no log ends before what was read of it.

    Raises:
        TopicTruncatedError: one does.
    """
    for at, offset in reached.items():
        if ends.get(at, offset) < offset:
            raise TopicTruncatedError(
                stream,
                f"{at} ends at offset {ends[at]}, and the table has read up to {offset}: the topic "
                "has lost records that the table holds.",
                remedy=f"oncelake adopt-topic {stream} --yes, to read on from the topic as it is "
                "now",
            )


def refuse_cut_meanwhile(
    stream: Stream, planned: Iterable[Range], before: Mapping[TopicPartition, int], ends: Ends
) -> None:
    """Make sure that no log was cut while a batch was read of it.

    Where the leader is the same as before, none was; else the epoch of the one before must not have
    ended below the end of the batch.

    Args:
        stream: The stream.
        planned: The ranges of the batch.
        before: The leaders' epochs before it was read.
        ends: How the partitions end now.

    Raises:
        DependencyError: a leader that lacked some of it took over, or, which nothing tells from
            that, some of it was written when another one had already taken over.
    """
    read_to = {part.topic_partition: part.end for part in planned if len(part)}
    now = ends.leader_epochs
    moved = {at: end for at, end in read_to.items() if before.get(at, -1) not in {-1, now[at]}}
    truncated = stream.kafka.truncated(moved, before)
    lost = [at for at, end in read_to.items() if ends[at] < end or at in truncated]
    if lost:
        parts = ", ".join(map(str, lost))
        raise DependencyError(
            f"{stream.name}: {parts} got another leader while a batch was read, and may have lost "
            "records of it. Nothing was committed. Next: run the same command again"
        )


def refuse_cuts(paths: StreamPaths, cuts: Iterable[Cut], reached: Offsets) -> None:
    """Make sure that no log was cut.

    Raises:
        TopicTruncatedError: one was; names the records, and the ways on.
    """
    if not (cuts := tuple(cuts)):
        return
    name, below = paths.stream, ", ".join(f"{cut.at} offset {reached[cut.at]}" for cut in cuts)
    ways = [
        f"oncelake adopt-topic {name} --yes reads the topic from its start into the same table, "
        "where rows of records that Kafka lost stay",
        f"oncelake accept {name} --reason '…' goes on from where the table stands: what is new "
        f"below {below} is never read",
    ]
    if "rebuild" not in paths.sink.kind.cannot:
        ways.insert(0, f"oncelake rebuild {name} makes the table again of what Kafka holds now")
    raise TopicTruncatedError(
        name,
        f"{'; '.join(map(str, cuts))}. The log lost its end, with records that the table holds, "
        f"and grew again: new records below {below} have not been read.",
        remedy="; or ".join(ways),
    )


def unproven_logs(unproven: Iterable[TopicPartition]) -> str:
    """Say of which partitions nothing tells whether their log was cut."""
    named = ", ".join(map(str, unproven))
    return (
        f"{named}: not proven that this is the log that was read: its last record that was read is "
        "gone, by retention or compaction, and its leader is another"
    )


def _is_same(record: LastRecord, message: Message | None) -> bool | None:
    """Tell whether a log has the record where it was read; ``None`` where it holds none there."""
    if message is None or (offset := cast("int", message.offset())) > record.offset:
        return None
    return offset == record.offset and record.is_at(message)


def _by_leader_epochs(
    kafka: Kafka, gone: LastRecords, ends: Ends
) -> tuple[list[Cut], tuple[TopicPartition, ...]]:
    """Find where the epochs ended in which records were read that are gone.

    What retention has left does not tell where an earlier epoch ended, only that it did not end
    before the first record that is left.
    """
    led = {at: r for at, r in gone.items() if r.leader_epoch != ends.leader_epochs[at]}
    told = {at: record for at, record in led.items() if record.leader_epoch >= 0}
    truncated = kafka.truncated(
        {at: record.offset + 1 for at, record in told.items()},
        {at: record.leader_epoch for at, record in told.items()},
    )
    earliest = kafka.earliest(led)
    behind = {at for at, record in led.items() if earliest[at] > record.offset}
    cuts = [
        Cut(at=at, known=told[at], found="the epoch of its leader ended before it")
        for at in sorted(truncated - behind)
    ]
    return cuts, tuple(sorted(behind | (led.keys() - told.keys())))


def _described(message: Message) -> str:
    sent = moment(timestamp_micros_of(message) // 1_000)
    return f"offset {message.offset()} holds another, of {sent}"


def without(last: LastRecords, cuts: Iterable[Cut]) -> Mapping[TopicPartition, LastRecord]:
    """Leave out the last records that are gone."""
    gone = {cut.at for cut in cuts}
    return {at: record for at, record in last.items() if at not in gone}
