"""Where a table stands: its seq, its epoch, and the next offset of every partition."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from ingestion.declaration.spec import StreamSpec
from ingestion.errors import ClusterChangedError, TopicMissingError, TopicRecreatedError
from ingestion.kafka.admin import Kafka, Topics
from ingestion.kafka.offsets import Offsets
from ingestion.lake.commit_metadata import UNKNOWN, CommitMetadata, CountedRange, Identity, Kind


@dataclass(frozen=True, kw_only=True, slots=True)
class Position:
    """Where a table stands.

    Attributes:
        table_id: Delta's id of the table.
        seq: Number of its last batch; 0 before the first.
        epoch: Life of the stream's identity.
        identity: What its offsets and order mean.
        columns: The declared columns it was last written with; empty when nothing remembers.
        next: Next offset of every partition it knows.
        learned_from: What said so: the newest commit, the ledger once that has aged out, or the
            rows themselves, which give a lower bound.
    """

    table_id: str
    seq: int
    epoch: int
    identity: Identity
    columns: str
    next: Offsets
    source: Literal["commit", "ledger", "rows"]

    def next_metadata(
        self,
        run_id: str,
        *,
        kind: Kind = "ingest",
        ranges: tuple[CountedRange, ...] = (),
        counts: Mapping[str, int] | None = None,
    ) -> CommitMetadata:
        """Begin the metadata of the commit that follows."""
        return CommitMetadata(
            kind=kind,
            seq=self.seq + 1,
            run_id=run_id,
            epoch=self.epoch,
            identity=self.identity,
            columns=self.columns,
            ranges=ranges,
            next=self.next.advanced_by(counted.range for counted in ranges),
            counts=counts or {},
        )

    def after(self, metadata: CommitMetadata) -> Position:
        """Return the position once ``metadata`` is committed."""
        return replace(
            self,
            seq=metadata.seq,
            epoch=metadata.epoch,
            identity=metadata.identity,
            next=metadata.next,
            source="commit",
        )


def identity_of(spec: StreamSpec, topics: Topics) -> Identity:
    """Return the identity that the declaration and the cluster give a stream now."""
    return Identity(
        cluster_id=topics.cluster_id,
        topic_ids=topics.ids,
        keys=spec.keys,
        order=spec.sequence_by,
        rule=spec.rule,
    )


def refuse_another_topic(spec: StreamSpec, kafka: Kafka, identity: Identity) -> Topics:
    """Make sure that the offsets still mean the same records.

    A topic that was deleted and made again, and is longer than before, raises no error anywhere
    else: its records below our offset would be skipped in silence.

    Raises:
        ClusterChangedError: another cluster answers.
        TopicRecreatedError: a topic's id is another.
    """
    try:
        found = kafka.topics(spec.name, spec.subscribed)
    except TopicMissingError:
        # It is not missing where it is looked for in the wrong place.
        _refuse_another_cluster(spec, kafka, identity, kafka.cluster_id())
        raise
    _refuse_another_cluster(spec, kafka, identity, found.cluster_id)
    if identity == UNKNOWN:
        return found
    for name, topic_id in found.ids.items():
        known = identity.topic_ids.get(name, topic_id)
        if known != topic_id:
            raise TopicRecreatedError(
                spec.name,
                f"topic {name} was deleted and created again: its id was {known} and is "
                f"{topic_id}, so the table's offsets mean other records.",
                remedy=f"oncelake adopt-topic {spec.name}, to read the new topic from its start "
                "into the same table",
            )
    return found


def _refuse_another_cluster(
    spec: StreamSpec, kafka: Kafka, identity: Identity, cluster_id: str
) -> None:
    if identity == UNKNOWN or cluster_id == identity.cluster_id:
        return
    raise ClusterChangedError(
        spec.name,
        f"the table was filled from cluster {identity.cluster_id}; {kafka.address} is cluster "
        f"{cluster_id}.",
        remedy=f"correct ONCELAKE_KAFKA, or, if this cluster replaces the other, "
        f"oncelake adopt-topic {spec.name}",
    )
