"""The start of a run: where the table stands, and whether Kafka is still what it was."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from ingestion.declaration.spec import StreamSpec
from ingestion.errors import (
    IdentityChangedError,
    InvalidSpecError,
    OffsetsExpiredError,
    TopicTruncatedError,
)
from ingestion.kafka.admin import Kafka, Topics
from ingestion.kafka.offsets import Offsets, Range, TopicPartition
from ingestion.lake.commit_metadata import UNKNOWN, Identity
from ingestion.lake.ledger import LedgerRow
from ingestion.lake.paths import StreamPaths
from ingestion.recovery.heal import heal
from ingestion.recovery.ledger import ledger_notices, load_or_archive_ledger
from ingestion.recovery.position import Position, identity_of, refuse_another_topic
from ingestion.recovery.read_position import read_position, refuse_red
from ingestion.recovery.side_tables import check_side_tables_complete, refuse_damaged_side_tables
from ingestion.settings import Settings

_SOON_SECONDS = 10.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Start:
    """Where a run begins.

    Attributes:
        position: Where the table stands, every current partition included.
        starting: Where to begin in the partitions that the topics have now.
        ends: How far they can be read now: their last stable offsets.
        recovered: Ledger rows that an earlier run lost in a crash, written now.
        notices: What was mended, for people.
    """

    position: Position
    starting: Offsets
    ends: Offsets
    recovered: tuple[LedgerRow, ...]
    notices: tuple[str, ...] = ()

    @property
    def lag(self) -> int:
        """Offsets that there are to read."""
        return self.starting.lag_to(self.ends)


def plan_start(spec: StreamSpec, paths: StreamPaths, kafka: Kafka) -> Start | None:
    """Learn where the table stands, heal what a crash left, and refuse what must not be guessed.

    Needs the stream's lock, and no Spark.

    Returns:
        Where to begin, or ``None`` when there is no table of ours yet.

    Raises:
        RefusedError: table, topic, cluster or declaration is not what it was, an earlier batch
            is red, or records that were never read are gone.
        DependencyError: Kafka does not answer.
    """
    memory = load_or_archive_ledger(paths)
    position = read_position(spec.name, paths, memory)
    if position is None:
        # A Kafka, or a topic, that is not there is found out before Spark is started for it.
        kafka.topics(spec.name, spec.subscribed)
        return None
    refuse_changed_identity(spec, position.identity)
    topics = refuse_another_topic(spec, kafka, position.identity)
    mine = memory.rows_of(position.table_id)
    refuse_damaged_side_tables(paths)
    healed = heal(spec, paths, position, mine)
    refuse_red(spec.name, healed.rows)
    check_side_tables_complete(spec.name, paths, healed.rows)
    starting, ends = offsets_to_read(spec, position, kafka, topics)
    # A topic that is no longer declared keeps its id, for the day it is declared again.
    known = {**position.identity.topic_ids, **topics.ids}
    return Start(
        position=replace(
            position,
            identity=replace(identity_of(spec, topics), topic_ids=known),
            next=position.next.with_new(starting),
        ),
        starting=starting,
        ends=ends,
        recovered=healed.recovered,
        notices=ledger_notices(memory, healed.recovered),
    )


def recheck_start(spec: StreamSpec, position: Position, settings: Settings) -> None:
    """Compare a table with Kafka as it is now, when a run that had begun could not read on.

    Raises:
        RefusedError: topic or cluster is another, or records that were not read yet are gone.
        DependencyError: Kafka, which has just been waited for, does not answer soon.
    """
    seconds = min(settings.kafka_timeout_seconds, _SOON_SECONDS)
    kafka = Kafka(settings.model_copy(update={"kafka_timeout_seconds": seconds}))
    topics = refuse_another_topic(spec, kafka, position.identity)
    offsets_to_read(spec, position, kafka, topics)


def begin_offsets(position: Position, topics: Topics) -> Offsets:
    """Return the offset to begin at, of every partition that the topics have now.

    A partition that the table does not know was added since, and begins at 0.
    """
    return Offsets({at: position.next.get(at, 0) for at in topics.partitions})


def offsets_to_read(
    spec: StreamSpec, position: Position, kafka: Kafka, topics: Topics
) -> tuple[Offsets, Offsets]:
    """Return where to begin, and the last stable offset, of every partition there is now.

    Raises:
        OffsetsExpiredError: Kafka no longer has the records to begin with; names the lost range
            of each partition.
        TopicTruncatedError: a partition ends before the offset to begin at.
    """
    begin = begin_offsets(position, topics)
    lost = lost_ranges(begin, kafka.earliest(topics.partitions))
    if lost:
        raise OffsetsExpiredError(
            spec.name,
            f"Kafka has deleted records that were never read: {', '.join(map(str, lost))} "
            f"({sum(map(len, lost))} offsets).",
            remedy=f"if they cannot be brought back, oncelake accept {spec.name} --reason '…' "
            "writes the loss into the ledger and goes on behind it",
        )
    ends = kafka.stable_end(topics.partitions)
    for at, offset in begin.items():
        if ends[at] < offset:
            raise TopicTruncatedError(
                spec.name,
                f"{at} ends at offset {ends[at]}, and the table has read up to {offset}: the topic "
                "has lost records that the table holds.",
                remedy=f"oncelake adopt-topic {spec.name}, to read on from the topic as it is now",
            )
    return begin, ends


def lost_ranges(begin: Offsets, earliest: Offsets) -> tuple[Range, ...]:
    """Return what retention has deleted between where we would begin and what is left."""
    return tuple(
        Range(topic=at.topic, partition=at.partition, start=offset, end=earliest[at])
        for at, offset in begin.items()
        if earliest[at] > offset
    )


def refuse_changed_identity(spec: StreamSpec, known: Identity) -> None:
    """Make sure that mode, keys and order are those that the table was written with.

    Raises:
        IdentityChangedError: they are not.
    """
    if known != UNKNOWN and known.rule != spec.rule:
        raise IdentityChangedError(
            spec.name,
            f"the table was written with mode {known.rule}; the file declares {spec.rule}.",
            remedy=_put_back_or_rebuild(spec.name),
        )
    if known == UNKNOWN or (known.keys, known.order) == (spec.keys, spec.sequence_by):
        return
    raise IdentityChangedError(
        spec.name,
        f"the table was written with keys {list(known.keys)} and sequence_by {list(known.order)}; "
        f"the file declares keys {list(spec.keys)} and sequence_by {list(spec.sequence_by)}.",
        remedy=_put_back_or_rebuild(spec.name),
    )


def _put_back_or_rebuild(stream: str) -> str:
    return (
        f"put {stream}.yaml back, or oncelake rebuild {stream}, which makes the table anew beside "
        "the old one"
    )


def starting_offsets(
    spec: StreamSpec, kafka: Kafka, partitions: Iterable[TopicPartition]
) -> Offsets:
    """Return the offset to begin at, of every partition.

    Raises:
        InvalidSpecError: the declared offsets do not fit the topics as they are now.
        DependencyError: Kafka does not answer.
    """
    wanted, begin = tuple(partitions), spec.starting
    if begin.offsets is not None:
        return _declared(spec, kafka, wanted, begin.offsets)
    if begin.timestamp is not None:
        return kafka.first_since(wanted, begin.timestamp)
    return kafka.earliest(wanted) if begin.at == "earliest" else kafka.stable_end(wanted)


def _declared(
    spec: StreamSpec,
    kafka: Kafka,
    partitions: tuple[TopicPartition, ...],
    offsets: Mapping[str, Mapping[int, int]],
) -> Offsets:
    """Take the offsets that are written down, if they name every partition and lie within it."""
    named = {
        TopicPartition(topic, partition): offset
        for topic, of_topic in offsets.items()
        for partition, offset in of_topic.items()
    }
    earliest, ends = kafka.earliest(partitions), kafka.stable_end(partitions)
    problems = [
        *(f"names no offset for {at}" for at in partitions if at not in named),
        *(f"{at} does not exist" for at in sorted(named.keys() - set(partitions))),
        *(
            f"{at}: {named[at]} lies outside of what Kafka holds, {earliest[at]} to {ends[at]}"
            for at in partitions
            if at in named and not earliest[at] <= named[at] <= ends[at]
        ),
    ]
    if problems:
        raise InvalidSpecError(
            f"{spec.name}.yaml: starting.offsets: {'; '.join(problems)}. Next: write one offset "
            "for every partition, or `starting: earliest`"
        )
    return Offsets(named)
