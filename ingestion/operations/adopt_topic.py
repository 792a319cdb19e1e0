"""``oncelake adopt-topic``: the topic was made again, and a person says that it is the one."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from ingestion.declaration.spec import StreamSpec
from ingestion.errors import InvalidSpecError
from ingestion.kafka.admin import Kafka
from ingestion.kafka.offsets import Offsets
from ingestion.lake.commit_metadata import UNKNOWN, Identity
from ingestion.lake.empty_commit import write_empty_commit
from ingestion.lake.failpoints import Failpoint, hit
from ingestion.lake.ledger import Ledger, LedgerRow
from ingestion.lake.lock import Holder, held_by_python
from ingestion.lake.paths import StreamPaths
from ingestion.lake.storage import translate_disk_errors
from ingestion.recovery.heal import heal
from ingestion.recovery.ledger import load_or_archive_ledger
from ingestion.recovery.position import Position, identity_of
from ingestion.recovery.read_position import read_position
from ingestion.recovery.topics import resolve_topics
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
    paths, kafka = StreamPaths.of(spec.name, settings), Kafka(settings)
    with (
        translate_disk_errors(spec.name, *paths.written),
        held_by_python(spec.name, paths, Holder.me(run_id)),
    ):
        spec = resolve_topics(spec, kafka, paths)
        memory = load_or_archive_ledger(paths)
        position = read_position(spec.name, paths, memory, even_if_forgotten=True)
        if position is None:
            raise InvalidSpecError(f"{spec.name}: there is no table yet; oncelake run {spec.name}")
        # The decision takes the next seq: a dead attempt's rows of it must not pass for its own.
        heal(spec, paths, position, memory.rows_of(position.table_id))
        topics = kafka.topics(spec.name, spec.subscribed)
        identity = replace(
            position.identity,
            cluster_id=topics.cluster_id,
            topic_ids={**position.identity.topic_ids, **topics.ids},
        )
        ends = kafka.stable_end(topics.partitions)
        cut = {at.topic for at in topics.partitions if ends[at] < position.next.get(at, 0)}
        if identity == position.identity and not cut:
            raise InvalidSpecError(
                f"{spec.name}: the topic is the one the table was filled from; nothing to adopt"
            )
        reason = f"adopted {', '.join(f'{name} ({id})' for name, id in topics.ids.items())}"
        metadata = replace(
            position.next_metadata(run_id, kind="accept"),
            epoch=position.epoch + 1,
            identity=replace(
                identity,
                keys=identity_of(spec, topics).keys,
                order=spec.sequence_by,
                rule=spec.rule if position.identity == UNKNOWN else identity.rule,
            ),
            next=_begin(position, identity, kafka.earliest(topics.partitions), cut),
            reason=reason,
        )
        commit = write_empty_commit(spec.name, paths, metadata)
        hit(Failpoint.DECIDED)
        row = LedgerRow.of(metadata, commit, position.table_id, counts={})
        Ledger(paths.ledger).put(row)
        return row


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
