"""Whether the topic is the one that the table was filled from, and how much of it is left."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ingestion.declaration.spec import StreamSpec
from ingestion.errors import TopicTruncatedError
from ingestion.kafka.admin import Kafka
from ingestion.kafka.offsets import TopicPartition
from ingestion.lake.commit_metadata import UNKNOWN, Identity
from ingestion.proof.batch import Batch, Commit
from ingestion.proof.horizon import Horizon, doubted_in
from ingestion.recovery.position import refuse_another_topic
from ingestion.recovery.start import refuse_changed_identity
from ingestion.settings import Settings


def look_around(spec: StreamSpec, settings: Settings, identity: Identity,
                batches: Sequence[Batch]) -> Horizon:  # fmt: skip
    """See how far a proof can see.

    Raises:
        RefusedError: topic, cluster or declaration is not the one the table was filled from.
        DependencyError: Kafka does not answer.
    """
    refuse_changed_identity(spec, identity)
    epoch = batches[-1].epoch if batches else 1
    read = [part for batch in batches if batch.epoch == epoch for part in batch.ranges]
    begin = {part.at: part.start for part in reversed(read)}
    topics = dict.fromkeys([*spec.subscribed, *(at.topic for at in begin)])
    # A topic that is no longer declared was read all the same.
    every = spec.model_copy(update={"topic": None, "topics": tuple(topics)})
    kafka = Kafka(settings)
    there = refuse_another_topic(every, kafka, identity).partitions
    _refuse_truncated(spec.name, {p.at: p.end for p in read}, kafka.stable_end(there))
    doubted, through = doubted_in(batches)
    return Horizon(
        epoch=epoch,
        earliest=kafka.earliest(there),
        begin=begin,
        is_ordered=bool(spec.sequence_by),
        doubted=doubted,
        doubted_through=through,
        batches={batch.seq: batch for batch in batches},
    )


def identity_in(commits: Sequence[Commit]) -> Identity:
    """Return what the newest commit of ours says of topics, keys and order."""
    notes = [commit.note for commit in commits if commit.note and "identity" in commit.note]
    if not notes:
        return UNKNOWN
    said = notes[-1]["identity"]
    return Identity(
        cluster_id=said["cluster_id"],
        topic_ids=said["topic_ids"],
        keys=tuple(said["keys"]),
        order=tuple(said["order"]),
        rule=said.get("rule", "upsert"),
    )


def _refuse_truncated(
    stream: str, ends: Mapping[TopicPartition, int], there: Mapping[TopicPartition, int]
) -> None:
    for at, end in ends.items():
        if there.get(at, -1) < end:
            raise TopicTruncatedError(
                stream,
                f"{at} ends at offset {there.get(at, 'nowhere')}, and the table has read up to "
                f"{end}: the topic has lost records that the table holds.",
                remedy=f"oncelake adopt-topic {stream}, to read on from the topic as it is now",
            )
