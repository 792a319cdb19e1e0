"""The start of a run: where the table stands, and whether Kafka is still what it was."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from oncelake.ingestion.declaration.spec import StreamSpec
from oncelake.ingestion.errors import (
    BadFieldError,
    IdentityChangedError,
    OffsetsExpiredError,
    RefusedError,
    counted,
)
from oncelake.ingestion.kafka.admin import Kafka, Topics
from oncelake.ingestion.kafka.offsets import Ends, Offsets, TopicPartition
from oncelake.ingestion.lake.erasure import Erasure, erasures
from oncelake.ingestion.lake.ledger import LedgerRow
from oncelake.ingestion.lake.stream import Stream
from oncelake.ingestion.recovery.continuity import (
    compare_moved,
    refuse_cuts,
    refuse_shorter,
    unproven_logs,
)
from oncelake.ingestion.recovery.position import Position
from oncelake.ingestion.recovery.schema_diff import allowed_changes
from oncelake.ingestion.recovery.standing import heal_stream
from oncelake.ingestion.recovery.topics import identity_of, refuse_another_topic

_SOON_SECONDS = 10.0
# Topics, and ``offsets_to_read``.
_Compared = tuple[Topics, Offsets, Ends, tuple[TopicPartition, ...]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Start:
    """Where a run begins.

    Attributes:
        position: Where the table stands, every current partition included.
        starting: Where to begin in the partitions that the topics have now.
        ends: How far they can be read now: their last stable offsets.
        unproven: Those of which nothing tells whether their log is the one that was read.
        recovered: Ledger rows that an earlier run lost in a crash, written now.
        erasures: Keys that were erased; what was read of them before is left out.
        notices: What was healed, for people.
    """

    position: Position
    starting: Offsets
    ends: Ends
    recovered: tuple[LedgerRow, ...]
    unproven: tuple[TopicPartition, ...] = ()
    erasures: tuple[Erasure, ...] = ()
    notices: tuple[str, ...] = ()

    @property
    def lag(self) -> int:
        """Offsets that there are to read."""
        return self.starting.lag_to(self.ends)


def plan_start(stream: Stream) -> Start | None:
    """Read where the table stands, heal what a crash left, and refuse what must not be guessed.

    Needs the stream's lock, and no Spark.

    Returns:
        Where to begin, or ``None`` when there is no table of ours yet.

    Raises:
        RefusedError: table, topic, cluster or declaration is not what it was, an earlier batch
            is red, or records that were never read are gone.
        DependencyError: Kafka does not answer.
    """
    spec, paths, kafka = stream.spec, stream.paths, stream.kafka
    standing = heal_stream(spec, paths)
    position = standing.position
    if position is None:
        if standing.snapshot.table is not None:
            allowed_changes(spec, paths, is_ours=False)
        # A Kafka, or a topic, that is not there is found out before Spark is started for it.
        kafka.topics(spec.name, spec.subscribed)
        return None
    standing.refuse()
    if any(row.adopted for row in standing.rows) and (why := next(unable_to_adopt(spec), None)):
        ways = f"put it back; or oncelake rebuild {spec.name} --without-lost, without these rows"
        problem = f"{paths.table.where} was adopted, with rows of no record: {why}."
        raise IdentityChangedError(spec.name, problem, remedy=ways)
    topics, starting, ends, unproven = _compare_with_kafka(stream, position)
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
        unproven=unproven,
        recovered=standing.recovered,
        erasures=erasures(standing.rows),
        notices=(*standing.notices, *([unproven_logs(unproven)] if unproven else [])),
    )


def _compare_with_kafka(stream: Stream, position: Position) -> _Compared:
    """Compare a table with its topics; by a shared client's answers, if these say nothing is new.

    They may be older than the table's position.
    """
    if stream.shared is not None:
        with suppress(RefusedError):
            topics, starting, ends, unproven = _compare(stream, position)
            if not starting.lag_to(ends):
                return topics, starting, ends, unproven
    return _compare(stream.unshared, position)


def _compare(stream: Stream, position: Position) -> _Compared:
    topics = refuse_another_topic(stream.spec, stream.kafka, position.identity)
    return topics, *offsets_to_read(stream, position, topics)


def unable_to_adopt(spec: StreamSpec) -> Iterator[str]:
    """Say what a declaration asks of a row that no row of others tells."""
    if spec.is_log:
        yield f"`sink: {spec.sink.name}` has no rows that can be looked up"
    if spec.mode not in ("upsert", "append", "insert_only"):
        yield f"`mode: {spec.mode}` makes rows of all records of a key, and these are not known"
    if spec.deletes == "soft":
        yield "`deletes: soft` marks each row, and the rows that are there have no mark"
    if spec.ignore_null_updates or spec.unavailable == "keep" or spec.settles_moves:
        yield "updates that leave columns out, or move rows, take what older records have said"


def count_unread(spec: StreamSpec, kafka: Kafka) -> int:
    """Count what a stream without a table would read now.

    Raises:
        InvalidSpecError: the declared offsets do not fit the topics as they are now.
        DependencyError: Kafka does not answer.
    """
    partitions = kafka.topics(spec.name, spec.subscribed).partitions
    return starting_offsets(spec, kafka, partitions).lag_to(kafka.stable_end(partitions))


def recheck_start(stream: Stream, position: Position) -> None:
    """Compare a table with Kafka as it is now, when a run that had begun could not read on.

    Raises:
        RefusedError: topic or cluster is another, or records that were not read yet are gone.
        DependencyError: Kafka, which has just been waited for, does not answer soon.
    """
    seconds = min(stream.settings.kafka_timeout_seconds, _SOON_SECONDS)
    settings = stream.settings.model_copy(update={"kafka_timeout_seconds": seconds})
    _compare(Stream(spec=stream.spec, settings=settings), position)


def begin_offsets(position: Position, topics: Topics) -> Offsets:
    """Return the offset to begin at, of every partition that the topics have now.

    A partition that the table does not know was added since, and begins at 0.
    """
    return Offsets({at: position.next.get(at, 0) for at in topics.partitions})


def offsets_to_read(
    stream: Stream, position: Position, topics: Topics
) -> tuple[Offsets, Ends, tuple[TopicPartition, ...]]:
    """Return where to begin, and the last stable offset, of every partition there is now.

    Beside them, the partitions of which nothing tells whether their log is the one that was read.

    Raises:
        OffsetsExpiredError: Kafka no longer has the records to begin with; names the lost range
            of each partition.
        TopicTruncatedError: a partition ends before the offset to begin at, or has lost its end
            and grown again.
    """
    spec, kafka, begin = stream.spec, stream.kafka, begin_offsets(position, topics)
    if lost := begin.ranges_below(kafka.earliest(topics.partitions)):
        raise OffsetsExpiredError(
            spec.name,
            f"Kafka has deleted records that were never read: {', '.join(map(str, lost))} "
            f"({counted(sum(map(len, lost)), 'offset')}).",
            remedy=f"if they cannot be restored, oncelake accept {spec.name} --reason '…' records "
            "the loss in the ledger and goes on after it",
        )
    ends = kafka.stable_end(topics.partitions)
    refuse_shorter(spec.name, begin, ends)
    found = compare_moved(kafka, position, ends)
    refuse_cuts(stream.paths, found.cuts, position.next)
    return begin, ends, found.unproven


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
    if problems := offset_problems(kafka, partitions, named):
        raise BadFieldError(
            spec.name,
            ("starting", "offsets"),
            f"{'; '.join(problems)}. Next: write one offset for every partition, or "
            "`starting: earliest`",
        )
    return Offsets(named)


def offset_problems(
    kafka: Kafka, partitions: Sequence[TopicPartition], named: Mapping[TopicPartition, int]
) -> list[str]:
    """Say why a stream cannot begin at offsets, by partition; nothing where it can."""
    earliest, ends = kafka.earliest(partitions), kafka.stable_end(partitions)
    return [
        *(f"names no offset for {at}" for at in partitions if at not in named),
        *(f"{at} does not exist" for at in sorted(named.keys() - set(partitions))),
        *(
            f"{at}: {named[at]} lies outside of what Kafka holds, {earliest[at]} to {ends[at]}"
            for at in partitions
            if at in named and not earliest[at] <= named[at] <= ends[at]
        ),
    ]
