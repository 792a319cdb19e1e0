"""``oncelake adopt-topic``: the topic was made again, and a person says that it is the one."""

from __future__ import annotations

from dataclasses import replace

from ingestion.declaration.spec import StreamSpec
from ingestion.errors import InvalidSpecError
from ingestion.kafka.offsets import Offsets
from ingestion.lake.commit_metadata import UNKNOWN, Identity
from ingestion.lake.ledger import LedgerRow, load_or_archive_ledger
from ingestion.operations.decision import commit_decision, locked
from ingestion.recovery.heal import heal
from ingestion.recovery.position import Position, position_of
from ingestion.recovery.snapshot import read_snapshot
from ingestion.settings import Settings


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
        topics = stream.kafka.topics(stream.name, stream.spec.subscribed)
        ends = stream.kafka.stable_end(topics.partitions)
        cut = {at.topic for at in topics.partitions if ends[at] < position.next.get(at, 0)}
        topic_ids = {**position.identity.topic_ids, **topics.ids}
        identity = replace(position.identity, cluster_id=topics.cluster_id, topic_ids=topic_ids)
        if identity == position.identity and not cut:
            raise InvalidSpecError(
                f"{spec.name}: the topic is the one the table was filled from; nothing to adopt"
            )
        rule = spec.rule if position.identity == UNKNOWN else identity.rule
        metadata = replace(
            position.next_metadata(run_id, kind="accept"),
            epoch=position.epoch + 1,
            identity=replace(identity, keys=spec.keys, order=spec.sequence_by, rule=rule),
            next=_begin(position, identity, stream.kafka.earliest(topics.partitions), cut),
            reason=f"adopted {', '.join(f'{name} ({id})' for name, id in topics.ids.items())}",
        )
        return commit_decision(stream, metadata, position.table_id)


def _begin(position: Position, identity: Identity, earliest: Offsets, cut: set[str]) -> Offsets:
    """Read the topics that are new from their start, and go on with the others where they were.

    Those hold the same records as before, which a mode that folds or appends would take twice.
    """
    known = position.identity
    is_same_cluster = known.cluster_id == identity.cluster_id and known != UNKNOWN
    same = known.topic_ids.items() & identity.topic_ids.items() if is_same_cluster else ()
    kept = {name for name, _ in same} - cut
    begun = {at: position.next.get(at, first) for at, first in earliest.items() if at.topic in kept}
    return Offsets({**earliest, **begun})
