"""The start of a run: where the table stands, and whether Kafka is still what it was."""

from __future__ import annotations

from dataclasses import replace

from pyspark.sql import SparkSession

from ingestion.commits import UNKNOWN, Identity
from ingestion.errors import IdentityChangedError, OffsetsExpiredError, TopicTruncatedError
from ingestion.kafka import Kafka, Topics
from ingestion.lake import StreamPaths
from ingestion.offsets import Offsets, Range
from ingestion.opening import open_table, refuse_other_columns
from ingestion.position import Position, identity_of, refuse_another_topic
from ingestion.recovery import read_position
from ingestion.spec import StreamSpec


def take_position(
    spark: SparkSession, spec: StreamSpec, paths: StreamPaths, *, kafka: Kafka, run_id: str
) -> tuple[Position, Topics]:
    """Learn where the table stands, or open it, and make sure its offsets mean what they meant.

    Raises:
        RefusedError: table, topic, cluster or declaration is not what it was.
    """
    position = read_position(spec.name, paths)
    if position is None:
        topics = kafka.topics(spec.name, spec.subscribed)
        opened = open_table(spark, spec, paths, kafka=kafka, topics=topics, run_id=run_id)
        return opened, topics
    _refuse_changed_identity(spec, position.identity)
    topics = refuse_another_topic(spec, kafka, position.identity)
    refuse_other_columns(spark, spec, paths)
    identity = identity_of(spec, topics)
    # A topic that is no longer declared keeps its id, for the day it is declared again.
    known = {**position.identity.topic_ids, **identity.topic_ids}
    return replace(position, identity=replace(identity, topic_ids=known)), topics


def starting_offsets(spec: StreamSpec, position: Position, kafka: Kafka, topics: Topics) -> Offsets:
    """Return the offset to begin at, of every partition that the topics have now.

    A partition that the table does not know was added since, and begins at 0.

    Raises:
        OffsetsExpiredError: Kafka no longer has the records to begin with; names the lost range
            of each partition.
        TopicTruncatedError: a partition ends before the offset to begin at.
    """
    begin = Offsets({at: position.next.get(at, 0) for at in topics.partitions})
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
    return begin


def lost_ranges(begin: Offsets, earliest: Offsets) -> tuple[Range, ...]:
    """Return what retention has deleted between where we would begin and what is left."""
    return tuple(
        Range(topic=at.topic, partition=at.partition, start=offset, end=earliest[at])
        for at, offset in begin.items()
        if earliest[at] > offset
    )


def _refuse_changed_identity(spec: StreamSpec, known: Identity) -> None:
    if known == UNKNOWN or (known.keys, known.order) == (spec.keys, spec.sequence_by):
        return
    raise IdentityChangedError(
        spec.name,
        f"the table was written with keys {list(known.keys)} and sequence_by {list(known.order)}; "
        f"the file declares keys {list(spec.keys)} and sequence_by {list(spec.sequence_by)}.",
        remedy=f"put {spec.name}.yaml back, or oncelake reset {spec.name}, to ingest the topic "
        "again with the new ones",
    )
