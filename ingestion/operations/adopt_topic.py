"""``oncelake adopt-topic``: the topic was made again, and a person says that it is the one."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from ingestion.declaration.spec import StreamSpec
from ingestion.errors import InvalidSpecError
from ingestion.kafka.admin import Topics
from ingestion.kafka.offsets import Offsets
from ingestion.lake.commit_metadata import UNKNOWN, CommitMetadata, Identity
from ingestion.lake.empty_commit import write_empty_commit
from ingestion.lake.failpoints import Failpoint, hit
from ingestion.lake.ledger import Ledger, LedgerRow, load_or_archive_ledger
from ingestion.lake.stream import Stream
from ingestion.operations.locked import locked
from ingestion.recovery.heal import heal
from ingestion.recovery.position import Position, position_of
from ingestion.recovery.snapshot import read_snapshot
from ingestion.recovery.topics import identity_of
from ingestion.settings import Settings


@dataclass(frozen=True, kw_only=True, slots=True)
class FoundTopics:
    """The topics as they are now, beside those that the table was filled from.

    Attributes:
        identity: The table's identity with their ids.
        cut: Topics that end before what the table has read of them.
    """

    topics: Topics
    identity: Identity
    cut: frozenset[str]


def adopt_topic(spec: StreamSpec, settings: Settings, *, run_id: str) -> LedgerRow:
    """Begin a new epoch: read the topics that are new from their start, into the same table.

    Rows of the earlier epoch stay, and lose against any record of the new one. So it also helps
    where nothing remembers what was read: whatever the topics still hold is read again.

    Returns:
        The ledger row of this decision.

    Raises:
        InvalidSpecError: there is no table yet, or the topics are those it was filled from.
        RefusedError: the table is not the one that the ledger remembers.
    """
    with locked(spec, settings, run_id) as stream:
        paths = stream.paths
        snapshot = read_snapshot(paths, load_or_archive_ledger(paths))
        position = position_of(snapshot, even_if_forgotten=True)
        if position is None:
            raise InvalidSpecError(f"{spec.name}: there is no table yet; oncelake run {spec.name}")
        # The decision takes the next seq: a dead attempt's rows of it must not pass for its own.
        heal(stream.spec, paths, position, snapshot.rows)
        found = _find_topics(stream, position)
        if found.identity == position.identity and not found.cut:
            raise InvalidSpecError(
                f"{spec.name}: the topic is the one the table was filled from; nothing to adopt"
            )
        metadata = _new_epoch(stream, position, found, run_id)
        commit = write_empty_commit(paths, metadata)
        hit(Failpoint.DECIDED)
        row = LedgerRow.of(metadata, commit, position.table_id, counts={})
        Ledger(paths.ledger).put(row)
        return row


def _find_topics(stream: Stream, position: Position) -> FoundTopics:
    topics = stream.kafka.topics(stream.name, stream.spec.subscribed)
    ends = stream.kafka.stable_end(topics.partitions)
    return FoundTopics(
        topics=topics,
        identity=replace(
            position.identity,
            cluster_id=topics.cluster_id,
            topic_ids={**position.identity.topic_ids, **topics.ids},
        ),
        cut=frozenset(at.topic for at in topics.partitions if ends[at] < position.next.get(at, 0)),
    )


def _new_epoch(
    stream: Stream, position: Position, found: FoundTopics, run_id: str
) -> CommitMetadata:
    spec, topics, identity = stream.spec, found.topics, found.identity
    earliest = stream.kafka.earliest(topics.partitions)
    return replace(
        position.next_metadata(run_id, kind="accept"),
        epoch=position.epoch + 1,
        identity=replace(
            identity,
            keys=identity_of(spec, topics).keys,
            order=spec.sequence_by,
            rule=spec.rule if position.identity == UNKNOWN else identity.rule,
        ),
        next=_begin(position, identity, earliest, found.cut),
        reason=f"adopted {', '.join(f'{name} ({id})' for name, id in topics.ids.items())}",
    )


def _begin(
    position: Position, identity: Identity, earliest: Offsets, cut: Collection[str]
) -> Offsets:
    """Read the topics that are new from their start, and go on with the others where they were.

    Those hold the same records as before, which a mode that folds or appends would take twice.
    """
    known = position.identity
    is_same_cluster = known.cluster_id == identity.cluster_id and known != UNKNOWN
    kept = {
        name
        for name, topic_id in identity.topic_ids.items()
        if is_same_cluster and known.topic_ids.get(name) == topic_id and name not in cut
    }
    return Offsets(
        {
            at: position.next.get(at, first) if at.topic in kept else first
            for at, first in earliest.items()
        }
    )
